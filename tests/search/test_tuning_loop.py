"""Order and size of the workers' batches for many tasks."""

from __future__ import annotations

from typing import cast

import pytest
from attrs import define, field
from cuts.ir.compiled import Budget
from cuts.search.building.factory import ScoredCandidate
from cuts.search.building.workers import Job, JobResult
from cuts.search.settings import Settings
from cuts.search.strategies import Strategy
from cuts.search.tuner.build_queue import BuildQueue
from cuts.search.tuner.earlier_results import predicted_choice
from cuts.search.tuner.executor import SearchExecutor
from cuts.search.tuner.proposals import may_propose_early, round_size
from cuts.search.tuner.task_record import Entry, TaskRecord

from .fakes import problem_of
from .simulation import FakeClock, session


@define
class Noting:
    """Workers that record their requests, and never do them."""

    size: int = 16
    load: int = 0
    jobs: list[Job] = field(factory=list)

    def submit(self, job: Job) -> None:
        """Take it down."""
        self.jobs.append(job)

    def collect(self, timeout: float) -> list[JobResult]:
        """Answer nothing."""
        return []

    def drop(self, lasting: bool = False) -> list[Job]:
        """Forget nothing."""
        return []

    def close(self) -> None:
        """There is nothing to end."""


SETTINGS = Settings(batch=3)


def _executor(workers: Noting) -> SearchExecutor:
    executor = session(Budget.of(60.0, FakeClock()), FakeClock())
    executor._builder = workers
    return executor


def test_searches_that_await_a_proof_keep_no_workers() -> None:
    executor, tasks = _executor(Noting()), [TaskRecord(problem_of(8)) for _ in range(40)]
    for task in tasks[2:]:
        task.ending = True
    assert round_size(executor, SETTINGS, tasks[0], tasks) == 8


def test_long_running_search_proposes_more_at_once() -> None:
    executor, tasks = _executor(Noting()), [TaskRecord(problem_of(8)) for _ in range(20)]
    found = []
    for tasks[0].round in (0, 3, 7, 15):
        found.append(round_size(executor, SETTINGS, tasks[0], tasks))
    assert found == [3, 3, 6, 9]


def test_last_points_of_a_search_join_a_round() -> None:
    """The last two of forty points had a round each.

    Each took half a second.
    """
    executor, task = _executor(Noting()), TaskRecord(problem_of(8))
    entry = Entry(ScoredCandidate(None, predicted_choice(task.problem).candidate), "a point")
    found = []
    for tried in (12, 29, 30, 38, 40):
        task.entries = {str(number): entry for number in range(tried)}
        found.append(round_size(executor, SETTINGS, task, [task, TaskRecord(problem_of(8))]))
    assert found == [8, 8, 10, 2, 0]


def test_tasks_that_are_furthest_are_built_first() -> None:
    """A search with ten shared rounds ends long after others."""
    workers, task = Noting(), TaskRecord(problem_of(8))
    trials = BuildQueue(_executor(workers), Settings())
    entry = Entry(ScoredCandidate(None, predicted_choice(task.problem).candidate), "a point")
    for turn in range(5):
        trials.build(task, entry, turn)
    priorities = [job.priority for job in workers.jobs]
    assert sorted(range(5), key=priorities.__getitem__) == [0, 1, 4, 3, 2]


@pytest.mark.parametrize(
    ("left", "load", "stale", "better", "hurries"),
    [
        (2, 3, 0, False, True),
        (1, 3, 1, False, True),
        (1, 3, 2, True, True),  # unsuccessful points after it count from now on
        (3, 3, 0, True, False),  # too much of its data is not known
        (2, 16, 0, True, False),  # workers have enough to do
        (1, 3, 2, False, False),  # it may end by the result of the last one
        (0, 3, 0, True, False),
    ],
)
def test_idle_workers_get_the_next_batch_early(left: int, load: int, stale: int, better: bool, hurries: bool) -> None:
    """The last build would be awaited alone, round after round."""
    executor = _executor(Noting(load=load))
    task = TaskRecord(problem_of(8), strategy=cast(Strategy, object()), tried=6, waiting=left, stale=stale)
    for number in range(12):
        entry = task.entries[str(number)] = Entry(cast(ScoredCandidate, None), str(number))
        if number < 12 - left:
            entry.samples, entry.outcome = [2.0], "ok"
    task.reached = 3.0 if better else 2.0
    assert may_propose_early(executor, SETTINGS, task) is hurries
    for name in ("ending", "asking", "unknown", "untrusted"):
        setattr(task, name, True)
        assert not may_propose_early(executor, SETTINGS, task)
        setattr(task, name, False)
