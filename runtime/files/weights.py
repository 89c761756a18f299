"""Weights of a plan's folder, each stored once.

Equal arrays are one, also where their dims lie in another order.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np
from attrs import field, frozen

from ...ir import Array, DType, PlanError, processor_count

#: Name of the file in a plan's folder.
WEIGHTS = "weights.safetensors"
#: Bytes of arrays from which on several threads check them, and the number of these.
MIN_CONCURRENT_BYTES, MAX_CHECKING_THREADS = 1 << 22, 8
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
        key = array_key(content)
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


def array_key(array: Array) -> str:
    """Return the digest of a contiguous array's type, extents and content."""
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()[:32]


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


class StoredWeights:
    """Arrays of a plan by key, as views of the content.

    The file is a header's length in 8 bytes, the header as JSON, and the elements. A key is a digest of its array:
    each array is checked at its first use, unless the content was `checked`. Where a key does not fit, as in plans of
    early versions, `check_content` checks all.
    """

    def __init__(self, content: bytes | mmap, check_content: Callable[[], None] | None = None) -> None:
        self._check_content = check_content
        self._checked: dict[str, Array] = {}
        try:
            self._arrays = _views(content)
        except Exception as error:
            self._check_whole()
            raise PlanError(f"{WEIGHTS} cannot be read: {error}") from error

    def __getitem__(self, key: str) -> Array:
        """Return an array.

        Raises `KeyError` where there is none, and `PlanError` where it is damaged.
        """
        self.check([key])
        return self._arrays[key]

    def check(self, keys: Iterable[str]) -> None:
        """Check several arrays concurrently.

        Raises `KeyError` where one is missing, and `PlanError` where one is damaged.
        """
        if self._check_content is None:
            return
        left = {key: self._arrays[key] for key in keys if key not in self._checked}
        if sum(array.nbytes for array in left.values()) < MIN_CONCURRENT_BYTES:
            fits = all(array_key(array) == key for key, array in left.items())
        else:
            with ThreadPoolExecutor(min(MAX_CHECKING_THREADS, processor_count())) as pool:
                fits = list(pool.map(array_key, left.values())) == list(left)
        if fits:
            self._checked |= left
        else:
            self._check_whole()

    def _check_whole(self) -> None:
        """Check the content by its digest, once."""
        if self._check_content is not None:
            self._check_content()
            self._check_content = None


def map_weights(path: Path, digest: str) -> StoredWeights:
    """Map a file of weights.

    Its digest is checked only where a key does not fit.

    Raises `OSError` where the file is missing.
    """
    with path.open("rb") as file:
        is_mapped = os.name == "posix" and os.fstat(file.fileno()).st_size  # Windows keeps mapped files from renames
        content = mmap(file.fileno(), 0, access=ACCESS_READ) if is_mapped else file.read()

    def check_content() -> None:
        if hashlib.sha256(content).hexdigest() != digest:
            raise PlanError(f"{path} is damaged: its digest does not fit its content", hint="write the plan again")

    return StoredWeights(content, check_content)


def _views(content: bytes | mmap) -> dict[str, Array]:
    """Return the arrays of a file's content by their keys."""
    kinds = {d.file_name: d.numpy for d in DType}
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    header.pop("__metadata__", None)
    elements, places = memoryview(content)[begin:], {n: entry["data_offsets"] for n, entry in header.items()}
    return {
        name: np.frombuffer(elements[slice(*places[name])], kinds[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in header.items()
    }
