"""PyTorch's reductions, sorting and distributions along axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ....ir import DType
from ..import_context import Convert, ImportContext, Value, dtype_of
from .movement import lift_scalars, unsqueeze


def _reduce(op: str) -> Convert:
    def convert(
        ctx: ImportContext, x: Value, axes: Any = None, keep: bool = False, dtype: torch.dtype | None = None, **_: Any
    ) -> Any:
        if dtype is not None:
            x = ctx.cast(x, dtype_of(dtype))
        elif op in ("reduce_sum", "reduce_prod") and not ctx.type(x).dtype.is_float:
            x = ctx.cast(x, DType.I64)
        chosen = (axes,) if isinstance(axes, int) else tuple(axes or range(len(ctx.shape(x))))
        own = ctx.type(x).dtype
        return ctx.cast(ctx.emit(op, _number(ctx, x), axes=chosen, keepdims=bool(keep)), own)

    return convert


def _number(ctx: ImportContext, x: Value) -> Value:
    """Return truth values as bytes, which are ordered; other tensors unchanged."""
    return ctx.cast(x, DType.U8) if ctx.type(x).dtype is DType.BOOL else x


def _variance(
    ctx: ImportContext, x: Value, axes: Any = None, correction: float | None = None, keepdim: bool = False, **_: Any
) -> Any:
    chosen = tuple(axes if axes is not None else range(len(ctx.shape(x))))
    mean = ctx.emit("reduce_mean", x, axes=chosen, keepdims=True)
    total = ctx.emit("reduce_sum_square", ctx.emit("sub", x, mean), axes=chosen, keepdims=bool(keepdim))
    count = 1
    for axis in chosen:
        count *= ctx.shape(x)[axis]
    return ctx.emit(
        "div",
        total,
        ctx.constant(max(count - (1 if correction is None else correction), 0), dtype=ctx.type(x).dtype),
    )


def _extreme(values: str, places: str) -> Convert:
    def convert(ctx: ImportContext, x: Value, axis: int | None = None, keep: bool = False) -> Any:
        own = ctx.type(x).dtype
        number = _number(ctx, x)
        if axis is None and not ctx.type(x).size:
            ctx.fail("no element is the extreme of an empty tensor; give it elements, or name an axis that has some")
        if axis is None:
            return ctx.cast(ctx.emit(values, number, keepdims=False), own)
        value, position = ctx.emit(places, number, outputs=2, axis=axis, keepdims=bool(keep))
        return ctx.cast(value, own), position

    return convert


def norm(
    ctx: ImportContext,
    x: Value,
    order: float = 2,
    axes: Any = None,
    keep: bool = False,
    dtype: torch.dtype | None = None,
) -> Any:
    """Convert a norm of elements along axes."""
    x = x if dtype is None else ctx.cast(x, dtype_of(dtype))
    chosen = (axes,) if isinstance(axes, int) else tuple(axes or range(len(ctx.shape(x))))
    given: dict[str, Any] = {"axes": chosen, "keepdims": bool(keep)}
    if order in (1, 2):
        return ctx.emit(f"reduce_l{int(order)}", x, **given)
    size = ctx.emit("abs", x)
    if abs(order) == math.inf:
        return ctx.emit("reduce_max" if order > 0 else "reduce_min", size, **given)
    kind = ctx.type(x).dtype
    if order == 0:
        return ctx.emit("reduce_sum", ctx.cast(ctx.cast(x, DType.BOOL), kind), **given)
    total = ctx.emit("reduce_sum", ctx.emit("pow", size, ctx.constant(order, dtype=kind)), **given)
    return ctx.emit("pow", total, ctx.constant(1 / order, dtype=kind))


def _kth(ctx: ImportContext, x: Value, k: int, axis: int = -1, keep: bool = False) -> Any:
    """Return the k-th least element and its position."""
    axis %= len(ctx.shape(x))
    found = _top_k(ctx, x, k, axis, largest=False, start=k - 1)
    shape = tuple(n for a, n in enumerate(ctx.shape(x)) if a != axis)
    return found if keep else tuple(ctx.reshape(v, shape) for v in found)


def _median(ctx: ImportContext, x: Value, axis: int | None = None, keep: bool = False) -> Any:
    """Return the lower of the two middle elements, or the first NaN."""
    if axis is None and not ctx.type(x).size:
        if not ctx.type(x).dtype.is_float:
            ctx.fail("there is no median of no integers")
        return ctx.constant(np.nan, dtype=ctx.type(x).dtype)
    if axis is None:
        return _median(ctx, ctx.reshape(x, (-1,)), 0)[0]
    found = _kth(ctx, x, (ctx.shape(x)[axis] + 1) // 2, axis, keep)
    if not ctx.type(x).dtype.is_float:
        return found
    none = ctx.cast(ctx.emit("is_nan", x), DType.U8)
    any_none = ctx.cast(ctx.emit("reduce_max", none, axes=(axis,), keepdims=keep), DType.BOOL)
    first = ctx.constant(np.nan, dtype=ctx.type(x).dtype), ctx.emit("argmax", none, axis=axis, keepdims=keep)
    return tuple(ctx.emit("where", any_none, *pair) for pair in zip(first, found, strict=True))


def _number_median(ctx: ImportContext, x: Value, axis: int | None = None, keep: bool = False) -> Any:
    """Return the lower of the two middle elements that are numbers, and its position; NaN where none is."""
    if axis is None:
        return _number_median(ctx, ctx.reshape(x, (-1,)), 0)[0] if ctx.type(x).size else _median(ctx, x)
    if not ctx.type(x).dtype.is_float:
        return _median(ctx, x, axis, keep)
    numbers = ctx.cast(ctx.emit("logical_not", ctx.emit("is_nan", x)), DType.I64)
    count = ctx.emit("reduce_sum", numbers, axes=(axis,), keepdims=True)
    one = ctx.constant(1, dtype=DType.I64)
    middle = ctx.emit("div", ctx.emit("sub", ctx.emit("max", count, one), one), ctx.constant(2, dtype=DType.I64))
    found = tuple(ctx.emit("gather_elements", v, middle, axis=axis) for v in _sort(ctx, x, axis))
    kept = tuple(n for a, n in enumerate(ctx.shape(x)) if a != axis % len(ctx.shape(x)))
    return found if keep else tuple(ctx.reshape(v, kept) for v in found)


def _mode(ctx: ImportContext, x: Value, axis: int = -1, keep: bool = False) -> Any:
    y, places = ctx.emit("mode", _number(ctx, x), outputs=2, axis=axis, keepdims=bool(keep))
    return ctx.cast(y, ctx.type(x).dtype), places


def _sort(ctx: ImportContext, x: Value, axis: int = -1, descending: bool = False, **more: Any) -> Any:
    return _top_k(ctx, x, ctx.shape(x)[axis], axis, descending)


def _sort_stable(ctx: ImportContext, x: Value, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    return _sort(ctx, x, dim, descending)


def _position(op: str) -> Convert:
    def convert(ctx: ImportContext, x: Value, axis: int | None = None, keep: bool = False) -> Any:
        x = _number(ctx, x)
        if axis is None:
            x, axis, keep = ctx.reshape(x, (-1,)), 0, False
        return ctx.emit(op, x, axis=axis, keepdims=bool(keep))

    return convert


def _variance_and_mean(
    ctx: ImportContext, x: Value, axes: Any = None, correction: float | None = None, keepdim: bool = False
) -> Any:
    """Convert both; the mean is that of the variance, in another shape."""
    chosen = tuple(axes if axes is not None else range(len(ctx.shape(x))))
    mean = ctx.emit("reduce_mean", x, axes=chosen, keepdims=True)
    if not keepdim:
        dropped = {axis % max(1, len(ctx.shape(x))) for axis in chosen}
        kept = tuple(n for axis, n in enumerate(ctx.shape(x)) if axis not in dropped)
        mean = ctx.reshape(mean, kept)
    return _variance(ctx, x, axes, correction, keepdim), mean


def _truth(op: str) -> Convert:
    def convert(ctx: ImportContext, x: Value, axes: Any = None, keep: bool = False) -> Any:
        number = ctx.cast(ctx.cast(x, DType.BOOL), DType.U8)
        chosen = (axes,) if isinstance(axes, int) else tuple(axes or range(len(ctx.shape(x))))
        found = ctx.emit(op, number, axes=chosen, keepdims=bool(keep))
        return (
            found if ctx.type(x).dtype is DType.U8 else ctx.cast(found, DType.BOOL)
        )  # the result for bytes is of bytes

    return convert


def _softmax(op: str) -> Convert:
    return lambda ctx, x, axis, half=False, **_: ctx.emit(op, x, axis=axis)


def _histogram(ctx: ImportContext, x: Value, bins: int = 100, low: float = 0, high: float = 0) -> Any:
    """Convert to counts in the element type; equal bounds mean those of the elements."""
    kind, flat = ctx.type(x).dtype, ctx.reshape(x, (-1,))
    first, last = ctx.constant(low, dtype=kind), ctx.constant(high, dtype=kind)
    if low == high:
        first, last = (ctx.emit(f"reduce_{end}", flat, keepdims=False) for end in ("min", "max"))
        same = ctx.cast(ctx.emit("equal", first, last), kind)
        first, last = ctx.emit("sub", first, same), ctx.emit("add", last, same)
    return ctx.cast(ctx.emit("histogram", flat, first, last, bins=bins), kind)


def _counts(ctx: ImportContext, *_: Any) -> Any:
    ctx.fail(
        "the length of the result depends on values; torch.nn.functional.one_hot(x, n).sum(0) counts to a given length"
    )


def _multilabel_margin(ctx: ImportContext, x: Value, target: Value, reduction: int) -> tuple[Value, Value]:
    """Convert the margins between each label, up to the first negative one, and each other class.

    PyTorch's decomposition counts the labels after it too.
    """
    shape, kind = ctx.shape(x), ctx.type(x).dtype
    rank, zero = len(shape), ctx.constant(0, dtype=DType.I64)
    target = ctx.cast(target, DType.I64)
    ended = ctx.emit("cumsum", ctx.cast(ctx.emit("less", target, zero), DType.I64), axis=-1)
    counts = unsqueeze(ctx, ctx.emit("equal", ended, zero), rank)
    named = ctx.emit("equal", unsqueeze(ctx, target, rank), ctx.constant(np.arange(shape[-1])))
    named = ctx.cast(ctx.emit("logical_and", named, counts), DType.U8)
    labels = ctx.cast(ctx.emit("reduce_max", named, axes=(-2,), keepdims=False), DType.BOOL)
    found = ctx.emit("gather_elements", x, ctx.emit("max", target, zero), axis=-1)
    difference = ctx.emit("sub", unsqueeze(ctx, x, rank - 1), unsqueeze(ctx, found, rank))
    margin = ctx.emit("relu", ctx.emit("add", difference, ctx.constant(1, dtype=kind)))
    used = ctx.emit("logical_and", counts, unsqueeze(ctx, ctx.emit("logical_not", labels), rank - 1))
    terms = ctx.emit("where", used, margin, ctx.constant(0, dtype=kind))
    loss = ctx.emit(
        "div", ctx.emit("reduce_sum", terms, axes=(-2, -1), keepdims=False), ctx.constant(shape[-1], dtype=kind)
    )
    if reduction:
        loss = ctx.emit(
            "reduce_mean" if reduction == 1 else "reduce_sum", loss, axes=tuple(range(rank - 1)), keepdims=False
        )
    return loss, ctx.cast(labels, kind)


def _top_k(
    ctx: ImportContext, x: Value, k: int, axis: int = -1, largest: bool = True, ordered: bool = True, **given: int
) -> Any:
    y, places = ctx.emit("top_k", _number(ctx, x), outputs=2, k=k, axis=axis, largest=bool(largest), **given)
    return ctx.cast(y, ctx.type(x).dtype), places


TABLE: dict[str, Convert] = {
    "aten.sum": lift_scalars(_reduce("reduce_sum")), "aten.mean": lift_scalars(_reduce("reduce_mean")),
    "aten.amax": lift_scalars(_reduce("reduce_max")),
    "aten.amin": lift_scalars(_reduce("reduce_min")), "aten.prod": lift_scalars(_reduce("reduce_prod")),
    "aten.var": lift_scalars(_variance),
    "aten.var_mean": lift_scalars(_variance_and_mean), "aten.max": lift_scalars(_extreme("reduce_max", "max_position")),
    "aten.min": lift_scalars(_extreme("reduce_min", "min_position")), "aten.argmax": lift_scalars(_position("argmax")),
    "aten.argmin": lift_scalars(_position("argmin")), "aten.any": lift_scalars(_truth("reduce_max")),
    "aten.all": lift_scalars(_truth("reduce_min")),
    "aten._softmax": lift_scalars(_softmax("softmax")), "aten._log_softmax": lift_scalars(_softmax("log_softmax")),
    "aten.topk": lift_scalars(_top_k),
    "aten.linalg_vector_norm": lift_scalars(norm), "aten.histc": _histogram, "aten.bincount": _counts,
    "aten.multilabel_margin_loss_forward": _multilabel_margin,
    "aten.kthvalue": lift_scalars(_kth), "aten.median": lift_scalars(_median),
    "aten.nanmedian": lift_scalars(_number_median), "aten.mode": lift_scalars(_mode),
    "aten.sort.default": lift_scalars(_sort), "aten.sort.stable": lift_scalars(_sort_stable),
}  # fmt: skip
