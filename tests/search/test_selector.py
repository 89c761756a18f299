"""Measured times decide about the partition.

Short time is spent on the most important measurements first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve
from cuts.backends.source.emit import emit
from cuts.ir.compiled import CompiledGraph, CompileOptions, KernelFunction
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ir.verify.graph import verify_graph
from cuts.ops import Registry
from cuts.passes.fusion.grouping.groups import form_key
from cuts.passes.pipeline import compile_graph
from cuts.search.database import Database
from cuts.search.group_costs import MAX_GROUPS_AT_ONCE
from cuts.search.measured_model import MeasuredModel
from cuts.search.measurement.verdicts import Verdict
from cuts.search.plan_executor import PlanExecutor
from cuts.search.session import TuningSession
from cuts.search.settings import Settings
from cuts.search.tuner.tuner import Tuner

from .fakes import OPENCL, Clock, FakeBench, Inline

SHORT_SEARCH = Settings(first=2, batch=0, most=2, prove=False)


def chain(length: int) -> Graph:
    """Return a graph of products, each followed by an elementwise function."""
    kind = TensorType(DType.F32, (24, 24))
    nodes, value = [], "x"
    types = {"x": kind, **{f"w{n}": kind for n in range(length)}}
    for n in range(length):
        nodes += [Node(f"m{n}", "matmul", (value, f"w{n}"), (f"p{n}",)), Node(f"f{n}", "tanh", (f"p{n}",), (f"y{n}",))]
        types |= {f"p{n}": kind, f"y{n}": kind}
        value = f"y{n}"
    graph = Graph("chain", ("x", *(f"w{n}" for n in range(length))), (value,), types, tuple(nodes))
    return verify_graph(graph, Registry.builtin().instances.infer)


def compile_within(
    cost: Callable[[KernelFunction], float], budget: float | None
) -> tuple[CompiledGraph, Any, FakeBench]:
    """Compile under a budget of kernels that are timed."""
    bench = FakeBench(cost)
    resources = Clock(Database(None), Inline, bench, budget)
    tuning = TuningSession(OPENCL, Tuner(resources), SHORT_SEARCH)
    options = CompileOptions(mode="mixed")
    return tuning.compile(chain(4), Registry.builtin(), OPENCL, options, emit), tuning, bench


def slow_when_fused(kernel: KernelFunction) -> float:
    """Return times where a fused product is slower than its parts.

    The cost model never expects that.
    """
    return 1.0 if "tanh(" in kernel.source and " p2" in kernel.source else 1e-3


@pytest.mark.parametrize("budget", [None, 400.0, 70.0])
def test_group_slower_than_its_parts_is_split(budget: float | None) -> None:
    found, _, _ = compile_within(slow_when_fused, budget)
    assert [len(group["nodes"]) for group in found.groups] == [1] * 8


@pytest.mark.parametrize("budget", [400.0, 70.0])
def test_budgeted_group_ships_only_timed_beside_its_parts(budget: float) -> None:
    found, tuning, _ = compile_within(lambda kernel: 1e-3, budget)
    assert any(len(group["nodes"]) > 1 for group in found.groups)
    forms = {form_key(p.form) for p in tuning.findings.problems}
    assert forms <= set(tuning.known.times.seconds)


def test_decisive_and_longest_kernels_are_measured_first() -> None:
    _, tuning, _ = compile_within(lambda kernel: 1e-3, 1e9)
    tuning.known.times.seconds.clear()
    costs = tuning.model().costs
    (first, *_) = tuning.known.groups.values()
    assert list(costs.to_measure([[first]])) == [form_key(first)]
    assert not costs.to_measure([[]])
    many = dict.fromkeys(range(2 * MAX_GROUPS_AT_ONCE), first)
    tuning.known.groups.clear()
    tuning.known.groups.update(many)
    tuning.known.modelled.update({n: float(n) for n in many})
    assert list(costs.to_measure([])) == list(reversed(range(MAX_GROUPS_AT_ONCE, 2 * MAX_GROUPS_AT_ONCE)))


def test_a_partition_that_stands_is_not_tuned_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    schedule = MeasuredModel.schedule
    monkeypatch.setattr(
        MeasuredModel, "schedule", lambda self, *asked: runs.append(len(asked[0])) or schedule(self, *asked)
    )
    compile_within(lambda kernel: 1e-3, None)
    assert len(runs) == 1


def tables(count: int) -> Graph:
    """Return look-ups of equal tables, which nothing connects."""
    kinds = {
        "t": TensorType(DType.F32, (64, 16)),
        "i": TensorType(DType.I32, (8,)),
        "y": TensorType(DType.F32, (8, 16)),
    }
    types = {f"{name}{n}": kind for n in range(count) for name, kind in kinds.items()}
    nodes = tuple(Node(f"n{n}", "gather", (f"t{n}", f"i{n}"), (f"y{n}",), {"axis": 0}) for n in range(count))
    inputs = tuple(f"{name}{n}" for n in range(count) for name in "ti")
    return Graph("tables", inputs, tuple(f"y{n}" for n in range(count)), types, nodes)


def tuned_tables(together: float, alone: float, libraries: bool = True, budget: float | None = None) -> CompiledGraph:
    """Tune five lookups with given times.

    A launch of several groups takes one time, and one of a group another.
    """

    def cost(kernel: KernelFunction) -> float:
        return together if any(a.tensor.startswith("1.") for a in kernel.arguments) else alone

    bench = FakeBench(cost)
    target = evolve(OPENCL, lockstep=True)
    resources = Clock(Database(None), Inline, bench, budget)
    tuning = TuningSession(target, Tuner(resources), evolve(SHORT_SEARCH, libraries=libraries))
    return tuning.compile(tables(5), Registry.builtin(), target, CompileOptions(), emit)


@pytest.mark.parametrize("libraries", [True, False])
def test_groups_share_a_launch_measured_faster(libraries: bool) -> None:
    found = tuned_tables(2e-4, 1e-4, libraries)
    assert [group["members"] for group in found.groups] == [5]


def test_groups_have_own_launches_measured_faster() -> None:
    assert len(tuned_tables(6e-4, 1e-4).steps) == 5


@pytest.mark.parametrize("alone", [1e-5, 1e-3])
def test_without_time_groups_share_launches_as_modelled(alone: float) -> None:
    """Else a budget would be worse than none."""
    found = tuned_tables(6 * alone, alone, budget=1.0)
    untuned = compile_graph(tables(5), Registry.builtin(), evolve(OPENCL, lockstep=True), CompileOptions(), emit)
    assert [g["members"] for g in found.groups] == [g["members"] for g in untuned.groups] == [5]


@pytest.mark.parametrize(
    ("seconds", "launch", "faster"),
    [
        (1e-3, None, True),
        (1e-3, 1.8e-3, True),
        (1e-3, 2.2e-3, False),  # slower than the model has its groups unfused
        (1e-7, math.inf, False),
    ],
)
def test_modelled_launch_is_used_unless_measured_slower(
    seconds: float, launch: float | None, faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = FakeBench(lambda kernel: 1e-3)
    tuning = TuningSession(OPENCL, Tuner(Clock(Database(None), Inline, bench, None)), SHORT_SEARCH)
    monkeypatch.setattr(Tuner, "time_launches", lambda _, asked: [launch for _ in asked])
    monkeypatch.setattr(PlanExecutor, "joint_task", lambda *_: None)
    for timed in ({}, {"measured": seconds}):
        known = ({}, timed)
        members: Any = [(None, None, SimpleNamespace(score=seconds, measured=each, schedule=None)) for each in known]
        assert tuning.model().compare_launches([members]) == [faster]


def test_time_to_build_launches_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches without a measurement are taken, and compiled after the search."""
    resources = Clock(Database(None), Inline, FakeBench(lambda kernel: 1e-3), 60.0)
    tuning, needed = TuningSession(OPENCL, Tuner(resources), SHORT_SEARCH), list[float]()

    def measure_some(_: Tuner, asked: Sequence[object]) -> list[float | None]:
        needed.append(tuning.budget.needed)
        return [None, 1e-9, None, None]

    monkeypatch.setattr(Tuner, "time_launches", measure_some)
    monkeypatch.setattr(PlanExecutor, "joint_task", lambda *_: None)
    members: Any = [(None, None, SimpleNamespace(score=1e-3, measured={}, schedule=None))] * 2
    assert tuning.model().compare_launches([members] * 4) == [True] * 4
    assert 0 < tuning.budget.needed == pytest.approx(0.75 * needed[0])


def test_launch_with_wrong_results_is_not_used() -> None:
    bench = FakeBench(lambda kernel: 1e-4)
    bench.verdict = lambda kernel: Verdict(
        "wrong" if any(a.tensor.startswith("1.") for a in kernel.arguments) else "ok"
    )
    target = evolve(OPENCL, lockstep=True)
    tuning = TuningSession(target, Tuner(Clock(Database(None), Inline, bench, None)), SHORT_SEARCH)
    found = tuning.compile(tables(5), Registry.builtin(), target, CompileOptions(), emit)
    assert len(found.steps) == 5
