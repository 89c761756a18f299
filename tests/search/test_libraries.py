"""Libraries take part at every entry point that times candidates.

The mode is `mixed`. Users may leave them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cuts
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.backends.library import routine as vendor
from cuts.backends.library.cublas import CuBLAS
from cuts.backends.source.emit import emit
from cuts.cli import compilation
from cuts.cli.main import main
from cuts.compile import driver, torch_operator
from cuts.compile.loading import Spec
from cuts.compile.selection import plan_selection as contest
from cuts.compile.selection.cached_decisions import Run
from cuts.compile.selection.plan_cache import plan_key
from cuts.compile.selection.plan_selection import CandidatePlan
from cuts.ir.compiled import CompiledGraph, CompileOptions, KernelFunction, Mode
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.runtime.plan import make_plan
from cuts.search.database import Database
from cuts.search.findings import Findings
from cuts.search.library_substitutes import with_libraries
from cuts.search.session import TuningSession
from cuts.search.settings import Settings
from cuts.search.tuner.tuner import Tuner
from cuts.tests.backends.hosts import HostCuBLAS
from cuts.tests.needs import needs_cuda

from .fakes import OPENCL, Clock, FakeBench, Inline, fake_compile
from .test_selector import SHORT_SEARCH, chain, tables

SPEC = Spec(Registry.builtin())
GPU = find_target("cuda:h200")


def compile_once(
    graph: Graph, spec: Spec, options: CompileOptions, tuning: TuningSession, run: Run, *_: object
) -> CandidatePlan:
    """Compile without a comparison of plans."""
    made = tuning.begin()
    return CandidatePlan(run(options, made.compile), made.findings)


class Opened(Exception):
    """A session was opened: a test needs no more."""


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings of sessions that were opened."""
    found: list[Settings] = []

    @contextmanager
    def session(*given: object, settings: Settings | None = None, **more: object) -> Iterator[TuningSession]:
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
    monkeypatch.setattr(driver, "has_cached_decisions", lambda *_: True)
    with pytest.raises(Opened):
        cuts.build(chain(1), "opencl")
    assert [settings.libraries for settings in sessions] == [False]


