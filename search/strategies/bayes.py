"""Search by expected improvement: a surrogate says what untried points may gain, and how sure it is.

Looked at are the neighbours of the fastest points, the model's best points and random ones. Points of one batch are
chosen one after another, each as if those before it had taken what the surrogate expects of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...passes.schedule import Point
from ..build import Scored
from .ground import Place, place_of
from .proposer import Known, Proposer, fastest
from .surrogate import Surrogate, expected_gain

#: Fastest points whose neighbours are looked at, how many of these at most, and how many random points.
PARENTS, NEAR, RANDOM = 3, 400, 256
#: Fewest points that ran before a surrogate is asked, and most that it is fitted to, the fastest.
FEWEST, MOST = 4, 80


class Bayes(Proposer):
    """Proposes what is expected to gain most."""

    def propose(self, known: Sequence[Known], best: float, count: int) -> list[Scored]:
        """Return the points of the greatest expected gain, greatest first."""
        ran = [k for k in known if np.isfinite(k.seconds)]
        if len(ran) < FEWEST:
            return self.begin(best, count)
        points = looked_at(self, known)
        found: list[Scored] = []
        believed = fastest(known, MOST)
        surrogate = Surrogate.fitted(self.ground, believed, self.aided)
        while points and len(found) < count:
            mean, deviation = surrogate.predict(points)
            gains = expected_gain(mean, deviation, believed[0].seconds)
            order = np.argsort(-gains, kind="stable")
            (*taken,) = self.take(self.scored(points[k] for k in order), best, 1)
            if not taken:
                break
            found += taken
            place = {place_of(p): k for k, p in enumerate(points)}
            believed += [Known(s.point, float(np.exp(mean[place[place_of(s.point)]]))) for s in taken if s.point]
            points = [p for p in points if place_of(p) not in self.seen]
            surrogate = surrogate.with_points(believed)
        return found


def looked_at(proposer: Proposer, known: Sequence[Known]) -> list[Point]:
    """Return what a proposer may choose from: neighbours of the fastest, the model's best, random points."""
    near = proposer.ordered(proposer.ground.near([k.point for k in fastest(known, PARENTS)]), len(known))[:NEAR]
    drawn = proposer.ground.random(RANDOM, (proposer.seed, len(known)))
    first = [s.point for s in proposer.first if s.point is not None and proposer.aided]
    every: dict[Place, Point] = {place_of(p): p for p in (*first, *near, *drawn)}
    return [p for place, p in every.items() if place not in proposer.seen]
