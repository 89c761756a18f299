"""Deeper searches.

Remaining budget, single-kernel programs, and spaces that the model calls flat.
"""

from __future__ import annotations

from math import log2, prod

import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir import BOUND_PRUNING
from cuts.ir.compiled import Budget, KernelFunction
from cuts.ir.machine import Target
from cuts.passes.schedule import best_points, make_space
from cuts.search.settings import Settings
from cuts.search.strategies import Observation, strategy_on
from cuts.search.strategies.bayes import Bayes
from cuts.search.strategies.search_domain import FullSpace, place_of
from cuts.search.tasks.tuning_task import TuningTask
from cuts.search.tuner.deeper_search import search_deeper, slowest_kernels, tune_each
from cuts.search.tuner.proposals import MAX_BATCH_FACTOR, is_out_of_patience
from cuts.search.tuner.task_record import Entry, TaskRecord
from cuts.search.tuner.tuner import Tuner

from .fakes import MACHINE, OPENCL, fake_compile, group_of, problem_of
from .simulation import FakeClock, session

TARGET = evolve(OPENCL, on_host=False)
H200 = find_target("cuda:h200")
BRIEF = Settings(first=3, batch=2, most=6, patience=1, prove=False, deeper=1)


def flat(kernel: KernelFunction) -> float:
    """Cost of a kernel that only moves data.

    It is a launch, and little that depends on how its elements are spread. Sixteen blocks of 256 threads are best, each
    other doubling costs 2 %.
    """
    return 5e-6 * (1 + 0.02 * abs(log2(prod(kernel.block)) - 8) + 0.02 * abs(log2(prod(kernel.grid)) - 4))


def simulated_tuner(cost: object, seconds: float) -> Tuner:
    clock = FakeClock()
    return Tuner(session(Budget.of(seconds, clock), clock, cost=cost))  # type: ignore[arg-type]


def elements(rows: int, columns: int, target: Target) -> TuningTask:
    return TuningTask(group_of("relu", ((rows, columns),)), {}, target, MACHINE, f"relu {rows}x{columns}")


@pytest.mark.long
def test_deeper_search_finds_points_far_from_model_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost model separates hundreds of points by less than a thousandth.

    Its first ones, of one warp a block, lie together in the corner that is 10 % slower.
    """
    monkeypatch.setattr("cuts.search.building.factory.compile_kernel", fake_compile)
    problem = elements(64, 512, H200)
    ended = simulated_tuner(flat, 120.0).run([problem], Settings(prove=False))
    (found,) = tune_each([problem], simulated_tuner(flat, 120.0), Settings(prove=False))
    assert ended[0].seconds is not None
    assert found.seconds is not None
    assert found.seconds <= ended[0].seconds
    assert found.seconds <= 1.03 * 5e-6


def test_candidates_lie_anywhere_within_the_bound() -> None:
    problem = elements(64, 512, H200)
    ground = FullSpace(make_space(problem.form, problem.target))
    first = [ground.candidate_at(p) for p in best_points(problem.form, problem.target, BOUND_PRUNING, 12)]
    known = [Observation(s.point, 5e-6) for s in first if s.point is not None]

    def looked_at(name: str) -> set[object]:
        strategy = strategy_on(ground, name, first)
        assert isinstance(strategy, Bayes)
        points = strategy.candidates(known)
        assert ground.bounds(points).max() <= 5e-6
        return {place_of(p) for p in points}

    near, anywhere = looked_at("bayes"), looked_at("thorough")
    assert near < anywhere
    assert len(anywhere) > len(near) + 100


def test_single_kernel_program_is_always_searched_deeper() -> None:
    """A neighbour two hundred times as long hides all its loss."""

    def cost(kernel: KernelFunction) -> float:
        return flat(kernel) if len(kernel.arguments) == 2 else 1e-3

    problems = [evolve(problem_of(48), target=TARGET), elements(8, 64, TARGET)]
    tuner = simulated_tuner(cost, 120.0)
    choices = tuner.run(problems, BRIEF)
    found = dict(enumerate(choices))
    assert slowest_kernels(problems, found) == [0]
    assert slowest_kernels(problems, found, separate_programs=True) == [0, 1]
    together, separate = simulated_tuner(cost, 120.0), simulated_tuner(cost, 120.0)
    search_deeper(problems, dict(enumerate(together.run(problems, BRIEF))), together, BRIEF, 1.0)
    tune_each(problems, separate, BRIEF)
    searched = [[task.problem.label for task in search.tasks] for search in together.statistics.searches]
    assert searched == [["matmul 48", "relu 8x64"], ["matmul 48"]]
    searched = [[task.problem.label for task in search.tasks] for search in separate.statistics.searches]
    assert searched == [["matmul 48", "relu 8x64"]] * 2


def test_deeper_search_is_as_patient_in_parallel() -> None:
    deep, hasty = Settings().deeper_settings(1), Settings()
    task = TaskRecord(problem_of(8))
    for settings, narrow, wide in ((deep, 3 * (1 + deep.patience), 1 + deep.patience), (hasty, 3, 3)):
        for batch, rounds in ((settings.batch, narrow), (MAX_BATCH_FACTOR * settings.batch, wide)):
            task.stale = task.unsuccessful = 0
            count = 0
            while not is_out_of_patience(settings, task):
                task.stale, task.unsuccessful, count = task.stale + 1, task.unsuccessful + batch, count + 1
            assert count == rounds


def test_few_scattered_runs_make_a_tie() -> None:
    """Enough runs with 3 % noise resolve a gain of 2 %."""

    def choose(runs: int) -> float:
        task = TaskRecord(problem_of(8))
        space = FullSpace(make_space(task.problem.form, OPENCL))
        scored = [space.candidate_at(point) for point in best_points(task.problem.form, OPENCL, BOUND_PRUNING, 2)]
        for number, (each, seconds) in enumerate(zip(scored, (1.02e-5, 1e-5), strict=True)):
            samples = [seconds * (1 + part) for part in (-0.03, 0.0, 0.03)] * runs
            task.entries[str(number)] = Entry(each, str(number), samples=samples, outcome="ok")
        winner = task.winner(Settings())
        assert winner is not None
        return winner.seconds

    assert choose(1) == 1.02e-5, "the model's first"
    assert choose(8) == 1e-5
