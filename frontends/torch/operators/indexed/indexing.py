"""PyTorch's indexing by tensors of integers, and by windows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from .....ir import DType
from ...import_context import Convert, ImportContext, Value
from ..movement import expand, slices, unsqueeze, with_axis
from .masks import is_mask, put_where, select_masked
from .selections import put_selected, selected_places


def _index_select(ctx: ImportContext, x: Value, axis: int, indices: Value) -> Any:
    return ctx.emit("gather", x, indices, axis=axis)


def _gather(ctx: ImportContext, x: Value, axis: int, indices: Value, **_: Any) -> Any:
    return ctx.emit("gather_elements", x, indices, axis=axis)


def _places(ctx: ImportContext, x: Value, indices: Sequence[Value | None]) -> tuple[list[int], Value, tuple[int, ...]]:
    """Return the indexed axes, the index tensors as rows of one tensor, and their broadcast shape."""
    given = [n for n, v in enumerate(indices) if v is not None]
    parts = [v for v in indices if v is not None]
    shape = tuple(np.broadcast_shapes(*(ctx.shape(v) for v in parts)))
    columns = [unsqueeze(ctx, expand(ctx, ctx.cast(v, DType.I64), shape), len(shape)) for v in parts]
    return given, columns[0] if len(columns) == 1 else ctx.emit("concat", *columns, axis=len(shape)), shape


def _to_front(rank: int, axes: Sequence[int]) -> tuple[int, ...]:
    return (*axes, *(a for a in range(rank) if a not in axes))


def _transpose(ctx: ImportContext, x: Value, order: Sequence[int]) -> Value:
    return x if list(order) == list(range(len(order))) else ctx.emit("transpose", x, perm=tuple(order))


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _result_order(axes: Sequence[int], rank: int, width: int) -> tuple[int, ...]:
    """Return the positions of indexed axes in a result.

    They replace the first of them where they are adjacent, else they come first.
    """
    separated = any(b - a != 1 for a, b in itertools.pairwise(axes))
    first = 0 if separated else axes[0]
    return (*range(width, width + first), *range(width), *range(width + first, width + rank - len(axes)))


def index(ctx: ImportContext, x: Value, indices: Sequence[Value | None]) -> Any:
    """Convert indexing by a mask, or by broadcast tensors of integers."""
    if is_mask(ctx, indices):
        if ctx.computed is None:
            return select_masked(ctx, x, indices)
        indices = selected_places(ctx, indices)
    given = [n for n, v in enumerate(indices) if v is not None]
    if len(given) == 1 and ctx.type(str(indices[given[0]])).dtype.is_int:
        return ctx.emit("gather", x, indices[given[0]], axis=given[0])
    axes, rows, shape = _places(ctx, x, indices)
    rank = len(ctx.shape(x))
    found = ctx.emit("gather_nd", _transpose(ctx, x, _to_front(rank, axes)), rows)
    return _transpose(ctx, found, _result_order(axes, rank, len(shape)))


def _index_put(
    ctx: ImportContext, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Any:
    if is_mask(ctx, indices):
        return (put_where if ctx.computed is None else put_selected)(ctx, x, indices, values, accumulate)
    axes, rows, shape = _places(ctx, x, indices)
    rank, width, count = len(ctx.shape(x)), len(shape), int(np.prod(shape, dtype=int))
    order, back = _to_front(rank, axes), _result_order(axes, rank, len(shape))
    rest = tuple(ctx.shape(x)[a] for a in order[len(axes) :])
    full = (*shape, *rest)
    x, values, own = *_stored_as(ctx, x, values), ctx.type(x).dtype
    whole = expand(ctx, values, tuple(full[n] for n in back))
    updates = _transpose(ctx, whole, _inverse(back))
    updates = ctx.reshape(updates, (count, *rest))
    rows = rows if width == 1 else ctx.reshape(rows, (count, len(axes)))
    found = ctx.emit("scatter_nd", _transpose(ctx, x, order), rows, updates, reduction="add" if accumulate else "none")
    return ctx.cast(_transpose(ctx, found, _inverse(order)), own)


def _stored_as(ctx: ImportContext, x: Value, updates: Value) -> tuple[Value, Value]:
    """Return a tensor and its updates in their storage type; truth values are bytes."""
    kind = DType.U8 if ctx.type(x).dtype is DType.BOOL else ctx.type(x).dtype
    return ctx.cast(x, kind), ctx.cast(ctx.cast(updates, ctx.type(x).dtype), kind)


def _slice_scatter(
    ctx: ImportContext,
    x: Value,
    updates: Value,
    axis: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    """Convert to a `where` over a constant mask of the slice."""
    shape = ctx.shape(x)
    axis %= len(shape)
    low, high, _ = slice(start, end, step).indices(shape[axis])
    places, rest = np.divmod(np.arange(shape[axis]) - low, step)
    inside = (rest == 0) & (places >= 0) & (np.arange(shape[axis]) < high)
    updates = ctx.cast(updates, ctx.type(x).dtype)
    if inside.all():
        return updates
    if not inside.any():
        return x
    moved = ctx.emit("gather", updates, ctx.constant(places.clip(0, ctx.shape(updates)[axis] - 1)), axis=axis)
    return ctx.emit("where", ctx.constant(inside.reshape(-1, *(1,) * (len(shape) - 1 - axis))), moved, x)


def _select_scatter(ctx: ImportContext, x: Value, updates: Value, axis: int, index: int) -> Any:
    place = index % ctx.shape(x)[axis]
    return _slice_scatter(ctx, x, unsqueeze(ctx, updates, axis % len(ctx.shape(x))), axis, place, place + 1)


def _windows(ctx: ImportContext, x: Value, axis: int, size: int, step: int) -> Any:
    """Return windows along an axis, their elements along a new last one; a scalar has one window."""
    shape = ctx.shape(x)
    if not shape:
        return slices(ctx, with_axis(ctx, x), 0, 0, size)
    axis %= len(shape)
    starts = np.arange(0, shape[axis] - size + 1, step)
    found = ctx.emit("gather", x, ctx.constant(starts[:, None] + np.arange(size)), axis=axis)
    return _transpose(ctx, found, (*(a for a in range(len(shape) + 1) if a != axis + 1), axis + 1))


def _diagonal_places(ctx: ImportContext, shape: Sequence[int], offset: int, a: int, b: int) -> list[Value | None]:
    a, b = a % len(shape), b % len(shape)
    count = max(0, min(shape[a] + min(offset, 0), shape[b] - max(offset, 0)))
    indices: list[Value | None] = [None] * len(shape)
    indices[a] = ctx.constant(np.arange(count) - min(offset, 0))
    indices[b] = ctx.constant(np.arange(count) + max(offset, 0))
    return indices


def _diagonal(ctx: ImportContext, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Return the elements of a diagonal along a new last axis."""
    rank = len(ctx.shape(x))
    axes, rows, _ = _places(ctx, x, _diagonal_places(ctx, ctx.shape(x), offset, dim1, dim2))
    found = ctx.emit("gather_nd", _transpose(ctx, x, _to_front(rank, axes)), rows)
    return _transpose(ctx, found, (*range(1, rank - 1), 0))


def _diagonal_scatter(
    ctx: ImportContext, x: Value, updates: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Any:
    rank = len(ctx.shape(x))
    axes, rows, _ = _places(ctx, x, _diagonal_places(ctx, ctx.shape(x), offset, dim1, dim2))
    order, own = _to_front(rank, axes), ctx.type(x).dtype
    x, updates = _stored_as(ctx, x, updates)
    columns = _transpose(ctx, updates, (rank - 2, *range(rank - 2)))
    found = ctx.emit("scatter_nd", _transpose(ctx, x, order), rows, columns)
    return ctx.cast(_transpose(ctx, found, _inverse(order)), own)


TABLE: dict[str, Convert] = {
    "aten.index_select": _index_select, "aten.gather": _gather,
    "aten.index": index, "aten._unsafe_index": index, "aten.index_put": _index_put,
    "aten._unsafe_index_put": _index_put,
    "aten.slice_scatter": _slice_scatter, "aten.select_scatter": _select_scatter,
    "aten.unfold": _windows, "aten.diagonal": _diagonal, "aten.diagonal_scatter": _diagonal_scatter,
}  # fmt: skip
