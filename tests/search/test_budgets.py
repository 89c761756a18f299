"""Budgets hold, on a simulated GPU with a clock of its own; an interrupt at any moment leaves the best plan so far."""

from __future__ import annotations

import os
import signal
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
from cuts.ir.budget import GRACE, LOOK_SHARE, MODEL_SHARE, PARTITION_SHARE, SCHEDULES_SHARE, Budget
from cuts.ir.compiled import CompiledGraph, CompileOptions
from cuts.ir.graph import Graph, Node
from cuts.ir.launch import KernelFunction
from cuts.ir.types import DType, TensorType
from cuts.ir.verify.graph import verify_graph
from cuts.ops import Registry
from cuts.passes import launch_schedules, rewrites, stages
from cuts.passes.evaluators import OWN, Limited, Modelled
from cuts.passes.fusion.groups import Workshop
from cuts.passes.pipeline import compile_graph
from cuts.search import final_round, making
from cuts.search.build import Done, Job
from cuts.search.child import Child, Ended
from cuts.search.earlier_results import modelled
from cuts.search.interrupts import first_interrupt_stops
from cuts.search.measure import Verdict
from cuts.search.problem import schedule_text
from cuts.search.rounds import Rounds
from cuts.search.selector import MeasuredSelector
from cuts.search.settings import QUICK, Settings
from cuts.search.task import SearchTask
from cuts.search.tuner import Tuner

from .fakes import OPENCL, group_of, problem_of
from .simulated import FakeClock, SimulatedGPU, SimulatedWorkers, session

pytestmark = pytest.mark.long

#: What a call may take beyond its budget.
SLACK = 5.0
SHORT = Settings(first=3, batch=2, most=6, prove=False)
#: Searches of as many points as decide about groups: what was decided holds when kernels are chosen.
DECISIVE = evolve(SHORT, first=QUICK.first, batch=0, most=QUICK.most)


def layers(length: int, sizes: int = 3) -> Graph:
    """Return a chain of products of matrices of some sizes, each with a function of its elements behind it."""
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
    """What a simulated tuning call gave, the seconds that it took, and what it worked with."""

    found: CompiledGraph
    seconds: float
    selector: MeasuredSelector
    clock: FakeClock


def tuned(
    graph: Graph,
    seconds: float | None,
    lost: frozenset[str] = frozenset(),
    stop_at: float = float("inf"),
    **slow: float,
) -> Tuned:
    """Tune a graph on a simulated machine; somebody interrupts at a time."""
    clock = FakeClock(ring=stop_at)
    budget = Budget.of(seconds, clock)
    clock.alarm = budget.stop
    selector = MeasuredSelector(OPENCL, Tuner(session(budget, clock, lost, **slow)), SHORT)
    options = CompileOptions(mode="mixed", budget=seconds)
    found = compile_graph(graph, Registry.builtin(), OPENCL, options, emit, selector)
    return Tuned(found, clock(), selector, clock)


@pytest.fixture
def slow_host(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeClock], None]:
    """Return what lets the work of this process take simulated time, as that on a graph of many hundred nodes does."""

    def slow(clock: FakeClock, times: float = 1.0) -> None:
        for owner, name, seconds in (
            (Modelled, "cost", 0.5),
            (Workshop, "_normal_form", 0.05),
            (final_round, "choose_soon", 0.02),
            (stages, "lower", 0.005),
        ):
            whole = getattr(owner, name)

            def charged(*asked: object, whole: Callable[..., object] = whole, seconds: float = seconds) -> object:
                clock.pass_by(times * seconds)
                return whole(*asked)

            monkeypatch.setattr(owner, name, charged)

    return slow


@pytest.mark.parametrize("seconds", [0.001, 4.0, 20.0])
def test_a_budget_of_any_length_is_kept(seconds: float) -> None:
    run = tuned(layers(4), seconds)
    assert run.seconds <= seconds + SLACK
    assert run.found.steps


@pytest.mark.parametrize("build", [5.0, 1e6])
def test_a_slow_compiler_costs_no_more_than_the_budget(build: float) -> None:
    run = tuned(layers(4), 20.0, build=build)
    assert run.seconds <= 20.0 + SLACK
    assert not run.found.complete


