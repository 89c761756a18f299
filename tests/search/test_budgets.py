"""Budgets hold, on a simulated GPU with a clock of its own.

An interrupt at any moment leaves the best plan so far.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import zlib
from collections.abc import Callable
from itertools import accumulate
from math import inf, isnan
from statistics import mean
from typing import Any

import pytest
from attrs import evolve, frozen
from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.compile.build import build
from cuts.compile.driver import RunPasses
from cuts.ir.compiled import (
    GRACE_SECONDS,
    MODEL_SHARE,
    PARTITION_SHARE,
    SCHEDULES_SHARE,
    UNSEARCHED_SHARE,
    Budget,
    CompiledGraph,
    CompileOptions,
    KernelFunction,
)
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ir.verify.graph import verify_graph
from cuts.ops import Registry
from cuts.passes import make_kernels, rewrites
from cuts.passes.costs import launch_schedules
from cuts.passes.costs.analytic_cost import AnalyticCost
from cuts.passes.costs.evaluators import MIN_MODEL_SECONDS, BudgetedCost
from cuts.passes.fusion.grouping.group_builder import GroupBuilder
from cuts.passes.partitioning.form_groups import form_groups
from cuts.passes.pipeline import compile_graph
from cuts.search.building.workers import Job, JobResult
from cuts.search.group_costs import GroupCosts
from cuts.search.measurement.verdicts import Verdict
from cuts.search.processes.child import Child, SessionEnded
from cuts.search.processes.interrupts import first_interrupt_stops
from cuts.search.session import TuningSession
from cuts.search.settings import QUICK_SEARCH, Settings
from cuts.search.speculation import plan_builds as making
from cuts.search.tasks.tuning_task import schedule_text
from cuts.search.tuner import final_ranking as final_round
from cuts.search.tuner import overtime_ranking
from cuts.search.tuner.earlier_results import predicted_choice
from cuts.search.tuner.loop import TuningLoop
from cuts.search.tuner.proposals import round_size
from cuts.search.tuner.task_record import TaskRecord
from cuts.search.tuner.tuner import Tuner

from .fakes import OPENCL, group_of, problem_of
from .simulation import FakeClock, SimulatedGPU, SimulatedWorkers, session

pytestmark = pytest.mark.long

#: Seconds that a call may take beyond its budget.
SLACK = 5.0
SHORT_SEARCH = Settings(first=3, batch=2, most=6, prove=False)
#: Searches of as many points as decide about groups: their decisions hold when kernels are chosen.
DECISIVE = evolve(SHORT_SEARCH, first=QUICK_SEARCH.first, batch=0, most=QUICK_SEARCH.most)


def layers(length: int, sizes: int = 3) -> Graph:
    """Return a chain of products of some sizes, with elementwise functions."""
    widths = [8 * (2 + n % sizes) for n in range(length + 1)]
    types = {"x": TensorType(DType.F32, (24, widths[0]))}
    nodes, value = [], "x"
    for n in range(length):
        types[f"w{n}"] = TensorType(DType.F32, (widths[n], widths[n + 1]))
        types |= {f"{t}{n}": TensorType(DType.F32, (24, widths[n + 1])) for t in "py"}
        nodes += [Node(f"m{n}", "matmul", (value, f"w{n}"), (f"p{n}",)), Node(f"f{n}", "tanh", (f"p{n}",), (f"y{n}",))]
        value = f"y{n}"
    graph = Graph("layers", ("x", *(f"w{n}" for n in range(length))), (value,), types, tuple(nodes))
    return verify_graph(graph, Registry.builtin().instances.infer)


@frozen
class Tuned:
    """Result of a simulated tuning call, its seconds, and its executor."""

    found: CompiledGraph
    seconds: float
    tuning: TuningSession
    clock: FakeClock


def tune_graph(
    graph: Graph,
    seconds: float | None,
    lost: frozenset[str] = frozenset(),
    stop_at: float = float("inf"),
    **slow: float,
) -> Tuned:
    """Tune a graph on a simulated machine, until an interrupt."""
    clock = FakeClock(ring=stop_at)
    budget = Budget.of(seconds, clock)
    clock.alarm = budget.stop
    tuning = TuningSession(OPENCL, Tuner(session(budget, clock, lost, **slow)), SHORT_SEARCH)
    options = CompileOptions(mode="mixed", budget=seconds)
    found = tuning.compile(graph, Registry.builtin(), OPENCL, options, emit)
    return Tuned(found, clock(), tuning, clock)


@pytest.fixture
def slow_host(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeClock], None]:
    """Return a switch that lets this process's work take simulated time.

    The time is that of a graph of many hundred nodes.
    """

    def slow(clock: FakeClock, times: float = 1.0) -> None:
        for owner, name, seconds in (
            (AnalyticCost, "cost", 0.5),
            (GroupBuilder, "_normal_form", 0.05),
            (final_round, "choose_soon", 0.02),
            (overtime_ranking, "_rank_here", overtime_ranking.RANKING_SECONDS),
            (make_kernels, "lower", 0.005),
        ):
            whole = getattr(owner, name)

            def charge(*asked: object, whole: Callable[..., object] = whole, seconds: float = seconds) -> object:
                clock.pass_by(times * seconds)
                return whole(*asked)

            monkeypatch.setattr(owner, name, charge)

    return slow


@pytest.mark.parametrize("seconds", [0.001, 4.0, 20.0])
def test_a_budget_of_any_length_is_kept(seconds: float) -> None:
    run = tune_graph(layers(4), seconds)
    assert run.seconds <= seconds + SLACK
    assert run.found.steps


@pytest.mark.parametrize("build", [5.0, 1e6])
def test_slow_compiler_costs_no_more_than_the_budget(build: float) -> None:
    run = tune_graph(layers(4), 20.0, build=build)
    assert run.seconds <= 20.0 + SLACK
    assert not run.found.complete


@pytest.mark.parametrize("method", ["rank", "refer", "build"])
def test_lost_workers_cost_no_more_than_the_budget(method: str) -> None:
    run = tune_graph(layers(4), 20.0, lost=frozenset([method]))
    assert run.seconds <= 20.0 + SLACK
    assert run.found.steps


def test_spaces_are_ranked_here_where_no_worker_does() -> None:
    run = tune_graph(layers(1), 2.0, lost=frozenset(["rank", "rank_each", "soon"]))
    assert run.seconds <= 2.5


@pytest.mark.parametrize("seconds", [5.0, 30.0])
def test_a_huge_graph_keeps_its_budget(
    seconds: float, slow_host: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    slow_host(clock)
    budget = Budget.of(seconds, clock)
    tuning = TuningSession(OPENCL, Tuner(session(budget, clock)), SHORT_SEARCH)
    options = CompileOptions(mode="mixed", budget=seconds)
    found = tuning.compile(layers(40, 12), Registry.builtin(), OPENCL, options, emit)
    assert clock() <= seconds + SLACK
    assert not found.complete
    assert len(found.steps) <= 80


def budgets_taken(seed: int, slow_host: Callable[..., None]) -> list[float]:
    """Return the times of plans without measurements and with growing budgets.

    A kernel's time is drawn at random, independent of the cost model.
    """
    graph, taken = layers(6), []

    def cost(kernel: KernelFunction) -> float:
        return 1e-4 * 2 ** (zlib.crc32(f"{seed}{kernel.with_label().source}".encode()) % 1000 / 500)

    for seconds in (None, 1.0, 5.0, 9.0, 14.0, 25.0):
        clock = FakeClock()
        slow_host(clock, 0.1)
        run: RunPasses = compile_graph
        if seconds is not None:
            tuner = Tuner(session(Budget.of(seconds, clock), clock, cost=cost))
            run = TuningSession(OPENCL, tuner, DECISIVE).compile
        options = CompileOptions(mode="mixed", budget=seconds)
        found = run(graph, Registry.builtin(), OPENCL, options, emit)
        taken.append(sum(cost(found.kernels[step.kernel]) for step in found.steps))
    return taken


def test_a_longer_budget_gives_no_slower_plan(slow_host: Callable[..., None]) -> None:
    """For any kernel times, plans are those without measurements, or faster.

    A longer search tries other points, too, so that at random one of many may end above a shorter one.
    """
    rises: list[float] = []
    gains: list[float] = []
    for seed in range(8):
        taken = budgets_taken(seed, slow_host)
        assert all(later <= 1.02 * taken[0] for later in taken)
        gains.append(taken[-1] / taken[0])
        rises += [later / least for later, least in zip(taken[1:], accumulate(taken, min), strict=False)]
    assert mean(gains) < 0.8, "the longest gains, though not with each lot"
    assert sum(rise > 1.02 for rise in rises) <= 1
    assert max(rises) < 1.1


@pytest.mark.parametrize("seconds", [8.0, 14.0, 40.0])
def test_no_point_ships_that_the_compiler_refused(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven of eight points spill registers, the model's first choices among them.

    Unfinished compilations at the end have no result.
    """
    refused: set[tuple[str, str]] = set()
    answer, collect = SimulatedWorkers._answer, SimulatedWorkers.collect

    def spilling(self: SimulatedWorkers, job: Job) -> object:
        built = answer(self, job)
        if job.method != "build" or zlib.crc32(schedule_text(job.arguments[1]).encode()) % 8 == 0:
            return built
        return evolve(built, outcome="spilled", spill_bytes=1000)

    def heard(self: SimulatedWorkers, timeout: float) -> list[JobResult]:
        found = collect(self, timeout)
        spilled = (d.job.arguments for d in found if d.job.method == "build" and d.value.outcome == "spilled")
        refused.update((problem.key, schedule_text(schedule)) for problem, schedule, *_ in spilled)
        return found

    monkeypatch.setattr(SimulatedWorkers, "_answer", spilling)
    monkeypatch.setattr(SimulatedWorkers, "collect", heard)
    run = tune_graph(layers(4), seconds)
    chosen = zip(run.tuning.findings.problems, run.tuning.findings.choices, strict=True)
    assert refused
    assert not {(p.key, schedule_text(c.candidate.schedule)) for p, c in chosen} & refused


