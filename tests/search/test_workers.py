"""Workers that start late, end too early or cannot be started: every job has one answer, and in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from cuts.search.build import Done, Job, Workers

SERVICES = "cuts.tests.search.services"
Making = Callable[..., Workers]


@pytest.fixture
def making() -> Iterator[Making]:
    """Return what makes workers that are ended with the test."""
    made: list[Workers] = []

    def make(count: int = 1, service: str = "Slow") -> Workers:
        made.append(Workers(count, f"{SERVICES}:{service}"))
        return made[-1]

    yield make
    for workers in made:
        workers.close()


def answers(workers: Workers, *jobs: Job) -> dict[str, Done]:
    for job in jobs:
        workers.submit(job)
    found = {done.job.owner: done for done in workers.collect(0.0)}
    while workers.load:
        found |= {done.job.owner: done for done in workers.collect(1.0)}
    return found


def test_a_worker_that_has_started_between_two_looks_is_not_taken_for_hung(
    making: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says first is no answer: a job was lost at once, as one that "did not answer in 300 seconds"."""
    workers = making()
    slow = workers._slots[0].child
    assert slow.connection.poll(60.0), "it has started"
    looks, ready = iter([False]), slow.ready
    monkeypatch.setattr(slow, "ready", lambda limit: next(looks, True) and ready(limit))
    done = answers(workers, Job("first", "nap", (0.3,)))["first"]
    assert (done.value, done.error) == (0.3, "")
