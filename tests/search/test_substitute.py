"""Libraries against generated kernels.

The faster one runs, a wrong one never does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.backends.library.routine import Request
from cuts.ir.compiled import Argument, Budget, CompiledGraph, KernelFunction, Step
from cuts.ir.errors import BackendError
from cuts.ir.graph import Graph
from cuts.ir.machine import Target
from cuts.ir.types import DType
from cuts.passes.schedule.selection.choose import choose
from cuts.search import library_routines as library_module
from cuts.search.building.factory import BuildResult
from cuts.search.database import Database
from cuts.search.findings import Findings, SearchOutcome
from cuts.search.library_routines import (
    MAX_ROUTINE_SECONDS,
    ReplaceableKernel,
    SubstituteRoutine,
    faster_routines,
    seconds_for_routines,
)
from cuts.search.library_substitutes import constant_arguments, substitute, with_libraries
from cuts.search.measurement.bench import Timed
from cuts.search.measurement.verdicts import Verdict
from cuts.search.processes.child import SessionEnded
from cuts.search.session import TuningSession
from cuts.search.settings import Settings, TunedChoice
from cuts.search.tasks.tuning_task import TuningTask
from cuts.search.tuner.executor import SearchExecutor
from cuts.search.tuner.tuner import Tuner

from .fakes import OPENCL, FakeBench, Inline, problem_of
from .simulation import FakeClock

CUDA = find_target("cuda:h200")


def routine(name: str, version: str = "1.0") -> KernelFunction:
    arguments = (Argument("x0", DType.F32, False), Argument("x1", DType.F32, False), Argument("y", DType.F32, True))
    return KernelFunction(name, "library", "{}", (1, 1, 1), (1, 1, 1), arguments, info={"library": f"{name} {version}"})


def offers(request: Request) -> Sequence[KernelFunction]:
    return [routine("slow"), routine("fast"), routine("wrong")]


TIMES = {"slow": 3e-3, "fast": 2e-3, "wrong": 1e-3}


def bench() -> FakeBench:
    return FakeBench(
        lambda kernel: TIMES[kernel.name], lambda kernel: Verdict("wrong" if kernel.name == "wrong" else "ok")
    )


def executor_of(made: FakeBench, database: Database | None = None, budget: Budget | None = None) -> SearchExecutor:
    return SearchExecutor(database or Database(None), Inline, lambda: made, budget)


def tuned_choice(seconds: float | None) -> TunedChoice:
    (candidate,) = choose(problem_of().form, OPENCL)
    return TunedChoice(candidate, seconds)


def never_over() -> bool:
    return False


@pytest.mark.parametrize(("ours", "taken"), [(4e-3, True), (inf, True), (2.01e-3, False), (1.5e-3, False)])
def test_faster_right_routine_wins(ours: float, taken: bool) -> None:
    found = dict(faster_routines(executor_of(bench()), [ReplaceableKernel(0, problem_of(), ours)], offers, never_over))
    assert {n: r.kernel.name for n, r in found.items()} == ({0: "fast"} if taken else {})


def test_steps_bind_tensors_in_routine_order() -> None:
    order = (Argument("y", DType.F32, True), Argument("x1", DType.F32, False), Argument("x0", DType.F32, False))
    kernels = tuple(KernelFunction(name, "cuda", "", (1, 1, 1), (1, 1, 1), order) for name in ("k0", "k1"))
    tensors = ("result", "weights", "image")
    graph = Graph("g", (), (), {}, ())
    records = ({"measured": 4e-3, "why": "old", "parameters": {"a": 1}}, {"why": "kept"})
    compiled = CompiledGraph(graph, kernels, (Step(0, tensors), Step(1, tensors)), {}, records)
    changed = substitute(compiled, {0: SubstituteRoutine(routine("fast"), 2e-3)})
    assert [k.name for k in changed.kernels] == ["fast", "k1", "k0"]
    assert changed.kernels[0].info["instead"] == "k0"
    assert changed.steps == (Step(0, ("image", "weights", "result")), Step(1, tensors))
    assert changed.groups[0]["library"] == "fast 1.0"
    assert changed.groups[0]["why"] == "fast 1.0 took 2000.00 us, the fastest generated kernel took 4000.00 us"
    assert changed.groups[1] == records[1]
    assert substitute(compiled, {}) is compiled


def launch_graph(*records: dict[str, object]) -> CompiledGraph:
    """Return a graph with a kernel for each given launch record."""
    arguments = routine("r").arguments
    kernels = tuple(KernelFunction(f"k{n}", "cuda", "", (1, 1, 1), (1, 1, 1), arguments) for n in range(len(records)))
    steps = tuple(Step(n, ("a", "b", "c")) for n in range(len(records)))
    return CompiledGraph(Graph("g", (), (), {}, ()), kernels, steps, {}, records)


def session_of(
    executor: SearchExecutor,
    tuned: Sequence[tuple[TuningTask, float | None]],
    target: Target = CUDA,
    libraries: bool = True,
    frozen: bool = False,
) -> TuningSession:
    made = TuningSession(target, Tuner(executor, frozen), Settings(libraries=libraries))
    found = Findings(tuple(p for p, _ in tuned), tuple(tuned_choice(seconds) for _, seconds in tuned))
    made.outcome = SearchOutcome(found)
    return made


def names(compiled: CompiledGraph) -> list[str]:
    """The kernels in the order of launches."""
    return [compiled.kernels[step.kernel].name for step in compiled.steps]


def test_libraries_compete_on_their_devices_by_default() -> None:
    problem, compiled = problem_of(), launch_graph({"tuning": problem_of().key})

    def plan_on(target: Target, libraries: bool) -> CompiledGraph:
        tuning = session_of(executor_of(bench()), [(problem, 4e-3)], target, libraries)
        return with_libraries(compiled, tuning.findings, tuning, offers=offers)

    assert Settings().libraries
    assert names(plan_on(CUDA, True)) == ["fast"]
    assert plan_on(CUDA, False) is compiled
    assert plan_on(OPENCL, True) is compiled


def test_kernels_are_found_by_their_task() -> None:
    first, second, third = (problem_of(size) for size in (32, 64, 96))
    compiled = launch_graph(
        {"tuning": second.key}, {"members": 2}, {"tuning": "of another one"}, {}, {"tuning": first.key}
    )
    tuning = session_of(executor_of(bench()), [(first, 4e-3), (second, 1e-3), (third, 4e-3)])
    assert names(with_libraries(compiled, tuning.findings, tuning, offers=offers)) == ["k0", "k1", "k2", "k3", "fast"]


def test_routine_times_are_kept_by_task_and_version() -> None:
    database, problem = Database(None), problem_of()
    compiled = launch_graph({"tuning": problem.key})

    def launched_kernels(made: FakeBench, given: Any = offers, frozen: bool = False) -> list[str]:
        tuning = session_of(executor_of(made, database), [(problem, 4e-3)], frozen=frozen)
        return names(with_libraries(compiled, tuning.findings, tuning, offers=given))

    assert launched_kernels(bench(), frozen=True) == ["k0"], "nothing is known"
    first, again = bench(), bench()
    assert launched_kernels(first) == ["fast"]
    assert first.checked == ["slow", "fast", "wrong"]
    assert launched_kernels(again) == launched_kernels(again, frozen=True) == ["fast"]
    assert again.checked == []
    other = problem_of(machine={"device": "another"})
    tuning = session_of(executor_of(again, database), [(other, 4e-3)])
    assert with_libraries(launch_graph({"tuning": other.key}), tuning.findings, tuning, offers=offers)
    assert again.checked == ["slow", "fast", "wrong"]
    newer = bench()
    assert launched_kernels(newer, lambda request: [routine("fast", "2.0")]) == ["fast"]
    assert newer.checked == ["fast"]


def test_longest_kernels_go_first_until_time_ends() -> None:
    tried = []
    problems = [problem_of(32), evolve(problem_of(48), uses=9), problem_of(64)]

    def note_request(request: Request) -> Sequence[KernelFunction]:
        tried.append(request.group.tensors["x0"].shape[0])
        return [routine("fast")]

    def is_over() -> bool:
        return len(tried) > 2

    rivalled = [ReplaceableKernel(n, problem, 3e-3 + 1e-3 * n) for n, problem in enumerate(problems)]
    found = faster_routines(executor_of(bench()), rivalled, note_request, is_over)
    assert [number for number, _ in found] == [1, 2]
    assert tried == [48, 64, 32]


class SlowBench(FakeBench):
    """Bench with two seconds for each routine, which ends with the budget."""

    def __init__(self, clock: FakeClock, budget: Budget) -> None:
        super().__init__(lambda kernel: 1e-3)
        self.clock, self.budget = clock, budget

    def check(self, problem: TuningTask, built: BuildResult) -> Verdict:
        self.clock.pass_by(2.0)
        if self.budget.over():
            raise SessionEnded
        return super().check(problem, built)


def at_the_end(seconds: float, later: float) -> tuple[SearchExecutor, SlowBench]:
    """Return executor whose budget has only reserved seconds for routines left."""
    clock = FakeClock()
    budget = Budget.of(seconds, clock)
    budget.final_seconds = later
    clock.pass_by(seconds - budget.reserved)
    assert budget.over()
    made = SlowBench(clock, budget)
    executor = executor_of(made, budget=budget)
    executor.expired = True
    return executor, made


@pytest.mark.parametrize(("later", "tried"), [(0.0, 0), (3.0, 1), (5.0, 2)])
def test_routines_have_reserved_time_after_the_search(later: float, tried: int) -> None:
    executor, made = at_the_end(60.0, later)
    problems = [problem_of(size) for size in (32, 48, 64)]
    tuning = session_of(executor, [(problem, 3e-3) for problem in problems])
    compiled = launch_graph(*({"tuning": problem.key} for problem in problems))
    found = with_libraries(compiled, tuning.findings, tuning, offers=lambda request: [routine("fast")])
    assert names(found).count("fast") == len(made.checked) == tried
    assert executor.budget.final_seconds == max(0.0, later - 2.0 * len([*made.checked, *([0] if later else [])]))
    assert executor.budget.elapsed <= 60.0


@pytest.mark.parametrize(
    ("spent", "later", "last", "tried"),
    [(20.0, 3.0, False, 2), (20.0, 0.0, False, 0), (20.0, 3.0, True, 9), (4.0, 3.0, True, 2), (1.0, 0.0, True, 2)],
)
def test_routines_may_take_search_time_afterwards(spent: float, later: float, last: bool, tried: int) -> None:
    clock = FakeClock()
    budget = Budget.of(60.0, clock)
    budget.final_seconds = later
    clock.pass_by(spent)
    made = SlowBench(clock, budget)
    problems = [problem_of(size) for size in range(16, 25)]
    tuning = session_of(executor_of(made, budget=budget), [(problem, 3e-3) for problem in problems])
    compiled = launch_graph(*({"tuning": problem.key} for problem in problems))
    with_libraries(compiled, tuning.findings, tuning, last, lambda request: [routine("fast")])
    assert len(made.checked) == tried


def test_error_during_routine_timing_ends_no_search() -> None:
    clock = FakeClock()
    budget = Budget.of(10.0, clock)
    made = SlowBench(clock, budget)
    clock.pass_by(7.5)
    tuning = session_of(executor_of(made, budget=budget), [(problem_of(), 3e-3)])
    assert tuning.tuner.complete
    compiled = launch_graph({"tuning": problem_of().key})
    assert with_libraries(compiled, tuning.findings, tuning, offers=offers) is compiled
    assert tuning.tuner.complete


class NoDevice(FakeBench):
    """A bench where there is none."""

    def check(self, problem: TuningTask, built: BuildResult) -> Verdict:
        super().check(problem, built)
        raise BackendError("there is no device")


class Refusing(FakeBench):
    """A bench that a timed kernel is lost on."""

    def sample(self, problem: TuningTask, built: BuildResult, repeats: int) -> Timed:
        return Timed(verdict=Verdict("timeout", "no answer"))


@pytest.mark.parametrize(("made", "tried"), [(NoDevice(lambda kernel: 1e-3), 1), (Refusing(lambda kernel: 1e-3), 3)])
def test_failing_routine_costs_itself_only(made: FakeBench, tried: int) -> None:
    compiled = launch_graph({"tuning": problem_of().key})
    tuning = session_of(executor_of(made), [(problem_of(), 4e-3)])
    assert with_libraries(compiled, tuning.findings, tuning, offers=offers) is compiled
    assert len(made.checked) == tried


@pytest.mark.parametrize(
    ("budget", "cuda", "installed", "spent", "kept"),
    [
        (60.0, True, True, 0.0, MAX_ROUTINE_SECONDS),
        (20.0, True, True, 0.0, 1.0),
        (60.0, True, True, 2.0, MAX_ROUTINE_SECONDS - 2.0),
        (60.0, True, True, 9.0, 0.0),
        (14.0, True, True, 0.0, 0.0),
        (None, True, True, 0.0, 0.0),
        (60.0, False, True, 0.0, 0.0),
        (60.0, True, False, 0.0, 0.0),
    ],
)
def test_small_budget_share_is_reserved_for_routines(
    budget: float | None, cuda: bool, installed: bool, spent: float, kept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_module, "installed_libraries", lambda: ("cudnn 9",) if installed else ())
    form = problem_of().form
    problem = TuningTask(form, {}, CUDA if cuda else OPENCL, {"device": "made up"})
    clock = Budget.of(budget)
    clock.spent["libraries"] = spent
    assert seconds_for_routines([problem], Settings(), clock) == pytest.approx(kept)
    assert seconds_for_routines([problem], Settings(libraries=False), clock) == 0.0
    assert seconds_for_routines([], Settings(), clock) == 0.0


def test_reserved_time_is_not_searched_and_returned() -> None:
    clock = FakeClock()
    budget = Budget.of(60.0, clock)
    left = budget.remaining()
    budget.final_seconds = 3.0
    assert budget.remaining() == left - 3.0
    with budget.final_measurements() as kept:
        assert (kept, budget.remaining()) == (3.0, left)
        clock.pass_by(1.0)
    assert budget.final_seconds == 2.0


def test_arguments_that_are_always_constants_are_known() -> None:
    graph = Graph("g", (), (), {}, (), {"w0": np.zeros(1), "w1": np.zeros(1)})
    kernel = KernelFunction("k", "cuda", "", (1, 1, 1), (1, 1, 1), routine("r").arguments)
    steps = (Step(0, ("a", "w0", "c")), Step(0, ("w0", "w1", "c")))
    assert constant_arguments(CompiledGraph(graph, (kernel,), steps), 0) == {"x1"}
