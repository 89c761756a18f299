"""Surrogate of measured times: a Gaussian process over features of points.

It models the logarithm of times.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import define, field

from ...passes.schedule import Point
from ..learned import GaussianProcess, Posterior, expected_improvement
from .proposer import Observation, fastest
from .search_domain import Array, Place, SearchDomain, place_of

#: Largest number of points that a process is fitted to, the fastest, and of failed ones.
MAX_FITTED_POINTS = 80
#: Time of a failed point, in multiples of the best time.
FAILURE_FACTOR = 3.0
#: Largest distance of a feature from those of the measured points, in their deviations.
MAX_FEATURE_DEVIATIONS = 4.0


@define
class Surrogate:
    """Predictor of points' times from measured ones.

    It predicts the logarithm of the time, with the cost model its difference from the estimate. Points are described by
    their parameters, and with the cost model by its features.
    """

    domain: SearchDomain
    aided: bool
    _known: dict[Place, Array] = field(factory=dict)

    def predict(self, known: Sequence[Observation], points: Sequence[Point]) -> SurrogateEstimate:
        """Return the prediction for points, given measured ones with one valid time."""
        ran = fastest(known, MAX_FITTED_POINTS)
        tried = [k.point for k in (*ran, *[k for k in known if not np.isfinite(k.seconds)][-MAX_FITTED_POINTS:])]
        times = np.full(len(tried), FAILURE_FACTOR * ran[0].seconds)
        times[: len(ran)] = [k.seconds for k in ran]
        rows = self._rows(tried)
        spread = rows.std(axis=0)
        centre, scale = rows.mean(axis=0), np.where(spread > 1e-9, spread, 1.0) * np.sqrt(rows.shape[1])
        limit = MAX_FEATURE_DEVIATIONS / np.sqrt(rows.shape[1])

        def normalise(those: Array) -> Array:
            return np.asarray(np.clip((those - centre) / scale, -limit, limit))

        process = GaussianProcess.fit(normalise(rows), np.log(times) - self._estimates(tried))
        beliefs = process.at(normalise(self._rows(points)))
        return SurrogateEstimate(beliefs, self._estimates(points), float(np.log(ran[0].seconds)))

    def _estimates(self, points: Sequence[Point]) -> Array:
        return np.asarray([np.log(max(p.score, 1e-12)) if self.aided else 0.0 for p in points])

    def _rows(self, points: Sequence[Point]) -> Array:
        new = [p for p in points if place_of(p) not in self._known]
        if new:
            values = np.asarray(self.domain.values(new))
            rows = np.concatenate([self.domain.features(new), values], axis=1) if self.aided else values
            self._known |= {place_of(p): row for p, row in zip(new, rows, strict=True)}
        return np.stack([self._known[place_of(p)] for p in points])


@define
class SurrogateEstimate:
    """Expected improvements of points over the best time."""

    beliefs: Posterior
    estimates: Array
    best: float

    @property
    def gains(self) -> Array:
        """Expected relative improvements over the best time."""
        return expected_improvement(self.beliefs.mean + self.estimates, self.beliefs.variance, self.best)

    def assume_measured(self, place: int) -> None:
        """Assume that a point takes its predicted time."""
        self.beliefs.assume_measured(place)
