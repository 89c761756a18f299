"""Distribution of tuning tasks to places, most launched kernels first.

All results are stored in one database. A place that is lost, hangs or returns an impossible result costs its running
units: the task goes to another place, twice at most, then it is searched here. A time below the lower bound is
impossible; further results of that place are rejected.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Protocol

from attrs import define, evolve, field, frozen

from ...ir import FULL_SHARE
from ..building import ScoredCandidate
from ..settings import Settings, TunedChoice
from ..tasks import schedule_text
from ..trace import SearchTrace
from ..tuner import Entry, SearchExecutor, TaskRecord, TuningLoop, best_known, space_key
from .unit import SearchUnit, UnitResult

#: Number of times that a task is given to a place before it is searched here.
MAX_ATTEMPTS = 3
#: Seconds before the end of a budget in which places return their results.
HANDOVER_SECONDS = 0.5
#: Seconds after which a unit counts as hung: without a budget, and in addition to a budget.
MAX_UNIT_SECONDS, GRACE_SECONDS = 900.0, 30.0


@frozen
class UnitAnswer:
    """Result of a unit from a place, or the reason for none."""

    number: int
    place: Hashable
    result: UnitResult | None = None
    reason: str = ""


class SearchEngine(Protocol):
    """Interface of places that search."""

    @property
    def free(self) -> int:
        """Number of further units that would start at once."""
        ...

    @property
    def places(self) -> int:
        """Number of places."""
        ...

    def submit(self, number: int, unit: SearchUnit, limit: float) -> None:
        """Send a unit to a place; it counts as hung after `limit`."""
        ...

    def collect(self, timeout: float) -> list[UnitAnswer]:
        """Return finished and lost units since the last call.

        Wait for one, at most `timeout` seconds.
        """
        ...

    def exclude(self, place: Hashable) -> None:
        """Send no more units to a place."""
        ...

    def drop(self) -> None:
        """Cancel all running units."""
        ...

    def close(self) -> None:
        """Release the places."""
        ...


@define
class RemoteTuningLoop:
    """Tuning loop like `TuningLoop`, at other places."""

    engine: SearchEngine
    executor: SearchExecutor
    settings: Settings
    share: float = FULL_SHARE
    notice: Callable[[str], None] = lambda text: None
    _attempts: Counter[str] = field(factory=Counter, init=False)
    _excluded: set[Hashable] = field(factory=set, init=False)

    def run(self, tasks: Sequence[TaskRecord]) -> dict[str, TunedChoice]:
        """Return a choice for every task, by its key."""
        record = self.search(tasks)
        known = self.executor.database, self.executor.memory.ranked
        found = {t.problem.key: t.choice or best_known(t, self.settings, *known) for t in tasks}
        record.end(self.executor.elapsed, [found[t.problem.key].candidate.score for t in tasks])
        return found

    def search(self, tasks: Sequence[TaskRecord]) -> SearchTrace:
        """Search until each task has its choice or the run must end."""
        record = SearchTrace(tasks)
        if self.settings.final:
            self.executor.statistics.searches.append(record)
        waiting = deque(sorted(range(len(tasks)), key=lambda k: -tasks[k].uses))
        under_way: set[int] = set()
        unfinished: list[TaskRecord] = []
        with self.executor.interruptible():
            while (waiting or under_way) and not self._is_finished(under_way):
                if not self.engine.places:
                    unfinished += [tasks[k] for k in (*waiting, *under_way)]
                    break
                while waiting and self.engine.free and not self._is_late:
                    under_way.add(number := waiting.popleft())
                    self._submit(number, tasks[number])
                self._receive_dropped()
                with self.executor.statistics.phase("wait for places"):
                    answers = self.engine.collect(self.executor.pause(self.share))
                for answer in answers:
                    if answer.number not in under_way:
                        continue
                    under_way.discard(answer.number)
                    if self._take_result(tasks[answer.number], answer):
                        self.executor.report(tasks)
                        record.note(self.executor.elapsed)
                    elif self._attempts[tasks[answer.number].problem.key] < MAX_ATTEMPTS:
                        waiting.append(answer.number)
                    else:
                        unfinished.append(tasks[answer.number])
            if unfinished:
                self.notice(
                    f"{len(unfinished)} of {len(tasks)} kernels are searched for here: no other place finished them"
                )
                TuningLoop(self.executor, self.settings, self.share).search(unfinished)
        if any(t.choice is None for t in tasks):
            self.engine.drop()
        return record

    def _submit(self, number: int, task: TaskRecord) -> None:
        budget = self.executor.budget
        seconds = max(0.0, budget.remaining(self.share) - HANDOVER_SECONDS) if budget.is_limited else None
        self._attempts[task.problem.key] += 1
        task.begun = budget.clock()
        ranked = self.executor.memory.ranked.get(space_key(task.problem, self.settings), ())[: self.settings.first]
        known, version = tuple(task.stored.values()), self.executor.database.version
        unit = SearchUnit(task.problem, self.settings, known, seconds, tuple(ranked), version)
        self.engine.submit(number, unit, MAX_UNIT_SECONDS if seconds is None else seconds + GRACE_SECONDS)

    def _take_result(self, task: TaskRecord, answer: UnitAnswer) -> bool:
        """Store a possible result; return whether it answers the task."""
        result, problem = answer.result, task.problem
        if answer.place in self._excluded:
            return False
        if result is None or result.error:
            self.notice(f"{problem.label or problem.key[:12]}: {answer.reason or (result.error if result else '')}")
            return False
        if wrong := [t for t in result.trials if t.seconds is not None and t.seconds < t.bound]:
            self._exclude(answer.place)
            self.notice(
                f"{answer.place} says that a kernel took {wrong[0].seconds:.3g} s, which is below its bound of "
                f"{wrong[0].bound:.3g} s: nothing more is taken from there"
            )
            return False
        if dict(result.machine) != dict(problem.machine):
            self.notice(f"{answer.place} is another machine ({result.machine.get('target', '')}): left out")
            self._exclude(answer.place)
            return False
        database, statistics = self.executor.database, self.executor.statistics
        if result.ranked:
            self.executor.memory.ranked.setdefault(space_key(problem, self.settings), list(result.ranked))
        today = result.version == database.version
        with database.transaction():
            database.register(problem)
            database.record(problem, result.trials, today)
            if result.winner is not None and self.settings.final:
                database.finish(problem, result.winner)
        for trial in result.trials:
            task.stored[trial.schedule] = evolve(trial, holds=today or None)
            statistics.outcomes[trial.outcome] += 1
        statistics.compiled += result.compiled
        statistics.timed += result.timed
        task.round, task.ended = result.rounds, self.executor.budget.clock()
        self._choose(task, result)
        return True

    def _choose(self, task: TaskRecord, result: UnitResult) -> None:
        """Store a choice; that of an interrupted search counts as measured, but not as an estimate to store."""
        choice = result.choice
        self.executor.expire(not result.complete)
        if result.complete or self.settings.final:
            task.choice = choice
        elif choice is not None and choice.seconds is not None:
            text = schedule_text(choice.candidate.schedule)
            known = Entry(ScoredCandidate(None, choice.candidate), text, samples=[choice.seconds], outcome="ok")
            task.entries[text] = known

    def _receive_dropped(self) -> None:
        """Receive workers' answers to dropped jobs."""
        if self.executor.started:
            self.executor.receive()

    @property
    def _is_late(self) -> bool:
        """True if a new unit would have no time."""
        budget = self.executor.budget
        return budget.is_limited and budget.remaining(self.share) <= HANDOVER_SECONDS

    def _is_finished(self, under_way: Collection[int]) -> bool:
        """Return whether no further result is expected."""
        return self.executor.expire(self._is_late and not under_way) or self.executor.over(self.share)

    def _exclude(self, place: Hashable) -> None:
        self._excluded.add(place)
        self.engine.exclude(place)
