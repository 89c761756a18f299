"""Problems shared out among places that search, those first that are launched most often, and all results land in one
database.

A place that is lost, hangs or returns what cannot be true costs what it had under way: the problem goes to another
place, twice at most, then it is searched here. A time below the lower bound cannot be true; from the place that said so
nothing more is taken.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Protocol

from attrs import define, evolve, field, frozen

from ..build import Scored
from ..course import Search
from ..final_round import best_known, space_key
from ..problem import schedule_text
from ..resources import Resources
from ..rounds import Rounds
from ..settings import Settings, TunedChoice
from ..task import Entry, SearchTask
from .unit import SearchUnit, UnitResult

#: How often a problem is given to another place before it is searched here.
ATTEMPTS = 3
#: Seconds before the end of a budget in which places hand over what they have.
HANDOVER = 0.5
#: Seconds that a unit without a budget may take before its place counts as hung, and seconds on top of a budget.
HUNG, LATE = 900.0, 30.0


@frozen
class UnitAnswer:
    """What became of a unit: who had it, and its result or why there is none."""

    number: int
    place: Hashable
    result: UnitResult | None = None
    reason: str = ""


class SearchEngine(Protocol):
    """Places that search."""

    @property
    def free(self) -> int:
        """How many more units would be begun at once."""
        ...

    @property
    def places(self) -> int:
        """How many places there are."""
        ...

    def submit(self, number: int, unit: SearchUnit, limit: float) -> None:
        """Have some place do a unit; after `limit` seconds it counts as hung."""
        ...

    def collect(self, timeout: float) -> list[UnitAnswer]:
        """Return what was done or lost since the last call; wait for something, but no longer than `timeout`."""
        ...

    def exclude(self, place: Hashable) -> None:
        """Give nothing more to a place."""
        ...

    def drop(self) -> None:
        """Forget what is under way."""
        ...

    def close(self) -> None:
        """Let the places go."""
        ...


@define
class ShareOut:
    """Does what `Rounds` does, elsewhere."""

    engine: SearchEngine
    resources: Resources
    settings: Settings
    notice: Callable[[str], None] = lambda text: None
    _attempts: Counter[str] = field(factory=Counter, init=False)
    _left_out: set[Hashable] = field(factory=set, init=False)

    def run(self, tasks: Sequence[SearchTask]) -> dict[str, TunedChoice]:
        """Return a choice for every problem, by its key."""
        record = self.search(tasks)
        known = self.resources.database, self.resources.ranked
        found = {t.problem.key: t.choice or best_known(t, self.settings, *known) for t in tasks}
        record.end(self.resources.elapsed, [found[t.problem.key].candidate.score for t in tasks])
        return found

    def search(self, tasks: Sequence[SearchTask]) -> Search:
        """Search until each problem has its choice or the run must end."""
        record = Search(tasks)
        if self.settings.final:
            self.resources.statistics.searches.append(record)
        waiting = deque(sorted(range(len(tasks)), key=lambda k: -tasks[k].uses))
        under_way: set[int] = set()
        left: list[SearchTask] = []
        with self.resources.interruptible():
            while (waiting or under_way) and not self._over(under_way):
                if not self.engine.places:
                    left += [tasks[k] for k in (*waiting, *under_way)]
                    break
                while waiting and self.engine.free and not self._late:
                    under_way.add(number := waiting.popleft())
                    self._submit(number, tasks[number])
                self._look()
                with self.resources.statistics.phase("wait for places"):
                    answers = self.engine.collect(self.resources.pause)
                for answer in answers:
                    if answer.number not in under_way:
                        continue
                    under_way.discard(answer.number)
                    if self._taken(tasks[answer.number], answer):
                        self.resources.report(tasks)
                        record.note(self.resources.elapsed)
                    elif self._attempts[tasks[answer.number].problem.key] < ATTEMPTS:
                        waiting.append(answer.number)
                    else:
                        left.append(tasks[answer.number])
            if left:
                self.notice(f"{len(left)} of {len(tasks)} kernels are searched for here: no other place finished them")
                Rounds(self.resources, self.settings).search(left)
        if any(t.choice is None for t in tasks):
            self.engine.drop()
        return record

    def _submit(self, number: int, task: SearchTask) -> None:
        budget = self.resources.budget
        seconds = max(0.0, budget.left(self.resources.share) - HANDOVER) if budget.limited else None
        self._attempts[task.problem.key] += 1
        task.begun = budget.clock()
        ranked = self.resources.ranked.get(space_key(task.problem, self.settings), ())[: self.settings.first]
        known, version = tuple(task.trials.values()), self.resources.database.version
        unit = SearchUnit(task.problem, self.settings, known, seconds, tuple(ranked), version)
        self.engine.submit(number, unit, HUNG if seconds is None else seconds + LATE)

    def _taken(self, task: SearchTask, answer: UnitAnswer) -> bool:
        """Take in a result that can be true; say whether it answers the problem."""
        result, problem = answer.result, task.problem
        if answer.place in self._left_out:
            return False
        if result is None or result.error:
            self.notice(f"{problem.label or problem.key[:12]}: {answer.reason or (result.error if result else '')}")
            return False
        if wrong := [t for t in result.trials if t.seconds is not None and t.seconds < t.bound]:
            self._leave_out(answer.place)
            self.notice(
                f"{answer.place} says that a kernel took {wrong[0].seconds:.3g} s, which is below its bound of "
                f"{wrong[0].bound:.3g} s: nothing more is taken from there"
            )
            return False
        if dict(result.machine) != dict(problem.machine):
            self.notice(f"{answer.place} is another machine ({result.machine.get('target', '')}): left out")
            self._leave_out(answer.place)
            return False
        database, statistics = self.resources.database, self.resources.statistics
        if result.ranked:
            self.resources.ranked.setdefault(space_key(problem, self.settings), list(result.ranked))
        today = result.version == database.version
        with database.at_once():
            database.register(problem)
            database.record(problem, result.trials, today)
            if result.winner is not None and self.settings.final:
                database.finish(problem, result.winner)
        for trial in result.trials:
            task.trials[trial.schedule] = evolve(trial, holds=today or None)
            statistics.outcomes[trial.outcome] += 1
        statistics.compiled += result.compiled
        statistics.timed += result.timed
        task.round, task.ended = result.rounds, self.resources.budget.clock()
        self._choose(task, result)
        return True

    def _choose(self, task: SearchTask, result: UnitResult) -> None:
        """Take in a choice; where time ended the search, what was measured counts as it would here, but it is no
        estimate to keep.
        """
        choice = result.choice
        self.resources.expired = self.resources.expired or not result.complete
        if result.complete or self.settings.final:
            task.choice = choice
        elif choice is not None and choice.seconds is not None:
            text = schedule_text(choice.candidate.schedule)
            known = Entry(Scored(None, choice.candidate), text, samples=[choice.seconds], outcome="ok")
            task.entries[text] = known

    def _look(self) -> None:
        """Take in what workers of this process have done that nobody waits for."""
        if self.resources.started:
            for done in self.resources.collect(0.0):
                self.resources.take_in(done)

    @property
    def _late(self) -> bool:
        """Whether what is begun now would have no time."""
        budget = self.resources.budget
        return budget.limited and budget.left(self.resources.share) <= HANDOVER

    def _over(self, under_way: Collection[int]) -> bool:
        """Whether nothing will come any more."""
        late = self._late and not under_way
        self.resources.expired = self.resources.expired or late
        return late or self.resources.over()

    def _leave_out(self, place: Hashable) -> None:
        self._left_out.add(place)
        self.engine.exclude(place)