@pytest.mark.parametrize("method", ["rank", "refer", "build"])
def test_workers_that_are_lost_cost_no_more_than_the_budget(method: str) -> None:
    run = tuned(layers(4), 20.0, lost=frozenset([method]))
    assert run.seconds <= 20.0 + SLACK
    assert run.found.steps


@pytest.mark.parametrize("seconds", [5.0, 30.0])
def test_a_huge_graph_keeps_its_budget(
    seconds: float, slow_host: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    slow_host(clock)
    budget = Budget.of(seconds, clock)
    selector = MeasuredSelector(OPENCL, Tuner(session(budget, clock)), SHORT)
    options = CompileOptions(mode="mixed", budget=seconds)
    found = compile_graph(layers(40, 12), Registry.builtin(), OPENCL, options, emit, selector)
    assert clock() <= seconds + SLACK
    assert not found.complete
    assert len(found.steps) <= 80


def budgets_taken(seed: int, slow_host: Callable[..., None]) -> list[float]:
    """Return what plans take without measurements and with longer and longer budgets, where a kernel's time is drawn by
    lot and has nothing to do with what the model says.
    """
    graph, taken = layers(6), []

    def cost(kernel: KernelFunction) -> float:
        return 1e-4 * 2 ** (zlib.crc32(f"{seed}{kernel.source}".encode()) % 1000 / 500)

    for seconds in (None, 1.0, 5.0, 9.0, 14.0, 25.0):
        clock = FakeClock()
        slow_host(clock, 0.1)
        selector = None
        if seconds is not None:
            selector = MeasuredSelector(OPENCL, Tuner(session(Budget.of(seconds, clock), clock, cost=cost)), DECISIVE)
        options = CompileOptions(mode="mixed", budget=seconds)
        found = compile_graph(graph, Registry.builtin(), OPENCL, options, emit, selector)
        taken.append(sum(cost(found.kernels[step.kernel]) for step in found.steps))
    return taken


def test_a_longer_budget_gives_no_slower_plan(slow_host: Callable[..., None]) -> None:
    """Whatever kernels take, plans are those without measurements, or faster. A longer search tries other points, too,
    so that by lot one of many may end above a shorter one.
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
    """Seven of eight points spill registers, the model's first choices among them. What was still being compiled when
    time ended has told nobody.
    """
    refused: set[tuple[str, str]] = set()
    answer, collect = SimulatedWorkers._answer, SimulatedWorkers.collect

    def spilling(self: SimulatedWorkers, job: Job) -> object:
        built = answer(self, job)
        if job.method != "build" or zlib.crc32(schedule_text(job.arguments[1]).encode()) % 8 == 0:
            return built
        return evolve(built, outcome="spilled", spill_bytes=1000)

    def heard(self: SimulatedWorkers, timeout: float) -> list[Done]:
        found = collect(self, timeout)
        spilled = (d.job.arguments for d in found if d.job.method == "build" and d.value.outcome == "spilled")
        refused.update((problem.key, schedule_text(schedule)) for problem, schedule, *_ in spilled)
        return found

    monkeypatch.setattr(SimulatedWorkers, "_answer", spilling)
    monkeypatch.setattr(SimulatedWorkers, "collect", heard)
    run = tuned(layers(4), seconds)
    chosen = zip(run.selector.problems, run.selector.choices, strict=True)
    assert refused
    assert not {(p.key, schedule_text(c.candidate.schedule)) for p, c in chosen} & refused


@pytest.mark.parametrize("check", [4.0, 6.0])
def test_whatever_time_cuts_short_the_kernels_that_take_longest_are_measured(
    check: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device is so slow that it sees few of the kernels."""
    monkeypatch.setattr(SimulatedGPU, "check", lambda self, problem, built: self.clock.pass_by(check) or Verdict("ok"))
    run = tuned(layers(24, 12), 40.0)
    assert run.seconds <= 40.0 + SLACK
    chosen = list(zip(run.selector.problems, run.selector.choices, strict=True))
    weights = sorted((p.uses * c.candidate.score, c.seconds is not None) for p, c in chosen)
    assert not all(seen for _, seen in weights)
    assert all(seen for _, seen in weights[-3:])


def test_what_ends_the_choice_of_algorithms_leaves_time_for_that_of_groups() -> None:
    run = tuned(layers(4), 30.0, plan=100.0)
    assert run.selector._measured


def test_groups_that_the_model_found_ahead_are_not_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no time is left behind them, they are the plan, whole."""
    alone, find = [], stages.partition

    def found(partitioner: Any, mode: Any) -> Any:
        if partitioner.evaluator.evaluator is not selector:
            alone.append(partitioner)
        return find(partitioner, mode)

    monkeypatch.setattr(stages, "partition", found)
    clock = FakeClock()
    budget = Budget.of(20.0, clock)
    selector = MeasuredSelector(OPENCL, Tuner(session(budget, clock)), SHORT)
    options = CompileOptions(mode="mixed", budget=20.0)
    compile_graph(layers(4), Registry.builtin(), OPENCL, options, emit, selector)
    assert len(alone) == 1


def test_what_another_plan_takes_is_kept_back_until_it_is_made() -> None:
    clock = FakeClock()
    budget = Budget.of(60.0, clock)
    selector = MeasuredSelector(OPENCL, Tuner(session(budget, clock)), SHORT)
    with selector.foreseen(8, 5.0):
        within = budget.needed
        assert within > 5.0
    assert 0.0 < budget.needed < within - 5.0, "its kernels are still to be written, its groups are found"


@pytest.mark.parametrize("moment", [0.0, 2.5, 5.5, 6.5, 7.5, 9.0, 12.0, 20.0])
def test_an_interrupt_at_any_moment_leaves_the_best_plan_so_far(moment: float) -> None:
    run = tuned(layers(4), None, stop_at=moment)
    assert run.seconds <= moment + SLACK
    assert run.selector.tuner.resources.interrupted == (run.clock.ring == float("inf"))
    bench = run.selector.tuner.resources._bench
    times = bench.times if bench is not None else {}
    for problem, choice in zip(run.selector.problems, run.selector.choices, strict=True):
        if problem.key in times:
            assert choice.seconds is not None
            assert choice.seconds <= times[problem.key] * (1 + 3 * SHORT.tie)
    assert run.found.steps


def test_time_that_is_kept_back_is_a_small_part_of_short_budgets() -> None:
    clock = FakeClock()
    budget = Budget.of(4.0, clock)
    assert budget.left() == pytest.approx(3.6)
    assert Budget.of(100.0, clock).left() == pytest.approx(98.0)
    assert Budget.of(None, clock).left() == float("inf")
    clock.pass_by(3.0)
    assert (budget.over(PARTITION_SHARE), budget.over()) == (True, False)
    clock.pass_by(1.0)
    assert (budget.over(), budget.overdue()) == (True, False)
    clock.pass_by(GRACE + 0.1)
    assert budget.overdue()


def test_what_is_known_to_be_needed_at_the_end_is_kept_back() -> None:
    budget = Budget.of(80.0, FakeClock())
    for needed, kept in ((1.0, 2.0), (13.0, 13.0), (50.0, 50.0), (100.0, 80.0)):
        budget.needed = needed
        assert (budget.kept_back, budget.left()) == (kept, 80.0 - kept)
    assert Budget.of(None, FakeClock()).kept_back == 0.0


def test_kernels_that_take_long_to_be_lowered_keep_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lower = FakeClock(), stages.lower

    def slow(*asked: Any) -> Any:
        clock.pass_by(5.0)
        return lower(*asked)

    monkeypatch.setattr(stages, "lower", slow)
    monkeypatch.setattr(making, "LOWERED", 5.0)
    budget = Budget.of(40.0, clock)
    selector = MeasuredSelector(OPENCL, Tuner(session(budget, clock, build=5.0)), SHORT)
    options = CompileOptions(mode="mixed", budget=40.0)
    found = compile_graph(layers(4), Registry.builtin(), OPENCL, options, emit, selector)
    assert not found.complete
    assert budget.needed >= 5.0 * len(found.kernels) >= 10.0
    assert clock() <= 40.0 + GRACE


def test_a_stopped_budget_is_over_at_once_and_overdue_soon() -> None:
    clock = FakeClock()
    budget = Budget.of(None, clock)
    clock.pass_by(7.0)
    budget.stop()
    assert (budget.over(), budget.stopped, budget.overdue()) == (True, True, False)
    clock.pass_by(GRACE + 0.1)
    assert budget.overdue()


def test_what_comes_before_and_behind_the_passes_is_timed_too() -> None:
    budget = Budget.of(60.0)
    build(layers(1), target="opencl", options=CompileOptions(begun=budget))
    assert {"import", "partition", "schedule", "kernels"} <= set(budget.spent)
    assert sum(budget.spent.values()) <= budget.elapsed


def test_statements_of_a_graph_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    write = rewrites.build_programs
    monkeypatch.setattr(rewrites, "build_programs", lambda graph, *more: written.append(graph) or write(graph, *more))
    tuned(layers(2), 20.0)
    assert len(written) == len({id(graph) for graph in written})


def test_launches_are_put_together_no_longer_than_a_budget_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a training step of Inception-v3 this took 19 s, behind all that was measured."""
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
    selector = MeasuredSelector(target, Tuner(session(budget, clock)), SHORT)
    found = compile_graph(graph, Registry.builtin(), target, CompileOptions(budget=20.0), emit, selector)
    assert clock() <= 20.0 + SLACK
    assert found.steps


def test_stages_are_timed_and_add_up() -> None:
    clock = FakeClock()
    budget = Budget.of(10.0, clock)
    for seconds in (1.0, 2.0):
        with budget.stage("partition"):
            clock.pass_by(seconds)
    assert budget.spent == {"partition": 3.0}


def test_a_model_that_used_its_part_of_the_budget_says_what_it_said_and_no_more(slow_host: Callable[..., None]) -> None:
    clock = FakeClock()
    slow_host(clock, 11.0)
    limited = Limited(Modelled(OPENCL), Budget.of(10.0, clock))
    group, other = (group_of("matmul", ((32, n), (n, 32))) for n in (32, 40))
    full = limited.cost(group)
    assert not limited.expired
    assert clock() > 10.0 * MODEL_SHARE
    assert limited.cost(group) == full
    assert not limited.expired
    assert isnan(limited.cost(other)), "a guess is no answer"
    assert limited.expired


def test_the_plan_that_there_is_without_a_budget_is_the_models_until_that_is_overdue() -> None:
    clock = FakeClock()
    limited = Limited(Modelled(OPENCL), Budget.of(10.0, clock))
    with limited.unbudgeted():
        pass
    for n, (moment, asked) in enumerate(((0.9 * GRACE + 10.0, 1), (1.1 * GRACE + 10.0, 1))):
        clock.pass_by(moment - clock())
        with limited.unbudgeted():
            limited.cost(group_of("matmul", ((32, 32 + n), (32 + n, 32))))
        assert limited.expired
        assert len(limited.costs) == asked


def test_however_late_it_is_the_first_plan_gets_a_moment_and_no_other_does() -> None:
    clock = FakeClock()
    budget = Budget.of(10.0, clock)
    limited = Limited(Modelled(OPENCL), budget)
    clock.pass_by(1000.0)
    with limited.unbudgeted():
        assert not limited.late()
        clock.pass_by(0.9 * OWN)
        assert limited.cost(group_of("matmul", ((32, 32), (32, 32)))) < inf
        clock.pass_by(0.2 * OWN)
        assert isnan(limited.cost(group_of("matmul", ((32, 40), (40, 32)))))
    with limited.unbudgeted():
        assert limited.late()
    limited = Limited(Modelled(OPENCL), budget)
    budget.stop()
    clock.pass_by(2.0)
    with limited.unbudgeted():
        assert limited.late(), "who interrupts wants what there is"


def test_the_first_interrupt_from_the_keyboard_ends_the_budget_and_the_second_the_work() -> None:
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


def test_a_program_that_handles_interrupts_itself_is_left_alone() -> None:
    own = lambda number, frame: None  # noqa: E731
    usual = signal.signal(signal.SIGINT, own)
    try:
        with first_interrupt_stops(Budget.of(None)):
            assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, usual)


