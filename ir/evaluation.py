"""Evaluation of indices and scalar expressions, as integers or NumPy arrays.

`Evaluation` holds the arithmetic only. Loops, reads of tensors and the types of numbers belong to its subclasses: the
reference runs statements over boxes, the interpreter runs fused groups, the tuner's oracle samples some elements of
them. Each has its own loops, so that one can be compared with another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from .affine import Guard, Index, Indirect, Values, Var, index_value
from .expr import Call, Cast, Const, Expr, IndexValue, InRange, Read
from .functions import FUNCTIONS
from .types import DType, dtype_of_numpy


def working_dtype(dtype: DType, floats: npt.DTypeLike = np.float64) -> np.dtype[Any]:
    """Return the NumPy type in which an element type is computed.

    Floats are computed in `floats`, the others in their own type.
    """
    return np.dtype(floats) if dtype.is_float else dtype.numpy


def as_dtype(value: npt.ArrayLike, dtype: np.dtype[Any]) -> Values:
    """Convert numbers to a NumPy type.

    Overflow follows NumPy's conversion, or gives the largest number of a float type without infinities.
    """
    kind, array = dtype_of_numpy(dtype), np.asarray(value)
    with np.errstate(all="ignore"):
        if kind is not None and kind.is_float and not kind.element.infinite:
            array = np.clip(array, kind.element.lowest, kind.element.highest)
        return array.astype(dtype)


def saturate(value: Values, dtype: DType) -> Values:
    """Convert floats to integers of a type.

    They are cut towards zero, clamped to the range of the type, and NaN becomes 0.
    """
    low, high = dtype.element.lowest, dtype.element.highest
    whole, above = np.trunc(value), float(high + 1)
    known = np.where((whole >= low) & (whole < above), whole, 0).astype(dtype.numpy)
    limit = np.where(whole >= above, np.asarray(high, dtype.numpy), np.asarray(low, dtype.numpy))
    return np.where((whole >= above) | (whole < low), limit, known)


def round_to(value: Values, dtype: DType) -> Values:
    """Round real numbers as a conversion to an element type does.

    Half types round even where numbers are held in a wider one.
    """
    return as_dtype(value, dtype.numpy) if dtype.is_float and dtype.arithmetic is not dtype else value


class Evaluation(ABC):
    """Evaluator of indices, conditions and scalar expressions on arrays that broadcast.

    A subclass defines `axis`, `element` and `dtype`. `live` is the mask of places whose value matters. `held` names
    reductions whose values never leave the accumulator, where a conversion to a half type does not round them.
    """

    live: Values = np.ones((), np.bool_)
    held: Container[str] = ()

    @abstractmethod
    def axis(self, var: Var) -> Values:
        """Return the values of a variable."""

    @abstractmethod
    def element(self, tensor: str, indices: tuple[Index, ...], inside: Values | None = None) -> Values:
        """Return elements of a tensor, any value where not `inside`."""

    def dtype(self, dtype: DType) -> np.dtype[Any]:
        """Return the NumPy type that an element type is computed in."""
        return working_dtype(dtype)

    def place(self, primary: Indirect) -> Values:
        """Return elements of an integer tensor as indices, arbitrary where not live."""
        found = self.element(primary.tensor, primary.indices, self.live).astype(np.int64)
        if not primary.wraps:
            return found
        return np.clip(np.where(found < 0, found + primary.extent, found), -1, primary.extent)

    def where(self, condition: Values, expr: Expr) -> Values:
        """Return an expression whose value matters only where a condition holds."""
        return self.value(expr)

    @contextmanager
    def restricted_to(self, condition: Values) -> Iterator[None]:
        """Restrict the mask `live` to places where a condition holds."""
        before, self.live = self.live, self.live & condition
        try:
            yield
        finally:
            self.live = before

    def index(self, index: Index) -> Values:
        """Return the values of an index."""
        return np.asarray(
            index_value(index, lambda primary: self.axis(primary) if isinstance(primary, Var) else self.place(primary))
        )

    def inside(self, guards: tuple[Guard, ...], compared: bool = False) -> Values:
        """Return the mask of places where all guards hold.

        Each guard is evaluated where those before it hold. A compared index out of its range satisfies a bound that
        all indices in range satisfy.
        """
        total: Values = np.ones((), np.bool_)
        for guard in guards:
            with self.restricted_to(total):
                value = self.index(guard.index)
            least, greatest = guard.index.bounds()
            low, high = least < guard.low, greatest >= guard.high
            if low or not (compared and high):
                total = total & (value >= guard.low)
            if high or not (compared and low):
                total = total & (value < guard.high)
        return total

    def value(self, expr: Expr) -> Values:
        """Return the values of a scalar expression."""
        if isinstance(expr, Const):
            return as_dtype(expr.value, self.dtype(expr.dtype))
        if isinstance(expr, Read):
            return self.read(expr)
        if isinstance(expr, IndexValue):
            return self.index(expr.index).astype(self.dtype(expr.dtype))
        if isinstance(expr, InRange):
            return self.inside(expr.guards, compared=True)
        if isinstance(expr, Cast):
            held = isinstance(expr.arg, Read) and expr.arg.tensor in self.held
            return self._cast(self.value(expr.arg), expr.dtype, held)
        return self._call(expr)

    def read(self, read: Read) -> Values:
        """Return the elements of a read, its fill where a guard fails."""
        if not read.guards:
            return self.element(read.tensor, read.indices)
        inside = self.inside(read.guards)
        with self.restricted_to(inside):
            values = self.element(read.tensor, read.indices, inside)
        return np.where(inside, values, as_dtype(read.fill, values.dtype))

    def _call(self, expr: Call) -> Values:
        first = self.value(expr.args[0])
        if expr.fn == "select":
            rest = [self.where(first, expr.args[1]), self.where(~first, expr.args[2])]
        elif expr.fn in ("and", "or"):
            rest = [self.where(first if expr.fn == "and" else ~first, expr.args[1])]
        else:
            rest = [self.value(a) for a in expr.args[1:]]
        return self.apply(expr.fn, first, *rest)

    def apply(self, fn: str, *args: Values) -> Values:
        """Return a scalar function of values."""
        with np.errstate(all="ignore"):
            return np.asarray(FUNCTIONS[fn].numpy(*args))

    def _cast(self, value: Values, dtype: DType, held: bool) -> Values:
        if dtype is DType.BOOL:
            return np.asarray(value != 0)
        if dtype.is_int and value.dtype.kind == "f":
            return saturate(value, dtype)
        return as_dtype(value if held else round_to(value, dtype), self.dtype(dtype))
