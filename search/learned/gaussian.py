"""A Gaussian process over rows of numbers, with a covariance of Matern's form (5/2) and one length for all columns.

Its length and the scatter of values are those of a grid under which the values are likeliest; the variance follows from
both. One decomposition of a length's matrix serves all scatters, so that a process of eighty rows is fitted in some
milliseconds, and a row that is believed to be what is expected of it changes no mean, and variances by one product.
"""

from __future__ import annotations

from math import erf, pi, sqrt
from typing import Any, TypeAlias

import numpy as np
from attrs import define, field, frozen

Array: TypeAlias = "np.ndarray[Any, Any]"
#: Lengths in units of the rows, and variances of scatter as parts of the whole, that are tried.
LENGTHS, SCATTERS = np.geomspace(0.15, 6.0, 7), np.geomspace(1e-3, 1.0, 7)
#: What is believed of the variance before anything is known: one value with this squared deviation.
EXPECTED = 0.3
LEAST = 1e-9


@frozen(eq=False)
class GaussianProcess:
    """A fitted process: its rows, what they weigh, and the inverse of their covariances."""

    rows: Array
    mean: float
    weights: Array
    inverse: Array
    length: float
    scatter: float
    variance: float

    @classmethod
    def fitted(cls, rows: Array, values: Array) -> GaussianProcess:
        """Return the process of values at rows, one at least."""
        mean, apart, count = float(values.mean()), _apart(rows, rows), len(values)
        deviations, best = values - mean, (-np.inf, 1.0, 1.0, 1.0)
        for length in LENGTHS:
            parts, axes = np.linalg.eigh(_covariance(apart, length))
            squares = (axes.T @ deviations) ** 2
            for scatter in SCATTERS:
                whole = np.maximum(parts, 0.0) + scatter
                variance = float(((squares / whole).sum() + EXPECTED) / (count + 1))
                likely = -0.5 * float((count + 1) * np.log(variance) + np.log(whole).sum())
                best = max(best, (likely, float(length), float(scatter), variance))
        _, length, scatter, variance = best
        inverse = np.linalg.inv(_covariance(apart, length) + scatter * np.eye(count))
        return cls(rows, mean, inverse @ deviations, inverse, length, scatter, variance)

    def at(self, rows: Array) -> Beliefs:
        """Return what is believed of other rows."""
        near = _covariance(_apart(rows, self.rows), self.length)
        known = ((near @ self.inverse) * near).sum(axis=1)
        return Beliefs(self, rows, near, self.mean + near @ self.weights, self.variance * np.maximum(1 - known, LEAST))


@define(eq=False)
class Beliefs:
    """What a process expects at rows, and how unsure that is; less so as rows are taken for measured."""

    process: GaussianProcess
    rows: Array
    near: Array
    mean: Array
    variance: Array
    _shifts: list[Array] = field(factory=list)

    def believe(self, row: int) -> None:
        """Take a row's value for what is expected of it."""
        process = self.process
        alike = _covariance(_apart(self.rows, self.rows[row : row + 1]), process.length)[:, 0]
        shared = process.variance * (alike - self.near @ (process.inverse @ self.near[row]))
        for shift in self._shifts:
            shared = shared - shift * shift[row]
        self._shifts.append(shared / np.sqrt(max(shared[row], LEAST) + process.variance * process.scatter))
        self.variance = np.maximum(self.variance - self._shifts[-1] ** 2, LEAST)


def expected_gain(mean: Array, variance: Array, best: float) -> Array:
    """Return by how much values are expected to be less than the best, where greater ones gain nothing."""
    deviation = np.sqrt(variance)
    wins = (best - mean) / deviation
    below = 0.5 * (1.0 + np.asarray([erf(w) for w in wins / sqrt(2.0)]))
    return np.asarray(deviation * (wins * below + np.exp(-0.5 * wins**2) / sqrt(2.0 * pi)))


def _apart(rows: Array, others: Array) -> Array:
    """Return the squared distance of each row from each of the others."""
    squares = (rows**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)[None, :]
    return np.asarray(np.maximum(squares - 2.0 * rows @ others.T, 0.0))


def _covariance(apart: Array, length: float) -> Array:
    far = np.sqrt(5.0 * apart) / length
    return np.asarray((1.0 + far + far**2 / 3.0) * np.exp(-far))
