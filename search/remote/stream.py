"""Searches for units that come one by one: those that are under way share workers and device as the problems of one
search do, so that neither waits for the slowest kernel of a batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf

from attrs import define, evolve, field, frozen

from ...ir import Budget, CutsError, cores
from ..bench import Bench
from ..build import CandidateBuilder
from ..database import Database
from ..final_round import best_known, space_key
from ..resources import Resources
from ..rounds import Rounds
from ..task import SearchTask
from .unit import KeptParts, SearchUnit, UnitResult


@frozen(eq=False)
class _UnderWay:
    """A unit whose search was begun."""

    unit: SearchUnit
    task: SearchTask


@define
class _Search:
    """What the units share that are under way together."""

    resources: Resources
    rounds: Rounds
    units: dict[int, _UnderWay] = field(factory=dict)


@define
class UnitStream:
    """Searches for several problems side by side with the workers and the device of this place; `forget` is called
    where these were closed.
    """

    builder: Callable[[], CandidateBuilder]
    bench: Callable[[], Bench]
    forget: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    _search: _Search | None = None
    _failed: list[tuple[int, UnitResult]] = field(factory=list)

    def add(self, number: int, unit: SearchUnit) -> None:
        """Begin the search for a problem beside those that are under way, which have the same settings and end."""
        self._search = search = self._search or self._begun(unit)
        problem = unit.problem
        same = unit.version == search.resources.database.version
        known = unit.trials if same else [evolve(t, holds=None) for t in unit.trials]
        task = SearchTask(problem, trials={t.schedule: t for t in known})
        search.resources.database.record(problem, unit.trials)
        if unit.ranked:
            search.resources.ranked.setdefault(space_key(problem, unit.settings), list(unit.ranked))
        try:
            search.rounds.begin(task)
        except CutsError as error:
            self._failed.append((number, _failure(unit, error)))
            return
        search.units[number] = _UnderWay(unit, task)

    def step(self, seconds: float) -> list[tuple[int, UnitResult]]:
        """Search until a unit is finished, or some seconds have passed; return those that are, all of them where their
        time is over.
        """
        found, self._failed = self._failed, []
        search, end = self._search, self.clock() + seconds
        if search is None:
            return found
        try:
            with search.resources.interruptible():
                while not (found or search.resources.over()) and self.clock() < end:
                    search.rounds.turn([each.task for each in search.units.values()])
                    found += self._ended(search)
        except CutsError as error:  # there is no device, for example
            found += [(number, _failure(each.unit, error)) for number, each in search.units.items()]
            self.drop()
            return found
        if not search.resources.complete:
            found += [(number, _result(search, each)) for number, each in search.units.items()]
            self.drop()
        elif not search.units:
            self._end()
        return found

    def drop(self) -> None:
        """Forget what is under way."""
        self._failed.clear()
        if self._search is not None:
            self._search.resources.drop()
            self._end()

    def _begun(self, unit: SearchUnit) -> _Search:
        """Return a search that knows nothing but what is asked."""
        resources = Resources(Database(None), self.builder, self.bench, Budget.of_measuring(unit.seconds, self.clock))
        return _Search(resources, Rounds(resources, unit.settings))

    def _end(self) -> None:
        assert self._search is not None
        if not self._search.resources.started:
            self.forget()
        self._search.resources.database.close()
        self._search = None

    @staticmethod
    def _ended(search: _Search) -> Sequence[tuple[int, UnitResult]]:
        """Return, and forget, the units that have a choice, or none to make."""
        ended = {n: each for n, each in search.units.items() if each.task.choice is not None or each.task.error}
        for number in ended:
            del search.units[number]
        return [(number, _result(search, each)) for number, each in ended.items()]


def _result(search: _Search, each: _UnderWay) -> UnitResult:
    """Return what came of a unit, which is the best so far where its search was cut short."""
    task, unit, database = each.task, each.unit, search.resources.database
    if task.error is not None:
        return _failure(unit, task.error)
    known = {t.schedule: t for t in unit.trials}
    built = [e for e in task.entries.values() if e.built is not None]
    return UnitResult(
        dict(unit.problem.machine),
        tuple(t for t in database.trials(unit.problem) if known.get(t.schedule) != t),
        task.choice or best_known(task, unit.settings, database, search.resources.ranked),
        database.winner(unit.problem),
        len(built),
        sum(bool(e.samples) for e in built),
        complete=task.choice is not None,
        ranked=() if unit.ranked else tuple(search.resources.ranked.get(space_key(unit.problem, unit.settings), ())),
        rounds=task.round,
        version=database.version,
    )


def _failure(unit: SearchUnit, error: CutsError) -> UnitResult:
    return UnitResult(dict(unit.problem.machine), error=error.message.splitlines()[0])


#: What this process keeps, by the name of the target.
_KEPT: dict[str, KeptParts] = {}


def search_unit(
    unit: SearchUnit,
    builder: Callable[[], CandidateBuilder] | None = None,
    bench: Callable[[], Bench] | None = None,
    workers: int | None = None,
) -> UnitResult:
    """Search for one problem with what this place has; errors are part of the result."""
    target = unit.problem.target
    kept = _KEPT.setdefault(target.name, KeptParts(target, workers or cores()))
    stream = UnitStream(builder or kept.builder, bench or kept.bench, kept.forget)
    stream.add(0, unit)
    while not (found := stream.step(inf)):
        pass
    return found[0][1]
