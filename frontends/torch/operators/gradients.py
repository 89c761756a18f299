"""PyTorch's backward operations that its decompositions leave whole.

Each is the derived adjoint of the forward operation: the forward operation is emitted, differentiated, and removed
where the adjoint does not read its result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..import_context import Convert, ImportContext, Value
from .windows import (
    adaptive_max_pool,
    adaptive_pool,
    allow_unbatched,
    average_pool,
    convolution,
    equal_windows,
    grid_sample,
    max_pool,
)


def _gelu(ctx: ImportContext, dy: Value, x: Value, *, approximate: str = "none") -> Any:
    return ctx.adjoint(ctx.emit("gelu", x, approximate=approximate), dy, [x])[0]


def _unary_gradient(op: str) -> Convert:
    """Return the conversion of the gradient of a function of one tensor."""
    return lambda ctx, dy, x: ctx.adjoint(ctx.emit(op, x), dy, [x])[0]


def _tanh(ctx: ImportContext, dy: Value, y: Value) -> Any:
    """Convert by the result: the derivative is a product of two factors, each exact near its zero."""
    one = ctx.constant(1, dtype=ctx.type(y).dtype)
    return ctx.emit("mul", dy, ctx.emit("mul", ctx.emit("sub", one, y), ctx.emit("add", one, y)))


def _glu(ctx: ImportContext, dy: Value, x: Value, axis: int) -> Any:
    """Convert for `a * sigmoid(b)`: the derivative of the gate is `sigmoid(b) * sigmoid(-b)`."""
    axis %= len(ctx.shape(x))
    half = ctx.shape(x)[axis] // 2
    a, b = ctx.emit("split", x, outputs=2, split=(half, half), axis=axis)
    gate = ctx.emit("sigmoid", b)
    slope = ctx.emit("mul", gate, ctx.emit("sigmoid", ctx.emit("neg", b)))
    parts = ctx.emit("mul", dy, gate), ctx.emit("mul", dy, ctx.emit("mul", a, slope))
    return ctx.emit("concat", *parts, axis=axis)


def _absent(ctx: ImportContext, like: Value, shape: Sequence[int]) -> Value:
    """Return a tensor whose elements do not matter, the operand of a linear operation."""
    return ctx.constant(np.broadcast_to(np.zeros((), ctx.type(like).dtype.numpy), tuple(shape)))


def _convolution(
    ctx: ImportContext,
    dy: Value,
    x: Value,
    w: Value,
    bias: Sequence[int] | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    """Convert with the derived adjoints of image and filter; the bias has the sum of `dy`."""
    y = convolution(ctx, x, w, None, stride, padding, dilation, transposed, output_padding, groups)
    chosen = [value for value, flag in zip((x, w), wanted, strict=False) if flag]
    found = iter(ctx.adjoint(y, dy, chosen))
    dx, dw = (next(found) if flag else None for flag in wanted[:2])
    axes = (0, *range(2, len(ctx.shape(dy))))
    return dx, dw, ctx.emit("reduce_sum", dy, axes=axes, keepdims=False) if wanted[2] else None


def _max_pool(
    ctx: ImportContext,
    dy: Value,
    x: Value,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    places: Any,
) -> Any:
    return ctx.adjoint(max_pool(ctx, x, kernel, stride, padding, dilation, ceil_mode)[0], dy, [x])[0]


def _average_pool(ctx: ImportContext, dy: Value, x: Value, *arguments: Any) -> Any:
    return ctx.adjoint(average_pool(ctx, x, *arguments), dy, [x])[0]


def _adaptive_pool(ctx: ImportContext, dy: Value, x: Value) -> Any:
    """Convert with one adjoint step for each axis with windows of several sizes, as in the forward operation."""
    wanted, steps = ctx.shape(dy)[2:], [x]
    while ctx.shape(steps[-1])[2:] != wanted:
        steps.append(adaptive_pool(ctx, steps[-1], wanted, once=True))
    for before, after in zip(steps[-2::-1], steps[:0:-1], strict=True):
        (dy,) = ctx.adjoint(after, dy, [before])
    return dy


def _grid_sample(
    ctx: ImportContext, dy: Value, x: Value, grid: Value, mode: int, padding: int, corners: bool, wanted: Sequence[bool]
) -> Any:
    y = grid_sample(ctx, x, grid, mode, padding, corners)
    found = iter(ctx.adjoint(y, dy, [value for value, flag in zip((x, grid), wanted, strict=True) if flag]))
    return tuple(next(found) if flag else None for flag in wanted)


def _cudnn_grid_sample(ctx: ImportContext, x: Value, grid: Value, dy: Value) -> Any:
    return _grid_sample(ctx, dy, x, grid, 0, 0, True, (True, True))


def _weight_norm(ctx: ImportContext, dw: Value, v: Value, g: Value, norms: Value, axis: int = 0) -> Any:
    """Convert for `w = v * g / norms`, with the norm of each slice along an axis."""
    kinds, rank = (ctx.type(v).dtype, ctx.type(g).dtype), len(ctx.shape(v))
    dw, v, g, norms = (ctx.cast(value, ctx.type(norms).dtype) for value in (dw, v, g, norms))
    others = tuple(a for a in range(rank) if a != axis % rank)
    along = ctx.emit("reduce_sum", ctx.emit("mul", dw, v), axes=others, keepdims=True)
    dg = ctx.emit("div", along, norms)
    inward = ctx.emit("mul", v, ctx.emit("div", dg, norms))
    dv = ctx.emit("mul", ctx.emit("div", g, norms), ctx.emit("sub", dw, inward))
    return tuple(ctx.cast(value, kind) for value, kind in zip((dv, dg), kinds, strict=True))


def _shrink(ctx: ImportContext, dy: Value, x: Value, threshold: float) -> Any:
    low, high = (ctx.number(n, ctx.type(x).dtype) for n in (-threshold, threshold))
    inside = ctx.emit("logical_and", ctx.emit("greater_or_equal", x, low), ctx.emit("less_or_equal", x, high))
    return ctx.emit("where", inside, ctx.number(0, ctx.type(dy).dtype), dy)


def _adaptive_max_pool(ctx: ImportContext, dy: Value, x: Value, places: Any) -> Any:
    """Convert by the adjoint of equal windows, or as a scatter."""
    shape, sizes = ctx.shape(x), ctx.shape(dy)[2:]
    if equal_windows(shape[2:], sizes):
        return ctx.adjoint(adaptive_max_pool(ctx, x, sizes)[0], dy, [x])[0]
    return _scatter_of_maxima(ctx, dy, x, None, sizes, places)


def _scatter_of_maxima(ctx: ImportContext, dy: Value, x: Value, kernel: Any, sizes: Any, places: Value) -> Any:
    """Convert with a scatter that adds the gradients of windows, which overlap."""
    shape, rank = ctx.shape(x), len(tuple(sizes))
    outer = shape[:-rank]
    rows = [ctx.reshape(v, (*outer, -1)) for v in (places, dy)]
    none = _absent(ctx, dy, (*outer, math.prod(shape[-rank:])))
    return ctx.reshape(ctx.emit("scatter_elements", none, *rows, axis=len(outer), reduction="add"), shape)


def _pad_edges(ctx: ImportContext, dy: Value, x: Value, pads: Sequence[int]) -> Any:
    rank = len(ctx.shape(x))
    before, after = [0] * rank, [0] * rank
    for n in range(len(pads) // 2):
        before[rank - 1 - n], after[rank - 1 - n] = pads[2 * n], pads[2 * n + 1]
    same = _absent(ctx, dy, ctx.shape(x))
    return ctx.adjoint(ctx.emit("pad", same, pads=(*before, *after), mode="edge"), dy, [same])[0]


#: Conversions for two and three spatial axes.
_POOLS: dict[str, Convert] = {
    "max_pool{}d_with_indices": _max_pool, "avg_pool{}d": _average_pool, "_adaptive_avg_pool{}d": _adaptive_pool,
    "adaptive_max_pool{}d": _adaptive_max_pool,
}  # fmt: skip

TABLE: dict[str, Convert] = {
    "aten.gelu_backward": _gelu,
    "aten.silu_backward": _unary_gradient("swish"), "aten.mish_backward": _unary_gradient("mish"),
    "aten.tanh_backward": _tanh, "aten.glu_backward": _glu,
    "aten.softshrink_backward": _shrink, "aten.hardshrink_backward": _shrink,
    "aten.convolution_backward": _convolution,
    "aten.grid_sampler_2d_backward": _grid_sample, "aten.grid_sampler_3d_backward": _grid_sample,
    "aten.cudnn_grid_sampler_backward": _cudnn_grid_sample, "aten._weight_norm_interface_backward": _weight_norm,
    "aten.fractional_max_pool2d_backward": _scatter_of_maxima,
    "aten.fractional_max_pool3d_backward": _scatter_of_maxima,
    "aten.replication_pad1d_backward": _pad_edges, "aten.replication_pad2d_backward": _pad_edges,
    "aten.replication_pad3d_backward": _pad_edges,
    **{f"aten.{name.format(rank)}_backward": allow_unbatched(convert, rank)
       for name, convert in _POOLS.items() for rank in (2, 3)},
}  # fmt: skip
