"""Replay: decisions about a graph hold for other names and other weights.

No search is needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.compile.loading import Spec
from cuts.compile.selection.cached_decisions import compile_measured
from cuts.compile.selection.plan_selection import PlanCheck, PlanTimer, accept_plan, time_nothing
from cuts.ir.compiled import CompiledGraph, CompileOptions, KernelFunction
from cuts.ir.graph import Graph, Node
from cuts.ir.machine import Target
from cuts.ir.segment import FusedGroup
from cuts.ir.types import DType, TensorType
from cuts.ir.verify.graph import verify_graph
from cuts.ops import Registry
from cuts.passes.decisions import ForeignDecisionsError
from cuts.passes.split.splitting import Division, Splitting
from cuts.search.building.factory import BuildResult
from cuts.search.database import Database
from cuts.search.database.exchange import export_pack, import_results
from cuts.search.findings import SearchOutcome
from cuts.search.group_costs import GroupCosts
from cuts.search.session import RunMode, TuningSession
from cuts.search.settings import Settings
from cuts.search.tasks.decisions import structure_of
from cuts.search.tuner.tuner import Tuner

from .fakes import OPENCL, Clock, FakeBench, Inline, fake_compile
from .test_selector import chain, slow_when_fused, tables

pytestmark = pytest.mark.long

GPU = find_target("cuda:h200")
SHORT_SEARCH = Settings(first=2, batch=0, most=2, prove=False)
SPEC = Spec(Registry.builtin())


def rename_graph(graph: Graph) -> Graph:
    """Return a graph under other names of nodes and values."""
    name = lambda value: None if value is None else f"other.{value}"  # noqa: E731
    nodes = tuple(
        evolve(n, name=f"o{n.name}", inputs=tuple(map(name, n.inputs)), outputs=tuple(f"other.{v}" for v in n.outputs))
        for n in graph.nodes
    )
    return Graph(
        "renamed",
        tuple(f"other.{v}" for v in graph.inputs),
        tuple(f"other.{v}" for v in graph.outputs),
        {f"other.{v}": t for v, t in graph.types.items()},
        nodes,
        {f"other.{v}": a for v, a in graph.constants.items()},
    )


def layer(size: int = 14, channels: int = 32, seed: int = 0) -> Graph:
    """Return a convolution, a function, and a product with a long sum.

    The convolution has a Winograd algorithm.
    """
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((channels, channels, 3, 3)).astype(np.float32)
    matrix = rng.standard_normal((channels * size * size, 8)).astype(np.float32)
    types = {"x": TensorType(DType.F32, (1, channels, size, size)), "w": TensorType(DType.F32, weights.shape),
             "m": TensorType(DType.F32, matrix.shape), "c": TensorType(DType.F32, (1, channels, size, size)),
             "r": TensorType(DType.F32, (1, channels, size, size)),
             "f": TensorType(DType.F32, (1, channels * size * size)), "y": TensorType(DType.F32, (1, 8))}  # fmt: skip
    nodes = (
        Node("conv", "conv", ("x", "w"), ("c",), {"pads": (1, 1, 1, 1)}),
        Node("relu", "relu", ("c",), ("r",)),
        Node("flat", "reshape", ("r",), ("f",), {"shape": (1, channels * size * size)}),
        Node("dense", "matmul", ("f", "m"), ("y",)),
    )
    return verify_graph(
        Graph("layer", ("x",), ("y",), types, nodes, {"w": weights, "m": matrix}), Registry.builtin().instances.infer
    )


def no_device(kernel: KernelFunction) -> float:
    raise AssertionError("nothing needs to be timed")


def tune_graph(
    graph: Graph,
    database: Database,
    cost: Callable[[KernelFunction], float],
    target: Target = OPENCL,
    budget: float | None = None,
    further: bool = False,
    wholes: PlanTimer = time_nothing,
    is_right: PlanCheck = accept_plan,
    frozen: bool = False,
    anew: bool = False,
) -> tuple[CompiledGraph, TuningSession]:
    """Compile as the driver does, with a made-up device."""
    bench = FakeBench(cost)
    resources = Clock(database, Inline, bench, budget)
    tuning = TuningSession(target, Tuner(resources, frozen, anew=anew), SHORT_SEARCH, further=further)
    options = CompileOptions()
    run = lambda asked, by: by(graph, SPEC.registry, target, asked, emit)  # noqa: E731
    found = compile_measured(graph, SPEC, options, tuning, run, wholes, is_right)
    tuning.outcome = SearchOutcome(found.findings)
    return found.compiled, tuning


def kernels(found: CompiledGraph) -> list[tuple[str, tuple[int, ...]]]:
    return [(found.kernels[step.kernel].source, found.kernels[step.kernel].grid) for step in found.steps]


@pytest.fixture
def other_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a search prefer other algorithms, and split-K.

    Each declaration with algorithms gets another one.
    """
    whole = Splitting.best

    def best(self: Splitting, group: FusedGroup) -> tuple[float, Division]:
        parts = self.best_part_count(group)
        return (1e-9, Division(parts)) if parts > 1 else whole(self, group)

    monkeypatch.setattr(Splitting, "best", best)
    monkeypatch.setattr("cuts.passes.partitioning.choose_algorithms._cheapest", lambda seconds, margin: max(seconds))


