"""Extreme values of every element type, and NumPy's results for each operation.

They are the oracle of the sweep in `test_extremes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from attrs import frozen
from cuts.ir.types import DType, dtype_of_numpy

Array = np.ndarray[Any, Any]

FLOATS = tuple(d for d in DType if d.is_float)
INTS = tuple(d for d in DType if d.is_int)
NUMBERS = (*FLOATS, *INTS)


def is_real(array: Array) -> bool:
    """Return true for an array of real numbers of any type."""
    dtype = dtype_of_numpy(array.dtype)
    return dtype is not None and dtype.is_float


def extremes(dtype: DType) -> Array:
    """Return the values at which arithmetic of a type goes wrong.

    Its limits and their neighbours, zeros, ones, NaN and infinities.
    """
    if dtype is DType.BOOL:
        return np.array([False, True])
    if dtype.is_float:
        info = ml_dtypes.finfo(dtype.numpy)
        ends = [info.max, info.smallest_normal, info.smallest_subnormal, 1e-6, 1.0, 1.5, 3.0, np.inf]
        return np.array([np.nan, 0.0, *ends, -0.0, *(-float(v) for v in ends)], dtype.numpy)
    bounds = np.iinfo(dtype.numpy)  # type: ignore[type-var]  # NumPy's result, and not our own table
    low, high = int(bounds.min), int(bounds.max)
    return np.array(
        sorted({low, low + 1, 0, 1, 2, 3, 7, high // 2, high - 1, high} | ({-1, -2, -3} if low else set())), dtype.numpy
    )


def pairs(dtype: DType) -> tuple[Array, Array]:
    """Return every pair of extreme values, as two arrays."""
    values = extremes(dtype)
    left, right = np.meshgrid(values, values, indexing="ij")
    return left.reshape(-1), right.reshape(-1)


@frozen
class Case:
    """Operation on typed operands, with its meaning.

    It takes one or two operands of each of some types. Floats are given to it in double precision. `defined` marks the
    points at which the operation has a meaning; elsewhere 1 replaces the second operand.
    """

    op: str
    meaning: Callable[..., Array]
    types: tuple[DType, ...]
    arity: int = 2
    attributes: Mapping[str, Any] = {}
    defined: Callable[[Array], Array] = lambda b: np.ones(b.shape, bool)

    def operands(self, dtype: DType) -> list[Array]:
        """Return the operands: extreme values, or pairs of them."""
        if self.arity == 1:
            return [extremes(dtype)]
        left, right = pairs(dtype)
        return [left, np.where(self.defined(right), right, np.ones_like(right))]

    def reference(self, operands: list[Array]) -> Array:
        """Return the result in the type of the operands, or of bools.

        Floats are in double precision.
        """
        floats = is_real(operands[0])
        with np.errstate(all="ignore"):
            return np.asarray(self.meaning(*(o.astype(np.float64) if floats else o for o in operands)))


def truncating_division(a: Array, b: Array) -> Array:
    """Divide towards zero in Python's integers, wrapped into the type.

    The result is 0 where the divisor is 0.
    """
    exact = [
        0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    return wrap(exact, a.dtype)


def powers(a: Array, b: Array) -> Array:
    """Integer powers in Python's integers, wrapped into the type."""
    bits = 8 * a.dtype.itemsize
    return wrap([pow(x, y, 1 << bits) for x, y in zip(a.tolist(), b.tolist(), strict=True)], a.dtype)


def wrap(values: list[int], dtype: np.dtype[Any]) -> Array:
    """Return Python's integers, wrapped to the width of a type."""
    bits = 8 * dtype.itemsize
    unsigned = np.array([v % (1 << bits) for v in values], np.dtype(f"u{dtype.itemsize}"))
    return unsigned.view(dtype)


def _shift(function: Callable[..., Array]) -> Callable[[Array, Array], Array]:
    def shift(a: Array, b: Array) -> Array:
        bits, sign = 8 * a.dtype.itemsize, np.where(a < 0, -1, 0).astype(a.dtype)
        inside = (b >= 0) & (b < bits)
        found = function(a, np.where(inside, b, 0).astype(a.dtype))
        return np.where(inside, found, sign if function is np.right_shift else 0).astype(a.dtype)

    return shift


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, 0.0)


def _relu(x: Array) -> Array:
    return np.maximum(x, x.dtype.type(0))


def _clip(low: float, high: float) -> Callable[[Array], Array]:
    return lambda x: np.clip(x, np.asarray(low, x.dtype), np.asarray(high, x.dtype))


