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
#: Fewest points that ran before a surrogate is asked.
FEWEST = 4


class Bayes(Proposer):
    """Proposes what is expected to gain most."""

    def propose(self, known: Sequence[Known], best: float, count: int) -> list[Scored]:
        """Return the points of the greatest expected gain, greatest first."""
        ran = [k for k in known if np.isfinite(k.seconds)]
        if len(ran) < FEWEST:
            return self.begin(best, count)
        points = self._looked_at(known)
        found: list[Scored] = []
        believed = list(ran)
        while points and len(found) < count:
            surrogate = Surrogate.fitted(self.ground, believed, self.aided)
            mean, deviation = surrogate.predict(points)
            gains = expected_gain(mean, deviation, min(k.seconds for k in ran))
            order = np.argsort(-gains, kind="stable")
            # Two of a batch come from one fit: to fit is what takes the time.
            taken = self.take(self.scored(points[k] for k in order), best, min(2, count - len(found)))
            if not taken:
                break
            found += taken
            means = {place_of(p): float(m) for p, m in zip(points, mean, strict=True)}
            believed += [Known(s.point, float(np.exp(means[place_of(s.point)]))) for s in taken if s.point is not None]
            points = [p for p in points if place_of(p) not in self.seen]
        return found

    def _looked_at(self, known: Sequence[Known]) -> list[Point]:
        near = self.ordered(self.ground.near([k.point for k in fastest(known, PARENTS)]), len(known))[:NEAR]
        drawn = self.ground.random(RANDOM, (self.seed, len(known)))
        first = [s.point for s in self.first if s.point is not None and self.aided]
        every: dict[Place, Point] = {place_of(p): p for p in (*first, *near, *drawn)}
        return [p for place, p in every.items() if place not in self.seen]
