"""Partition refinement: longer searches decide the plan again within the budget.

A slower plan never replaces it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
from attrs import evolve, frozen
from cuts.backends.source.emit import emit
from cuts.compile.driver import RunPasses
from cuts.compile.loading import Spec
from cuts.compile.selection import cached_decisions as known
from cuts.compile.selection.cached_decisions import REFINED_GROUP_SCHEDULES, compile_measured
from cuts.compile.selection.plan_selection import PlanTimer, time_nothing
from cuts.ir.compiled import Budget, CompiledGraph, CompileOptions, KernelFunction
from cuts.ops import Registry
from cuts.search.database import Database
from cuts.search.findings import SearchOutcome
from cuts.search.session import TuningSession
from cuts.search.settings import QUICK_SEARCH
from cuts.search.tuner.tuner import Tuner

from .fakes import OPENCL
from .simulation import FakeClock, session
from .test_budgets import SHORT_SEARCH, SLACK, layers

pytestmark = pytest.mark.long

GPU = evolve(OPENCL, on_host=False)
SPEC = Spec(Registry.builtin())
Cost = Callable[[KernelFunction], float]


def lot(seed: int) -> Cost:
    """Return random times of kernels, independent of the cost model."""
    return lambda kernel: 1e-4 * 2 ** (zlib.crc32(f"{seed}{kernel.source}".encode()) % 1000 / 500)


@frozen
class Tuned:
    """Result of a simulated search, its number of passes, and its executor."""

    found: CompiledGraph
    runs: int
    tuning: TuningSession
    taken: float


def tune_chain(
    seed: int,
    seconds: float,
    stop_at: float = float("inf"),
    wholes: PlanTimer = time_nothing,
    known: Database | None = None,
    planning: float = 0.0,
) -> Tuned:
    """Tune a chain of products on a simulated GPU.

    Times are random, and a database may be known. The passes take so many seconds each time.
    """
    clock, cost, runs = FakeClock(ring=stop_at), lot(seed), []
    budget = Budget.of(seconds, clock)
    clock.alarm = budget.stop
    executor = session(budget, clock, cost=cost)
    executor.database = known or executor.database
    tuning = TuningSession(GPU, Tuner(executor), SHORT_SEARCH)
    graph = layers(6)

    def run(options: CompileOptions, by: RunPasses) -> CompiledGraph:
        runs.append(options.mode)
        clock.pass_by(planning)
        return by(graph, SPEC.registry, GPU, options, emit)

    plan = compile_measured(graph, SPEC, CompileOptions(mode="mixed", budget=seconds), tuning, run, wholes)
    tuning.outcome, found = SearchOutcome(plan.findings), plan.compiled
    taken = sum(cost(found.kernels[step.kernel]) for step in found.steps)
    assert len(found.kernels) == len(tuning.findings.problems), "findings are of the plan that ships"
    return Tuned(found, runs.count("mixed"), tuning, taken)


@pytest.fixture(scope="module")
def pairs() -> list[tuple[Tuned, Tuned]]:
    """Return searches that decide once, each paired with a longer one.

    Times are drawn by the kernels' texts; with the last seed a refined group is faster.
    """
    found = []
    for seed in (2, 3, 10):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(known, "REFINED_GROUP_SCHEDULES", ())
            once = tune_chain(seed, 400.0)
        found.append((once, tune_chain(seed, 400.0)))
    return found


def test_refinement_in_remaining_budget_gives_no_slower_plan(pairs: list[tuple[Tuned, Tuned]]) -> None:
    for once, again in pairs:
        assert once.runs == 1
        assert 1 < again.runs <= 1 + len(REFINED_GROUP_SCHEDULES)
        assert again.tuning.budget.elapsed <= 400.0 + SLACK
        assert again.tuning.tuner.complete
        assert again.taken <= once.taken * (1 + SHORT_SEARCH.tie)
    assert any(again.taken < 0.99 * once.taken for once, again in pairs)


def test_refined_plan_is_found_again(pairs: list[tuple[Tuned, Tuned]]) -> None:
    for _, again in pairs:
        answer = next(iter(again.tuning.tuner.executor.database.answers()))
        assert answer.finished
        assert set(answer.problems) == {problem.key for problem in again.tuning.findings.problems}


@pytest.mark.parametrize("seed", [4, 5])
def test_lost_plan_leaves_no_kernel_in_the_record(seed: int) -> None:
    """Two kernels take longer alone than in the lost refined plan."""
    shipped = tune_chain(seed, 400.0, wholes=lambda first, second: (1.0, 2.0))
    assert shipped.runs > 1
    again = tune_chain(seed, 400.0, known=shipped.tuning.tuner.executor.database)
    assert (again.runs, again.tuning.budget.elapsed) == (1, 0.0)
    sources = ([each.found.kernels[step.kernel].source for step in each.found.steps] for each in (shipped, again))
    assert next(sources) == next(sources)
    assert again.tuning.findings.seconds == pytest.approx(shipped.tuning.findings.seconds)


def test_too_little_time_allows_no_refinement(pairs: list[tuple[Tuned, Tuned]]) -> None:
    once, _ = pairs[0]
    assert tune_chain(2, 1.3 * once.tuning.budget.elapsed).runs == 1


def test_passes_that_need_remaining_time_prevent_refinement(pairs: list[tuple[Tuned, Tuned]]) -> None:
    """Passes of a training step of DeepSpeech2 take most of its time.

    The search took 92 of 60 seconds.
    """
    once, again = (pair.tuning.budget.elapsed for pair in pairs[1])
    long = tune_chain(3, once + 60.0 + 45.0, planning=60.0)
    assert long.runs == 1
    assert long.tuning.budget.elapsed <= once + 60.0 + SLACK
    assert tune_chain(3, again + 60.0 + 80.0, planning=60.0).runs > 1


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_interrupted_refinement_leaves_the_earlier_plan(pairs: list[tuple[Tuned, Tuned]], part: float) -> None:
    once, again = pairs[0]
    first, last = once.tuning.budget.elapsed, again.tuning.budget.elapsed
    moment = first + part * (last - first)
    stopped = tune_chain(2, 400.0, stop_at=moment)
    assert stopped.taken <= once.taken * (1 + SHORT_SEARCH.tie)
    assert stopped.tuning.budget.elapsed <= moment + SLACK


def test_longer_searches_are_compared_with_each_other_alone(pairs: list[tuple[Tuned, Tuned]]) -> None:
    """Each requested group has its own estimate for each length of search."""
    _, again = pairs[0]
    kept = again.tuning.tuner.executor.database
    problem = again.tuning.findings.problems[0]
    short, longer = (kept.time(f"estimate{depth} {problem.key}") for depth in ("", f" of {REFINED_GROUP_SCHEDULES[0]}"))
    assert longer is None or short is None or longer.seconds <= short.seconds
    assert again.tuning.model().quick is QUICK_SEARCH


def test_budget_shares_may_be_of_the_remainder() -> None:
    clock = FakeClock()
    budget = Budget.of(100.0, clock)
    clock.pass_by(50.0)
    assert budget.over(0.5)
    with budget.restart_shares():
        assert budget.remaining(0.5) == pytest.approx(0.5 * (100.0 - budget.reserved - 50.0))
        assert budget.remaining() == pytest.approx(100.0 - budget.reserved - 50.0)
        budget.stop()
        assert budget.over(0.5)
        assert budget.over()
    assert budget.over(0.5)
