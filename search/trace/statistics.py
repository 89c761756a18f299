"""Statistics of a search: candidates by outcome, rejections, time by phase."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attrs import asdict, define, evolve, field, frozen

from .curve import SearchTrace
from .timeline import HERE

#: Phases of a compilation that belong to a search.
SEARCH_PHASES = ("make spaces", "propose", "wait for workers", "wait for places", "check", "time", "record")


@frozen
class Rejected:
    """Candidates of a task that were rejected for one reason.

    It has their number, the first of them, and the task as text.
    """

    outcome: str
    reason: str
    kernel: str
    point: str
    problem: str
    count: int = 1


@define
class Statistics:
    """Statistics of a search: candidates by outcome, rejections, points, phases, traces."""

    outcomes: Counter[str] = field(factory=Counter)
    phases: dict[str, float] = field(factory=dict)
    problems: int = 0
    hits: int = 0
    points: int = 0
    legal: float = 0.0
    slower: float = 0.0
    compiled: int = 0
    timed: int = 0
    dropped: int = 0
    reused: int = 0
    stale: int = 0
    audited: int = 0
    rejected: list[Rejected] = field(factory=list)
    building: tuple[float, int] = (0.0, 0)  #: total build seconds of candidates, and their number
    clock: Callable[[], float] = time.monotonic
    searches: list[SearchTrace] = field(factory=list)

    def record(self) -> dict[str, object]:
        """Return the figures as JSON values."""
        return {
            "problems": self.problems,
            "from the database": self.hits,
            "points": self.points,
            "pruned": max(0, self.points - self.compiled - self.reused),
            "proven slower": round(self.slower / self.legal, 4) if self.legal else None,
            "compiled": self.compiled,
            "timed": self.timed,
            "dropped early": self.dropped,
            "reused": self.reused,
            "made otherwise since": self.stale,
            "outcomes": dict(sorted(self.outcomes.items())),
            "rejected": [asdict(each) for each in self.rejected],
            "seconds": {name: round(value, 3) for name, value in self.phases.items()},
        }

    def reject(self, rejected: Rejected) -> None:
        """Count a rejected candidate; one of each kernel and reason is stored."""
        for place, each in enumerate(self.rejected):
            if (each.outcome, each.reason, each.problem) == (rejected.outcome, rejected.reason, rejected.problem):
                self.rejected[place] = evolve(each, count=each.count + 1)
                return
        self.rejected.append(rejected)

    def note_built(self, seconds: float) -> None:
        """Add the build time of a candidate."""
        if seconds > 0.0:
            self.building = self.building[0] + seconds, self.building[1] + 1

    @property
    def searching(self) -> float:
        """Seconds of the phases that belong to a search."""
        return sum(self.phases.get(phase, 0.0) for phase in SEARCH_PHASES)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of a block to a phase and the trace."""
        start = self.clock()
        try:
            yield
        finally:
            end = self.clock()
            self.phases[name] = self.phases.get(name, 0.0) + end - start
            HERE.note(name, start, end)
