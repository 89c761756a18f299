"""PyTorch's products of groups of rows, each with its own matrix."""

from __future__ import annotations

from typing import Any

import torch

from ...import_context import Convert, ImportContext, Value, dtype_of


def _turn(ctx: ImportContext, x: Value) -> Value:
    """Return transposed matrices."""
    rank = len(ctx.shape(x))
    return ctx.emit("transpose", x, perm=(*range(rank - 2), rank - 1, rank - 2))  # type: ignore[no-any-return]


def _grouped_product(
    ctx: ImportContext, a: Value, b: Value, ends: Value | None = None, bias: Value | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:  # fmt: skip
    """Convert by the axis that groups divide: rows of `a`, columns of `b`, or the axis that is summed."""
    ranks, kind = (len(ctx.shape(a)), len(ctx.shape(b))), dtype_of(out_dtype) if out_dtype else ctx.type(a).dtype
    if bias is not None or (ends is None and ranks != (3, 3)):
        ctx.fail("expected no bias, and the ends of groups")
    if ranks == (2, 3):
        y = ctx.emit("grouped_matmul", a, b, ends)
    elif ranks == (3, 2):
        y = _turn(ctx, ctx.emit("grouped_matmul", _turn(ctx, b), _turn(ctx, a), ends))
    elif ranks == (2, 2):
        y = ctx.emit("grouped_outer", _turn(ctx, a), b, ends)
    else:
        y = ctx.emit("matmul", a, b)
    return ctx.cast(y, kind)


def _gradients(ctx: ImportContext, a: Value, b: Value, ends: Value, dy: Value) -> Any:
    """Convert the gradients of transformers' own grouped product."""
    return ctx.emit("grouped_matmul", dy, _turn(ctx, b), ends), ctx.emit("grouped_outer", a, dy, ends)


TABLE: dict[str, Convert] = {
    "aten._grouped_mm": _grouped_product, "transformers.grouped_mm_fallback": _grouped_product,
    "transformers.grouped_mm_fallback_backward": _gradients,
}  # fmt: skip
