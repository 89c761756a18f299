"""Speculative search.

The last search's next points are built while a plan is decided. It finds them, and chooses the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import evolve
from cuts.ir.segment import FusedGroup
from cuts.passes.costs.evaluators import Roofline
from cuts.search.building.workers import JobResult
from cuts.search.session import TuningSession
from cuts.search.settings import FIRST_CANDIDATES, QUICK_CANDIDATES, QUICK_SEARCH, SINGLE_MEASUREMENT, Settings
from cuts.search.speculation.speculative_build import SpeculativeBuild
from cuts.search.speculation.speculative_search import SpeculativeSearch
from cuts.search.strategies.bayes import Bayes
from cuts.search.tuner.loop import TuningLoop
from cuts.search.tuner.task_record import TaskRecord
from cuts.search.tuner.tuner import Tuner

from .fakes import OPENCL, FakeBench, Inline, by_threads, problem_of, tuner_of

SETTINGS = Settings(prove=False)
PROBLEMS = [problem_of(8 * n) for n in range(2, 7)]


def prepared_tuner(builder: Inline) -> Tuner:
    """Return a tuner that has visited all tasks."""
    tuner = tuner_of(FakeBench(by_threads), builder)
    assert None not in tuner.estimate(PROBLEMS, QUICK_SEARCH)
    return tuner


def test_search_finds_next_points_built_and_chooses_equally() -> None:
    plain = Inline()
    expected = prepared_tuner(plain).run(PROBLEMS, SETTINGS)
    builder = Inline()
    tuner = prepared_tuner(builder)
    going = SpeculativeSearch(tuner.executor, SETTINGS)
    going.begin(PROBLEMS)
    assert tuner.executor.memory.searched_ahead == {p.key for p in PROBLEMS}
    while builder.load:
        assert tuner.executor.receive() is False, "there are no other requests"
    assert not (tuner.executor.memory.searched_ahead or going.waiting)
    ahead = len(tuner.executor.memory.ready)
    assert ahead >= len(PROBLEMS)
    built = builder.built
    found = tuner.run(PROBLEMS, SETTINGS)
    assert [c.candidate.schedule for c in found] == [c.candidate.schedule for c in expected]
    assert not tuner.executor.memory.ready, "each was taken"
    assert builder.built == plain.built - ahead
    assert built < builder.built


def test_search_waits_for_running_worker_jobs() -> None:
    builder = Inline()
    tuner = prepared_tuner(builder)
    (first, second), executor = PROBLEMS[:2], tuner.executor
    preparation = SpeculativeBuild(executor, SETTINGS)
    preparation.searches_ahead.begin([first, second])
    at = builder.queue.pop(0)
    preparation.end()
    assert executor.memory.searched_ahead == {first.key}, "what no worker is at is forgotten"
    assert not builder.load
    rounds = TuningLoop(executor, evolve(SETTINGS, remembers=False))
    task = tuner._task(first)
    rounds.begin(task)
    for _ in range(5):
        rounds.step([task])
    assert not builder.load, "nothing is asked for"
    assert len(task.entries) == QUICK_SEARCH.first
    builder.submit(at)
    while executor.memory.searched_ahead:
        executor.receive()
    rounds.step([task])
    assert len(task.entries) > QUICK_SEARCH.first
    assert not executor.memory.ready


def test_lost_worker_costs_its_own_job_only() -> None:
    builder = Inline()
    tuner = prepared_tuner(builder)
    going = SpeculativeSearch(tuner.executor, SETTINGS)
    going.begin(PROBLEMS[:1])
    job = builder.queue.pop(0)
    job.owner(JobResult(job, error="the worker was lost", lost=True))
    assert not (tuner.executor.memory.searched_ahead or going.waiting or tuner.executor.memory.ready)


def test_only_measured_transportable_points_are_continued() -> None:
    builder = Inline()
    tuner = prepared_tuner(builder)
    SpeculativeSearch(tuner.executor, SETTINGS).begin([problem_of(200)])
    SpeculativeSearch(tuner.executor, evolve(SETTINGS, strategy="rank")).begin(PROBLEMS)
    SpeculativeSearch(tuner.executor, evolve(SETTINGS, aided=False)).begin(PROBLEMS)
    assert not (builder.load or tuner.executor.memory.searched_ahead)
    assert isinstance(tuner._task(PROBLEMS[0]), TaskRecord)


def test_nothing_is_continued_twice_unless_forgotten() -> None:
    builder = Inline()
    executor = prepared_tuner(builder).executor
    preparation = SpeculativeBuild(executor, SETTINGS)
    preparation.searches_ahead.begin(PROBLEMS[:2])
    assert builder.load == 2
    while builder.load:
        executor.receive()
    preparation.searches_ahead.begin(PROBLEMS[:3])
    assert builder.load == 1, "two have been gone on with, and are not tried again"
    preparation.end()
    preparation.searches_ahead.begin(PROBLEMS[:3])
    assert builder.load == 1, "the third was forgotten"


def test_workers_that_others_wait_for_are_spared() -> None:
    builder = Inline()
    builder.size = 4
    going = SpeculativeSearch(prepared_tuner(builder).executor, SETTINGS)
    going.begin(PROBLEMS, spared=1)
    assert builder.load == 3
    going.begin(PROBLEMS[:2], spared=5)
    assert builder.load == 3
    going.begin(PROBLEMS)
    assert builder.load == len(PROBLEMS)


def test_idle_work_runs_once_before_the_search_ends() -> None:
    builder = Inline()
    builder.size = 4
    tuner = tuner_of(FakeBench(by_threads), builder)
    called: list[list[bool]] = []

    def idle(tasks: Sequence[TaskRecord]) -> None:
        assert builder.load < builder.size
        called.append([task.choice is not None for task in tasks])

    with tuner.executor.calling_when_idle(idle):
        tuner.estimate(PROBLEMS, QUICK_SEARCH)
    assert len(called) == 1, "once"
    (ended,) = called
    assert 2 * sum(ended) >= len(ended) > sum(ended), "most have their choice, but not all"
    assert tuner.executor.on_idle is None


def test_idle_workers_continue_with_current_plan_kernels() -> None:
    """A comparison's last kernels left fifteen of sixteen workers idle."""
    builder = Inline()
    builder.size = 4
    tuner = tuner_of(FakeBench(by_threads), builder, budget=1000.0)
    tuning = TuningSession(OPENCL, tuner, SETTINGS)
    model = tuning.model()
    model.evaluator(Roofline(OPENCL))
    groups = [problem.form for problem in PROBLEMS]
    for group in groups:
        model.costs.cost(group)
    known: list[list[bool]] = []

    def plan() -> Sequence[FusedGroup]:
        known.append([tuning.known.times.has(group) for group in groups])
        return [group for group, seen in zip(groups, known[0], strict=True) if seen]

    assert model.measure(lambda: [groups], 1.0, plan)
    assert len(known) == 1
    assert any(known[0]), "by what was measured so far"
    asked = tuner.executor.memory.searched_ahead | {key for key, _ in tuner.executor.memory.ready}
    assert asked, "workers go on"
    assert len(asked) == min(sum(known[0]), builder.size - known[0].count(False)), "with what a clock has seen"


@pytest.mark.parametrize(
    ("before", "count"),
    [(None, FIRST_CANDIDATES), (QUICK_SEARCH, QUICK_CANDIDATES), (SINGLE_MEASUREMENT, FIRST_CANDIDATES)],
)
def test_search_begins_with_compared_points_or_one(before: Settings | None, count: int) -> None:
    tuner, problem = tuner_of(FakeBench(by_threads), Inline()), PROBLEMS[0]
    if before is not None:
        tuner.estimate([problem], before)
    rounds, task = TuningLoop(tuner.executor, evolve(SETTINGS, remembers=False)), tuner._task(problem)
    rounds.begin(task)
    for _ in range(9):
        if task.strategy is None:
            rounds.step([task])
    assert isinstance(task.strategy, Bayes)
    assert (task.strategy.initial_points, len(task.entries)) == (count, count)
