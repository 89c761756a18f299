"""PyTorch's operations that speak of memory: strides, and tensors that are filled or written over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..reader import Convert, Reader, Value, dtype_of, memory_order


def _as_strided(
    reader: Reader, x: Value, shape: Sequence[int], strides: Sequence[int], offset: int | None = None
) -> Any:
    """Return elements at computed places of the flat tensor."""
    order, start = _memory(reader)
    places = _places(reader, x, shape, strides, start if offset is None else offset, start)
    return reader.emit("gather", _flat(reader, x, order), reader.constant(places), axis=0)


def _as_strided_scatter(
    reader: Reader, x: Value, updates: Value, shape: Sequence[int], strides: Sequence[int], offset: int | None = None
) -> Any:
    """Return the tensor with other elements at computed places."""
    order, start = _memory(reader)
    places = _places(reader, x, shape, strides, start if offset is None else offset, start).reshape(-1)
    if not places.size:
        return x
    sources = np.full(reader.type(x).size, -1, np.int64)
    sources[places] = np.arange(places.size)
    moved = reader.emit("gather", reader.reshape(updates, (-1,)), reader.constant(sources.clip(0)), axis=0)
    flat = reader.emit("where", reader.constant(sources >= 0), moved, _flat(reader, x, order))
    extents = reader.shape(x)
    lying = reader.reshape(flat, tuple(extents[axis] for axis in order))
    return reader.emit("transpose", lying, perm=tuple(order.index(axis) for axis in range(len(order))))


def _memory(reader: Reader) -> tuple[tuple[int, ...], int]:
    """Return the axes of the first operand in the order in which they lie in memory, and where it begins there; it is
    refused where it has gaps.
    """
    example = reader.node.args[0].meta.get("val") if reader.node is not None else None  # type: ignore[union-attr]
    order = memory_order(example) if isinstance(example, torch.Tensor) else ()
    if not isinstance(example, torch.Tensor) or not example.permute(order).is_contiguous():
        reader.fail("strides of a tensor that has gaps in memory are not supported; call contiguous() before")
    return order, int(example.storage_offset())


def _places(
    reader: Reader, x: Value, shape: Sequence[int], strides: Sequence[int], offset: int, start: int
) -> npt.NDArray[np.int64]:
    """Return the numbers of elements among those of a dense tensor that begins at `start` of its storage."""
    places = np.full((), offset - start, np.int64)
    for size, stride in zip(shape, strides, strict=True):
        places = places[..., None] + np.arange(size) * stride
    if places.size and not 0 <= places.min() <= places.max() < reader.type(x).size:
        reader.fail("strides that leave the tensor are not supported; call contiguous() before")
    return places


def _flat(reader: Reader, x: Value, order: tuple[int, ...]) -> Value:
    plain = order == tuple(range(len(order)))
    flat: Value = reader.reshape(x if plain else reader.emit("transpose", x, perm=order), (-1,))
    return flat


def _fill(reader: Reader, x: Value, value: Any) -> Any:
    kind, shape = reader.type(x).dtype, reader.shape(x)
    if isinstance(value, Value):
        return reader.emit("expand", reader.cast(value, kind), shape=shape)
    return reader.number(value, kind, shape)


def _written_over(reader: Reader, shape: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Any:
    """A tensor without defined elements; zeros are as good as any."""
    kind = dtype_of(dtype or torch.get_default_dtype())
    return reader.constant(np.broadcast_to(np.zeros((), kind.numpy), tuple(shape)))


TABLE: dict[str, Convert] = {
    "aten.as_strided": _as_strided, "aten.as_strided_scatter": _as_strided_scatter, "aten.fill": _fill,
    "aten.empty_permuted": _written_over, "aten.empty_strided": _written_over,
}  # fmt: skip