@pytest.mark.parametrize(
    ("graph", "cost", "target"),
    [
        (chain(4), lambda kernel: 1e-3, OPENCL),
        (chain(4), slow_when_fused, OPENCL),
        (tables(5), lambda kernel: 1e-4, evolve(OPENCL, lockstep=True)),
    ],
    ids=["fused", "apart", "side by side"],
)
def test_a_finished_search_is_taken_over(graph: Graph, cost: Callable[[KernelFunction], float], target: Target) -> None:
    database = Database(None)
    before, tuning = tune_graph(graph, database, cost, target)
    assert tuning.tuner.complete
    (answer,) = database.answers()
    assert answer.finished
    assert set(answer.problems) == {p.key for p in tuning.findings.problems}
    again, _ = tune_graph(graph, database, no_device, target)
    assert kernels(again) == kernels(before)
    assert [step.tensors for step in again.steps] == [step.tensors for step in before.steps]
    other, _ = tune_graph(rename_graph(graph), database, no_device, target)
    assert kernels(other) == kernels(before)


@pytest.mark.usefixtures("other_choices")
def test_algorithms_and_divisions_replay_for_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuts.search.building.factory.compile_kernel", fake_compile)
    database = Database(None)
    target = evolve(GPU, bounds=evolve(GPU.bounds, least_modelled=0.0))
    before, _ = tune_graph(layer(), database, lambda kernel: 1e-6, target)
    decisions = database.answers()[0].read()
    assert decisions is not None
    assert any(group.parts > 1 for group in decisions.groups)
    assert len(decisions.algorithms) == 1
    monkeypatch.undo()
    again, _ = tune_graph(layer(seed=1), database, no_device, target)
    assert kernels(again) == kernels(before)


def test_records_of_earlier_versions_divide_no_kernels_within() -> None:
    database = Database(None)
    tune_graph(chain(4), database, lambda kernel: 1e-3)
    (record,) = database.answers()
    found = json.loads(record.decisions)
    for group in found["groups"]:
        group["slices"] = 8
    assert evolve(record, decisions=json.dumps(found)).read() == record.read() is not None
    assert evolve(record, decisions='{"groups": [8]}').read() is None