BINARY = (
    Case("add", np.add, NUMBERS),
    Case("sub", np.subtract, NUMBERS),
    Case("mul", np.multiply, NUMBERS),
    Case("div", np.divide, FLOATS),
    Case("div", truncating_division, INTS),
    Case("mod", np.remainder, INTS),
    Case("mod", np.fmod, NUMBERS, attributes={"fmod": True}),
    Case("pow", powers, INTS, defined=lambda b: b >= 0),
    Case("min", np.minimum, NUMBERS),
    Case("max", np.maximum, NUMBERS),
    Case("prelu", lambda x, s: np.where(x >= 0, x, s * x), NUMBERS),
    *(Case(op, getattr(np, name), NUMBERS) for op, name in (
        ("greater", "greater"), ("greater_or_equal", "greater_equal"), ("less", "less"),
        ("less_or_equal", "less_equal"),
        ("equal", "equal"), ("not_equal", "not_equal"))),
    *(Case(op, function, INTS) for op, function in (
        ("bitwise_and", np.bitwise_and), ("bitwise_or", np.bitwise_or), ("bitwise_xor", np.bitwise_xor))),
    Case("bit_shift", _shift(np.left_shift), INTS, attributes={"direction": "LEFT"}),
    Case("bit_shift", _shift(np.right_shift), INTS, attributes={"direction": "RIGHT"}),
)  # fmt: skip
UNARY = (
    Case("abs", np.abs, NUMBERS, 1),
    Case("neg", np.negative, NUMBERS, 1),
    Case("relu", _relu, NUMBERS, 1),
    Case("sign", np.sign, NUMBERS, 1),
    Case("clip", _clip(1, 3), NUMBERS, 1, {"min": 1, "max": 3}),
    Case("clip", _clip(-1, 1), tuple(d for d in NUMBERS if d.element.lowest < 0), 1, {"min": -1, "max": 1}),
    Case("bitwise_not", np.bitwise_not, INTS, 1),
    *(
        Case(op, getattr(np, op), FLOATS, 1)
        for op in ("ceil", "floor", "trunc", "exp", "expm1", "log", "log1p", "sqrt", "tanh")
    ),
    Case("round", np.rint, FLOATS, 1),
    Case("reciprocal", lambda x: 1 / x, FLOATS, 1),
    Case("softplus", _softplus, FLOATS, 1),
    Case("elu", lambda x: np.where(x >= 0, x, np.expm1(x)), FLOATS, 1),
    Case("celu", lambda x: np.maximum(x, 0) + np.minimum(2 * np.expm1(x / 2), 0), FLOATS, 1, {"alpha": 2.0}),
    Case("hard_sigmoid", lambda x: np.clip(0.2 * x + 0.5, 0, 1), FLOATS, 1),
    Case("is_nan", np.isnan, FLOATS, 1),
    Case("is_inf", np.isinf, FLOATS, 1),
)
CASES = (*UNARY, *BINARY)


def saturate(values: Array, dtype: DType) -> Array:
    """Return values in a type; those beyond `f8e4m3` become its largest."""
    if dtype is DType.F8E4M3:
        values = np.clip(values, -dtype.element.largest, dtype.element.largest)
    found: Array = values.astype(dtype.numpy)
    return found


def wrong(dtype: DType, found: Array, expected: Array) -> Array:
    """Return the mask of differences between a result and the reference.

    Integers and conditions must be equal; floats may differ by rounding and the functions' own errors. The reference
    computes in double precision, so a value that the type cannot hold is an infinity, or a number near the smallest.
    """
    if not is_real(found):
        return np.asarray(found != expected)
    info = ml_dtypes.finfo(dtype.numpy)
    with np.errstate(all="ignore"):
        value, wanted = found.astype(np.float64), saturate(expected, dtype).astype(np.float64)
        same = (value == wanted) | (np.isnan(value) & np.isnan(wanted))
        # Eight units in the last place: OpenCL's limit for the functions that are used here (exp, log and their kin
        # have 3 or 4).
        near = np.isfinite(wanted) & (
            np.abs(value - wanted) <= 8 * float(info.eps) * np.abs(wanted) + float(info.smallest_normal)
        )
        near |= (
            np.isinf(value)
            & (np.abs(expected) >= float(info.max) * (1 - 8 * float(info.eps)))
            & (np.sign(value) == np.sign(expected))
        )
    return ~(same | near)
