"""Element types and tensor types."""

from __future__ import annotations

import math
from enum import Enum

import numpy as np
from attrs import frozen


class DType(Enum):
    """An element type; the value is its printed name."""

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
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
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy element type of the same width."""
        return np.dtype(_NUMPY[self.value])

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return int(self.numpy.itemsize)

    @property
    def is_float(self) -> bool:
        """Whether it holds real numbers."""
        return self.value.startswith("f")

    @property
    def is_int(self) -> bool:
        """Whether it holds integers (bool is not one)."""
        return self.value[0] in "iu"

    def __str__(self) -> str:
        return self.value


_NUMPY = {
    "f64": "float64", "f32": "float32", "f16": "float16", "i64": "int64", "i32": "int32", "i16": "int16",
    "i8": "int8", "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "bool": "bool",
}  # fmt: skip
_FROM_NUMPY = {np.dtype(name): DType(key) for key, name in _NUMPY.items()}


def dtype_of_numpy(dtype: np.dtype[np.generic]) -> DType | None:
    """Return the element type of a NumPy dtype, or None where there is none."""
    return _FROM_NUMPY.get(np.dtype(dtype))


@frozen
class TensorType:
    """A dense tensor: element type and static shape (elements per axis, row-major)."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the dense tensor."""
        return self.size * self.dtype.size

    @property
    def strides(self) -> tuple[int, ...]:
        """Row-major strides in elements."""
        return row_major(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the row-major strides of a shape, in elements."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
