"""Products with quantised weights, and the operations of `pt2e` graphs.

Real numbers are `(q - zero) * scale`; a scale and a zero point belong to the whole, to a slice, to a group of numbers
along the last axis, or to a token (a row of the last axis).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .....ir import DType, GraphError
from ...import_context import Convert, ImportContext, Value, dtype_of
from ..layers import scaled_mm

#: Scales and zero points: tensors, or numbers.
Steps = Value | float | int
#: PyTorch's numbers of scales for a whole tensor, and for rows or columns.
_PLAIN_RECIPES = {0, 1}


def _int_mm(ctx: ImportContext, a: Value, b: Value) -> Any:
    """Convert a product of bytes, added up in 32 bits."""
    return ctx.emit("matmul", *(ctx.cast(value, DType.I32) for value in (a, b)))


def _scaled_mm(
    ctx: ImportContext, a: Value, b: Value, a_scale: Sequence[Value], a_recipe: Sequence[int], a_swizzle: Sequence[int],
    b_scale: Sequence[Value], b_recipe: Sequence[int], b_swizzle: Sequence[int], bias: Value | None,
    dtype: torch.dtype | None, *_: Any,
) -> Any:  # fmt: skip
    """Convert a product of 8-bit floats with scales of tensors, or of rows and columns.

    Raises `GraphError` for scales of blocks, several levels of them, and permuted ones.
    """
    if {*a_recipe, *b_recipe} - _PLAIN_RECIPES or len(a_scale) > 1 or any((*a_swizzle, *b_swizzle)):
        raise GraphError(
            f"scales of recipes {[*a_recipe]} and {[*b_recipe]} are not supported", hint="give one a tensor or a row"
        )
    return scaled_mm(ctx, a, b, a_scale[0], b_scale[0], bias, None, dtype)


def _product_of_bytes(ctx: ImportContext, a: Value, weight: Value, scales: Value) -> Any:
    """Convert `a[M, K] @ weight[N, K].T * scales[N]`, summed in f32 and rounded once."""
    kind = ctx.type(a).dtype
    product = ctx.emit("gemm", a, ctx.cast(weight, kind), trans_b=True)
    return ctx.cast(ctx.emit("mul", product, ctx.cast(scales, kind)), kind)


def _steps(ctx: ImportContext, value: Steps, dtype: DType, shape: Sequence[int]) -> Value:
    """Return a scale or a zero point in a type, in a shape that broadcasts."""
    if isinstance(value, (int, float)):
        return ctx.constant(value, dtype=dtype)
    return ctx.reshape(ctx.cast(value, dtype), tuple(shape))  # type: ignore[no-any-return]


def _quantise(ctx: ImportContext, x: Value, scale: Steps, zero: Steps, shape: Sequence[int], limits: Sequence[Any],
              dtype: torch.dtype) -> Any:  # fmt: skip
    """Return `round(x / scale) + zero` within limits, as a product with the reciprocal, like PyTorch."""
    real = ctx.cast(x, DType.F32)
    one = ctx.constant(1.0, dtype=DType.F32)
    inverse = (
        ctx.constant(1.0 / scale, dtype=DType.F32)
        if isinstance(scale, (int, float))
        else ctx.emit("div", one, _steps(ctx, scale, DType.F32, shape))
    )
    whole = ctx.emit("round", ctx.emit("mul", real, inverse))
    if zero is not None:
        whole = ctx.emit("add", whole, _steps(ctx, zero, DType.F32, shape))
    low, high = (_number(ctx, limit) for limit in limits)
    return ctx.emit("cast", ctx.emit("clip", whole, min=low, max=high), to=dtype_of(dtype).value)


def _dequantise(
    ctx: ImportContext, q: Value, scale: Steps, zero: Steps | None, shape: Sequence[int], dtype: torch.dtype | None
) -> Any:
    """Return `(q - zero) * scale` in f32, as a type."""
    real = ctx.cast(q, DType.F32)
    if zero is not None and zero != 0:
        real = ctx.emit("sub", real, _steps(ctx, zero, DType.F32, shape))
    real = ctx.emit("mul", real, _steps(ctx, scale, DType.F32, shape))
    return ctx.cast(real, dtype_of(dtype) if dtype is not None else DType.F32)


def _number(ctx: ImportContext, value: Any) -> float:
    """Return a limit, which may be a constant tensor.

    Raises `GraphError` for a computed one.
    """
    if not isinstance(value, Value):
        return float(value)
    if value not in ctx.constants:
        raise GraphError("a limit of a quantisation is computed", hint="give the limits as numbers")
    return float(ctx.constants[value].reshape(()))


def _quantise_whole(ctx: ImportContext, x: Value, scale: Steps, zero: Steps, low: Any, high: Any, dtype: torch.dtype,
                    eps: Any = None) -> Any:  # fmt: skip
    return _quantise(ctx, x, scale, zero, (), (low, high), dtype)


def _dequantise_whole(
    ctx: ImportContext, q: Value, scale: Steps, zero: Steps, low: Any, high: Any, dtype: torch.dtype,
    out_dtype: torch.dtype | None = None,
) -> Any:  # fmt: skip
    return _dequantise(ctx, q, scale, zero, (), out_dtype)


def _axis_shape(ctx: ImportContext, x: Value, axis: int) -> tuple[int, ...]:
    rank = len(ctx.shape(x))
    return tuple(-1 if n == axis % rank else 1 for n in range(rank))


def _quantise_slices(ctx: ImportContext, x: Value, scales: Value, zeros: Value, axis: int, low: int, high: int,
                     dtype: torch.dtype) -> Any:  # fmt: skip
    return _quantise(ctx, x, scales, zeros, _axis_shape(ctx, x, axis), (low, high), dtype)


def _dequantise_slices(
    ctx: ImportContext, q: Value, scales: Value, zeros: Value | None, axis: int, low: int, high: int,
    dtype: torch.dtype, out_dtype: torch.dtype | None = None,
) -> Any:  # fmt: skip
    return _dequantise(ctx, q, scales, zeros, _axis_shape(ctx, q, axis), out_dtype)


def _quantise_tokens(ctx: ImportContext, x: Value, scales: Value, zeros: Value, low: int, high: int,
                     dtype: torch.dtype) -> Any:  # fmt: skip
    return _quantise(ctx, x, scales, zeros, (*ctx.shape(x)[:-1], 1), (low, high), dtype)


def _dequantise_tokens(
    ctx: ImportContext, q: Value, scales: Value, zeros: Value | None, low: int, high: int, dtype: torch.dtype,
    out_dtype: torch.dtype,
) -> Any:  # fmt: skip
    return _dequantise(ctx, q, scales, zeros, (*ctx.shape(q)[:-1], 1), out_dtype)


def _groups(ctx: ImportContext, x: Value, size: int) -> tuple[int, ...]:
    """Return a matrix's shape in groups along its last axis.

    Raises `GraphError` where groups do not fill a row.
    """
    shape = ctx.shape(x)
    if size < 1 or shape[-1] % size:
        raise GraphError(f"groups of {size} do not divide a row of {shape[-1]}", hint="pad the weight")
    return (*shape[:-1], shape[-1] // size, size)


def _quantise_groups(
    ctx: ImportContext, x: Value, scales: Value, zeros: Value, low: int, high: int, dtype: torch.dtype,
    group_size: int = 128,
) -> Any:  # fmt: skip
    shape = _groups(ctx, x, group_size)
    grouped = ctx.reshape(x, shape)
    found = _quantise(ctx, grouped, scales, zeros, (*shape[:-1], 1), (low, high), dtype)
    return ctx.reshape(found, ctx.shape(x))


def _dequantise_groups(
    ctx: ImportContext, q: Value, scales: Value, zeros: Value | None, low: int, high: int, dtype: torch.dtype,
    group_size: int = 128, output_dtype: torch.dtype = torch.float32,
) -> Any:  # fmt: skip
    """Convert the numbers of groups along a matrix's last axis."""
    shape, out = _groups(ctx, q, group_size), dtype_of(output_dtype)
    blocks = shape[:-1]
    if math.prod(ctx.shape(scales)) != math.prod(blocks):
        raise GraphError(f"expected {list(blocks)} scales, found {list(ctx.shape(scales))}")
    kind = ctx.type(q).dtype
    scale = _steps(ctx, scales, DType.F32, blocks)
    whole = zeros is not None and ctx.type(zeros).dtype.is_int
    zero = _steps(ctx, zeros, kind, blocks) if zeros is not None and whole else None
    if zeros is not None and not whole:
        grouped = _dequantise(ctx, ctx.reshape(q, shape), scales, zeros, (*blocks, 1), output_dtype)
        return ctx.reshape(grouped, ctx.shape(q))
    real = ctx.emit("dequantize", q, scale, zero, axis=len(shape) - 2, block=group_size)
    return ctx.cast(real, out)


