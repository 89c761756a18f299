"""Tolerances of comparisons, and the errors that are compared with them.

The tolerance is derived, not chosen. Rounding errors of a sum of `n` terms of random sign grow like the square root of
`n`, and so do those of `n` consecutive operations that each round once more (N. J. Higham, "Accuracy and
Stability of Numerical Algorithms", section 2.8: the rule of thumb that replaces a bound by its square root).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .types import DType

#: Accepted multiple of the expected rounding error.
_MARGIN = 8.0

Array = npt.NDArray[Any]


def epsilon(dtype: DType) -> float:
    """Return the distance from 1 to the next number.

    0 for types that do not round.
    """
    return dtype.element.epsilon


def tolerance(
    dtype: DType, terms: int, operations: int = 1, narrowest: DType | None = None, products: float = 0.0
) -> float:
    """Return the relative error that rounding explains.

    The computation accumulates `terms` terms and passes through `operations` operations. Half precision is accumulated
    in single, and rounded once per operation where values are stored; `narrowest` is the type that intermediate values
    are stored in, where it is another one, `products` the distance from 1 to the next number that products distinguish,
    where they are computed with fewer digits. Integers are exact.
    """
    if not dtype.is_float:
        return 0.0
    stored = max(epsilon(dtype), epsilon(narrowest or dtype), products)
    return _MARGIN * (epsilon(dtype.accumulator) * math.sqrt(max(terms, 1)) + stored * math.sqrt(max(operations, 1)))


def magnitude(values: Array) -> float:
    """Return the root mean square of the finite values."""
    wide = np.asarray(values, np.float64)
    finite = wide[np.isfinite(wide)]
    return math.sqrt(float(np.mean(np.square(finite)))) if finite.size else 0.0


def relative_error(found: Array, expected: Array, scale: float) -> Array:
    """Return each element's error relative to its magnitude plus `scale`.

    `scale` is the magnitude of the tensor; equal infinities and NaNs have no error.
    """
    with np.errstate(all="ignore"):
        got, want = found.astype(np.float64), expected.astype(np.float64)
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        error = np.where(same, 0.0, np.abs(got - want) / (np.abs(want) + (scale or 1.0)))
    return np.where(np.isnan(error), math.inf, error)
