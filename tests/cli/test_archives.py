"""Archives of torch.export on the command line."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuts.ir.errors import GraphError
from cuts.tests.cli.conftest import Cuts
from cuts.tests.needs import needs_opencl


@pytest.fixture
def archive(tmp_path: Path) -> tuple[Path, Any]:
    """Return a small network's archive and the network."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 5)
    ).eval()
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(module, (torch.randn(2, 3, 6, 6),)), path)
    return path, module


def rewritten(path: Path, change: Any) -> None:
    """Write an archive again with its program changed."""
    with zipfile.ZipFile(path) as old:
        parts = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for name, content in parts.items():
            new.writestr(name, change(content) if name.endswith("models/model.json") else content)


@needs_opencl
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_archive_equals_pytorch(cuts: Cuts, archive: tuple[Path, Any], tmp_path: Path) -> None:
    import torch

    assert cuts("compile", "net.pt2", "--verify").code == 0
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)
    np.savez(tmp_path / "x.npz", input=x)
    assert cuts("run", "net.plan", "--input", "x.npz", "--output", "y.npz").code == 0
    (found,) = np.load(tmp_path / "y.npz").values()
    assert np.allclose(found, archive[1](torch.from_numpy(x)).detach().numpy(), rtol=1e-4, atol=1e-5)
    assert cuts("verify", "net.pt2", "--target", "reference").code == 0


@pytest.mark.filterwarnings("ignore")
def test_broken_archives_and_other_versions_are_said_so(cuts: Cuts, archive: tuple[Path, Any]) -> None:
    path, _ = archive

    def newer(program: bytes) -> bytes:
        return json.dumps(json.loads(program) | {"schema_version": {"major": 99, "minor": 0}}).encode()

    rewritten(path, newer)
    result = cuts("compile", "net.pt2", "--target", "reference")
    assert (result.code, "reads archives of schema version" in result.err, "found 99" in result.err) == (3, True, True)
    rewritten(path, lambda program: b'{"schema_version": {"major": 8}}')
    assert "cannot read this archive" in cuts("compile", "net.pt2", "--target", "reference").err
    path.write_bytes(path.read_bytes()[:900])
    result = cuts("compile", "net.pt2", "--target", "reference")
    assert (result.code, "not a torch.export archive (or a damaged one)" in result.err) == (3, True)
    assert "no such file" in cuts("compile", "none.pt2").err


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damage_anywhere_in_an_archive_is_explained(tmp_path: Path, method: int) -> None:
    pytest.importorskip("torch")
    from cuts.frontends.torch.loading.archive import load_archive

    path = tmp_path / "net.pt2"
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("net/models/model.json", json.dumps({"schema_version": {"major": 99}, "nodes": list(range(40))}))
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes((content[place] ^ 0x41,)) + content[place + 1 :])
        with pytest.raises(GraphError, match=re.escape(str(path))):
            load_archive(path)


@pytest.mark.filterwarnings("ignore")
def test_an_archive_cannot_run_code(cuts: Cuts, archive: tuple[Path, Any], tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    import torch

    torch.save({"args": Bomb()}, tmp_path / "bomb")
    bomb = (tmp_path / "bomb").read_bytes()
    path, _ = archive
    with zipfile.ZipFile(path) as old:
        parts = {name: bomb if name.endswith("sample_inputs/model.pt") else old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for name, content in parts.items():
            new.writestr(name, content)
    assert "cannot read this archive" in cuts("compile", "net.pt2", "--target", "reference").err
    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore")
def test_shapes_of_a_program_are_fixed(cuts: Cuts, archive: tuple[Path, Any]) -> None:
    result = cuts("compile", "net.pt2", "--shape", "input=4x3x6x6")
    assert (result.code, "inputs are: input=2x3x6x6" in result.err) == (2, True)


@pytest.mark.filterwarnings("ignore")
def test_shapes_of_a_program_in_parts_are_fixed(cuts: Cuts, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Foreign(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.linalg.qr(x.exp())[1].exp()

    torch.export.save(torch.export.export(Foreign(), (torch.randn(4, 4),)), tmp_path / "net.pt2")
    for command in ("compile", "run"):
        result = cuts(command, "net.pt2", "--shape", "x=5x5", "--target", "reference")
        assert (result.code, "--shape x: an exported program has fixed shapes" in result.err) == (2, True), result.err
    assert cuts("run", "net.pt2", "--shape", "x=4x4", "--target", "reference").code == 0
    assert cuts("compile", "net.pt2", "--strict", "--target", "reference").code == 3


def test_without_pytorch_an_archive_says_what_to_install(
    cuts: Cuts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.pt2").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "cuts.frontends.torch", None)
    result = cuts("compile", "net.pt2")
    assert (result.code, "pip install 'cuts-compiler[torch]'" in result.err) == (4, True)


@pytest.mark.filterwarnings("ignore")
def test_the_types_of_a_class_are_found_once(archive: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import typing

    from cuts.frontends.torch.loading.archive import load_archive
    from torch._export.serde import serialize

    asked: list[Any] = []
    find = typing.get_type_hints

    def record_call(of: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        asked.append(of)
        return find(of, *arguments, **options)

    monkeypatch.setattr(typing, "get_type_hints", record_call)
    load_archive(archive[0])
    assert len(asked) == len(set(asked)) > 0
    assert serialize.typing is typing


@needs_opencl
@pytest.mark.filterwarnings("ignore")
def test_state_of_an_archive_on_the_command_line(cuts: Cuts, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Counter(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            self.total.add_(x)
            x.mul_(2)
            return self.total * 2, None, 3

    torch.export.save(torch.export.export(Counter(), (torch.ones(3),)), tmp_path / "net.pt2")
    found = cuts("compile", "net.pt2", "--verify", "--time", "--report", "page.html", "--json")
    assert found.code == 0
    assert found.json["state"] == {"total": "f32[3]"}
    assert set(found.json["verify"]["outputs"]) == {"mul", "x.updated", "total.next"}
    np.savez(tmp_path / "x.npz", x=np.ones(3, np.float32))
    for options in (("net.plan",), ("net.pt2",), ("net.pt2", "--target", "reference")):
        run = cuts("run", *options, "--input", "x.npz", "--iters", "2", "--output", "y.npz", "--json").json
        assert run["state"]["total"]["mean"] == 1  # of the first run
        assert run["others"] == {"output_1": None, "output_2": 3}
        assert run["outputs"]["x.updated"]["mean"] == 2
        assert set(np.load(tmp_path / "y.npz")) == {"mul", "x.updated"}
    text = cuts("run", "net.plan").out
    assert "state after this run" in text
    assert "output_1: None" in text
    assert cuts("verify", "net.plan", "--steps").code == 0
    assert cuts("explain", "net.plan").code == 0
