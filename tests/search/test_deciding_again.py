"""Where a budget is left, the plan is decided again by longer searches, and never given up for a slower one."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
from attrs import evolve, frozen
from cuts.backends.source.emit import emit
from cuts.compile import known
from cuts.compile.contest import Wholes, by_sums
from cuts.compile.known import LONGER, compile_measured
from cuts.compile.loading import Spec
from cuts.ir.budget import Budget
from cuts.ir.compiled import CompiledGraph, CompileOptions
from cuts.ir.launch import KernelFunction
from cuts.ops import Registry
from cuts.passes.pipeline import compile_graph
from cuts.search.database import Database
from cuts.search.selector import MeasuredSelector
from cuts.search.settings import QUICK
from cuts.search.tuner import Tuner

from .fakes import OPENCL
from .simulated import FakeClock, session
from .test_budgets import SHORT, SLACK, layers

pytestmark = pytest.mark.long

GPU = evolve(OPENCL, on_host=False)
SPEC = Spec(Registry.builtin())
Cost = Callable[[KernelFunction], float]


def lot(seed: int) -> Cost:
    """Return times of kernels that have nothing to do with what the model says."""
    return lambda kernel: 1e-4 * 2 ** (zlib.crc32(f"{seed}{kernel.source}".encode()) % 1000 / 500)


@frozen
class Tuned:
    """What a simulated search gave, how often the passes ran, and what it worked with."""

    found: CompiledGraph
    runs: int
    selector: MeasuredSelector
    taken: float


def tuned(
    seed: int,
    seconds: float,
    stop_at: float = float("inf"),
    wholes: Wholes = by_sums,
    known: Database | None = None,
    planning: float = 0.0,
) -> Tuned:
    """Tune a chain of products on a simulated GPU where times are drawn by lot, with what a database knows; the passes
    take so many seconds each time.
    """
    clock, cost, runs = FakeClock(ring=stop_at), lot(seed), []
    budget = Budget.of(seconds, clock)
    clock.alarm = budget.stop
    resources = session(budget, clock, cost=cost)
    resources.database = known or resources.database
    selector = MeasuredSelector(GPU, Tuner(resources), SHORT)
    graph = layers(6)

    def run(options: CompileOptions) -> CompiledGraph:
        runs.append(options.mode)
        clock.pass_by(planning)
        return compile_graph(graph, SPEC.registry, GPU, options, emit, selector)

    found = compile_measured(graph, SPEC, CompileOptions(mode="mixed", budget=seconds), selector, run, wholes)
    taken = sum(cost(found.kernels[step.kernel]) for step in found.steps)
    assert len(found.kernels) == len(selector.problems), "findings are of the plan that ships"
    return Tuned(found, runs.count("mixed"), selector, taken)


@pytest.fixture(scope="module")
def pairs() -> list[tuple[Tuned, Tuned]]:
    """Searches that decide once, and beside them those that have a longer budget."""
    found = []
    for seed in range(2, 5):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(known, "LONGER", ())
            once = tuned(seed, 400.0)
        found.append((once, tuned(seed, 400.0)))
    return found


def test_what_is_left_of_a_budget_decides_again_and_gives_no_slower_plan(pairs: list[tuple[Tuned, Tuned]]) -> None:
    for once, again in pairs:
        assert once.runs == 1
        assert 1 < again.runs <= 1 + len(LONGER)
        assert again.selector.budget.elapsed <= 400.0 + SLACK
        assert again.selector.complete
        assert again.taken <= once.taken * (1 + SHORT.tie)
    assert any(again.taken < 0.99 * once.taken for once, again in pairs)


def test_a_plan_that_was_decided_again_is_found_again(pairs: list[tuple[Tuned, Tuned]]) -> None:
    for _, again in pairs:
        answer = next(iter(again.selector.tuner.resources.database.answers()))
        assert answer.finished
        assert set(answer.problems) == {problem.key for problem in again.selector.problems}


@pytest.mark.parametrize("seed", [4, 5])
def test_what_lost_as_a_whole_leaves_no_kernel_to_what_is_found_again(seed: int) -> None:
    """Of the first, two kernels take longer by themselves than in the plan that was decided again and lost."""
    shipped = tuned(seed, 400.0, wholes=lambda first, second: (1.0, 2.0))
    assert shipped.runs > 1
    again = tuned(seed, 400.0, known=shipped.selector.tuner.resources.database)
    assert (again.runs, again.selector.budget.elapsed) == (1, 0.0)
    sources = ([each.found.kernels[step.kernel].source for step in each.found.steps] for each in (shipped, again))
    assert next(sources) == next(sources)
    assert again.selector.seconds == pytest.approx(shipped.selector.seconds)


def test_where_too_little_is_left_nothing_is_decided_again(pairs: list[tuple[Tuned, Tuned]]) -> None:
    once, _ = pairs[0]
    assert tuned(2, 1.3 * once.selector.budget.elapsed).runs == 1


def test_nothing_is_decided_again_where_the_passes_alone_take_what_is_left(pairs: list[tuple[Tuned, Tuned]]) -> None:
    """A step of DeepSpeech2's training, whose passes take most of its time, took 92 of 60 seconds."""
    once, again = (pair.selector.budget.elapsed for pair in pairs[1])
    long = tuned(3, once + 60.0 + 45.0, planning=60.0)
    assert long.runs == 1
    assert long.selector.budget.elapsed <= once + 60.0 + SLACK
    assert tuned(3, again + 60.0 + 80.0, planning=60.0).runs > 1


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_an_interrupt_while_it_is_decided_again_leaves_the_plan_that_there_was(
    pairs: list[tuple[Tuned, Tuned]], part: float
) -> None:
    once, again = pairs[0]
    first, last = once.selector.budget.elapsed, again.selector.budget.elapsed
    moment = first + part * (last - first)
    stopped = tuned(2, 400.0, stop_at=moment)
    assert stopped.taken <= once.taken * (1 + SHORT.tie)
    assert stopped.selector.budget.elapsed <= moment + SLACK


def test_longer_searches_are_compared_with_each_other_alone(pairs: list[tuple[Tuned, Tuned]]) -> None:
    """Each group that is asked about has an estimate of its own for each length of search."""
    _, again = pairs[0]
    kept = again.selector.tuner.resources.database
    problem = again.selector.problems[0]
    short, longer = (kept.time(f"estimate{depth} {problem.key}") for depth in ("", f" of {LONGER[0]}"))
    assert longer is None or short is None or longer.seconds <= short.seconds
    assert again.selector._quick is QUICK


def test_shares_of_a_budget_may_be_those_of_what_is_left() -> None:
    clock = FakeClock()
    budget = Budget.of(100.0, clock)
    clock.pass_by(50.0)
    assert budget.over(0.5)
    with budget.anew():
        assert budget.left(0.5) == pytest.approx(0.5 * (100.0 - budget.kept_back - 50.0))
        assert budget.left() == pytest.approx(100.0 - budget.kept_back - 50.0)
        budget.stop()
        assert budget.over(0.5)
        assert budget.over()
    assert budget.over(0.5)
