"""Base of strategies: search domain, proposed points, use of the cost model.

With the cost model, its best points come first, its order breaks ties, and a point that its bound proves slower than
the best is not proposed. Without it, the first points are random and none is discarded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
from attrs import define, field, frozen

from ...passes.schedule import Point
from ..building import ScoredCandidate
from .search_domain import Place, SearchDomain, place_of

#: Number of points drawn where no cost model provides an order.
NUM_RANDOM_POINTS = 2000


@frozen
class Observation:
    """Measured point and its seconds; infinity where it failed."""

    point: Point
    seconds: float


class Strategy(Protocol):
    """Proposes points, each once."""

    def propose(self, known: Sequence[Observation], best: float, count: int) -> list[ScoredCandidate]:
        """Return at most `count` new points, the most promising first.

        The list is empty where no point is worth measuring.
        """
        ...


@define
class Proposer:
    """Base class of strategies. `aided` says that the cost model is used."""

    domain: SearchDomain
    first: Sequence[ScoredCandidate]
    seed: int = 0
    aided: bool = True
    seen: set[Place] = field(factory=set)
    _drawn: list[Point] | None = None

    def begin(self, best: float, count: int) -> list[ScoredCandidate]:
        """Return the first points of every strategy.

        These are the cost model's best, of each structure in turn, or random ones without it.
        """
        return self.take(
            interleave_structures(self.first) if self.aided else self.new_candidates(self.random_order()), best, count
        )

    def random_order(self) -> list[Point]:
        """Return legal points in a fixed random order."""
        if self._drawn is None:
            self._drawn = self.domain.random(NUM_RANDOM_POINTS, (self.seed,))
        return self._drawn

    def take(self, points: Iterable[ScoredCandidate], best: float, count: int) -> list[ScoredCandidate]:
        """Return the first new points not proven slower than the best time."""
        found: list[ScoredCandidate] = []
        for scored in points if count > 0 else ():
            assert scored.point is not None, "strategies propose points of the space"
            place = place_of(scored.point)
            if place in self.seen:
                continue
            self.seen.add(place)
            if not (self.aided and self.domain.discards) or scored.candidate.bound <= best:
                found.append(scored)
            if len(found) == count:
                break
        return found

    def new_candidates(self, points: Iterable[Point]) -> Iterator[ScoredCandidate]:
        """Yield the candidates of new points."""
        return (self.domain.candidate_at(p) for p in points if place_of(p) not in self.seen)

    def order(self, points: Iterable[Point], number: int) -> list[Point]:
        """Return points in the cost model's order, or in random order."""
        found = sorted(points)
        if self.aided:
            return found
        return [found[k] for k in np.random.default_rng((self.seed, number)).permutation(len(found))]


def interleave_structures(points: Sequence[ScoredCandidate]) -> list[ScoredCandidate]:
    """Return points, the first of each structure before any second.

    A wrong prediction for one structure then affects no other.
    """
    met: Counter[int] = Counter()
    turns = []
    for scored in points:
        assert scored.point is not None, "strategies propose points of the space"
        turns.append(met[scored.point.structure])
        met[scored.point.structure] += 1
    return [points[k] for k in sorted(range(len(points)), key=lambda k: (turns[k], k))]


def fastest(known: Sequence[Observation], count: int) -> list[Observation]:
    """Return the fastest points that ran, ties by the cost model's order."""
    ran = [k for k in known if np.isfinite(k.seconds)]
    return sorted(ran, key=lambda k: (k.seconds, k.point))[:count]
