"""Search by expected gain: a surrogate says what untried points may gain, and how sure it is.

Looked at are the neighbours of the fastest points and those of the model's best that were not tried; without the
model's help random points in their place. Points of one batch are chosen one after another, each as if those before it
had taken what the surrogate expects of them.
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

#: Fastest points whose neighbours are looked at, how many of these at most, and how many random points.
PARENTS, NEAR, RANDOM = 3, 400, 256
#: First points that are tried at once where none before them ran.
AGAIN = 2
#: Points that are drawn at first where the model does not help: of one point a process learns too little to be asked
#: what else to try among all (docs/search.md).
UNAIDED = 6


@define
class Bayes(Proposer):
    """Proposes what is expected to gain most, once as many of the first points were tried as it has `begun` with."""

    begun: int = field(default=BEGUN, kw_only=True)
    surrogate: Surrogate = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.surrogate = Surrogate(self.ground, self.aided)
        self.begun = self.begun if self.aided else max(UNAIDED, self.begun)

    def propose(self, known: Sequence[Known], best: float, count: int) -> list[Scored]:
        """Return the points of the greatest expected gain, greatest first."""
        if not fastest(known, 1):
            return self.begin(best, min(count, max(AGAIN, self.begun) if known else self.begun))
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
        """Whether anything is to be proposed where so much is expected."""
        return outlook is not None

    def looked_at(self, known: Sequence[Known]) -> list[Point]:
        """Return what may be proposed: with the model's help nothing that is proven slower than the fastest."""
        near = self.ordered(self.ground.near([k.point for k in fastest(known, PARENTS)]), len(known))[:NEAR]
        every = {place_of(p): p for p in (*self.beyond(known), *near)}
        points = [p for place, p in every.items() if place not in self.seen]
        if not self.aided or not points:
            return points
        kept = self.ground.bounds(points) <= fastest(known, 1)[0].seconds
        return [p for p, keep in zip(points, kept, strict=True) if keep]

    def beyond(self, known: Sequence[Known]) -> list[Point]:
        """Return what is looked at beside the neighbours of the fastest."""
        return points_of(self.first) if self.aided else self.ground.random(RANDOM, (self.seed, len(known)))


def points_of(scored: Sequence[Scored]) -> list[Point]:
    """Return the points of candidates that have one."""
    return [s.point for s in scored if s.point is not None]
