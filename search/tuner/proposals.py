"""Proposals of a search: number, moment, and the end of patience.

A round has more candidates where workers would be idle. Strategies that depend on measurements alone propose in a
worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from ..building import ScoredCandidate
from ..processes import one_thread
from ..settings import FIRST_CANDIDATES, QUICK_CANDIDATES, Settings
from ..strategies import ProposalRequest, request_of
from .executor import SearchExecutor
from .task_record import TaskRecord

#: Largest factor on the batch size where few searches go on.
MAX_BATCH_FACTOR = 3
#: Share of a batch that may be unfinished when the next one is proposed.
MAX_PENDING_SHARE = 0.34
#: Fewest workers for which proposals are made by a worker: fewer have enough to do.
MIN_PROPOSING_WORKERS = 4


def batch_size(settings: Settings, turn: int, workers: int, going: int) -> int:
    """Return the number of candidates of a round, where `going` searches run."""
    limit = max(
        MAX_BATCH_FACTOR * settings.batch, workers // max(1, going)
    )  # a round takes no longer with candidates for idle workers
    return max(settings.batch, min(limit, (1 + turn) * workers // max(1, going)))


def round_size(executor: SearchExecutor, settings: Settings, task: TaskRecord, tasks: Sequence[TaskRecord]) -> int:
    """Return the number of candidates of a task's next round.

    The last few, fewer than a batch, are included. It is larger under a budget where few searches run and workers would
    be idle, and grows with the rounds of this search. A search that only waits for its pruning certificate does not
    count. A round takes as long for one candidate.
    """
    batch, left = settings.batch, settings.most - len(task.entries)
    if executor.budget.is_limited:
        going = sum(t.choice is None and not t.ending for t in tasks)
        batch = batch_size(settings, task.round, executor.builder.size, going)
    return left if left < batch + settings.batch else batch


def initial_count(executor: SearchExecutor, settings: Settings, task: TaskRecord) -> int:
    """Return the number of the model's candidates that begin a search.

    This is for expected improvement. Those that a short search has built are free information. The number is the same
    when an interrupted session resumes.
    """
    known = executor.memory.quickly_searched
    if not settings.final:
        known.update([task.problem.key] if settings.first >= QUICK_CANDIDATES else [])
        return settings.first
    return QUICK_CANDIDATES if task.problem.key in known else FIRST_CANDIDATES


def may_propose_early(executor: SearchExecutor, settings: Settings, task: TaskRecord) -> bool:
    """Return whether the next batch is proposed now, as workers are idle.

    The last one is not complete. Not where the pending results may end the search.
    """
    pending, builder = task.waiting + len(task.ready), executor.builder
    if task.strategy is None or task.ending or task.asking or task.unknown or task.untrusted:
        return False
    if (
        not 0 < pending <= MAX_PENDING_SHARE * (len(task.entries) - task.tried)
        or not MIN_PROPOSING_WORKERS <= builder.size > builder.load
    ):
        return False
    better = task.seconds < task.reached * (1 - settings.tie)
    return task.seconds < inf and (better or task.stale < settings.patience)


def is_out_of_patience(settings: Settings, task: TaskRecord) -> bool:
    """Return whether enough candidates were tried without improvement.

    A hasty search counts proposals, another one counts candidates: with others beside it, it would otherwise end after
    a third of the candidates that it tries alone.
    """
    if settings.hasty:
        return task.stale > settings.patience
    return task.unsuccessful >= (1 + settings.patience) * MAX_BATCH_FACTOR * settings.batch


def propose_here(executor: SearchExecutor, task: TaskRecord, count: int) -> list[ScoredCandidate]:
    """Return the proposals of a task's strategy, made in this process."""
    assert task.strategy is not None, "a search has begun that is asked for points"
    with one_thread(), executor.statistics.phase("propose"):
        return task.strategy.propose(task.observations(), task.seconds, count)


def worker_request(executor: SearchExecutor, settings: Settings, task: TaskRecord, room: int) -> ProposalRequest | None:
    """Return the proposal request for a worker, if any.

    There is none for few workers, or for a strategy that stays in this process.
    """
    if executor.builder.size < MIN_PROPOSING_WORKERS or task.strategy is None:
        return None
    return request_of(settings, task.strategy, task.observations(), task.seconds, room, task.order)
