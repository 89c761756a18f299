"""Weights of a plan's folder, each stored once.

Equal arrays are one, also where their dims lie in another order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable
from itertools import permutations

import numpy as np
from attrs import field, frozen

from ...ir import Array, DType, PlanError

#: Smallest array, in bytes, that is searched for in another order of its dims, and the elements compared first.
MIN_REORDERED_BYTES, COMPARED_FIRST = 4096, 64


@frozen
class Weights:
    """Arrays under generated keys; equal arrays are stored once.

    `corners` has the keys by type, extents, first and last element, which an order of the dims does not change.
    """

    arrays: dict[str, Array]
    corners: dict[Hashable, list[str]] = field(factory=dict, init=False, repr=False)

    def add(self, array: Array) -> str:
        """Take an array in and return its key."""
        content = np.ascontiguousarray(array).reshape(np.shape(array))
        head = f"{content.dtype.str}{content.shape}".encode()
        digest = hashlib.sha256(head)
        digest.update(content.reshape(-1).view(np.uint8).data)
        key = digest.hexdigest()[:32]
        if key not in self.arrays:
            self.arrays[key] = content
            self.corners.setdefault(_corner(content), []).append(key)
        return key

    def add_reordered(self, array: Array) -> tuple[str, tuple[int, ...]]:
        """Return the key of an array, and the order of its dims.

        In that order the dims of the stored array make the given one. It is empty where the arrays are equal. A new
        array is taken in. Kernels read a weight transposed, the model has it as it was given.
        """
        wanted = np.asarray(array)
        if wanted.nbytes >= MIN_REORDERED_BYTES:
            for key in self.corners.get(_corner(wanted), ()):
                for order in permutations(range(wanted.ndim)):
                    if _are_equal(self.arrays[key].transpose(order), wanted):
                        return key, () if order == tuple(range(wanted.ndim)) else order
        return self.add(array), ()


def _corner(array: Array) -> Hashable:
    """Return a key of an array that is equal in any order of its dims."""
    ends = (array[(n,) * array.ndim].tobytes() for n in (0, -1)) if array.size else ()
    return array.dtype.str, tuple(sorted(array.shape)), *ends


def _are_equal(found: Array, wanted: Array) -> bool:
    """Return whether two arrays of a type have the same shape and bits."""
    if found.shape != wanted.shape or found.itemsize not in (1, 2, 4, 8):
        return False
    bits = np.dtype(f"u{found.itemsize}")
    left, right = found.view(bits), wanted.view(bits)
    few = np.unravel_index(np.linspace(0, found.size - 1, COMPARED_FIRST, dtype=np.int64), found.shape)
    return np.array_equal(left[few], right[few]) and np.array_equal(left, right)


def read_weights(content: bytes) -> dict[str, Array]:
    """Return the arrays of a plan by their keys, as views.

    It is a header's length in 8 bytes, the header as JSON, and the elements; the library copies these.

    Raises `PlanError` where they cannot be read.
    """
    kinds = {d.file_name: d.numpy for d in DType}
    try:
        begin = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:begin])
        header.pop("__metadata__", None)
        elements, places = memoryview(content)[begin:], {n: entry["data_offsets"] for n, entry in header.items()}
        return {
            name: np.frombuffer(elements[slice(*places[name])], kinds[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in header.items()
        }
    except Exception as error:
        raise PlanError(f"weights.safetensors cannot be read: {error}") from error
