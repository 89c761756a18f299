"""PyTorch's operations on strides, and fills of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..import_context import Convert, ImportContext, Value, dtype_of, memory_order


def _as_strided(
    ctx: ImportContext, x: Value, shape: Sequence[int], strides: Sequence[int], offset: int | None = None
) -> Any:
    """Return elements at computed positions of the flat tensor."""
    order, start = _memory(ctx)
    places = _places(ctx, x, shape, strides, start if offset is None else offset, start)
    return ctx.emit("gather", _flat(ctx, x, order), ctx.constant(places), axis=0)


def _as_strided_scatter(
    ctx: ImportContext,
    x: Value,
    updates: Value,
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int | None = None,
) -> Any:
    """Return the tensor with other elements at computed positions."""
    order, start = _memory(ctx)
    places = _places(ctx, x, shape, strides, start if offset is None else offset, start).reshape(-1)
    if not places.size:
        return x
    sources = np.full(ctx.type(x).size, -1, np.int64)
    sources[places] = np.arange(places.size)
    moved = ctx.emit("gather", ctx.reshape(updates, (-1,)), ctx.constant(sources.clip(0)), axis=0)
    flat = ctx.emit("where", ctx.constant(sources >= 0), moved, _flat(ctx, x, order))
    extents = ctx.shape(x)
    lying = ctx.reshape(flat, tuple(extents[axis] for axis in order))
    return ctx.emit("transpose", lying, perm=tuple(order.index(axis) for axis in range(len(order))))


def _memory(ctx: ImportContext) -> tuple[tuple[int, ...], int]:
    """Return the axes of the first operand in memory order, and its offset; a tensor with gaps is refused."""
    example = ctx.node.args[0].meta.get("val") if ctx.node is not None else None  # type: ignore[union-attr]
    order = memory_order(example) if isinstance(example, torch.Tensor) else ()
    if not isinstance(example, torch.Tensor) or not example.permute(order).is_contiguous():
        ctx.fail("strides of a tensor that has gaps in memory are not supported; call contiguous() before")
    return order, int(example.storage_offset())


def _places(
    ctx: ImportContext, x: Value, shape: Sequence[int], strides: Sequence[int], offset: int, start: int
) -> npt.NDArray[np.int64]:
    """Return the numbers of elements in a dense tensor that begins at `start` of its storage."""
    places = np.full((), offset - start, np.int64)
    for size, stride in zip(shape, strides, strict=True):
        places = places[..., None] + np.arange(size) * stride
    if places.size and not 0 <= places.min() <= places.max() < ctx.type(x).size:
        ctx.fail("strides that leave the tensor are not supported; call contiguous() before")
    return places


def _flat(ctx: ImportContext, x: Value, order: tuple[int, ...]) -> Value:
    plain = order == tuple(range(len(order)))
    flat: Value = ctx.reshape(x if plain else ctx.emit("transpose", x, perm=order), (-1,))
    return flat


def _fill(ctx: ImportContext, x: Value, value: Any) -> Any:
    kind, shape = ctx.type(x).dtype, ctx.shape(x)
    if isinstance(value, Value):
        return ctx.emit("expand", ctx.cast(value, kind), shape=shape)
    return ctx.number(value, kind, shape)


def _empty(ctx: ImportContext, shape: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Any:
    """Return a tensor without defined elements; zeros are as good as any."""
    kind = dtype_of(dtype or torch.get_default_dtype())
    return ctx.constant(np.broadcast_to(np.zeros((), kind.numpy), tuple(shape)))


TABLE: dict[str, Convert] = {
    "aten.as_strided": _as_strided, "aten.as_strided_scatter": _as_strided_scatter, "aten.fill": _fill,
    "aten.empty_permuted": _empty, "aten.empty_strided": _empty,
}  # fmt: skip
