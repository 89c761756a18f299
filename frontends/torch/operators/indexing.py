"""PyTorch's reading and writing at places that tensors of integers, or windows, name."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....ir import DType
from ..reader import Convert, Reader, Value
from .masks import choose, is_mask, put_where
from .movement import expand, slices, unsqueeze, with_axis


def embedding(reader: Reader, table: Value, indices: Value, *_: Any) -> Any:
    """Convert a look-up of rows."""
    return reader.emit("gather", table, indices, axis=0)


def bag_sizes(reader: Reader, offsets: Value, count: int, last: bool) -> Any:
    """Return how many indices each bag has, from where bags begin."""
    bags = reader.shape(offsets)[0] - bool(last)
    starts = reader.emit("slice", offsets, starts=(0,), ends=(bags,), axes=(0,))
    end = reader.constant([count], dtype=reader.type(offsets).dtype)
    ends = reader.emit("slice", offsets, starts=(1,), ends=(bags + 1,), axes=(0,)) if last or bags > 1 else end
    return reader.emit("sub", ends if last or bags == 1 else reader.emit("concat", ends, end, axis=0), starts)


def bag_of(reader: Reader, offsets: Value, count: int) -> Any:
    """Return which bag each index is in: how many bags begin at it or before, less one."""
    places = reader.constant(np.arange(count)[:, None], dtype=reader.type(offsets).dtype)
    begun = reader.cast(reader.emit("less_or_equal", offsets, places), DType.I64)
    return reader.emit(
        "sub", reader.emit("reduce_sum", begun, axes=(1,), keepdims=False), reader.constant(1, dtype=DType.I64)
    )


def _embedding_bag(
    reader: Reader, table: Value, indices: Value, offsets: Value, by_frequency: bool = False, mode: int = 0,
    sparse: bool = False,
    weights: Value | None = None, last: bool = False, padding: int = -1,
) -> Any:  # fmt: skip
    """Bags that begin at constant places and are equally long are rows;
    of others each asks every index whether it belongs to it.
    """
    if by_frequency or padding >= 0:
        reader.fail("gradients scaled by frequency and a row that does not count are not supported")
    (count,), kind = reader.shape(indices), reader.type(table).dtype
    sizes, bag = bag_sizes(reader, offsets, count, last), bag_of(reader, offsets, count)
    bags = reader.shape(sizes)[0]
    starts = reader.constants.get(offsets)
    if starts is not None and np.array_equal(np.append(starts[:bags], count), np.linspace(0, count, bags + 1)):
        rows = reader.reshape(indices, (bags, count // bags))
        shares = None if weights is None else reader.reshape(weights, (bags, count // bags))
        y = reader.emit("embedding_bag", table, rows, shares, mode=("sum", "mean", "max")[mode])
        return y, *_as_traced(reader, bag, sizes, sizes if mode != 2 else _greatest(reader, table, rows))
    if mode == 2:
        reader.fail("the maximum of bags of several lengths is not supported")
    belongs = reader.emit("equal", unsqueeze(reader, bag, 0), reader.constant(np.arange(bags)[:, None]))
    share = reader.cast(belongs, kind)
    share = share if weights is None else reader.emit("mul", share, weights)
    y = reader.emit("matmul", share, embedding(reader, table, indices))
    if mode == 1:
        length = reader.emit("max", reader.cast(sizes, kind), reader.constant(1, dtype=kind))
        y = reader.emit("div", y, unsqueeze(reader, length, 1))
    return y, *_as_traced(reader, bag, sizes, sizes)


def _as_traced(reader: Reader, *extra: Value) -> list[Value]:
    """Return results besides the first; those that PyTorch leaves undefined have the shape that it traced."""
    traced = reader.node.meta.get("val") if reader.node is not None else None
    likes = traced[1:] if isinstance(traced, (list, tuple)) else [None] * len(extra)
    shapes = [
        reader.shape(value) if like is None else tuple(like.shape) for value, like in zip(extra, likes, strict=True)
    ]
    return [
        value if reader.shape(value) == shape else reader.constant(np.zeros(shape), dtype=reader.type(value).dtype)
        for value, shape in zip(extra, shapes, strict=True)
    ]


def _greatest(reader: Reader, table: Value, rows: Value) -> Any:
    """Return the row of a table that each value of a maximum is of, for bags that are rows of indices."""
    first = reader.emit("argmax", embedding(reader, table, rows), axis=1, keepdims=False)
    return reader.emit("gather_elements", rows, first, axis=1)


def _index_select(reader: Reader, x: Value, axis: int, indices: Value) -> Any:
    return reader.emit("gather", x, indices, axis=axis)


def _gather(reader: Reader, x: Value, axis: int, indices: Value, **_: Any) -> Any:
    return reader.emit("gather_elements", x, indices, axis=axis)


def _places(reader: Reader, x: Value, indices: Sequence[Value | None]) -> tuple[list[int], Value, tuple[int, ...]]:
    """Return the axes that are indexed, the index tensors as rows of one tensor,
    and the shape that they broadcast to.
    """
    given = [n for n, v in enumerate(indices) if v is not None]
    parts = [v for v in indices if v is not None]
    shape = tuple(np.broadcast_shapes(*(reader.shape(v) for v in parts)))
    columns = [unsqueeze(reader, expand(reader, reader.cast(v, DType.I64), shape), len(shape)) for v in parts]
    return given, columns[0] if len(columns) == 1 else reader.emit("concat", *columns, axis=len(shape)), shape


def _to_front(rank: int, axes: Sequence[int]) -> tuple[int, ...]:
    return (*axes, *(a for a in range(rank) if a not in axes))


def _moved(reader: Reader, x: Value, order: Sequence[int]) -> Value:
    return x if list(order) == list(range(len(order))) else reader.emit("transpose", x, perm=tuple(order))


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _result_order(axes: Sequence[int], rank: int, width: int) -> tuple[int, ...]:
    """Return where indexed axes stand in a result: in place of the first of them where they are neighbours,
    else in front.
    """
    apart = any(b - a != 1 for a, b in itertools.pairwise(axes))
    first = 0 if apart else axes[0]
    return (*range(width, width + first), *range(width), *range(width + first, width + rank - len(axes)))


def index(reader: Reader, x: Value, indices: Sequence[Value | None]) -> Any:
    """Convert indexing by tensors of integers, which broadcast together, or by a mask."""
    given = [n for n, v in enumerate(indices) if v is not None]
    if is_mask(reader, indices):
        return choose(reader, x, indices)
    if len(given) == 1 and reader.type(str(indices[given[0]])).dtype.is_int:
        return reader.emit("gather", x, indices[given[0]], axis=given[0])
    axes, rows, shape = _places(reader, x, indices)
    rank = len(reader.shape(x))
    found = reader.emit("gather_nd", _moved(reader, x, _to_front(rank, axes)), rows)
    return _moved(reader, found, _result_order(axes, rank, len(shape)))


def _index_put(
    reader: Reader, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Any:
    if is_mask(reader, indices):
        return put_where(reader, x, indices, values, accumulate)
    axes, rows, shape = _places(reader, x, indices)
    rank, width, count = len(reader.shape(x)), len(shape), int(np.prod(shape, dtype=int))
    order, back = _to_front(rank, axes), _result_order(axes, rank, len(shape))
    rest = tuple(reader.shape(x)[a] for a in order[len(axes) :])
    full = (*shape, *rest)
    x, values, own = *_stored_as(reader, x, values), reader.type(x).dtype
    whole = expand(reader, values, tuple(full[n] for n in back))
    updates = _moved(reader, whole, _inverse(back))
    updates = reader.reshape(updates, (count, *rest))
    rows = rows if width == 1 else reader.reshape(rows, (count, len(axes)))
    found = reader.emit(
        "scatter_nd", _moved(reader, x, order), rows, updates, reduction="add" if accumulate else "none"
    )
    return reader.cast(_moved(reader, found, _inverse(order)), own)


def _stored_as(reader: Reader, x: Value, updates: Value) -> tuple[Value, Value]:
    """Return a tensor and its updates in the type in which they are stored; truth values are bytes meanwhile."""
    kind = DType.U8 if reader.type(x).dtype is DType.BOOL else reader.type(x).dtype
    return reader.cast(x, kind), reader.cast(reader.cast(updates, reader.type(x).dtype), kind)


def _slice_scatter(
    reader: Reader,
    x: Value,
    updates: Value,
    axis: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    """Each element of the result asks whether the slice has it."""
    shape = reader.shape(x)
    axis %= len(shape)
    low, high, _ = slice(start, end, step).indices(shape[axis])
    places, rest = np.divmod(np.arange(shape[axis]) - low, step)
    inside = (rest == 0) & (places >= 0) & (np.arange(shape[axis]) < high)
    updates = reader.cast(updates, reader.type(x).dtype)
    if inside.all():
        return updates
    if not inside.any():
        return x
    moved = reader.emit("gather", updates, reader.constant(places.clip(0, reader.shape(updates)[axis] - 1)), axis=axis)
    return reader.emit("where", reader.constant(inside.reshape(-1, *(1,) * (len(shape) - 1 - axis))), moved, x)


def _select_scatter(reader: Reader, x: Value, updates: Value, axis: int, index: int) -> Any:
    place = index % reader.shape(x)[axis]
    return _slice_scatter(reader, x, unsqueeze(reader, updates, axis % len(reader.shape(x))), axis, place, place + 1)


def _windows(reader: Reader, x: Value, axis: int, size: int, step: int) -> Any:
    """Windows along an axis, their elements along a new last one; without axes there is one window."""
    shape = reader.shape(x)
    if not shape:
        return slices(reader, with_axis(reader, x), 0, 0, size)
    axis %= len(shape)
    starts = np.arange(0, shape[axis] - size + 1, step)
    found = reader.emit("gather", x, reader.constant(starts[:, None] + np.arange(size)), axis=axis)
    return _moved(reader, found, (*(a for a in range(len(shape) + 1) if a != axis + 1), axis + 1))


def _diagonal_places(reader: Reader, shape: Sequence[int], offset: int, a: int, b: int) -> list[Value | None]:
    a, b = a % len(shape), b % len(shape)
    count = max(0, min(shape[a] + min(offset, 0), shape[b] - max(offset, 0)))
    indices: list[Value | None] = [None] * len(shape)
    indices[a] = reader.constant(np.arange(count) - min(offset, 0))
    indices[b] = reader.constant(np.arange(count) + max(offset, 0))
    return indices


def _diagonal(reader: Reader, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """The elements of a diagonal along a new last axis."""
    rank = len(reader.shape(x))
    axes, rows, _ = _places(reader, x, _diagonal_places(reader, reader.shape(x), offset, dim1, dim2))
    found = reader.emit("gather_nd", _moved(reader, x, _to_front(rank, axes)), rows)
    return _moved(reader, found, (*range(1, rank - 1), 0))


def _diagonal_scatter(reader: Reader, x: Value, updates: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    rank = len(reader.shape(x))
    axes, rows, _ = _places(reader, x, _diagonal_places(reader, reader.shape(x), offset, dim1, dim2))
    order, own = _to_front(rank, axes), reader.type(x).dtype
    x, updates = _stored_as(reader, x, updates)
    columns = _moved(reader, updates, (rank - 2, *range(rank - 2)))
    found = reader.emit("scatter_nd", _moved(reader, x, order), rows, columns)
    return reader.cast(_moved(reader, found, _inverse(order)), own)


TABLE: dict[str, Convert] = {
    "aten.embedding": embedding, "aten._embedding_bag": _embedding_bag,
    "aten._embedding_bag_forward_only": _embedding_bag,
    "aten.index_select": _index_select, "aten.gather": _gather,
    "aten.index": index, "aten._unsafe_index": index, "aten.index_put": _index_put,
    "aten._unsafe_index_put": _index_put,
    "aten.slice_scatter": _slice_scatter, "aten.select_scatter": _select_scatter,
    "aten.unfold": _windows, "aten.diagonal": _diagonal, "aten.diagonal_scatter": _diagonal_scatter,
}  # fmt: skip
