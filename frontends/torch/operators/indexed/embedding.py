"""PyTorch's embeddings: rows of a table, single or combined per bag."""

from __future__ import annotations

from typing import Any

import numpy as np

from .....ir import DType
from ...import_context import Convert, ImportContext, Value
from ..movement import unsqueeze
from ..reduction import norm
from .segments import ends_of_starts, lengths_of_ends, segment_of, segment_sizes


def _embedding(ctx: ImportContext, table: Value, indices: Value, *_: Any) -> Any:
    return ctx.emit("gather", table, indices, axis=0)


def _embedding_gradient(
    ctx: ImportContext, dy: Value, indices: Value, rows: int, padding: int, by_frequency: bool
) -> Any:
    """Convert to a sum of all slices of an index, divided by their number where gradients are scaled `by_frequency`."""
    if by_frequency:
        share = ctx.emit("div", ctx.constant(1, dtype=ctx.type(dy).dtype), _frequency(ctx, indices, rows, dy))
        dy = ctx.emit("mul", dy, unsqueeze(ctx, share, len(ctx.shape(indices))))
    found = ctx.emit("gather_grad", dy, indices, axis=0, size=rows)
    if padding < 0:
        return found
    not_padding = np.ones((rows, 1), bool)
    not_padding[padding] = False
    return ctx.emit("where", ctx.constant(not_padding), found, ctx.constant(0, dtype=ctx.type(dy).dtype))


def _frequency(ctx: ImportContext, indices: Value, rows: int, like: Value) -> Value:
    """Return how often the row of each index is looked up."""
    flat = ctx.reshape(indices, (-1,))
    none = ctx.constant(np.zeros(rows, np.int64))
    ones = ctx.constant(np.broadcast_to(np.int64(1), ctx.shape(flat)))
    counts = ctx.emit("scatter_elements", none, flat, ones, axis=0, reduction="add")
    return ctx.cast(ctx.emit("gather", counts, indices, axis=0), ctx.type(like).dtype)


def _renorm(ctx: ImportContext, table: Value, indices: Value, largest: float, order: float) -> Any:
    """Convert the scaling of looked-up rows whose norm is too large."""
    kind, rows = ctx.type(table).dtype, ctx.shape(table)[0]
    flat = ctx.reshape(indices, (-1,))
    none = ctx.constant(np.zeros(rows, np.uint8))
    ones = ctx.constant(np.broadcast_to(np.uint8(1), ctx.shape(flat)))
    named = ctx.cast(ctx.emit("scatter_elements", none, flat, ones, axis=0, reduction="max"), DType.BOOL)
    size = norm(ctx, table, order, tuple(range(1, len(ctx.shape(table)))))
    limit = ctx.constant(largest, dtype=kind)
    too_large = ctx.emit("logical_and", named, ctx.emit("greater", size, limit))
    scale = ctx.emit("div", limit, ctx.emit("add", size, ctx.constant(1e-7, dtype=kind)))
    factor = ctx.emit("where", too_large, scale, ctx.constant(1, dtype=kind))
    return ctx.emit("mul", table, ctx.reshape(factor, (rows, *(1,) * (len(ctx.shape(table)) - 1))))


# ---- bags


