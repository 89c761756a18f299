"""Problems shared out among places that search: each place does one problem after another, those first that take
longest, and all results land in one database.

A place that is lost, hangs or returns what cannot be true costs what it had under way: the problem goes to another
place, twice at most, then it is searched here. A time below the lower bound cannot be true; from the place that said so
nothing more is taken.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from attrs import define, field, frozen

from ..curve import Search
from ..final_round import best_known
from ..resources import Resources
from ..rounds import Rounds
from ..settings import Settings, TunedChoice
from ..task import SearchTask
from .unit import SearchUnit, UnitResult

#: How often a problem is given to another place before it is searched here.
ATTEMPTS = 3
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

    def run(self, tasks: Sequence[SearchTask]) -> dict[str, TunedChoice]:
        """Return a choice for every problem, by its key."""
        record = self.search(tasks)
        found = {t.problem.key: t.choice or best_known(t, self.settings, self.resources.ranked) for t in tasks}
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
            while (waiting or under_way) and not self.resources.over():
                if not self.engine.places:
                    left += [tasks[k] for k in (*waiting, *under_way)]
                    break
                while waiting and self.engine.free:
                    under_way.add(number := waiting.popleft())
                    self._submit(number, tasks[number])
                for answer in self.engine.collect(self.resources.pause):
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
        seconds = budget.left(self.resources.share) if budget.limited else None
        self._attempts[task.problem.key] += 1
        unit = SearchUnit(task.problem, self.settings, tuple(task.trials.values()), seconds)
        self.engine.submit(number, unit, HUNG if seconds is None else seconds + LATE)

    def _taken(self, task: SearchTask, answer: UnitAnswer) -> bool:
        """Take in a result that can be true; say whether it answers the problem."""
        result, problem = answer.result, task.problem
        if result is None or result.error:
            self.notice(f"{problem.label or problem.key[:12]}: {answer.reason or (result.error if result else '')}")
            return False
        if wrong := [t for t in result.trials if t.seconds is not None and t.seconds < t.bound]:
            self.engine.exclude(answer.place)
            self.notice(
                f"{answer.place} says that a kernel took {wrong[0].seconds:.3g} s, which is below its bound of "
                f"{wrong[0].bound:.3g} s: nothing more is taken from there"
            )
            return False
        if dict(result.machine) != dict(problem.machine):
            self.notice(f"{answer.place} is another machine ({result.machine.get('target', '')}): left out")
            self.engine.exclude(answer.place)
            return False
        database, statistics = self.resources.database, self.resources.statistics
        with database.at_once():
            database.register(problem)
            database.record(problem, result.trials)
            if result.winner is not None and self.settings.final:
                database.finish(problem, result.winner)
        for trial in result.trials:
            task.trials[trial.schedule] = trial
            statistics.outcomes[trial.outcome] += 1
        statistics.compiled += result.compiled
        statistics.timed += result.timed
        task.choice = result.choice
        return task.choice is not None
