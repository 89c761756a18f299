"""Random numbers of inputs, equal in every process, and their scales."""

from __future__ import annotations

from functools import lru_cache
from math import log2

import numpy as np
import numpy.typing as npt
from attrs import frozen

from ..ir import Array, DType

#: Period of a tensor's random numbers: a prime, so that no stride of a tensor meets the same numbers again.
PERIOD = 4_194_301
#: Smallest distance from zero of numbers that must not be near it.
MIN_MAGNITUDE = 0.5
#: Number of cached sequences of random numbers; further inputs begin again with the first.
CACHED_SEQUENCES = 6


def product_scale(terms: int, factors: int) -> float:
    """Return the scale of factors that keeps their sums near one.

    A sum of n products of standard normal numbers is of the size of the square root of n, and rounds accordingly. A
    clip after it would hide that size, and rounding would look like a wrong result. Scales are powers of two, so that
    many inputs share their numbers.
    """
    return float(2.0 ** round(-0.5 * log2(max(terms, 1)) / factors))


@frozen
class RandomNumbers:
    """Random numbers of a type, equal for equal parameters.

    They are normal, if requested not near zero or positive, times a scale; or integers from 0 to `high` - 1.
    """

    seed: int
    dtype: DType
    scale: float = 1.0
    away: bool = False
    positive: bool = False
    high: int = 0

    def values(self, count: int) -> Array:
        """Return the first `count` of them, at most a period."""
        count = min(count, PERIOD)
        if self.high:
            return np.random.default_rng(self.seed).integers(0, self.high, count).astype(self.dtype.numpy)
        values = _normal(self.seed)[:count]
        if self.away or self.positive:
            away = np.abs(values) + np.float32(MIN_MAGNITUDE)
            values = away if self.positive else np.copysign(away, values)
        return (values * np.float32(self.scale)).astype(self.dtype.numpy)


@lru_cache(maxsize=CACHED_SEQUENCES)
def _normal(seed: int) -> npt.NDArray[np.float32]:
    """Return a period of standard normal numbers, equal for every task."""
    return np.random.default_rng(seed).standard_normal(PERIOD, np.float32)
