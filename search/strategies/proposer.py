"""What all strategies have in common: the ground they draw from, what was proposed, and the help of the model.

With help, the model's best points come first, its order decides between what a strategy weighs alike, and a point that
its bound proves slower than the best is not proposed. Without, the first points are drawn and nothing is discarded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
from attrs import define, field, frozen

from ...passes.schedule import Point
from ..build import Scored
from .ground import Ground, Place, place_of

#: Points that are drawn where no model says which come first.
DRAWN = 2000


@frozen
class Known:
    """A point that was tried, and its seconds; infinity where it failed."""

    point: Point
    seconds: float


class Strategy(Protocol):
    """Proposes points; what was proposed before is not proposed again."""

    def propose(self, known: Sequence[Known], best: float, count: int) -> list[Scored]:
        """Return at most `count` new points, the most promising first; nothing where there is none left worth
        measuring.
        """
        ...


@define
class Proposer:
    """What all strategies share. `aided` says whether the model helps."""

    ground: Ground
    first: Sequence[Scored]
    seed: int = 0
    aided: bool = True
    seen: set[Place] = field(factory=set)
    _drawn: list[Point] | None = None

    def begin(self, best: float, count: int) -> list[Scored]:
        """Return the points that every strategy starts with: the model's best, of each structure in turn, or drawn ones
        without its help.
        """
        return self.take(in_turns(self.first) if self.aided else self.scored(self.drawn()), best, count)

    def drawn(self) -> list[Point]:
        """Return legal points in a fixed random order."""
        if self._drawn is None:
            self._drawn = self.ground.random(DRAWN, (self.seed,))
        return self._drawn

    def take(self, points: Iterable[Scored], best: float, count: int) -> list[Scored]:
        """Return the first new points that are not proven slower than the best time."""
        found: list[Scored] = []
        for scored in points if count > 0 else ():
            assert scored.point is not None, "strategies propose points of the space"
            place = place_of(scored.point)
            if place in self.seen:
                continue
            self.seen.add(place)
            if not self.aided or scored.candidate.bound <= best:
                found.append(scored)
            if len(found) == count:
                break
        return found

    def scored(self, points: Iterable[Point]) -> Iterator[Scored]:
        """Yield points with their candidates; what was seen is left out."""
        return (self.ground.scored(p) for p in points if place_of(p) not in self.seen)

    def ordered(self, points: Iterable[Point], number: int) -> list[Point]:
        """Return points in the model's order, or in a random one without its help."""
        found = sorted(points)
        if self.aided:
            return found
        return [found[k] for k in np.random.default_rng((self.seed, number)).permutation(len(found))]


def in_turns(points: Sequence[Scored]) -> list[Scored]:
    """Return points in an order that has the first of each structure before the second of any: what the model holds
    wrongly of one structure says nothing against another.
    """
    met: Counter[int] = Counter()
    turns = []
    for scored in points:
        assert scored.point is not None, "strategies propose points of the space"
        turns.append(met[scored.point.structure])
        met[scored.point.structure] += 1
    return [points[k] for k in sorted(range(len(points)), key=lambda k: (turns[k], k))]


def fastest(known: Sequence[Known], count: int) -> list[Known]:
    """Return the fastest points that ran, ties by the model's order."""
    ran = [k for k in known if np.isfinite(k.seconds)]
    return sorted(ran, key=lambda k: (k.seconds, k.point))[:count]
