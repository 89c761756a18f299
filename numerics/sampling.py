"""Samples of large outputs, and the test whether outputs are informative."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt

import numpy as np

from ..ir import Array

#: Largest number of output elements that are compared, a second's work; beyond it a sample of each large output is.
MAX_COMPARED_ELEMENTS, MIN_SAMPLED_ELEMENTS = 1 << 23, 1 << 16
#: Smallest finite share of an informative output's values.
MIN_FINITE_SHARE = 0.5


def are_informative(outputs: Mapping[str, Array]) -> bool:
    """Return whether most float outputs are mostly finite and not constant."""
    step = sampling_step(outputs)
    floats = [
        sample_elements(array, step) for array in outputs.values() if array.dtype.kind not in "biu" and array.size
    ]
    return 2 * sum(map(_is_informative_array, floats)) >= len(floats)


def _is_informative_array(found: Array) -> bool:
    values = found.astype(np.float64)
    finite = np.isfinite(values)
    various = values.size == 1 or bool((values[finite] != values[finite][:1]).any())
    return various and bool(finite.mean() >= MIN_FINITE_SHARE)


def sampling_step(outputs: Mapping[str, Array]) -> int:
    """Return the sampling step for the elements of large outputs.

    It is prime, so that the samples of rows differ in position.
    """
    step = -(-sum(array.size for array in outputs.values()) // MAX_COMPARED_ELEMENTS)
    while any(step % divisor == 0 for divisor in range(2, isqrt(step) + 1)):
        step += 1
    return max(step, 1)


def sample_elements(array: Array, step: int) -> Array:
    """Return the sampled elements of an output, in order."""
    return array.reshape(-1)[:: step if array.size > MIN_SAMPLED_ELEMENTS else 1]