@pytest.mark.parametrize("otherwise", [False, True])
def test_decisions_about_rewritten_kernels_are_hints(
    otherwise: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere, here = Database(None), Database(None)
    before, _ = tune_graph(chain(4), elsewhere, slow_when_fused)
    export_pack(elsewhere, tmp_path / "pack.json.xz")
    import_results(here, tmp_path / "pack.json.xz")
    if otherwise:
        source = BuildResult.source.fget  # type: ignore[attr-defined]
        monkeypatch.setattr(BuildResult, "source", property(lambda self: f"another version's {source(self)}"))
    now, _ = tune_graph(chain(4), here, (lambda kernel: 1e-3) if otherwise else no_device)
    assert len(before.steps) == 8 and len(now.steps) == (2 if otherwise else 8)
    taken, _ = tune_graph(chain(4), here, no_device)
    assert kernels(taken) == kernels(now)


def test_a_search_that_its_budget_ended_goes_on() -> None:
    database = Database(None)
    _, first = tune_graph(chain(4), database, lambda kernel: 1e-3, budget=70.0)
    assert not database.answers()[0].finished or first.tuner.complete
    database.keep_answer(evolve(database.answers()[0], finished=False))
    _, second = tune_graph(chain(4), database, lambda kernel: 1e-3)
    assert second.tuner.complete
    assert database.answers()[0].finished


def test_slower_plan_replaces_no_faster_one(monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(None)
    before, tuning = tune_graph(chain(4), database, lambda kernel: 1e-3)
    kept = evolve(database.answers()[0], finished=False)
    database.keep_answer(kept)

    monkeypatch.setattr(GroupCosts, "cost", lambda self, group: 1.0)  # every merge seems to take as long
    bench = FakeBench(lambda kernel: 1e-3)
    worse = TuningSession(OPENCL, Tuner(Clock(database, Inline, bench, None)), SHORT_SEARCH)
    options = CompileOptions()
    run = lambda asked, by: by(chain(4), SPEC.registry, OPENCL, asked, emit)  # noqa: E731
    found = compile_measured(chain(4), SPEC, options, worse, run)
    assert found.seconds <= tuning.findings.seconds
    assert len(found.compiled.steps) <= len(before.steps)
    assert database.answers()[0].seconds <= kept.seconds


def test_decisions_about_other_units_are_foreign() -> None:
    database = Database(None)
    _, tuning = tune_graph(chain(4), database, lambda kernel: 1e-3)
    assert tuning.findings.made is not None
    for units in ((), ("00000000",) * len(tuning.findings.made.units)):
        replayed = TuningSession(OPENCL, Tuner(Clock(database, Inline, FakeBench(no_device), None)), SHORT_SEARCH)
        replay = replayed.begin(RunMode(evolve(tuning.findings.made, units=units)))
        with pytest.raises(ForeignDecisionsError, match="other units"):
            replay.compile(chain(3), SPEC.registry, OPENCL, CompileOptions(), emit)


def test_records_without_layouts_keep_graph_order_of_dims() -> None:
    types = {value: TensorType(DType.F32, (8, 2, 5 - n, 5 - n)) for n, value in enumerate("xay")}
    nodes = tuple(Node(y, "max_pool", (x,), (y,), {"kernel_shape": (2, 2)}) for x, y in ("xa", "ay"))
    made, database = Graph("pools", ("x",), ("y",), types, nodes, {}), Database(None)
    warps = evolve(OPENCL, lockstep=True, on_host=False)
    _, fresh = tune_graph(made, database, lambda kernel: 1e-4, warps)
    assert fresh.findings.made is not None and fresh.findings.made.ordered
    old = json.loads(database.answers()[0].decisions)
    del old["ordered"]
    earlier = evolve(database.answers()[0], decisions=json.dumps(old)).read()
    assert earlier is not None and not earlier.ordered
    replayed = TuningSession(warps, Tuner(Clock(database, Inline, FakeBench(no_device), None)), SHORT_SEARCH)
    replay = replayed.begin(RunMode(earlier))
    with pytest.raises(ForeignDecisionsError):  # these were made about the other order
        replay.compile(made, SPEC.registry, warps, CompileOptions(), emit)


def test_launches_in_an_impossible_order_are_foreign() -> None:
    database = Database(None)
    before, tuning = tune_graph(chain(4), database, slow_when_fused)
    assert len(before.steps) > 1 and tuning.findings.made is not None
    for order in (
        tuning.findings.made.launches[::-1],
        (tuple(p for places in tuning.findings.made.launches for p in places),),
    ):
        replayed = TuningSession(OPENCL, Tuner(Clock(database, Inline, FakeBench(no_device), None)), SHORT_SEARCH)
        replay = replayed.begin(RunMode(evolve(tuning.findings.made, launches=order)))
        with pytest.raises(ForeignDecisionsError, match="before it is computed"):
            replay.compile(chain(4), SPEC.registry, OPENCL, CompileOptions(), emit)


def test_damaged_decisions_lead_to_a_search() -> None:
    database = Database(None)
    before, _ = tune_graph(chain(2), database, lambda kernel: 1e-3)
    (answer,) = database.answers()
    for text in ("{}", "[", answer.decisions.replace('"segments":[[', '"segments":[[999,')):
        database.keep_answer(evolve(answer, decisions=text))
        again, _ = tune_graph(chain(2), database, lambda kernel: 1e-3)
        assert kernels(again) == kernels(before)


def test_structure_is_that_of_operations_attributes_and_types() -> None:
    graph = layer()
    assert structure_of(rename_graph(graph)) == structure_of(graph)
    assert structure_of(layer(seed=1)) == structure_of(graph)
    assert structure_of(layer(channels=16)) != structure_of(graph)
    nodes = (evolve(graph.nodes[0], attributes={"pads": (1, 1, 1, 1), "group": 1}), *graph.nodes[1:])
    assert structure_of(evolve(graph, nodes=nodes)) != structure_of(graph)
    swapped = chain(2)
    first, *rest = swapped.nodes
    assert structure_of(evolve(swapped, nodes=(evolve(first, inputs=first.inputs[::-1]), *rest))) != structure_of(
        swapped
    )


def test_without_a_device_another_versions_schedules_will_do() -> None:
    database = Database(None)
    before, _ = tune_graph(chain(3), database, lambda kernel: 1e-3)

    def newer(tuner: Tuner) -> TuningSession:
        found = TuningSession(OPENCL, tuner, SHORT_SEARCH)
        found.machine = {**found.machine, "compiler": "another"}
        return found

    bench = FakeBench(no_device)
    tuning = newer(Tuner(Clock(database, Inline, bench, None), frozen=True))
    options = CompileOptions()
    run = lambda asked, by: by(chain(3), SPEC.registry, OPENCL, asked, emit)  # noqa: E731
    found = compile_measured(chain(3), SPEC, options, tuning, run)
    assert kernels(found.compiled) == kernels(before)
    assert found.findings.has_unmeasured
    bench = FakeBench(lambda kernel: 1e-3)
    tuning = newer(Tuner(Clock(database, Inline, bench, None)))
    run = lambda asked, by: by(chain(3), SPEC.registry, OPENCL, asked, emit)  # noqa: E731
    found = compile_measured(chain(3), SPEC, options, tuning, run)
    assert len(found.compiled.steps) == len(before.steps)
    assert bench.samples > 0, "where there is a device, they are tried first"
    assert not found.findings.has_unmeasured


def test_finished_kernels_are_searched_anew_on_request() -> None:
    database = Database(None)
    tune_graph(chain(2), database, lambda kernel: 1e-3)
    _, known = tune_graph(chain(2), database, no_device, further=True)
    assert known.tuner.statistics.searches == []
    _, anew = tune_graph(chain(2), database, lambda kernel: 1e-3, further=True, anew=True)
    searched = [task for search in anew.tuner.statistics.searches for task in search.tasks]
    assert {choice.origin for choice in anew.findings.choices} != {"database"}
    assert len(searched) == len(anew.findings.problems)


def test_final_plan_is_searched_further_on_request() -> None:
    elsewhere, here = Database(None), Database(None)
    unfused, _ = tune_graph(chain(2), elsewhere, slow_when_fused)
    here.keep_answer(elsewhere.answers()[0])
    replayed, _ = tune_graph(chain(2), here, lambda kernel: 1e-3)
    assert len(replayed.steps) == len(unfused.steps) == 4
    further, _ = tune_graph(chain(2), here, lambda kernel: 1e-3, further=True)
    assert len(further.steps) < 4
    assert len(tune_graph(chain(2), here, lambda kernel: 1e-3)[0].steps) == len(further.steps)
