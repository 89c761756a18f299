"""Gaussian process over rows of numbers.

The covariance is Matern's (5/2) with one length for all columns. The length and the noise are those of a grid with the
largest likelihood; the variance follows from both. One decomposition of a length's matrix serves all noise levels, so
that a process of eighty rows is fitted in some milliseconds. A row that is assumed to take its predicted value changes
no mean, and the variances by one product.
"""

from __future__ import annotations

from math import erf, pi, sqrt
from typing import Any, TypeAlias

import numpy as np
from attrs import define, field, frozen

Array: TypeAlias = "np.ndarray[Any, Any]"
#: Candidate lengths in units of the rows, and noise variances as fractions of the total.
LENGTHS, NOISES = np.geomspace(0.15, 6.0, 7), np.geomspace(1e-3, 1.0, 7)
#: Prior of the variance: one value with this squared deviation.
PRIOR_SQUARED_DEVIATION = 0.3
MIN_VARIANCE = 1e-9


@frozen(eq=False)
class GaussianProcess:
    """Fitted process: rows, weights, and the inverse of their covariances."""

    rows: Array
    mean: float
    weights: Array
    inverse: Array
    length: float
    noise: float
    variance: float

    @classmethod
    def fit(cls, rows: Array, values: Array) -> GaussianProcess:
        """Return the process of values at one or more rows."""
        mean, distances, count = float(values.mean()), _squared_distances(rows, rows), len(values)
        deviations, best = values - mean, (-np.inf, 1.0, 1.0, 1.0)
        for length in LENGTHS:
            parts, axes = np.linalg.eigh(_covariance(distances, length))
            squares = (axes.T @ deviations) ** 2
            for scatter in NOISES:
                whole = np.maximum(parts, 0.0) + scatter
                variance = float(((squares / whole).sum() + PRIOR_SQUARED_DEVIATION) / (count + 1))
                likely = -0.5 * float((count + 1) * np.log(variance) + np.log(whole).sum())
                best = max(best, (likely, float(length), float(scatter), variance))
        _, length, scatter, variance = best
        inverse = np.linalg.inv(_covariance(distances, length) + scatter * np.eye(count))
        return cls(rows, mean, inverse @ deviations, inverse, length, scatter, variance)

    def at(self, rows: Array) -> Posterior:
        """Return the posterior at other rows."""
        near = _covariance(_squared_distances(rows, self.rows), self.length)
        known = ((near @ self.inverse) * near).sum(axis=1)
        return Posterior(
            self, rows, near, self.mean + near @ self.weights, self.variance * np.maximum(1 - known, MIN_VARIANCE)
        )


@define(eq=False)
class Posterior:
    """Posterior of a process at rows; rows can be assumed measured."""

    process: GaussianProcess
    rows: Array
    near: Array
    mean: Array
    variance: Array
    _shifts: list[Array] = field(factory=list)

    def assume_measured(self, row: int) -> None:
        """Assume that a row takes its predicted value."""
        process = self.process
        covariances = _covariance(_squared_distances(self.rows, self.rows[row : row + 1]), process.length)[:, 0]
        shared = process.variance * (covariances - self.near @ (process.inverse @ self.near[row]))
        for shift in self._shifts:
            shared = shared - shift * shift[row]
        self._shifts.append(shared / np.sqrt(max(shared[row], MIN_VARIANCE) + process.variance * process.noise))
        self.variance = np.maximum(self.variance - self._shifts[-1] ** 2, MIN_VARIANCE)


def expected_improvement(mean: Array, variance: Array, best: float) -> Array:
    """Return the expected improvement of values below the best."""
    deviation = np.sqrt(variance)
    wins = (best - mean) / deviation
    below = 0.5 * (1.0 + np.asarray([erf(w) for w in wins / sqrt(2.0)]))
    return np.asarray(deviation * (wins * below + np.exp(-0.5 * wins**2) / sqrt(2.0 * pi)))


def _squared_distances(rows: Array, others: Array) -> Array:
    """Return the squared distance of each row from each of the others."""
    squares = (rows**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)[None, :]
    return np.asarray(np.maximum(squares - 2.0 * rows @ others.T, 0.0))


def _covariance(distances: Array, length: float) -> Array:
    far = np.sqrt(5.0 * distances) / length
    return np.asarray((1.0 + far + far**2 / 3.0) * np.exp(-far))
