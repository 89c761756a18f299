"""Random elements of tensors that a benchmark fills, the same ones each time."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from cuts.backends.device import Array

#: Random numbers repeat after this many: a prime, so that no stride meets the same ones again.
PERIOD = 4_194_301


@lru_cache(maxsize=8)
def normal_numbers(seed: int) -> Array:
    """Return a period of normal numbers in f32."""
    return np.random.default_rng(seed).standard_normal(PERIOD, np.float32)


@lru_cache(maxsize=8)
def unit_numbers(seed: int) -> Array:
    """Return a period of numbers from 0 up to 1 in f32."""
    return np.random.default_rng(seed).random(PERIOD, np.float32)
