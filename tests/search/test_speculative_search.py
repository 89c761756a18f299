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
from cuts.search.selector import MeasuredSelector
from cuts.search.settings import FIRST_CANDIDATES, QUICK_CANDIDATES, QUICK_SEARCH, SINGLE_MEASUREMENT, Settings
from cuts.search.strategies.bayes import Bayes
from cuts.search.tuner.loop import TuningLoop
from cuts.search.tuner.speculative_build import SpeculativeBuild
from cuts.search.tuner.speculative_search import SpeculativeSearch
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
    going = SpeculativeSearch(tuner.resources, SETTINGS)
    going.begin(PROBLEMS)
    assert tuner.resources.searched_ahead == {p.key for p in PROBLEMS}
    while builder.load:
        assert tuner.resources.collect(0.0) == [], "there are no other requests"
    assert not (tuner.resources.searched_ahead or going.waiting)
    ahead = len(tuner.resources.ready)
    assert ahead >= len(PROBLEMS)
    built = builder.built
    found = tuner.run(PROBLEMS, SETTINGS)
    assert [c.candidate.schedule for c in found] == [c.candidate.schedule for c in expected]
    assert not tuner.resources.ready, "each was taken"
    assert builder.built == plain.built - ahead
    assert built < builder.built


def test_search_waits_for_running_worker_jobs() -> None:
    builder = Inline()
    tuner = prepared_tuner(builder)
    (first, second), resources = PROBLEMS[:2], tuner.resources
    preparation = SpeculativeBuild(resources, SETTINGS)
    preparation.searches_ahead.begin([first, second])
    at = builder.queue.pop(0)
    preparation.end()
    assert resources.searched_ahead == {first.key}, "what no worker is at is forgotten"
    assert not builder.load
    rounds = TuningLoop(resources, evolve(SETTINGS, remembers=False))
    task = tuner._task(first)
    rounds.begin(task)
    for _ in range(5):
        rounds.step([task])
    assert not builder.load, "nothing is asked for"
    assert len(task.entries) == QUICK_SEARCH.first
    builder.submit(at)
    while resources.searched_ahead:
        resources.collect(0.0)
    rounds.step([task])
    assert len(task.entries) > QUICK_SEARCH.first
    assert not resources.ready


def test_lost_worker_costs_its_own_job_only() -> None:
    builder = Inline()
    tuner = prepared_tuner(builder)
    going = SpeculativeSearch(tuner.resources, SETTINGS)
    going.begin(PROBLEMS[:1])
    job = builder.queue.pop(0)
    job.owner(JobResult(job, error="the worker was lost", lost=True))
    assert not (tuner.resources.searched_ahead or going.waiting or tuner.resources.ready)


def test_only_measured_transportable_points_are_continued() -> None:
    builder = Inline()
    tuner = prepared_tuner(builder)
    SpeculativeSearch(tuner.resources, SETTINGS).begin([problem_of(200)])
    SpeculativeSearch(tuner.resources, evolve(SETTINGS, strategy="rank")).begin(PROBLEMS)
    SpeculativeSearch(tuner.resources, evolve(SETTINGS, aided=False)).begin(PROBLEMS)
    assert not (builder.load or tuner.resources.searched_ahead)
    assert isinstance(tuner._task(PROBLEMS[0]), TaskRecord)


def test_nothing_is_continued_twice_unless_forgotten() -> None:
    builder = Inline()
    resources = prepared_tuner(builder).resources
    preparation = SpeculativeBuild(resources, SETTINGS)
    preparation.searches_ahead.begin(PROBLEMS[:2])
    assert builder.load == 2
    while builder.load:
        resources.collect(0.0)
    preparation.searches_ahead.begin(PROBLEMS[:3])
    assert builder.load == 1, "two have been gone on with, and are not tried again"
    preparation.end()
    preparation.searches_ahead.begin(PROBLEMS[:3])
    assert builder.load == 1, "the third was forgotten"


def test_workers_that_others_wait_for_are_spared() -> None:
    builder = Inline()
    builder.size = 4
    going = SpeculativeSearch(prepared_tuner(builder).resources, SETTINGS)
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

    with tuner.resources.calling_when_idle(idle):
        tuner.estimate(PROBLEMS, QUICK_SEARCH)
    assert len(called) == 1, "once"
    (ended,) = called
    assert 2 * sum(ended) >= len(ended) > sum(ended), "most have their choice, but not all"
    assert tuner.resources.on_idle is None


def test_idle_workers_continue_with_current_plan_kernels() -> None:
    """A comparison's last kernels left fifteen of sixteen workers idle."""
    builder = Inline()
    builder.size = 4
    tuner = tuner_of(FakeBench(by_threads), builder, budget=1000.0)
    selector = MeasuredSelector(OPENCL, tuner, SETTINGS)
    selector.evaluator(Roofline(OPENCL))
    groups = [problem.form for problem in PROBLEMS]
    for group in groups:
        selector.cost(group)
    known: list[list[bool]] = []

    def plan() -> Sequence[FusedGroup]:
        known.append([selector.times.has(group) for group in groups])
        return [group for group, seen in zip(groups, known[0], strict=True) if seen]

    assert selector.measure(lambda: [groups], 1.0, plan)
    assert len(known) == 1
    assert any(known[0]), "by what was measured so far"
    asked = tuner.resources.searched_ahead | {key for key, _ in tuner.resources.ready}
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
    rounds, task = TuningLoop(tuner.resources, evolve(SETTINGS, remembers=False)), tuner._task(problem)
    rounds.begin(task)
    for _ in range(9):
        if task.strategy is None:
            rounds.step([task])
    assert isinstance(task.strategy, Bayes)
    assert (task.strategy.initial_points, len(task.entries)) == (count, count)
