"""PyTorch's distances between rows, and their gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...import_context import Convert, ImportContext, Value
from ..movement import unsqueeze
from ..reduction import norm


def _differences(ctx: ImportContext, a: Value, b: Value) -> Value:
    """Return the difference of each row of a matrix and each row of another."""
    return ctx.emit(  # type: ignore[no-any-return]
        "sub", unsqueeze(ctx, a, len(ctx.shape(a)) - 1), unsqueeze(ctx, b, len(ctx.shape(b)) - 2)
    )


def _pairwise_norm(ctx: ImportContext, a: Value, b: Value, order: float, *_: Any) -> Any:
    return norm(ctx, _differences(ctx, a, b), order, (-1,))


def _distance(ctx: ImportContext, a: Value, b: Value, order: float = 2) -> Any:
    """Convert the norm of one difference."""
    return norm(ctx, ctx.emit("sub", *ctx.promote(a, b)), order)


def _slope(ctx: ImportContext, difference: Value, order: float, distance: Value) -> Value:
    """Return the derivative of a norm by each difference; at a distance of 0 it is 0."""
    kind = ctx.type(difference).dtype
    zero, sign = ctx.constant(0, dtype=kind), ctx.emit("sign", difference)
    if order == 0:
        return ctx.emit("mul", sign, zero)  # type: ignore[no-any-return]
    if order == 1:
        return sign  # type: ignore[no-any-return]
    size = ctx.emit("abs", difference)
    if order == math.inf:
        distance = ctx.emit("reduce_max", size, axes=(-1,))  # the given one may be rounded
        greatest = ctx.cast(ctx.emit("equal", size, distance), kind)
        return ctx.emit("mul", sign, greatest)  # type: ignore[no-any-return]
    share = ctx.emit("div", difference if order == 2 else size, distance)
    if order != 2:
        share = ctx.emit("mul", sign, ctx.emit("pow", share, ctx.constant(order - 1, dtype=kind)))
    same = ctx.emit("equal", difference if order < 2 else distance, zero)
    return ctx.emit("where", same, zero, share)  # type: ignore[no-any-return]


def _gradient_between(ctx: ImportContext, dy: Value, a: Value, b: Value, order: float, distance: Value) -> Any:
    """Convert the gradient of the first operand."""
    rank = len(ctx.shape(a))
    slope = _slope(ctx, _differences(ctx, a, b), order, unsqueeze(ctx, distance, rank))
    return ctx.emit("reduce_sum", ctx.emit("mul", slope, unsqueeze(ctx, dy, rank)), axes=(-2,), keepdims=False)


def _pairs(ctx: ImportContext, x: Value) -> tuple[Value, Value]:
    """Return the numbers of the rows of each pair, the first below the second."""
    first, second = np.triu_indices(ctx.shape(x)[0], 1)
    return ctx.constant(first.astype(np.int64)), ctx.constant(second.astype(np.int64))


def _pair_differences(ctx: ImportContext, x: Value) -> Value:
    rows = [ctx.emit("gather", x, places, axis=0) for places in _pairs(ctx, x)]
    return ctx.emit("sub", *rows)  # type: ignore[no-any-return]


def _pdist(ctx: ImportContext, x: Value, order: float = 2) -> Any:
    return norm(ctx, _pair_differences(ctx, x), order, (-1,))


def _gradient_of_pairs(ctx: ImportContext, dy: Value, x: Value, order: float, distance: Value) -> Any:
    slope = _slope(ctx, _pair_differences(ctx, x), order, unsqueeze(ctx, distance, 1))
    moved = ctx.emit("mul", slope, unsqueeze(ctx, dy, 1))
    first, second = (ctx.emit("gather_grad", moved, places, axis=0, size=ctx.shape(x)[0]) for places in _pairs(ctx, x))
    return ctx.emit("sub", first, second)


TABLE: dict[str, Convert] = {
    "aten._cdist_forward": _pairwise_norm, "aten._cdist_backward": _gradient_between, "aten.dist": _distance,
    "aten._pdist_forward": _pdist, "aten._pdist_backward": _gradient_of_pairs,
}  # fmt: skip
