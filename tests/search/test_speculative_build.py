"""Speculative build.

Workers build the kernels of a plan, and their time is reserved as measured.
"""

from __future__ import annotations

import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.ir.compiled import Budget, CompiledGraph, CompileOptions, processor_count
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.passes import make_kernels
from cuts.passes.partitioning import horizontal_fusion as side_by_side
from cuts.passes.pipeline import compile_graph
from cuts.passes.schedule.selection.choose import choose
from cuts.search.session import TuningSession
from cuts.search.speculation import plan_builds as making
from cuts.search.speculation.plan_builds import (
    LOWERING_SECONDS,
    RECORD_SECONDS,
    build_kernels,
    building_seconds,
    kernel_job,
)
from cuts.search.tasks.tuning_task import TuningTask
from cuts.search.tuner.tuner import Tuner

from .fakes import MACHINE, group_of
from .simulation import FakeClock, session
from .test_budgets import SHORT_SEARCH, layers

#: A GPU whose kernels no compiler is needed for.
GPU = evolve(find_target("cuda:sm_90"), dialect="opencl")


def compile_within(budget: Budget, clock: FakeClock, verify: bool = False, **slow: float) -> CompiledGraph:
    tuning = TuningSession(GPU, Tuner(session(budget, clock, **slow)), SHORT_SEARCH)
    options = CompileOptions("no-fusion", budget.seconds, verify=verify, horizontal_fusion=False)
    return tuning.compile(layers(4, 12), Registry.builtin(), GPU, options, emit)


def test_workers_build_the_kernels_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = FakeClock(), FakeClock()
    own = compile_within(Budget.of(20.0, clocks[0]), clocks[0], verify=True)
    monkeypatch.setattr(make_kernels, "lower", None)
    found = compile_within(Budget.of(20.0, clocks[1]), clocks[1])
    assert [k.source for k in found.kernels] == [k.source for k in own.kernels]
    assert [k.info for k in found.kernels] == [k.info for k in own.kernels]
    assert found.steps == own.steps


@pytest.mark.parametrize("build", [4.0, 1e6])
def test_kernels_without_a_worker_are_built_here(build: float) -> None:
    clock = FakeClock()
    found = compile_within(Budget.of(8.0, clock), clock, build=build)
    assert len(found.kernels) >= 4
    assert clock() <= 8.0 + 1.0


@pytest.mark.parametrize("lost", [False, True])
def test_workers_build_kernels_of_shared_launches(lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They equal those of this process.

    It schedules none for a launch, and lowers only those of launches that no worker made.
    """
    widths = range(6)
    types = {f"{t}{n}": TensorType(DType.F32, (8, 16 + n)) for n in widths for t in "xy"}
    nodes = tuple(Node(f"n{n}", "tanh", (f"x{n}",), (f"y{n}",)) for n in widths)
    types["z5"] = types["y5"]  # the same kernel alone
    nodes = (*nodes, Node("again", "tanh", ("y5",), ("z5",)))
    graph = Graph("apart", tuple(f"x{n}" for n in widths), (*(f"y{n}" for n in widths), "z5"), types, nodes)
    own = compile_graph(graph, Registry.builtin(), GPU, CompileOptions(), emit)
    assert any("members" in group for group in own.groups)
    clock = FakeClock()
    monkeypatch.setattr(making, "MIN_WORKER_BUILDS", 1)
    monkeypatch.setattr(side_by_side, "schedule_row", None)
    if not lost:
        monkeypatch.setattr(make_kernels, "lower", None)
    executor = session(Budget.of(20.0, clock), clock, lost=frozenset(["bundle"] if lost else ()))
    tuning = TuningSession(GPU, Tuner(executor), SHORT_SEARCH)
    monkeypatch.setattr(Tuner, "time_launches", lambda self, launches: [None] * len(launches))
    found = tuning.compile(graph, Registry.builtin(), GPU, CompileOptions(budget=20.0, verify=False), emit)
    assert [k.source for k in found.kernels] == [k.source for k in own.kernels]


def test_what_workers_took_says_what_is_kept_back() -> None:
    clock = FakeClock()
    budget = Budget.of(40.0, clock)
    executor = session(budget, clock, build=3.0)
    count = processor_count()
    assert building_seconds(executor, GPU, 100, 0) == pytest.approx(100 * (RECORD_SECONDS + LOWERING_SECONDS))
    problems = [TuningTask(group_of("matmul", ((8, 8), (8, n))), {}, GPU, MACHINE) for n in (8, 16, 24)]
    wanted = {p.key: kernel_job(p, choose(p.form, GPU)[0].schedule) for p in problems}
    assert not build_kernels(executor, wanted), "there are no workers"
    executor.start()
    assert not build_kernels(executor, wanted), "they are still starting"
    executor.has_answered = True
    assert set(build_kernels(executor, wanted)) == set(wanted)
    assert executor.statistics.building == (9.0, 3)
    assert building_seconds(executor, GPU, 100, 50) == pytest.approx(100 * RECORD_SECONDS + 50 * 3.0 / count)
