"""A surrogate of measured times: a process over the logarithms of what is known of points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import define, field

from ...passes.schedule import Point
from ..learned import Beliefs, GaussianProcess, expected_gain
from .ground import Array, Ground, Place, place_of
from .proposer import Known, fastest

#: Most points that a process is fitted to, the fastest, and most that failed.
MOST = 80
#: What a point that failed counts as, in multiples of the best time.
FAILED = 3.0
#: Farthest that a number of a point may be from those of the measured ones, in their deviations.
FAR = 4.0


@define
class Surrogate:
    """What is believed of points by those that were measured: of the logarithm of their time, less that of the model's
    estimate where it helps. Points are described by their knobs, and by what the model counts where it helps.
    """

    ground: Ground
    aided: bool
    _known: dict[Place, Array] = field(factory=dict)

    def believed(self, known: Sequence[Known], points: Sequence[Point]) -> Outlook:
        """Return what to expect of points, given what was tried, of which one ran at least."""
        ran = fastest(known, MOST)
        tried = [k.point for k in (*ran, *[k for k in known if not np.isfinite(k.seconds)][-MOST:])]
        times = np.full(len(tried), FAILED * ran[0].seconds)
        times[: len(ran)] = [k.seconds for k in ran]
        rows = self._rows(tried)
        spread = rows.std(axis=0)
        centre, scale = rows.mean(axis=0), np.where(spread > 1e-9, spread, 1.0) * np.sqrt(rows.shape[1])
        limit = FAR / np.sqrt(rows.shape[1])

        def placed(those: Array) -> Array:
            return np.asarray(np.clip((those - centre) / scale, -limit, limit))

        process = GaussianProcess.fitted(placed(rows), np.log(times) - self._estimates(tried))
        beliefs = process.at(placed(self._rows(points)))
        return Outlook(beliefs, self._estimates(points), float(np.log(ran[0].seconds)))

    def _estimates(self, points: Sequence[Point]) -> Array:
        return np.asarray([np.log(max(p.score, 1e-12)) if self.aided else 0.0 for p in points])

    def _rows(self, points: Sequence[Point]) -> Array:
        new = [p for p in points if place_of(p) not in self._known]
        if new:
            values = np.asarray(self.ground.values(new))
            rows = np.concatenate([self.ground.counts(new), values], axis=1) if self.aided else values
            self._known |= {place_of(p): row for p, row in zip(new, rows, strict=True)}
        return np.stack([self._known[place_of(p)] for p in points])


@define
class Outlook:
    """What points are expected to gain over the best time."""

    beliefs: Beliefs
    estimates: Array
    best: float

    @property
    def gains(self) -> Array:
        """By how much points are expected to better the best time, as a part of it: what is slower gains nothing."""
        return expected_gain(self.beliefs.mean + self.estimates, self.beliefs.variance, self.best)

    def believe(self, place: int) -> None:
        """Look on as if a point had taken what is expected of it."""
        self.beliefs.believe(place)
