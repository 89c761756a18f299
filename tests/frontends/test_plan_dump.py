"""Plans of `torch.compile`, shown as the environment asks."""

from __future__ import annotations

from pathlib import Path

import cuts
import pytest
from cuts.ir import UsageError
from cuts.runtime import show_plan
from cuts.tests.needs import needs_opencl
from cuts.tests.runtime.handmade import example_plan

torch = pytest.importorskip("torch")


@needs_opencl
def test_a_compiled_function_leaves_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from cuts.compile.torch_backend import cuts_backend

    monkeypatch.setenv("CUTS_DUMP", str(tmp_path))
    monkeypatch.setenv("CUTS_LOGS", "plans, kernels")
    torch._dynamo.reset()
    x = torch.randn(4, 8)
    found = torch.compile(lambda a: torch.relu(a @ a.T), backend=cuts_backend)(x)
    assert torch.allclose(found, torch.relu(x @ x.T), atol=1e-5)
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith("cuts: plan ") and "f32[4, 8]" in line for line in lines)
    assert any(line.startswith("cuts: #0 ") for line in lines)
    (folder,), (page,) = tmp_path.glob("*.plan"), tmp_path.glob("*.html")
    assert page.stem == folder.stem and "<h2>Launches</h2>" in page.read_text(encoding="utf-8")
    assert all(result.ok for result in cuts.load(folder).verify())


def test_nothing_is_shown_without_a_variable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(example_plan(), {})
    assert capsys.readouterr().err == "" and not list(tmp_path.iterdir())


def test_an_unknown_log_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUTS_LOGS", "kernel")
    with pytest.raises(UsageError, match="CUTS_LOGS: unknown name 'kernel'; names are: plans, kernels, sources"):
        show_plan(example_plan(), {})
    monkeypatch.setenv("CUTS_LOGS", "sources")
    show_plan(example_plan(), {})
    assert "__kernel" in capsys.readouterr().err
