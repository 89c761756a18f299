"""Comparison of results with an oracle's, relative to a tensor's magnitude."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from attrs import frozen

from ..ir import Array, DType, NumericsError, dtype_of_numpy, quote


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


@frozen
class Comparison:
    """Comparison of one tensor with its oracle.

    It has the worst error relative to the tensor's magnitude, and the error that rounding explains.
    """

    tensor: str
    error: float
    tolerance: float
    worst: str

    @property
    def ok(self) -> bool:
        """Return whether rounding explains the difference."""
        return self.error <= self.tolerance

    @property
    def text(self) -> str:
        """One-line summary."""
        verdict = "ok" if self.ok else "WRONG"
        place = "" if self.ok else f", worst {self.worst}"
        return f"{quote(self.tensor)}: error {self.error:.3g}, tolerance {self.tolerance:.3g}: {verdict}{place}"


def mean_error(found: Array, expected: Array) -> float:
    """Return the root mean square of differences, relative to the expected."""
    wide = np.asarray(expected, np.float64)
    size = float(np.linalg.norm(wide))
    return float(np.linalg.norm(np.asarray(found, np.float64) - wide)) / (size or 1.0)


def compare(tensor: str, found: Array, expected: Array, allowed: float) -> Comparison:
    """Compare two arrays.

    Differences count relative to an element's own magnitude plus the tensor's root mean square. A value that the
    result's type cannot hold is infinite there, even where the oracle computed with more bits.
    """
    if found.shape != expected.shape:
        return Comparison(tensor, math.inf, allowed, f"shape {list(found.shape)}, expected {list(expected.shape)}")
    if found.size == 0:
        return Comparison(tensor, 0.0, allowed, "")
    with np.errstate(all="ignore"):
        want = expected.astype(np.float64)
        kind = dtype_of_numpy(found.dtype)
        if kind is not None and kind.is_float:
            want = np.where(np.isinf(expected.astype(found.dtype)), np.copysign(math.inf, want), want)
    error = relative_error(found, want, magnitude(want))
    index = np.unravel_index(int(np.argmax(error)), error.shape)
    worst = f"at {[int(i) for i in index]}: found {found[index]}, expected {expected[index]}"
    return Comparison(tensor, float(error[index]), allowed, worst)


def compare_outputs(
    found: Mapping[str, Array], expected: Mapping[str, Array], allowed: Mapping[str, float]
) -> tuple[Comparison, ...]:
    """Compare every tensor of the oracle."""
    return tuple(compare(name, found[name], expected[name], allowed[name]) for name in found if name in expected)


def stored_overflow(name: str, found: Array, expected: Mapping[str, Array]) -> str:
    """Describe values of a half type that overflow, unlike the oracle's.

    A value stored in another type than the model's has that type as a suffix of its name.
    """
    dtype = dtype_of_numpy(found.dtype)
    right = expected.get(name, expected.get(name.removesuffix(f".{dtype}")))
    if dtype is None or dtype.arithmetic is dtype or not dtype.is_float or right is None or right.shape != found.shape:
        return ""
    return overflow_message(name, np.isinf(found), right, dtype)


def overflow_message(name: str, infinite: Array, right: Array, dtype: DType) -> str:
    """Describe values that overflow a type.

    They are `infinite` in it, and finite in `right`; an empty text without any.
    """
    places = np.argwhere(infinite & np.isfinite(right))
    if not len(places):
        return ""
    first = tuple(int(i) for i in places[0])
    return (
        f"{quote(name)}: {len(places)} values outgrow {dtype} (at most {dtype.element.largest:g}), the first at "
        f"{list(first)}: {right[first]:g}"
    )


def require_correct(results: tuple[Comparison, ...], where: str) -> None:
    """Raise a `NumericsError` that names every wrong tensor."""
    wrong = [result.text for result in results if not result.ok]
    if wrong:
        raise NumericsError(f"{where}: wrong numbers: {'; '.join(wrong)}")
