"""PyTorch's scans along an axis: running sums, products, extremes, and `logsumexp`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ....ir import DType
from ..import_context import Convert, ImportContext, Value, dtype_of
from .movement import lift_scalars


def _cumulative(op: str) -> Convert:
    def convert(ctx: ImportContext, x: Value, axis: int, dtype: torch.dtype | None = None) -> Value:
        own = ctx.type(x).dtype
        kind = dtype_of(dtype) if dtype else own if own.is_float else DType.I64
        return ctx.emit(op, ctx.cast(x, kind), axis=axis)  # type: ignore[no-any-return]

    return convert


def _extreme(op: str) -> Convert:
    def convert(ctx: ImportContext, x: Value, axis: int) -> tuple[Value, Value]:
        own = ctx.type(x).dtype
        if not ctx.type(x).size:
            return x, ctx.constant(np.zeros(ctx.shape(x), np.int64))
        number = ctx.cast(x, DType.U8) if own is DType.BOOL else x
        y, places = ctx.emit(op, number, outputs=2, axis=axis)
        return ctx.cast(y, own), places

    return convert


def _log_sum_exp(ctx: ImportContext, x: Value, axis: int) -> Value:
    return ctx.emit("logcumsumexp", x, axis=axis) if ctx.type(x).size else x


def _log_sum_of_axes(ctx: ImportContext, x: Value, axes: Sequence[int], keep: bool = False) -> Value:
    real = x if ctx.type(x).dtype.is_float else ctx.cast(x, DType.F32)
    along = tuple(axes or range(len(ctx.shape(x))))
    return ctx.emit("reduce_log_sum_exp", real, axes=along, keepdims=bool(keep))  # type: ignore[no-any-return]


TABLE: dict[str, Convert] = {
    "aten.cumsum": lift_scalars(_cumulative("cumsum")), "aten.cumprod": lift_scalars(_cumulative("cumprod")),
    "aten.cummax": lift_scalars(_extreme("cummax")), "aten.cummin": lift_scalars(_extreme("cummin")),
    "aten.logcumsumexp": lift_scalars(_log_sum_exp), "aten.logsumexp": lift_scalars(_log_sum_of_axes),
}  # fmt: skip
