"""Element types, as a table, and tensor types.

Half types (f16, bf16) and 8-bit floats (f8e4m3, f8e5m2) are stored narrow and computed in f32: a value is rounded, to
nearest and of two nearest to the even one, where it is stored and where it is converted to its type. A new type is a
row here, its name in `DType`, and its spelling in each dialect.

**NaN propagates.** Every type that has a NaN follows one rule: a function of a NaN is NaN, `max`, `min` and reductions
by them included; the position of the greatest or the least element is that of the first NaN. The exceptions are those
that ask: comparisons with NaN are false (`!=` is true), `isnan` is true, and a conversion to bool is true. Nothing says
which zero `max(-0.0, 0.0)` is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from functools import cached_property
from typing import Any, Literal

import ml_dtypes
import numpy as np
from attrs import frozen


@frozen
class Element:
    """Properties of the numbers of an element type.

    `numpy` names NumPy's type of the same numbers (bf16's is registered by `ml_dtypes`), `size` counts bytes in memory.
    `arithmetic` is the type that a kernel holds values in and computes with, `accumulator` the one in which it
    accumulates and compares, and `wide` the one in which a sum of them that is divided again (a mean) is exact, or as
    exact as the type itself. `digits` counts the bits of a significand, the leading one included, or of an integer's
    magnitude.
    """

    name: str
    kind: Literal["float", "signed", "unsigned", "condition"]
    numpy: str
    size: int
    digits: int
    arithmetic: str
    accumulator: str
    wide: str

    @property
    def lowest(self) -> float | int | bool:
        """The least value: an infinity where the type has one."""
        if self.kind == "float":
            return -self.highest
        return -(1 << self.digits) if self.kind == "signed" else 0 if self.kind == "unsigned" else False

    @property
    def highest(self) -> float | int | bool:
        """The greatest value: an infinity where the type has one."""
        if self.kind == "float":
            return math.inf if self.infinite else self.largest
        return (1 << self.digits) - 1 if self.kind != "condition" else True

    @property
    def infinite(self) -> bool:
        """Return whether the type has infinities.

        Numbers too large for a type without become the largest one.
        """
        return self.kind == "float" and self.numpy != "float8_e4m3fn"

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next number; 0 without rounding."""
        return 2.0 ** (1 - self.digits) if self.kind == "float" else 0.0

    @property
    def largest(self) -> float | int | bool:
        """The greatest finite value."""
        return float(ml_dtypes.finfo(self.numpy).max) if self.kind == "float" else self.highest  # type: ignore[no-untyped-call]

    @property
    def nan(self) -> bool:
        """Return whether the type has a NaN, which then propagates."""
        return self.kind == "float"


#: Name, kind, NumPy's name, bytes, digits; computed in, accumulated in, summed without overflow in.
_ROWS = (
    Element("f64", "float", "float64", 8, 53, "f64", "f64", "f64"),
    Element("f32", "float", "float32", 4, 24, "f32", "f32", "f32"),
    Element("f16", "float", "float16", 2, 11, "f32", "f32", "f16"),
    Element("bf16", "float", "bfloat16", 2, 8, "f32", "f32", "bf16"),
    Element("f8e4m3", "float", "float8_e4m3fn", 1, 4, "f32", "f32", "f8e4m3"),
    Element("f8e5m2", "float", "float8_e5m2", 1, 3, "f32", "f32", "f8e5m2"),
    Element("i64", "signed", "int64", 8, 63, "i64", "i64", "i64"),
    Element("i32", "signed", "int32", 4, 31, "i32", "i32", "i64"),
    Element("i16", "signed", "int16", 2, 15, "i16", "i16", "i64"),
    Element("i8", "signed", "int8", 1, 7, "i8", "i8", "i64"),
    Element("u64", "unsigned", "uint64", 8, 64, "u64", "u64", "u64"),
    Element("u32", "unsigned", "uint32", 4, 32, "u32", "u32", "u64"),
    Element("u16", "unsigned", "uint16", 2, 16, "u16", "u16", "u64"),
    Element("u8", "unsigned", "uint8", 1, 8, "u8", "u8", "u64"),
    Element("bool", "condition", "bool", 1, 1, "bool", "bool", "bool"),
)

