"""Arrays of other libraries in a GPU's memory, by `__cuda_array_interface__`.

PyTorch, CuPy, JAX, Numba and PyCUDA have such arrays.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..ir import GraphError


def dense_array_bytes(interface: Any) -> int:
    """Return the bytes of an array by its interface.

    Raises `GraphError` where the array is not dense.
    """
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    strides = interface.get("strides")
    dense = tuple(int(s) * dtype.itemsize for s in np.cumprod((1, *shape[:0:-1]))[::-1]) if shape else ()
    if (
        strides is not None
        and 0 not in shape
        and any(a != b for a, b, n in zip(strides, dense, shape, strict=True) if n > 1)
    ):
        raise GraphError(
            f"a device array of shape {shape} has strides {tuple(strides)}", hint="expected a dense array: copy it"
        )
    return prod(map(int, shape)) * int(dtype.itemsize)
