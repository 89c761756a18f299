"""What is done elsewhere at one go: the whole search for one problem, by workers and a device of that place."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module

from attrs import define, frozen

from ...ir import CutsError, Target
from ..bench import Bench, DeviceBench
from ..build import CandidateBuilder, Workers
from ..database import Database, Trial, Winner
from ..problem import FORMAT, Problem, machine_of
from ..resources import Resources
from ..rounds import Rounds
from ..settings import Settings, TunedChoice
from ..task import SearchTask


@frozen
class SearchUnit:
    """A problem to search, what is known of it, and the seconds that there are for it."""

    problem: Problem
    settings: Settings
    trials: tuple[Trial, ...] = ()
    seconds: float | None = None


@frozen
class UnitResult:
    """What came of a unit: the machine that did it, all trials, the choice, and what the database keeps of it; or the
    error that ended it.
    """

    machine: Mapping[str, str]
    trials: tuple[Trial, ...] = ()
    choice: TunedChoice | None = None
    winner: Winner | None = None
    compiled: int = 0
    timed: int = 0
    error: str = ""


@frozen
class SearchPlace:
    """A place that searches: its version and Python's, and its machine."""

    version: str
    python: str
    machine: Mapping[str, str]


def place_here(target: Target) -> SearchPlace:
    """Return what this process is."""
    python = ".".join(map(str, sys.version_info[:2]))
    version = import_module(__package__.partition(".")[0]).__version__
    return SearchPlace(f"{version} (results of format {FORMAT})", python, machine_of(target))


@define
class KeptParts:
    """The workers and the device of this place, kept from one unit to the next: to start them takes seconds."""

    target: Target
    workers: int
    _builder: CandidateBuilder | None = None
    _bench: Bench | None = None

    def builder(self) -> CandidateBuilder:
        """Return the workers."""
        self._builder = self._builder or Workers(self.workers)
        return self._builder

    def bench(self) -> Bench:
        """Return the device."""
        self._bench = self._bench or DeviceBench(self.target)
        return self._bench

    def forget(self) -> None:
        """Make them anew for the next unit: they were closed."""
        self._builder = self._bench = None


#: What this process keeps, by the name of the target.
_KEPT: dict[str, KeptParts] = {}


def search_unit(
    unit: SearchUnit,
    builder: Callable[[], CandidateBuilder] | None = None,
    bench: Callable[[], Bench] | None = None,
    workers: int | None = None,
) -> UnitResult:
    """Search for one problem with what this place has; errors are part of the result."""
    problem = unit.problem
    kept = _KEPT.setdefault(problem.target.name, KeptParts(problem.target, workers or os.cpu_count() or 1))
    database = Database(None)
    resources = Resources(database, builder or kept.builder, bench or kept.bench, budget=unit.seconds)
    try:
        database.register(problem)
        database.record(problem, unit.trials)
        task = SearchTask(problem, trials={t.schedule: t for t in unit.trials})
        choice = Rounds(resources, unit.settings).run([task])[problem.key]
        known = {t.schedule for t in unit.trials}
        new = tuple(t for t in database.trials(problem) if t.schedule not in known)
        statistics = resources.statistics
        winner = database.winner(problem)
        return UnitResult(dict(problem.machine), new, choice, winner, statistics.compiled, statistics.timed)
    except CutsError as error:
        return UnitResult(dict(problem.machine), error=error.message.splitlines()[0])
    finally:
        resources.drop()
        if not resources.complete:
            resources.close()
            kept.forget()
        database.close()
