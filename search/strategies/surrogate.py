"""A surrogate of measured times: a Gaussian process over the logarithms of what is known of points (scikit-learn)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import erf, pi, sqrt
from typing import Any

import numpy as np
from attrs import define, evolve

from ...ir import UsageError
from .ground import Array, Ground
from .proposer import Known

#: Times scatter by about this part of themselves, whatever the point.
NOISE = 0.02


@define
class Surrogate:
    """A process fitted to the logarithms of times, less those of the model's where it helps."""

    ground: Ground
    aided: bool
    centre: Array
    scale: Array
    process: Any

    @classmethod
    def fitted(cls, ground: Ground, known: Sequence[Known], aided: bool) -> Surrogate:
        """Return the surrogate of points that ran, two at least."""
        rows = _rows(ground, known, aided)
        spread = rows.std(axis=0)
        empty = cls(ground, aided, rows.mean(axis=0), np.where(spread > 1e-9, spread, 1.0), None)
        return empty._with(_process(None), rows, known)

    def with_points(self, known: Sequence[Known]) -> Surrogate:
        """Return the surrogate of other points, with what it learned of lengths and scatter."""
        return self._with(_process(self.process.kernel_), _rows(self.ground, known, self.aided), known)

    def _with(self, process: Any, rows: Array, known: Sequence[Known]) -> Surrogate:
        wanted = np.log([k.seconds for k in known]) - self._prior([k.point for k in known])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a length at its bound is no reason to worry
            process.fit(self._placed(rows), wanted)
        return evolve(self, process=process)

    def predict(self, points: Sequence[Any]) -> tuple[Array, Array]:
        """Return the logarithms of the seconds that points are expected to take, and how unsure that is."""
        rows = _rows(self.ground, [Known(p, 1.0) for p in points], self.aided)
        mean, deviation = self.process.predict(self._placed(rows), return_std=True)
        return np.asarray(mean) + self._prior(points), np.asarray(deviation)

    def _prior(self, points: Sequence[Any]) -> Array:
        return np.asarray([np.log(max(p.score, 1e-12)) if self.aided else 0.0 for p in points])

    def _placed(self, rows: Array) -> Array:
        return np.asarray(np.clip((rows - self.centre) / self.scale, -4.0, 4.0) / np.sqrt(rows.shape[1]))


def expected_gain(mean: Array, deviation: Array, best: float) -> Array:
    """Return by how much points are expected to better a time, as a part of it: what is slower gains nothing."""
    deviation = np.maximum(deviation, 1e-9)
    wins = (np.log(best) - mean) / deviation
    below = 0.5 * (1.0 + np.asarray([erf(w / sqrt(2.0)) for w in wins]))
    return np.asarray(deviation * (wins * below + np.exp(-0.5 * wins**2) / sqrt(2.0 * pi)))


def _rows(ground: Ground, known: Sequence[Known], aided: bool) -> Array:
    points = [k.point for k in known]
    return np.asarray(ground.counts(points) if aided else ground.values(points))


def _process(kernel: Any) -> Any:
    """Return a process that is not fitted: with a kernel that is known, or one whose lengths are to be found."""
    try:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
    except ImportError as error:
        raise UsageError(
            "a search with a surrogate needs scikit-learn", hint="pip install 'cuts[learned]', or use --strategy rank"
        ) from error
    if kernel is not None:
        return GaussianProcessRegressor(kernel, normalize_y=True, optimizer=None)
    kernel = ConstantKernel(0.3, (1e-3, 10.0)) * Matern(1.0, (0.1, 20.0), nu=2.5) + WhiteKernel(
        NOISE**2, (NOISE**2 / 4, 0.1)
    )
    return GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