def _choose(ctx: ImportContext, x: Value, low: int, high: int, eps: float, symmetric: bool, middle: int) -> Any:
    """Return the scale f64[1] and zero point i64[1] of numbers within limits."""
    real = ctx.reshape(ctx.cast(x, DType.F32), (-1,))
    zero = ctx.constant(np.float32(0))
    least = ctx.emit("min", ctx.emit("reduce_min", real, axes=(0,)), zero)
    most = ctx.emit("max", ctx.emit("reduce_max", real, axes=(0,)), zero)
    width = ctx.emit("max", most, ctx.emit("neg", least)) if symmetric else ctx.emit("sub", most, least)
    steps = ctx.constant(np.float32((high - low) / 2 if symmetric else high - low))
    scale = ctx.emit("max", ctx.emit("div", width, steps), ctx.constant(np.float32(eps)))
    if symmetric:
        return ctx.cast(scale, DType.F64), ctx.number(middle, DType.I64, (1,))
    shift = ctx.emit("sub", ctx.constant(np.float32(low)), ctx.emit("round", ctx.emit("div", least, scale)))
    point = ctx.emit("clip", shift, min=float(low), max=float(high))
    return ctx.cast(scale, DType.F64), ctx.cast(point, DType.I64)


def _choose_whole(ctx: ImportContext, x: Value, low: int, high: int, eps: float, dtype: torch.dtype) -> Any:
    return _choose(ctx, x, low, high, eps, symmetric=False, middle=0)


