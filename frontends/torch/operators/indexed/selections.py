"""PyTorch's calls with computed sizes.

The number of their results depends on values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .....ir import DType
from .....ops.symbolic import ComputedSizes
from ...calls import COMPUTES_SIZE
from ...import_context import Convert, ImportContext, Value
from ..movement import expand, unsqueeze
from .masks import only_mask, put_where, unravel


def selected_rows(ctx: ImportContext, mask: Value) -> Value:
    """Return the numbers of the true elements of a mask, row-major."""
    computed = _sizes_of(ctx)
    is_new = ctx.node is not None and ctx.node.meta.get(COMPUTES_SIZE)  # PyTorch may count equal masks once
    if is_new or mask not in computed.selections:
        flat = ctx.reshape(ctx.cast(mask, DType.BOOL), (-1,))
        if room := computed.room(ctx.shape(flat)[0]):  # a mask may itself have a computed size
            flat = ctx.cast(ctx.emit("pad", ctx.cast(flat, DType.U8), pads=(0, room)), DType.BOOL)
        count = ctx.emit("reduce_sum", ctx.cast(flat, DType.I32), axes=(0,), keepdims=False)
        found = computed.produce(ctx, "nonzero", ctx.emit("identity", flat), 1, {"fill": 0}, ctx.origin)
        computed.set_count(count)
        computed.selections[mask] = found[0]
    return Value(computed.selections[mask])


def selected_places(ctx: ImportContext, indices: Sequence[Value | None]) -> list[Value | None]:
    """Return indices with positions of true elements in place of masks."""
    found: list[Value | None] = []
    for each in indices:
        is_mask = each is not None and ctx.type(each).dtype is DType.BOOL
        found += unravel(ctx, selected_rows(ctx, Value(each)), ctx.shape(str(each))) if is_mask else [each]
    return found


def put_selected(
    ctx: ImportContext, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Any:
    """Write one value, or the next of several, for true elements."""
    first, mask = only_mask(ctx, indices)
    shape, own = ctx.shape(x), ctx.shape(values)
    rest = len(shape) - first - len(ctx.shape(mask))
    whole = (*(1,) * (first + 1 + rest - len(own)), *own)
    if whole[first] == 1:
        return put_where(ctx, x, indices, values, accumulate)
    ranks = ctx.emit("cumsum", ctx.cast(ctx.reshape(mask, (-1,)), DType.I64), axis=0, exclusive=True)
    found = ctx.emit("gather", ctx.reshape(values, whole), ctx.reshape(ranks, ctx.shape(mask)), axis=first)
    found = ctx.cast(found, ctx.type(x).dtype)
    condition = ctx.reshape(mask, (*ctx.shape(mask), *(1,) * rest))
    return ctx.emit("where", condition, ctx.emit("add", x, found) if accumulate else found, x)


def _nonzero(ctx: ImportContext, x: Value) -> Any:
    rows = selected_rows(ctx, x)
    places = [unsqueeze(ctx, place, 1) for place in unravel(ctx, rows, ctx.shape(x))]
    if not places:
        ctx.fail("positions in a tensor without axes are not supported")
    return ctx.emit("concat", *places, axis=1) if len(places) > 1 else places[0]


def _masked_select(ctx: ImportContext, x: Value, mask: Value) -> Any:
    shape = tuple(np.broadcast_shapes(ctx.shape(x), ctx.shape(mask)))
    rows = selected_rows(ctx, expand(ctx, mask, shape))
    return ctx.emit("gather", ctx.reshape(expand(ctx, x, shape), (-1,)), rows, axis=0)


def _unique(
    ctx: ImportContext, x: Value, in_order: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    return _runs(ctx, x, False)


def _unique_consecutive(
    ctx: ImportContext, x: Value, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    if dim is not None and len(ctx.shape(x)) != 1:
        ctx.fail("distinct rows of a tensor are not supported")
    return _runs(ctx, x, True)


def _unique_dim(ctx: ImportContext, x: Value, dim: int, *_: Any, **__: Any) -> Any:
    if len(ctx.shape(x)) != 1:
        ctx.fail("distinct rows of a tensor are not supported")
    return _runs(ctx, x, False)


def _runs(ctx: ImportContext, x: Value, consecutive: bool) -> tuple[Value, ...]:
    """Return the distinct elements, the number of each element's, and their counts."""
    computed = _sizes_of(ctx)
    kind, shape = ctx.type(x).dtype, ctx.shape(x)
    flat = ctx.reshape(ctx.cast(x, DType.U8) if kind is DType.BOOL else x, (-1,))
    if not computed.is_fixed(ctx.shape(flat)[0]):
        ctx.fail("distinct elements of a computed number of them are not supported")
    found = computed.produce(ctx, "unique", ctx.emit("identity", flat), 5, {"consecutive": consecutive}, ctx.origin)
    y, _, inverse, counts, number = map(Value, found)
    computed.set_count(ctx.cast(number, DType.I32))
    return ctx.cast(y, kind), ctx.reshape(inverse, shape), counts


def _sizes_of(ctx: ImportContext) -> ComputedSizes:
    if ctx.computed is None:
        ctx.fail("the shape of the result depends on values")
    return ctx.computed


TABLE: dict[str, Convert] = {
    "aten.nonzero": _nonzero, "aten.masked_select": _masked_select, "aten._unique2": _unique,
    "aten.unique_consecutive": _unique_consecutive, "aten.unique_dim": _unique_dim,
}  # fmt: skip
