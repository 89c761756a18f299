"""Weights in safetensors files: memory-mapped reading and ordered writing.

A file is eight bytes of header length, a JSON header `{name: {dtype, shape, data_offsets}}` and the elements. Every
number of the header is checked; tensors are written in name order. The header is parsed here rather than by the library
because the file is already open and checked (`files.map_inside`), and because damage must be explained.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from attrs import frozen
from safetensors import SafetensorError
from safetensors.numpy import save_file

from ..ir import Array, DType, GraphError, TensorType, atomic_write, quote
from .files import map_inside

MAX_HEADER_BYTES = 100_000_000
_DTYPES = {d.file_name: d for d in DType}


@frozen
class WeightFile:
    """Open file of weights, with the offset of each tensor."""

    name: str
    data: memoryview
    entries: Mapping[str, tuple[TensorType, int]]

    def array(self, tensor: str, expected: TensorType) -> Array:
        """Return a tensor as a read-only view of the file.

        Raises `GraphError` where it is missing or of another type.
        """
        if tensor not in self.entries:
            raise GraphError(f"{self.name}: expected weights of constant {quote(tensor)} ({expected}), found none")
        found, offset = self.entries[tensor]
        if found != expected:
            raise GraphError(f"{self.name}: expected {expected} for constant {quote(tensor)}, found {found}")
        flat = np.frombuffer(self.data, found.dtype.numpy, count=found.size, offset=offset)
        return flat.reshape(found.shape)


def open_weights(folder: Path, reference: str) -> WeightFile:
    """Open a safetensors file and check its header against its size.

    The file is in the model's folder.

    Raises `GraphError` where it is no safetensors file.
    """
    data = map_inside(folder, reference)
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(MAX_HEADER_BYTES, len(data) - 8):
        raise GraphError(
            f"{reference} is no safetensors file: expected a header of {size} bytes, the file has {len(data)}"
        )
    try:
        header = json.loads(bytes(data[8 : 8 + size]).decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise GraphError(f"{reference} is no safetensors file: its header is not JSON") from error
    if not isinstance(header, dict):
        raise GraphError(f"{reference} is no safetensors file: expected a JSON object as header")
    entries = {}
    for name, entry in header.items():
        if name != "__metadata__":
            entries[name] = _entry(reference, name, entry, 8 + size, len(data))
    return WeightFile(reference, data, entries)


def _entry(file: str, name: str, entry: object, base: int, end: int) -> tuple[TensorType, int]:
    """Return the type and the absolute offset of one tensor, checked against the file's size."""
    where = f"{file}: tensor {quote(name)}"
    try:
        dtype, shape, (first, last) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]  # type: ignore[index]
        whole = all(type(n) is int and n >= 0 for n in (*shape, first, last))
    except (TypeError, KeyError, ValueError):
        whole = False
    if not whole:
        raise GraphError(f"{where}: expected dtype, shape and data_offsets, found {json.dumps(entry)[:80]}")
    if dtype not in _DTYPES:
        raise GraphError(
            f"{where}: element type {quote(str(dtype))} is not supported", hint=f"use one of {', '.join(_DTYPES)}"
        )
    type_ = TensorType(_DTYPES[dtype], shape)
    if last - first != math.prod(shape) * type_.dtype.size:
        raise GraphError(f"{where}: expected {type_.nbytes} bytes for {type_}, found {last - first}")
    if base + last > end:
        raise GraphError(f"{where}: the file is truncated: expected at least {base + last} bytes, found {end}")
    return type_, base + first


def write_weights(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays to a safetensors file, atomically.

    Raises `UsageError` where it cannot be written.
    """
    dense = {name: array if array.flags.c_contiguous else array.copy() for name, array in arrays.items()}
    with atomic_write(path, "weights", (SafetensorError,)) as part:
        save_file(dense, str(part))