def test_a_child_is_not_waited_for_once_time_is_over() -> None:
    child = Child("cuts.tests.search.services:Slow")
    assert child.call(60.0, "nap", 0.0) == 0.0
    end = time.monotonic() + 0.5
    child.over = lambda: time.monotonic() > end
    with pytest.raises(Ended):
        child.call(60.0, "nap", 300.0)
    assert time.monotonic() < end + 5
    assert not child.alive
    child.close()


def test_what_is_left_of_a_budget_goes_to_the_kernels_that_lose_most() -> None:
    """A search of few kernels ended behind half of its budget, whatever there was to be gained."""
    target = evolve(OPENCL, on_host=False)

    def search(deeper: int, seconds: float) -> MeasuredSelector:
        clock = FakeClock()
        resources = session(Budget.of(seconds, clock), clock, cost=lambda kernel: 1e-3 * (1 + drawn(kernel)))
        selector = MeasuredSelector(target, Tuner(resources), evolve(SHORT, deeper=deeper))
        compile_graph(layers(1), Registry.builtin(), target, CompileOptions(mode="fusion"), emit, selector)
        return selector

    def drawn(kernel: KernelFunction) -> float:
        return zlib.crc32(b"once" + kernel.source.encode()) / 2**32

    ended, deeper = search(0, 60.0), search(1, 60.0)
    assert ended.complete
    assert ended.budget.elapsed < deeper.budget.elapsed < 60.0
    assert deeper.complete  # it could have ended there
    assert deeper.seconds < ended.seconds
    assert search(1, ended.budget.elapsed).budget.elapsed <= ended.budget.elapsed + SLACK


