"""Unit of remote work, the search for one task; facts of places."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module

from attrs import define, frozen

from ...ir import Target
from ..building import CandidateBuilder, ScoredCandidate, Workers
from ..database import Measurement, Winner
from ..measurement import Bench, DeviceBench
from ..settings import Settings, TunedChoice
from ..tasks import FORMAT, TuningTask, machine_of


@frozen
class SearchUnit:
    """Tuning task with its known results by `version` and its seconds.

    `ranked` are the cost model's best candidates, if known.
    """

    problem: TuningTask
    settings: Settings
    trials: tuple[Measurement, ...] = ()
    seconds: float | None = None
    ranked: tuple[ScoredCandidate, ...] = ()
    version: str = ""


@frozen
class UnitResult:
    """Result of a unit: machine, measurements, choice and winner, or an error.

    Where its time ended before it was `complete`, the choice is the best so far. `ranked` are the cost model's best
    candidates, where the unit came without them; it took `rounds` rounds. `version` is that of the compiler there,
    as one release may have several.
    """

    machine: Mapping[str, str]
    trials: tuple[Measurement, ...] = ()
    choice: TunedChoice | None = None
    winner: Winner | None = None
    compiled: int = 0
    timed: int = 0
    error: str = ""
    complete: bool = True
    ranked: tuple[ScoredCandidate, ...] = ()
    rounds: int = 0
    version: str = ""


@frozen
class SearchPlace:
    """Place that searches: version of this package and of Python, and machine."""

    version: str
    python: str
    machine: Mapping[str, str]


def place_here(target: Target) -> SearchPlace:
    """Return the facts of this process."""
    python = ".".join(map(str, sys.version_info[:2]))
    version = import_module(__package__.partition(".")[0]).__version__
    return SearchPlace(f"{version} (results of format {FORMAT})", python, machine_of(target))


@define
class ReusableParts:
    """Workers and device of this place, reused between units.

    Starting them takes seconds; both start at the same time.
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
        """Start new ones for the next unit."""
        self._builder = self._bench = None
