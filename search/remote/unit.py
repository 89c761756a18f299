"""What is done elsewhere at one go: the whole search for one problem, by workers and a device of that place; and what
such a place is.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module

from attrs import define, frozen

from ...ir import Target
from ..bench import Bench, DeviceBench
from ..build import CandidateBuilder, Scored, Workers
from ..database import Trial, Winner
from ..problem import FORMAT, Problem, machine_of
from ..settings import Settings, TunedChoice


@frozen
class SearchUnit:
    """A problem to search, what is known of it by which `version` of the compiler, the seconds that there are for it,
    and the model's best points where these are known.
    """

    problem: Problem
    settings: Settings
    trials: tuple[Trial, ...] = ()
    seconds: float | None = None
    ranked: tuple[Scored, ...] = ()
    version: str = ""


@frozen
class UnitResult:
    """What came of a unit: the machine that did it, all trials, the choice, and what the database keeps of it; or the
    error that ended it. Where its time was over before it was `complete`, the choice is the best so far. `ranked` are
    the model's best points, where the unit came without them; it took so many `rounds`. `version` is the compiler's
    there, of which the same release may have several.
    """

    machine: Mapping[str, str]
    trials: tuple[Trial, ...] = ()
    choice: TunedChoice | None = None
    winner: Winner | None = None
    compiled: int = 0
    timed: int = 0
    error: str = ""
    complete: bool = True
    ranked: tuple[Scored, ...] = ()
    rounds: int = 0
    version: str = ""


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
    """The workers and the device of this place, kept from one unit to the next: to start them takes seconds, in which
    both start side by side.
    """

    target: Target
    workers: int
    _builder: CandidateBuilder | None = None
    _bench: Bench | None = None

    def builder(self) -> CandidateBuilder:
        """Return the workers."""
        if self._builder is None:
            if isinstance(bench := self.bench(), DeviceBench):
                bench.start()
            self._builder = Workers(self.workers)
        return self._builder

    def bench(self) -> Bench:
        """Return the device."""
        self._bench = self._bench or DeviceBench(self.target)
        return self._bench

    def forget(self) -> None:
        """Make them anew for the next unit: they were closed."""
        self._builder = self._bench = None