@pytest.mark.parametrize("check", [4.0, 6.0])
def test_longest_kernels_are_measured_first(check: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is so slow that it sees few of the kernels."""
    monkeypatch.setattr(SimulatedGPU, "check", lambda self, problem, built: self.clock.pass_by(check) or Verdict("ok"))
    run = tune_graph(layers(24, 12), 40.0)
    assert run.seconds <= 40.0 + SLACK
    chosen = list(zip(run.tuning.findings.problems, run.tuning.findings.choices, strict=True))
    weights = sorted((p.uses * c.candidate.score, c.seconds is not None) for p, c in chosen)
    assert not all(seen for _, seen in weights)
    assert all(seen for _, seen in weights[-3:])


def test_choice_of_algorithms_leaves_time_for_groups() -> None:
    run = tune_graph(layers(4), 30.0, plan=100.0)
    assert run.tuning.known.times.seconds


def test_groups_evaluated_ahead_are_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels without remaining time are the whole plan."""
    module = sys.modules[form_groups.__module__]
    alone, find = [], module.partition

    def fail_partition(partitioner: Any, mode: Any) -> Any:
        if not isinstance(partitioner.evaluator.evaluator, GroupCosts):
            alone.append(partitioner)
        return find(partitioner, mode)

    monkeypatch.setattr(module, "partition", fail_partition)
    clock = FakeClock()
    budget = Budget.of(20.0, clock)
    tuning = TuningSession(OPENCL, Tuner(session(budget, clock)), SHORT_SEARCH)
    options = CompileOptions(mode="mixed", budget=20.0)
    tuning.compile(layers(4), Registry.builtin(), OPENCL, options, emit)
    assert len(alone) == 1


def test_time_for_another_plan_is_reserved_until_made() -> None:
    clock = FakeClock()
    budget = Budget.of(60.0, clock)
    tuning = TuningSession(OPENCL, Tuner(session(budget, clock)), SHORT_SEARCH)
    with tuning.model().executor.reserving_budget(8, 5.0):
        within = budget.needed
        assert within > 5.0
    assert 0.0 < budget.needed < within - 5.0, "its kernels are still to be written, its groups are found"


@pytest.mark.parametrize("moment", [0.0, 2.5, 5.5, 6.5, 7.5, 9.0, 12.0, 20.0])
def test_interrupt_at_any_moment_leaves_best_plan(moment: float) -> None:
    run = tune_graph(layers(4), None, stop_at=moment)
    assert run.seconds <= moment + SLACK
    assert run.tuning.tuner.executor.interrupted == (run.clock.ring == float("inf"))
    bench = run.tuning.tuner.executor._bench
    times = bench.times if bench is not None else {}
    for problem, choice in zip(run.tuning.findings.problems, run.tuning.findings.choices, strict=True):
        if problem.key in times:
            assert choice.seconds is not None
            assert choice.seconds <= times[problem.key] * (1 + 3 * SHORT_SEARCH.tie)
    assert run.found.steps


def test_reserved_time_is_small_for_short_budgets() -> None:
    clock = FakeClock()
    budget = Budget.of(4.0, clock)
    assert budget.remaining() == pytest.approx(3.6)
    assert Budget.of(100.0, clock).remaining() == pytest.approx(98.0)
    assert Budget.of(None, clock).remaining() == float("inf")
    clock.pass_by(3.0)
    assert (budget.over(PARTITION_SHARE), budget.over()) == (True, False)
    clock.pass_by(1.0)
    assert (budget.over(), budget.overdue()) == (True, False)
    clock.pass_by(GRACE_SECONDS + 0.1)
    assert budget.overdue()


def test_known_final_work_is_reserved() -> None:
    budget = Budget.of(80.0, FakeClock())
    for needed, kept in ((1.0, 2.0), (13.0, 13.0), (50.0, 50.0), (100.0, 80.0)):
        budget.needed = needed
        assert (budget.reserved, budget.remaining()) == (kept, 80.0 - kept)
    assert Budget.of(None, FakeClock()).reserved == 0.0


def test_kernels_that_lower_slowly_keep_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lower = FakeClock(), make_kernels.lower

    def slow(*asked: Any) -> Any:
        clock.pass_by(5.0)
        return lower(*asked)

    monkeypatch.setattr(make_kernels, "lower", slow)
    monkeypatch.setattr(making, "LOWERING_SECONDS", 5.0)
    budget = Budget.of(40.0, clock)
    tuning = TuningSession(OPENCL, Tuner(session(budget, clock, build=5.0)), SHORT_SEARCH)
    options = CompileOptions(mode="mixed", budget=40.0)
    found = tuning.compile(layers(4), Registry.builtin(), OPENCL, options, emit)
    assert not found.complete
    assert budget.needed >= 5.0 * len(found.kernels) >= 10.0
    assert clock() <= 40.0 + GRACE_SECONDS


def test_stopped_budget_is_over_and_soon_overdue() -> None:
    clock = FakeClock()
    budget = Budget.of(None, clock)
    clock.pass_by(7.0)
    budget.stop()
    assert (budget.over(), budget.stopped, budget.overdue()) == (True, True, False)
    clock.pass_by(GRACE_SECONDS + 0.1)
    assert budget.overdue()


def test_work_around_the_passes_is_timed_too() -> None:
    budget = Budget.of(60.0)
    build(layers(1), target="opencl", options=CompileOptions(begun=budget))
    assert {"import", "partition", "schedule", "kernels"} <= set(budget.spent)
    assert sum(budget.spent.values()) <= budget.elapsed


def test_statements_of_a_graph_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    write = rewrites.build_programs
    monkeypatch.setattr(rewrites, "build_programs", lambda graph, *more: written.append(graph) or write(graph, *more))
    tune_graph(layers(2), 20.0)
    assert len(written) == len({id(graph) for graph in written})


def test_launches_merge_only_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work after the measurements of Inception-v3's step took 19 s."""
    clock, target = FakeClock(), find_target("cuda:h200")
    types, nodes = {}, []
    for n in range(40):
        types |= {f"{t}{n}": TensorType(DType.F32, (8, 64 + n)) for t in "xy"}
        nodes.append(Node(f"f{n}", "tanh", (f"x{n}",), (f"y{n}",)))
    names = [[f"{t}{n}" for n in range(40)] for t in "xy"]
    graph = Graph("many", tuple(names[0]), tuple(names[1]), types, tuple(nodes))
    choose = launch_schedules.choose

    def slow(*asked: Any) -> Any:
        clock.pass_by(2.0)
        return choose(*asked)

    monkeypatch.setattr(launch_schedules, "choose", slow)
    budget = Budget.of(20.0, clock)
    tuning = TuningSession(target, Tuner(session(budget, clock)), SHORT_SEARCH)
    found = tuning.compile(graph, Registry.builtin(), target, CompileOptions(budget=20.0), emit)
    assert clock() <= 20.0 + SLACK
    assert found.steps


def test_stages_are_timed_and_add_up() -> None:
    clock = FakeClock()
    budget = Budget.of(10.0, clock)
    for seconds in (1.0, 2.0):
        with budget.stage("partition"):
            clock.pass_by(seconds)
    assert budget.spent == {"partition": 3.0}


def test_model_with_spent_budget_repeats_known_costs_only(slow_host: Callable[..., None]) -> None:
    clock = FakeClock()
    slow_host(clock, 11.0)
    limited = BudgetedCost(AnalyticCost(OPENCL), Budget.of(10.0, clock))
    group, other = (group_of("matmul", ((32, n), (n, 32))) for n in (32, 40))
    full = limited.cost(group)
    assert not limited.expired
    assert clock() > 10.0 * MODEL_SHARE
    assert limited.cost(group) == full
    assert not limited.expired
    assert isnan(limited.cost(other)), "a guess is no answer"
    assert limited.expired


def test_plan_without_a_budget_is_available_until_overdue() -> None:
    clock = FakeClock()
    limited = BudgetedCost(AnalyticCost(OPENCL), Budget.of(10.0, clock))
    with limited.without_budget():
        pass
    for n, (moment, asked) in enumerate(((0.9 * GRACE_SECONDS + 10.0, 1), (1.1 * GRACE_SECONDS + 10.0, 1))):
        clock.pass_by(moment - clock())
        with limited.without_budget():
            limited.cost(group_of("matmul", ((32, 32 + n), (32 + n, 32))))
        assert limited.expired
        assert len(limited.costs) == asked


def test_only_the_first_plan_gets_extra_time() -> None:
    clock = FakeClock()
    budget = Budget.of(10.0, clock)
    limited = BudgetedCost(AnalyticCost(OPENCL), budget)
    clock.pass_by(1000.0)
    with limited.without_budget():
        assert not limited.is_late()
        clock.pass_by(0.9 * MIN_MODEL_SECONDS)
        assert limited.cost(group_of("matmul", ((32, 32), (32, 32)))) < inf
        clock.pass_by(0.2 * MIN_MODEL_SECONDS)
        assert isnan(limited.cost(group_of("matmul", ((32, 40), (40, 32)))))
    with limited.without_budget():
        assert limited.is_late()
    limited = BudgetedCost(AnalyticCost(OPENCL), budget)
    budget.stop()
    clock.pass_by(2.0)
    with limited.without_budget():
        assert limited.is_late(), "who interrupts wants what there is"


def test_second_keyboard_interrupt_ends_the_work() -> None:
    budget = Budget.of(None)
    usual = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with first_interrupt_stops(budget):
            os.kill(os.getpid(), signal.SIGINT)
            assert budget.stopped
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, usual)


