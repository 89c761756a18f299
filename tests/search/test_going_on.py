"""What the last search tries next is made ready while a plan is decided: it finds what it wants, and chooses alike."""

from __future__ import annotations

from attrs import evolve
from cuts.search.build import Done
from cuts.search.going_on import GoingOn
from cuts.search.making import Preparation
from cuts.search.rounds import Rounds
from cuts.search.settings import QUICK, Settings
from cuts.search.task import SearchTask
from cuts.search.tuner import Tuner

from .fakes import FakeBench, Inline, by_threads, problem_of, tuner_of

SETTINGS = Settings(prove=False)
PROBLEMS = [problem_of(8 * n) for n in range(2, 7)]


def looked(builder: Inline) -> Tuner:
    """Return a tuner that has looked at all problems."""
    tuner = tuner_of(FakeBench(by_threads), builder)
    assert None not in tuner.estimate(PROBLEMS, QUICK)
    return tuner


def test_a_search_finds_ready_what_it_tries_next_and_chooses_alike() -> None:
    plain = Inline()
    expected = looked(plain).run(PROBLEMS, SETTINGS)
    builder = Inline()
    tuner = looked(builder)
    going = GoingOn(tuner.resources, SETTINGS)
    going.begin(PROBLEMS)
    assert tuner.resources.going_on == {p.key for p in PROBLEMS}
    while builder.load:
        assert tuner.resources.collect(0.0) == [], "nobody else asked for anything"
    assert not (tuner.resources.going_on or going.waiting)
    ahead = len(tuner.resources.ready)
    assert ahead >= len(PROBLEMS)
    built = builder.built
    found = tuner.run(PROBLEMS, SETTINGS)
    assert [c.candidate.schedule for c in found] == [c.candidate.schedule for c in expected]
    assert not tuner.resources.ready, "each was taken"
    assert builder.built == plain.built - ahead
    assert built < builder.built


def test_a_search_waits_for_what_a_worker_is_at() -> None:
    builder = Inline()
    tuner = looked(builder)
    (first, second), resources = PROBLEMS[:2], tuner.resources
    preparation = Preparation(resources, SETTINGS)
    preparation.further.begin([first, second])
    at = builder.queue.pop(0)
    preparation.end()
    assert resources.going_on == {first.key}, "what no worker is at is forgotten"
    assert not builder.load
    rounds = Rounds(resources, evolve(SETTINGS, remembers=False))
    task = tuner._task(first)
    rounds.begin(task)
    for _ in range(5):
        rounds.turn([task])
    assert not builder.load, "nothing is asked for"
    assert len(task.entries) == QUICK.first
    builder.submit(at)
    while resources.going_on:
        resources.collect(0.0)
    rounds.turn([task])
    assert len(task.entries) > QUICK.first
    assert not resources.ready


def test_a_worker_that_is_lost_over_it_costs_that_only() -> None:
    builder = Inline()
    tuner = looked(builder)
    going = GoingOn(tuner.resources, SETTINGS)
    going.begin(PROBLEMS[:1])
    job = builder.queue.pop(0)
    job.owner(Done(job, error="the worker was lost", lost=True))
    assert not (tuner.resources.going_on or going.waiting or tuner.resources.ready)


def test_only_what_was_measured_is_gone_on_with_and_by_what_travels() -> None:
    builder = Inline()
    tuner = looked(builder)
    GoingOn(tuner.resources, SETTINGS).begin([problem_of(200)])
    GoingOn(tuner.resources, evolve(SETTINGS, strategy="rank")).begin(PROBLEMS)
    GoingOn(tuner.resources, evolve(SETTINGS, aided=False)).begin(PROBLEMS)
    assert not (builder.load or tuner.resources.going_on)
    assert isinstance(tuner._task(PROBLEMS[0]), SearchTask)
