"""PyTorch's updates of elements at index positions along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .....ir import COMBINERS, DType
from ...import_context import Convert, ImportContext, Value
from ..arithmetic import divide
from ..movement import expand, with_axis

_REDUCTIONS = {
    None: "none", "add": "add", "sum": "add", "mean": "add", "multiply": "mul", "prod": "mul", "amax": "max",
    "amin": "min",
}  # fmt: skip


def _neutral(how: str, kind: DType) -> float:
    """Return the identity element of a reduction."""
    return COMBINERS[{"add": "sum", "mul": "prod"}.get(how, how)].identity(kind)


def _scatter(how: str) -> Convert:
    def convert(
        ctx: ImportContext,
        x: Value,
        axis: int,
        indices: Value,
        updates: Any,
        reduce: str | None = None,
        include_self: bool = True,
    ) -> Value:
        own, shape = ctx.type(x).dtype, ctx.shape(indices)
        kind = DType.U8 if own is DType.BOOL else own
        if not isinstance(updates, Value):
            updates = ctx.cast(ctx.number(updates, own, shape), kind)
        elif ctx.shape(updates) != shape:
            updates = ctx.emit("slice", updates, starts=(0,) * len(shape), ends=shape, axes=tuple(range(len(shape))))
        if reduce not in _REDUCTIONS:
            ctx.fail(f"reduction {reduce!r}: expected one of {', '.join(str(name) for name in _REDUCTIONS if name)}")
        reduction = _REDUCTIONS[reduce] if reduce else how
        x, updates = ctx.cast(x, kind), ctx.cast(updates, kind)
        rows = _row_places(ctx, axis, indices, ctx.shape(x))
        counted = indices if rows is None else rows
        count = _updates_per_element(ctx, x, axis, counted) if reduce == "mean" or not include_self else None
        if count is not None and not include_self:
            x = ctx.emit("where", ctx.cast(count, DType.BOOL), ctx.constant(_neutral(reduction, kind), dtype=kind), x)
        if rows is None:
            found = ctx.emit("scatter_elements", x, indices, updates, axis=axis, reduction=reduction)
        else:
            found = ctx.emit("scatter_nd", x, ctx.reshape(rows, (shape[0], 1)), updates, reduction=reduction)
        if reduce == "mean" and count is not None:
            one = ctx.constant(1, dtype=DType.I64)
            shares = ctx.emit("add" if include_self else "max", count, one)
            found = divide(ctx, found, ctx.cast(shares, kind), None if kind.is_float else "floor")
        return ctx.cast(found, own)

    return convert


def _row_places(ctx: ImportContext, axis: int, indices: Value, shape: Sequence[int]) -> Value | None:
    """Return the place of each row, where all elements of a row have one.

    Indices are then those of rows, broadcast along the other axes.
    """
    node = next((n for n in reversed(ctx.nodes) if indices in n.outputs), None)
    if (
        not shape
        or axis % len(shape)
        or node is None
        or node.op != "expand"
        or ctx.shape(indices)[1:] != tuple(shape[1:])
    ):
        return None
    source = Value(node.inputs[0] or "")
    return source if ctx.shape(source) == (ctx.shape(indices)[0], *(1,) * (len(shape) - 1)) else None


def _updates_per_element(ctx: ImportContext, x: Value, axis: int, indices: Value) -> Value:
    shape = ctx.shape(indices)
    own = tuple(1 if n != axis % len(shape) and shape[n] == 1 else extent for n, extent in enumerate(ctx.shape(x)))
    none = expand(ctx, ctx.constant(0, dtype=DType.I64), own)
    ones = expand(ctx, ctx.constant(1, dtype=DType.I64), shape)
    return ctx.emit("scatter_elements", none, indices, ones, axis=axis, reduction="add")  # type: ignore[no-any-return]


def _index_reduce(
    ctx: ImportContext, x: Value, axis: int, indices: Value, updates: Value, reduce: str, *, include_self: bool = True
) -> Any:
    """Convert a reduction of whole slices, one for each index."""
    own, x, updates = ctx.shape(x), with_axis(ctx, x), with_axis(ctx, updates)
    shape = ctx.shape(updates)
    axis %= len(shape)
    column = ctx.reshape(indices, (shape[axis], *(1,) * (len(shape) - 1 - axis)))
    found = _scatter("none")(ctx, x, axis, expand(ctx, column, shape), updates, reduce, include_self)
    return found if own else ctx.reshape(found, ())


def _put(ctx: ImportContext, x: Value, indices: Value, updates: Value, accumulate: bool = False) -> Any:
    """Convert an update of elements by their positions in row-major order."""
    flat = [ctx.reshape(value, (-1,)) for value in (x, indices, updates)]
    found = _scatter("add" if accumulate else "none")(ctx, flat[0], 0, *flat[1:])
    return ctx.reshape(found, ctx.shape(x))


TABLE: dict[str, Convert] = {
    "aten.scatter": _scatter("none"), "aten.scatter_add": _scatter("add"), "aten.scatter_reduce": _scatter("none"),
    "aten.index_reduce": _index_reduce, "aten.put": _put,
}  # fmt: skip
