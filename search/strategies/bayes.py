"""Bayesian search by expected improvement over a surrogate's predictions.

It examines the neighbours of the fastest points and the untried ones of the cost model's best; without the cost model,
random points instead. The points of one batch are chosen one after another, each as if those before had taken the
surrogate's prediction.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import define, field

from ...passes.schedule import Point
from ..building import ScoredCandidate
from ..settings import FIRST_CANDIDATES
from .proposer import Observation, Proposer, fastest
from .search_domain import place_of
from .surrogate import Surrogate, SurrogateEstimate

#: Number of fastest points whose neighbours are examined, the largest number of these, and the number of random points.
NUM_PARENTS, MAX_NEIGHBOURS, NUM_RANDOM = 3, 400, 256
#: First points that are tried at once where none before them ran.
MIN_RETRIED_POINTS = 2
#: Points that are drawn first without the cost model: a process that has one point cannot rank the others
#: (docs/search.md).
MIN_UNAIDED_POINTS = 6


@define
class Bayes(Proposer):
    """Propose the largest expected improvement, after `initial_points` first points."""

    initial_points: int = field(default=FIRST_CANDIDATES, kw_only=True)
    surrogate: Surrogate = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.surrogate = Surrogate(self.domain, self.aided)
        self.initial_points = self.initial_points if self.aided else max(MIN_UNAIDED_POINTS, self.initial_points)

    def propose(self, known: Sequence[Observation], best: float, count: int) -> list[ScoredCandidate]:
        """Return the points of the largest expected improvement, largest first."""
        if not fastest(known, 1):
            return self.begin(
                best, min(count, max(MIN_RETRIED_POINTS, self.initial_points) if known else self.initial_points)
            )
        points = self.candidates(known)
        outlook = self.surrogate.predict(known, points) if points else None
        if not self.continues(known, outlook):
            return []
        found: list[ScoredCandidate] = []
        places = {place_of(p): k for k, p in enumerate(points)}
        while outlook is not None and len(found) < count:
            order = np.argsort(-outlook.gains, kind="stable")
            (*taken,) = self.take(self.new_candidates(points[k] for k in order), best, 1)
            if not taken:
                break
            found += taken
            outlook.assume_measured(places[place_of(points_of(taken)[0])])
        return found

    def continues(self, known: Sequence[Observation], outlook: SurrogateEstimate | None) -> bool:
        """Return whether the search continues with this prediction."""
        return outlook is not None

    def candidates(self, known: Sequence[Observation]) -> list[Point]:
        """Return the points to choose from.

        With the cost model, those that are proven slower than the fastest are left out.
        """
        near = self.order(self.domain.near([k.point for k in fastest(known, NUM_PARENTS)]), len(known))[:MAX_NEIGHBOURS]
        every = {place_of(p): p for p in (*self.further_points(known), *near)}
        points = [p for place, p in every.items() if place not in self.seen]
        if not (self.aided and self.domain.discards) or not points:
            return points
        kept = self.domain.bounds(points) <= fastest(known, 1)[0].seconds
        return [p for p, keep in zip(points, kept, strict=True) if keep]

    def further_points(self, known: Sequence[Observation]) -> list[Point]:
        """Return the points besides the neighbours of the fastest."""
        return points_of(self.first) if self.aided else self.domain.random(NUM_RANDOM, (self.seed, len(known)))


def points_of(scored: Sequence[ScoredCandidate]) -> list[Point]:
    """Return the points of candidates that have one."""
    return [s.point for s in scored if s.point is not None]