def test_program_with_own_interrupt_handler_keeps_it() -> None:
    own = lambda number, frame: None  # noqa: E731
    usual = signal.signal(signal.SIGINT, own)
    try:
        with first_interrupt_stops(Budget.of(None)):
            assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, usual)


def test_child_is_not_awaited_after_the_deadline() -> None:
    child = Child("cuts.tests.search.services:Slow")
    assert child.call(60.0, "nap", 0.0) == 0.0
    end = time.monotonic() + 0.5
    child.over = lambda: time.monotonic() > end
    with pytest.raises(SessionEnded):
        child.call(60.0, "nap", 300.0)
    assert time.monotonic() < end + 5
    assert not child.alive
    child.close()


def test_remaining_budget_goes_to_largest_losses() -> None:
    """Searches of few kernels ended after half of the budget.

    They left gains unused.
    """
    target = evolve(OPENCL, on_host=False)

    def search(deeper: int, seconds: float) -> TuningSession:
        clock = FakeClock()
        executor = session(Budget.of(seconds, clock), clock, cost=lambda kernel: 1e-3 * (1 + random_seconds(kernel)))
        tuning = TuningSession(target, Tuner(executor), evolve(SHORT_SEARCH, deeper=deeper))
        tuning.compile(layers(1), Registry.builtin(), target, CompileOptions(mode="fusion"), emit)
        return tuning

    def random_seconds(kernel: KernelFunction) -> float:
        return zlib.crc32(b"once" + kernel.source.encode()) / 2**32

    ended, deeper = search(0, 60.0), search(1, 60.0)
    assert ended.tuner.complete
    assert ended.budget.elapsed < deeper.budget.elapsed < 60.0
    assert deeper.tuner.complete  # it could have ended there
    assert deeper.findings.seconds < ended.findings.seconds
    assert search(1, ended.budget.elapsed).budget.elapsed <= ended.budget.elapsed + SLACK