def _choose_symmetric(ctx: ImportContext, x: Value, low: int, high: int, eps: float, dtype: torch.dtype) -> Any:
    return _choose(ctx, x, low, high, eps, symmetric=True, middle=128 if dtype is torch.uint8 else 0)


def _choose_tokens(ctx: ImportContext, x: Value, dtype: torch.dtype) -> Any:
    """Return the scales f64 and zero points i64 of rows, symmetric numbers of a byte."""
    sizes = ctx.emit("reduce_max", ctx.emit("abs", x), axes=(-1,), keepdims=True)
    sizes = ctx.cast(sizes, DType.F32) if ctx.type(x).dtype is DType.F16 else sizes
    kind = ctx.type(sizes).dtype
    scale = ctx.emit("div", ctx.emit("max", sizes, ctx.constant(1e-5, dtype=kind)), ctx.constant(127, dtype=kind))
    return ctx.cast(scale, DType.F64), ctx.number(0, DType.I64, ctx.shape(scale))


_NAMES: dict[str, tuple[Convert, Convert]] = {
    "per_tensor": (_quantise_whole, _dequantise_whole), "per_channel": (_quantise_slices, _dequantise_slices),
    "per_token": (_quantise_tokens, _dequantise_tokens), "per_channel_group": (_quantise_groups, _dequantise_groups),
}  # fmt: skip
TABLE: dict[str, Convert] = {
    "aten._int_mm": _int_mm, "aten._scaled_mm_v2": _scaled_mm, "aten._weight_int8pack_mm": _product_of_bytes,
    "quantized_decomposed.choose_qparams": _choose_whole,
    "quantized_decomposed.choose_qparams_symmetric": _choose_symmetric,
    "quantized_decomposed.choose_qparams_per_token": _choose_tokens,
    **{f"quantized_decomposed.quantize_{name}": pair[0] for name, pair in _NAMES.items()},
    **{f"quantized_decomposed.dequantize_{name}": pair[1] for name, pair in _NAMES.items()},
}  # fmt: skip