def _embedding_bag(
    ctx: ImportContext, table: Value, indices: Value, offsets: Value, by_frequency: bool = False, mode: int = 0,
    sparse: bool = False,
    weights: Value | None = None, last: bool = False, padding: int = -1,
) -> Any:  # fmt: skip
    """Convert embedding bags: bags of equal length with constant starts are rows of indices, others are segments."""
    (count,) = ctx.shape(indices)
    ends = ends_of_starts(ctx, offsets, count, last)
    bags, bag = ctx.shape(ends)[0], segment_of(ctx, ends, count)
    starts = ctx.constants.get(offsets)
    equal = starts is not None and np.array_equal(np.append(starts[:bags], count), np.linspace(0, count, bags + 1))
    if equal and padding < 0:
        rows = ctx.reshape(indices, (bags, count // bags))
        shares = None if weights is None else ctx.reshape(weights, (bags, count // bags))
        y = ctx.emit("embedding_bag", table, rows, shares, mode=("sum", "mean", "max")[mode])
        sizes = lengths_of_ends(ctx, ends)
        return y, *_as_traced(ctx, bag, sizes, sizes if mode != 2 else _greatest_row(ctx, table, rows))
    kept = _counted_mask(ctx, indices, padding)
    rows = _embedding(ctx, table, indices)
    sizes = lengths_of_ends(ctx, ends) if kept is None else segment_sizes(ctx, bag, kept, bags)
    rows = rows if weights is None else ctx.emit("mul", rows, unsqueeze(ctx, weights, 1))
    if mode == 2:
        y, greatest = _maximum(ctx, rows, indices, bag, kept, sizes)
        return y, *_as_traced(ctx, bag, sizes, greatest)
    zero = ctx.constant(0, dtype=ctx.type(rows).dtype)
    rows = rows if kept is None else ctx.emit("where", unsqueeze(ctx, kept, 1), rows, zero)
    end = ctx.constant([count], dtype=ctx.type(offsets).dtype)
    y = ctx.emit("segment_sum", rows, offsets if last else ctx.emit("concat", offsets, end, axis=0))
    y = ctx.emit("div", y, _at_least_one(ctx, sizes, y)) if mode == 1 else y
    return y, *_as_traced(ctx, bag, sizes, sizes)


def _counted_mask(ctx: ImportContext, indices: Value, padding: int) -> Value | None:
    """Return whether an index counts; None where all do."""
    if padding < 0:
        return None
    return ctx.emit("not_equal", indices, ctx.constant(padding, dtype=ctx.type(indices).dtype))  # type: ignore[no-any-return]


def _at_least_one(ctx: ImportContext, sizes: Value, like: Value) -> Value:
    kind = ctx.type(like).dtype
    return unsqueeze(ctx, ctx.emit("max", ctx.cast(sizes, kind), ctx.constant(1, dtype=kind)), 1)  # type: ignore[no-any-return]


def _maximum(
    ctx: ImportContext, rows: Value, indices: Value, bag: Value, kept: Value | None, sizes: Value
) -> tuple[Value, Value]:
    """Return the maximum of each bag, 0 of an empty one, and the table row that has it, -1 of an empty one."""
    kind, (count,), (bags,) = ctx.type(rows).dtype, ctx.shape(indices), ctx.shape(sizes)
    least = ctx.constant(-np.inf, dtype=kind)
    rows = rows if kept is None else ctx.emit("where", unsqueeze(ctx, kept, 1), rows, least)
    y = ctx.emit("segment_reduce", rows, bag, count=bags, reduction="max")
    has = ctx.emit("equal", rows, ctx.emit("gather", y, bag, axis=0))
    has = has if kept is None else ctx.emit("logical_and", has, unsqueeze(ctx, kept, 1))
    from_the_end = ctx.constant(np.arange(count, 0, -1)[:, None])
    from_the_end = ctx.emit("where", has, from_the_end, ctx.constant(0, dtype=DType.I64))
    first = ctx.emit("segment_reduce", from_the_end, bag, count=bags, reduction="max")
    empty = unsqueeze(ctx, ctx.emit("less_or_equal", sizes, ctx.constant(0, dtype=DType.I64)), 1)
    place = ctx.emit("sub", ctx.constant(count, dtype=DType.I64), ctx.emit("max", first, ctx.constant(1)))
    row = ctx.cast(ctx.emit("gather", indices, place, axis=0), DType.I64)
    return (
        ctx.emit("where", empty, ctx.constant(0, dtype=kind), y),
        ctx.emit("where", empty, ctx.constant(-1, dtype=DType.I64), row),
    )


def _as_traced(ctx: ImportContext, *extra: Value) -> list[Value]:
    """Return results besides the first; undefined ones get the traced shape."""
    traced = ctx.node.meta.get("val") if ctx.node is not None else None
    likes = traced[1:] if isinstance(traced, (list, tuple)) else [None] * len(extra)
    shapes = [ctx.shape(value) if like is None else tuple(like.shape) for value, like in zip(extra, likes, strict=True)]
    return [
        value if ctx.shape(value) == shape else ctx.constant(np.zeros(shape), dtype=ctx.type(value).dtype)
        for value, shape in zip(extra, shapes, strict=True)
    ]


def _greatest_row(ctx: ImportContext, table: Value, rows: Value) -> Any:
    """Return the table row of each value of a maximum, for bags that are rows of indices."""
    first = ctx.emit("argmax", _embedding(ctx, table, rows), axis=1, keepdims=False)
    return ctx.emit("gather_elements", rows, first, axis=1)


def _bag_gradient(
    ctx: ImportContext, dy: Value, indices: Value, offsets: Value, bag: Any, sizes: Any, places: Any, rows: int,
    by_frequency: bool,
    mode: int, sparse: bool, weights: Value | None, padding: int = -1,
) -> Any:  # fmt: skip
    """Convert the gradient of embedding bags.

    Each index gets the gradient of its bag, and the table the sum of its indices; for a maximum, of the rows at its
    `places`. PyTorch keeps `bag` and `sizes` for some modes only.
    """
    if mode == 2:
        none = ctx.constant(np.zeros((rows, ctx.shape(dy)[-1])), dtype=ctx.type(dy).dtype)
        zero = ctx.constant(0, dtype=DType.I64)  # a bag without indices is of no row
        own = ctx.emit("where", ctx.emit("less", places, zero), ctx.constant(0, dtype=ctx.type(dy).dtype), dy)
        return ctx.emit("scatter_elements", none, ctx.emit("max", places, zero), own, axis=0, reduction="add")
    ends = _bag_ends(ctx, dy, indices, offsets)
    bag = segment_of(ctx, ends, *ctx.shape(indices))
    if mode == 1:
        counted = segment_sizes(ctx, bag, _counted_mask(ctx, indices, padding), ctx.shape(ends)[0])
        dy = ctx.emit("div", dy, _at_least_one(ctx, counted, dy))
    own = ctx.emit("gather", dy, bag, axis=0)
    own = own if weights is None else ctx.emit("mul", own, unsqueeze(ctx, weights, 1))
    return _embedding_gradient(ctx, own, indices, rows, padding, by_frequency)


def _bag_ends(ctx: ImportContext, dy: Value, indices: Value, offsets: Value) -> Value:
    (count,), last = ctx.shape(indices), ctx.shape(offsets) > ctx.shape(dy)[:1]
    return ends_of_starts(ctx, offsets, count, last)  # type: ignore[no-any-return]


def _weight_gradient(
    ctx: ImportContext, dy: Value, table: Value, indices: Value, offsets: Value, bag: Any, mode: int, padding: int = -1
) -> Any:
    """Convert the gradient of each index's weight: the product of its row and of its bag's gradient."""
    bag = segment_of(ctx, _bag_ends(ctx, dy, indices, offsets), *ctx.shape(indices))
    products = ctx.emit("mul", ctx.emit("gather", dy, bag, axis=0), _embedding(ctx, table, indices))
    found = ctx.emit("reduce_sum", products, axes=(1,), keepdims=False)
    kept = _counted_mask(ctx, indices, padding)
    return found if kept is None else ctx.emit("where", kept, found, ctx.constant(0, dtype=ctx.type(dy).dtype))


TABLE: dict[str, Convert] = {
    "aten.embedding": _embedding, "aten.embedding_dense_backward": _embedding_gradient,
    "aten.embedding_renorm": _renorm, "aten._embedding_bag": _embedding_bag,
    "aten._embedding_bag_forward_only": _embedding_bag, "aten._embedding_bag_backward": _bag_gradient,
    "aten._embedding_bag_per_sample_weights_backward": _weight_gradient,
}  # fmt: skip