def test_few_searches_propose_points_for_all_workers() -> None:
    """A lone search would leave most workers idle.

    It would have a round for every three points.
    """

    def batches(number: int, budget: Budget) -> list[int]:
        executor = session(budget, FakeClock())
        tasks = [TaskRecord(problem_of(8)) for _ in range(40)]
        found = []
        for going in (40, 4, 2, 1):
            for task in tasks[going:]:
                task.choice = predicted_choice(task.problem)
            executor.builder.size = 16  # type: ignore[misc]
            found.append(round_size(executor, Settings(batch=3), evolve(tasks[0], round=number), tasks))
        return found

    assert batches(0, Budget.of(60.0, FakeClock())) == [3, 4, 8, 16]
    assert batches(7, Budget.of(60.0, FakeClock())) == [3, 9, 9, 16]
    assert batches(0, Budget.of(None, FakeClock())) == [3, 3, 3, 3]


def test_unsearched_kernels_run_at_least_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that never ran was never checked.

    The last points of others are left out for it.
    """
    found = tune_graph(layers(60, 60), 30.0)
    assert not found.tuning.tuner.complete
    assert all(choice.seconds is not None for choice in found.tuning.findings.choices)
    assert found.seconds <= 30.0 + SLACK
    checked = found.tuning.tuner.statistics
    assert checked.compiled < 4 * len(found.tuning.findings.choices), "there is no time for all that a search would try"


@pytest.mark.parametrize(
    ("unseen", "left", "must"), [(10, 0.6, False), (10, 0.4, True), (500, 4.0, True), (500, 16.0, False)]
)
def test_search_ends_to_run_kernels_never_run(unseen: int, left: float, must: bool) -> None:
    clock = FakeClock()
    budget = Budget.of(100.0, clock)
    executor = session(budget, clock)
    tasks = [TaskRecord(problem_of()) for _ in range(unseen)]
    clock.pass_by(UNSEARCHED_SHARE * (100.0 - budget.reserved) - left)
    assert TuningLoop(executor, SHORT_SEARCH, SCHEDULES_SHARE)._must_measure_unseen(tasks) == must
    assert executor.expired == must
