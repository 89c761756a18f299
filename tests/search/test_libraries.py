"""Where libraries take part: at every door that times candidates, in mode `mixed`, unless somebody leaves them out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cuts
import pytest
from attrs import evolve
from cuts.cli import compilation
from cuts.cli.main import main
from cuts.compile import driver, torch_operator
from cuts.compile.loading import Spec
from cuts.compile.plan_cache import plan_key
from cuts.ir.budget import Budget
from cuts.ir.compiled import CompiledGraph, CompileOptions, Mode
from cuts.ir.launch import KernelFunction
from cuts.ops import Registry
from cuts.search.database import Database
from cuts.search.selector import MeasuredSelector
from cuts.search.settings import Settings
from cuts.search.tuner import Tuner

from .fakes import OPENCL, Clock, FakeBench, Inline
from .test_selector import SHORT, chain

SPEC = Spec(Registry.builtin())


class Opened(Exception):
    """A session was opened: a test needs no more."""


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings of sessions that were opened."""
    found: list[Settings] = []

    @contextmanager
    def session(*given: object, settings: Settings | None = None, **more: object) -> Iterator[MeasuredSelector]:
        found.append(settings or Settings())
        raise Opened
        yield

    for place in ("cli.compilation", "compile.driver", "search"):
        monkeypatch.setattr(f"cuts.{place}.tuning_session", session)
    return found


@pytest.mark.parametrize(
    ("command", "libraries"),
    [
        (["tune"], True),
        (["tune", "--no-libraries"], False),
        (["compile", "--tune"], True),
        (["compile", "--frozen", "--no-libraries"], False),
    ],
)
def test_the_command_line_lets_them_take_part(
    command: Sequence[str], libraries: bool, sessions: list[Settings]
) -> None:
    main([*command, "--op", "relu", "--shape", "x=4"])
    assert [settings.libraries for settings in sessions] == [libraries]


@pytest.mark.parametrize("given", [{}, {"libraries": True}, {"libraries": False}])
@pytest.mark.parametrize("way", ["tune", "frozen"])
def test_builds_let_them_take_part(given: dict[str, bool], way: str, sessions: list[Settings]) -> None:
    with pytest.raises(Opened):
        cuts.build(chain(1), "opencl", **{way: True}, **given)  # type: ignore[arg-type]
    assert [settings.libraries for settings in sessions] == [given.get("libraries", True)]


def test_what_is_compiled_without_measurements_calls_none(
    monkeypatch: pytest.MonkeyPatch, sessions: list[Settings]
) -> None:
    monkeypatch.setattr(driver, "is_known", lambda *_: True)
    with pytest.raises(Opened):
        cuts.build(chain(1), "opencl")
    assert [settings.libraries for settings in sessions] == [False]


def test_an_operator_of_pytorch_calls_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever records a CUDA graph can record it."""
    found: list[object] = []
    monkeypatch.setattr(torch_operator, "target_of", lambda device: (OPENCL, 0))
    monkeypatch.setattr(torch_operator, "spec_of", lambda captured: SPEC)
    monkeypatch.setattr(torch_operator, "program_of", lambda plan, ordinal: plan)
    monkeypatch.setattr(torch_operator, "build_tuned", lambda *_, libraries, **more: found.append(libraries))
    monkeypatch.setattr(
        "cuts.frontends.torch.define_operator",
        lambda decl, registry, texts, compile_graph: compile_graph(SimpleNamespace(graph=None), None),
    )
    torch_operator.torch_op([], "relu", tune=True)
    assert found == [False]


@pytest.mark.parametrize(("mode", "asked"), [("mixed", True), ("fusion", False), ("no-fusion", False)])
def test_other_modes_are_without_as_in_the_paper(mode: Mode, asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[CompiledGraph] = []

    def noted(compiled: CompiledGraph, selector: MeasuredSelector) -> CompiledGraph:
        found.append(compiled)
        return compiled

    monkeypatch.setattr(driver, "with_libraries", noted)
    monkeypatch.setattr(driver, "compile_measured", lambda graph, spec, options, selector, run, *_: run(options))
    resources = Clock(Database(None), Inline, FakeBench(lambda kernel: 1e-3), None)
    selector = MeasuredSelector(OPENCL, Tuner(resources), SHORT)
    driver.build_graph(chain(1), SPEC, OPENCL, CompileOptions(mode=mode), selector)
    assert bool(found) == asked
    assert "libraries" in selector.budget.spent


def test_a_plan_is_kept_apart_from_those_of_other_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    selector: Any = SimpleNamespace(settings=Settings(), budget=Budget())
    found = set()
    for libraries, installed in ((True, ()), (True, ("cudnn 9.0",)), (True, ("cudnn 9.1",)), (False, ("cudnn 9.1",))):
        monkeypatch.setattr("cuts.compile.plan_cache.installed_libraries", lambda installed=installed: installed)
        selector.settings = evolve(Settings(), libraries=libraries)
        found.add(plan_key(chain(1), SPEC, OPENCL, CompileOptions(), selector))
    assert len(found) == 4


def test_what_a_plan_calls_is_said_and_its_steps_are_dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(compilation.console, "note", notes.append)
    groups = ({"library": "cudnn 9.1"}, {}, {"library": "cublas 13.2"}, {"library": "cudnn 9.1"})
    kernels = [KernelFunction(f"k_{d}", d, d, (1, 1, 1), (1, 1, 1), ()) for d in ("library", "cuda")]
    plan: Any = SimpleNamespace(parts=[SimpleNamespace(plan=SimpleNamespace(groups=groups), kernels=kernels)])
    compilation._note_libraries(plan)
    assert [note.split(";")[0] for note in notes] == ["the plan has 3 calls of cublas 13.2, cudnn 9.1"]
    compilation._dump_kernels(str(tmp_path), plan)
    assert sorted(p.name for p in (tmp_path / "kernels").iterdir()) == ["0000-k_library.txt", "0001-k_cuda.cu"]
