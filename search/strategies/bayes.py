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
from ..build import Scored
from ..settings import BEGUN
from .ground import place_of
from .proposer import Known, Proposer, fastest
from .surrogate import Outlook, Surrogate

#: Number of fastest points whose neighbours are examined, the largest number of these, and the number of random points.
NUM_PARENTS, MAX_NEIGHBOURS, RANDOM = 3, 400, 256
#: First points that are tried at once where none before them ran.
MIN_RETRIED_POINTS = 2
#: Points that are drawn first without the cost model: a process that has one point cannot rank the others
#: (docs/search.md).
MIN_UNAIDED_POINTS = 6


@define
class Bayes(Proposer):
    """Propose the largest expected improvement, after `begun` first points."""

    begun: int = field(default=BEGUN, kw_only=True)
    surrogate: Surrogate = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.surrogate = Surrogate(self.ground, self.aided)
        self.begun = self.begun if self.aided else max(MIN_UNAIDED_POINTS, self.begun)

    def propose(self, known: Sequence[Known], best: float, count: int) -> list[Scored]:
        """Return the points of the largest expected improvement, largest first."""
        if not fastest(known, 1):
            return self.begin(best, min(count, max(MIN_RETRIED_POINTS, self.begun) if known else self.begun))
        points = self.looked_at(known)
        outlook = self.surrogate.believed(known, points) if points else None
        if not self.goes_on(known, outlook):
            return []
        found: list[Scored] = []
        places = {place_of(p): k for k, p in enumerate(points)}
        while outlook is not None and len(found) < count:
            order = np.argsort(-outlook.gains, kind="stable")
            (*taken,) = self.take(self.scored(points[k] for k in order), best, 1)
            if not taken:
                break
            found += taken
            outlook.believe(places[place_of(points_of(taken)[0])])
        return found

    def goes_on(self, known: Sequence[Known], outlook: Outlook | None) -> bool:
        """Return whether the search continues with this prediction."""
        return outlook is not None

    def looked_at(self, known: Sequence[Known]) -> list[Point]:
        """Return the points to choose from.

        With the cost model, those that are proven slower than the fastest are left out.
        """
        near = self.ordered(self.ground.near([k.point for k in fastest(known, NUM_PARENTS)]), len(known))[
            :MAX_NEIGHBOURS
        ]
        every = {place_of(p): p for p in (*self.beyond(known), *near)}
        points = [p for place, p in every.items() if place not in self.seen]
        if not self.aided or not points:
            return points
        kept = self.ground.bounds(points) <= fastest(known, 1)[0].seconds
        return [p for p, keep in zip(points, kept, strict=True) if keep]

    def beyond(self, known: Sequence[Known]) -> list[Point]:
        """Return the points besides the neighbours of the fastest."""
        return points_of(self.first) if self.aided else self.ground.random(RANDOM, (self.seed, len(known)))


def points_of(scored: Sequence[Scored]) -> list[Point]:
    """Return the points of candidates that have one."""
    return [s.point for s in scored if s.point is not None]
