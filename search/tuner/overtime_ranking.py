"""Overtime ranking: spaces without results are ranked after the budget's end."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

from ...ir import processor_count
from ..building import Factory, JobResult, ScoredCandidate
from ..settings import Settings
from .executor import SearchExecutor
from .final_ranking import space_key
from .task_record import TaskRecord

#: Fewest candidates that are ranked, so that a short search has enough for a longer one, and alternatives where the
#: first ones fail.
MIN_RANKED_CANDIDATES = Settings().first
#: Most seconds in which spaces without any results are ranked after the end of the budget.
OVERTIME_RANKING_SECONDS = 2.0
#: Seconds that this process takes to choose the best of a few candidates of a space; workers are awaited as long (105
#: spaces took it 7 s on an H200's host).
QUICK_CHOICE_SECONDS = 0.07
#: Seconds that a core takes to rank a space; all spaces together get at most OVERTIME_RANKING_SECONDS after the end of
#: the budget. A kernel that was never measured is then the cost model's choice.
RANKING_SECONDS = 0.5


def ranking_seconds(spaces: int) -> float:
    """Return the seconds for ranking spaces after the budget's end."""
    return min(OVERTIME_RANKING_SECONDS, RANKING_SECONDS * spaces / processor_count())


def ranking_end(executor: SearchExecutor, spaces: int) -> float:
    """Return the seconds of a session after which ranking ends.

    It goes on after the budget's end for as long as this process would take, until the budget is overdue.
    """
    budget = executor.budget
    own = budget.seconds - budget.committed + RANKING_SECONDS * spaces
    return max(min(own, budget.latest), executor.elapsed + ranking_seconds(spaces))


def _rank_here(wishes: tuple[Any, ...]) -> list[ScoredCandidate]:
    """Return a space's ranking by this process.

    It takes the arguments of a worker's, and is empty where no point is legal.
    """
    return Factory().rank_each([wishes])[0]


def rank_unranked(
    executor: SearchExecutor, settings: Settings, tasks: Sequence[TaskRecord]
) -> dict[Hashable, list[ScoredCandidate]]:
    """Return ranked candidates of all spaces, after ranking those without any results.

    Where nothing could be measured, a kernel is at least as good as without a search. The time for this was reserved in
    the budget, and a little more is taken. The best of a few candidates come first. They are awaited as long as this
    process would take to choose them itself. It ranks spaces too, from the other end: workers may still start.
    """
    ranked, soon = executor.memory.ranked, dict[Hashable, list[ScoredCandidate]]()
    missing = {key: t.problem for t in tasks if (key := space_key(t.problem, settings)) not in ranked and _is_open(t)}

    def take_soon(key: Hashable, done: JobResult) -> None:
        if key in missing and done.value:
            soon[key] = done.value

    def take_ranking(key: Hashable, done: JobResult) -> None:
        if missing.pop(key, None) is not None and done.value:
            ranked[key] = done.value

    executor.drop_queries()
    wishes = {
        key: executor.memory.ranking(problem, settings.pruning, MIN_RANKED_CANDIDATES, settings.correction)
        for key, problem in missing.items()
    }
    with executor.interruptible():
        for key, problem in missing.items():
            executor.submit(partial(take_soon, key), "soon", problem, priority=(-1.0,))
            executor.submit(partial(take_ranking, key), "rank", *wishes[key], priority=(0.0,))
        end = ranking_end(executor, len(missing))
        more = min(OVERTIME_RANKING_SECONDS, RANKING_SECONDS * len(missing))
        latest = max(end + more, executor.elapsed + QUICK_CHOICE_SECONDS * len(missing))
        while missing and not executor.interrupted:
            if executor.elapsed >= (end if soon.keys() >= missing.keys() else latest):
                break
            if not executor.receive() and missing:
                key = next(reversed(missing))
                if found := _rank_here(wishes[key]):
                    ranked[key] = found
                del missing[key]
    if missing:
        executor.drop()
    return {**soon, **ranked}


def _is_open(task: TaskRecord) -> bool:
    """Return whether a task has neither a ranking nor a result."""
    return not (task.first or task.lost) and task.choice is None and task.best is None