def test_few_searches_in_limited_time_propose_as_many_points_as_workers_can_build() -> None:
    """A search that goes on alone would leave most workers without work, and take a round for every three points."""

    def batches(number: int, budget: Budget) -> list[int]:
        resources = session(budget, FakeClock())
        rounds = Rounds(resources, Settings(batch=3))
        tasks = [SearchTask(problem_of(8)) for _ in range(40)]
        found = []
        for going in (40, 4, 2, 1):
            for task in tasks[going:]:
                task.choice = modelled(task.problem)
            resources.builder.size = 16  # type: ignore[misc]
            found.append(rounds._batch(evolve(tasks[0], round=number), tasks))
        return found

    assert batches(0, Budget.of(60.0, FakeClock())) == [3, 4, 8, 16]
    assert batches(7, Budget.of(60.0, FakeClock())) == [3, 9, 9, 16]
    assert batches(0, Budget.of(None, FakeClock())) == [3, 3, 3, 3]


def test_what_a_budget_has_no_time_to_search_for_is_run_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that never ran was never checked: the last points of others are left out for it."""
    found = tuned(layers(60, 60), 30.0)
    assert not found.selector.complete
    assert all(choice.seconds is not None for choice in found.selector.choices)
    assert found.seconds <= 30.0 + SLACK
    checked = found.selector.tuner.statistics
    assert checked.compiled < 4 * len(found.selector.choices), "there is no time for all that a search would try"


@pytest.mark.parametrize(
    ("unseen", "left", "must"), [(10, 0.6, False), (10, 0.4, True), (500, 4.0, True), (500, 16.0, False)]
)
def test_a_search_ends_where_the_rest_is_needed_to_run_what_never_ran(unseen: int, left: float, must: bool) -> None:
    clock = FakeClock()
    budget = Budget.of(100.0, clock)
    resources = session(budget, clock)
    resources.share = SCHEDULES_SHARE
    tasks = [SearchTask(problem_of()) for _ in range(unseen)]
    clock.pass_by(LOOK_SHARE * (100.0 - budget.kept_back) - left)
    assert Rounds(resources, SHORT)._must_look(tasks) == must
    assert resources.expired == must