ELEMENTS: dict[str, Element] = {row.name: row for row in _ROWS}


class DType(Enum):
    """An element type; the value is its printed name."""

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    F8E4M3 = "f8e4m3"
    F8E5M2 = "f8e5m2"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U64 = "u64"
    U32 = "u32"
    U16 = "u16"
    U8 = "u8"
    BOOL = "bool"

    @property
    def element(self) -> Element:
        """The type's row: its width, arithmetic type and limits."""
        return ELEMENTS[self.value]

    def includes(self, other: DType) -> bool:
        """Return whether the type has all numbers of another one.

        Integers are among those of floats with as many digits.
        """
        if self.is_float and other.is_int:
            return other.element.digits <= self.element.digits
        if self is other or not (self.is_float and other.is_float):
            return self is other
        mine, theirs = (ml_dtypes.finfo(t.element.numpy) for t in (self, other))  # type: ignore[no-untyped-call]
        wide = mine.max >= theirs.max and mine.smallest_subnormal <= theirs.smallest_subnormal
        return self.element.digits >= other.element.digits and bool(wide)

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy element type of the same width."""
        return np.dtype(self.element.numpy)

    @property
    def file_name(self) -> str:
        """The name in safetensors files."""
        return self.value.upper().replace("F8", "F8_")

    @property
    def size(self) -> int:
        """Bytes of one element in memory."""
        return self.element.size

    @property
    def bits(self) -> DType:
        """The unsigned integer of the same width."""
        return DType(f"u{8 * self.size}")

    @property
    def arithmetic(self) -> DType:
        """The type that kernels compute in."""
        return DType(self.element.arithmetic)

    @property
    def accumulator(self) -> DType:
        """The type that kernels hold a reduction in."""
        return DType(self.element.accumulator)

    @property
    def is_float(self) -> bool:
        """Return whether it holds real numbers."""
        return self.element.kind == "float"

    @property
    def is_int(self) -> bool:
        """Return whether it holds integers (bool is not one)."""
        return self.element.kind in ("signed", "unsigned")

    def holds(self, value: float | int | bool) -> bool:
        """Return whether a number is one of this type, except for rounding."""
        if self.is_float:
            return True
        return (
            not (isinstance(value, float) and not value.is_integer())
            and self.element.lowest <= value <= self.element.highest
        )

    def __str__(self) -> str:
        return self.value


_FROM_NUMPY = {t.numpy: t for t in DType}


def dtype_of_numpy(dtype: np.dtype[np.generic]) -> DType | None:
    """Return the element type of a NumPy dtype, None without one."""
    return _FROM_NUMPY.get(np.dtype(dtype))


def strided_view(elements: np.ndarray[Any, Any], shape: Sequence[int], strides: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return a view of an array's memory, with strides in bytes.

    It is made of the bits: NumPy makes no strided views of some element types.
    """
    bits = elements.view(f"u{elements.itemsize}")
    return np.lib.stride_tricks.as_strided(bits, tuple(shape), tuple(strides)).view(elements.dtype)


def as_float(value: float | int | bool) -> float | int:
    """Return a number as a float where that is exact.

    The greatest integers of 64 bits, which no float equals, stay integers.
    """
    return float(value) if value != value or float(value) == value else value


def exactly(value: float | int | bool) -> object:
    """Return a key that differs for the two zeros of a float.

    In Python these are equal.
    """
    return value if value else (value, math.copysign(1.0, value))


@frozen
class TensorType:
    """A row-major tensor: element type and static shape (elements per axis).

    It is dense, unless a row of the last dim takes `pitch` elements: those past its end are unused.
    """

    dtype: DType
    shape: tuple[int, ...]
    pitch: int = 0

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of memory, those between runs included."""
        return math.prod(self.steps) * self.dtype.size

    @property
    def strides(self) -> tuple[int, ...]:
        """Row-major strides in elements."""
        return row_major(self.steps)

    @property
    def steps(self) -> tuple[int, ...]:
        """The shape of a dense tensor with the same strides.

        Its last dim has the elements of a pitch.
        """
        return (*self.shape[:-1], self.pitch) if self.pitch else self.shape

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]" + (f" pitch {self.pitch}" if self.pitch else "")


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the row-major strides of a shape, in elements."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