def test_an_operator_of_pytorch_calls_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder of a CUDA graph can record it."""
    pytest.importorskip("torch")
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


def look_ups_and_product() -> Graph:
    """Return five lookups of equal tables, and a product of matrices.

    The lookups share a launch.
    """
    graph = tables(5)
    types = {name: TensorType(DType.F32, (192, 192)) for name in ("a", "b", "p")}
    nodes = (*graph.nodes, Node("product", "matmul", ("a", "b"), ("p",)))
    outputs = (*graph.outputs, "p")
    return Graph("both", (*graph.inputs, "a", "b"), outputs, {**graph.types, **types}, nodes)


@pytest.mark.parametrize(("takes", "calls"), [(1e-4, 1), (2e-3, 0)])
def test_product_beside_a_shared_launch_calls_a_library(
    takes: float, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = CuBLAS(HostCuBLAS())
    monkeypatch.setattr(vendor, "libraries", lambda: (library,))
    monkeypatch.setattr(vendor, "require_library", lambda name: library)
    monkeypatch.setattr("cuts.search.building.factory.compile_kernel", fake_compile)

    def cost(kernel: KernelFunction) -> float:
        shared = any(a.tensor.startswith("1.") for a in kernel.arguments)
        return takes if kernel.dialect == "library" else 1.5e-3 if shared else 1e-3

    resources = Clock(Database(None), Inline, FakeBench(cost), None)
    tuning = TuningSession(GPU, Tuner(resources), SHORT_SEARCH)
    compiled = tuning.compile(look_ups_and_product(), SPEC.registry, GPU, CompileOptions(), emit)
    assert [record.get("members", 1) for record in compiled.groups].count(5) == 1
    found = with_libraries(compiled, tuning.findings, tuning)
    called = [r for s, r in zip(found.steps, found.groups, strict=True) if found.kernels[s.kernel].dialect == "library"]
    assert [record["nodes"] for record in called] == [["product"]] * calls
    plan = make_plan(found, GPU)
    assert plan.distinct_kernels == len(compiled.kernels)
    assert len(plan.kernels) == len(compiled.kernels) + calls


@pytest.mark.parametrize(("mode", "asked"), [("mixed", True), ("fusion", False), ("no-fusion", False)])
def test_other_modes_are_without_as_in_the_paper(mode: Mode, asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []

    def note_libraries(compiled: CompiledGraph, findings: Findings, tuning: TuningSession, last: bool) -> CompiledGraph:
        found.append(last)
        return compiled

    monkeypatch.setattr(driver, "with_libraries", note_libraries)
    monkeypatch.setattr(driver, "compile_measured", compile_once)
    resources = Clock(Database(None), Inline, FakeBench(lambda kernel: 1e-3), None)
    tuning = TuningSession(OPENCL, Tuner(resources), SHORT_SEARCH)
    driver.tune_graph(chain(1), SPEC, OPENCL, CompileOptions(mode=mode), tuning)
    assert found == ([False, True] if asked else [])
    assert "libraries" in tuning.budget.spent


@pytest.mark.parametrize(("calls", "raced"), [((0, 0), []), ((1, 1), [2]), ((0, 1), [2]), ((1, 2), [2, 2])])
def test_plan_with_more_library_places_is_raced_again(
    calls: tuple[int, int], raced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def note_calls(compiled: CompiledGraph, findings: Findings, tuning: TuningSession, last: bool) -> CompiledGraph:
        kernels = tuple(evolve(kernel, name=f"routine_{calls[last]}") for kernel in compiled.kernels)
        return evolve(compiled, kernels=kernels) if calls[last] else compiled

    def first(plans: Sequence[Any], *_: object) -> Any:
        found.append(len(plans))
        return plans[0]

    monkeypatch.setattr(driver, "with_libraries", note_calls)
    monkeypatch.setattr(driver, "select_library_calls", first)
    monkeypatch.setattr(driver, "compile_measured", compile_once)
    resources = Clock(Database(None), Inline, FakeBench(lambda kernel: 1e-3), None)
    tuning = TuningSession(OPENCL, Tuner(resources), SHORT_SEARCH)
    plan = driver.tune_graph(evolve(chain(1), name="raced"), SPEC, OPENCL, CompileOptions(), tuning)
    assert found == raced
    assert any(kernel.name == f"routine_{calls[1]}" for kernel in plan.kernels) == (calls[1] > 0)


def test_plan_keys_differ_by_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for libraries, installed in ((True, ()), (True, ("cudnn 9.0",)), (True, ("cudnn 9.1",)), (False, ("cudnn 9.1",))):
        monkeypatch.setattr(
            "cuts.compile.selection.plan_cache.installed_libraries", lambda installed=installed: installed
        )
        settings = evolve(Settings(), libraries=libraries)
        found.add(plan_key(chain(1), SPEC, OPENCL, CompileOptions(), settings).name)
    assert len(found) == 4


def test_library_calls_are_reported_and_dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(compilation.console, "note", notes.append)
    groups = ({"library": "cudnn 9.1"}, {}, {"library": "cublas 13.2"}, {"library": "cudnn 9.1"})
    kernels = [KernelFunction(f"k_{d}", d, d, (1, 1, 1), (1, 1, 1), ()) for d in ("library", "cuda")]
    plan: Any = SimpleNamespace(parts=[SimpleNamespace(plan=SimpleNamespace(groups=groups), kernels=kernels)])
    compilation._note_libraries(plan)
    assert [note.split(";")[0] for note in notes] == ["the plan has 3 calls of cublas 13.2, cudnn 9.1"]
    compilation._dump_kernels(str(tmp_path), plan)
    assert sorted(p.name for p in (tmp_path / "kernels").iterdir()) == ["0000-k_library.txt", "0001-k_cuda.cu"]


@needs_cuda
def test_plan_with_routines_is_right_on_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any routine up to a hundred times slower counts as faster."""
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("cuts.search.library_routines.MIN_SPEEDUP", 0.01)
    monkeypatch.setattr(contest, "time_valid_plans", lambda *_: (1.0, 2.0))
    kinds = {"a": (1024, 256), "b": (256, 1024), "p": (1024, 1024)}  # too many results to divide their sums
    types = {name: TensorType(DType.F32, shape) for name, shape in kinds.items()}
    graph = Graph("product", ("a", "b"), ("p",), types, (Node("product", "matmul", ("a", "b"), ("p",)),))
    plan = cuts.build(graph, "cuda", tune=True, budget=20)
    assert all(result.ok for result in plan.verify())
    called = ["library" in group for group in plan.plan.groups]
    assert any(called) == bool(vendor.libraries())
    again = cuts.build(graph, "cuda", frozen=True)
    assert ["library" in group for group in again.plan.groups] == called
