"""PyTorch's elementwise functions of one tensor, and type conversions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ....ir import DType
from ..import_context import Convert, ImportContext, Value, dtype_of
from ..scalars import convert_checked


def _unary(op: str, **attributes: Any) -> Convert:
    """Return the conversion of a function of one tensor; integers become f32 first, as in PyTorch."""

    def convert(ctx: ImportContext, x: Value) -> Any:
        return ctx.emit(op, x if ctx.type(x).dtype.is_float else ctx.cast(x, DType.F32), **attributes)

    return convert


def _same_operation(op: str) -> Convert:
    return lambda ctx, x: ctx.emit(op, x)


def _rounding(op: str) -> Convert:
    """Return the conversion of a rounding, the identity for integers."""
    return lambda ctx, x: ctx.emit(op, x) if ctx.type(x).dtype.is_float else x


def _float_condition(op: str) -> Convert:
    """Return the conversion of a condition that is false for integers."""

    def convert(ctx: ImportContext, x: Value) -> Any:
        none = np.broadcast_to(np.False_, ctx.shape(x))
        return ctx.emit(op, x) if ctx.type(x).dtype.is_float else ctx.constant(none)

    return convert


def _sign(ctx: ImportContext, x: Value) -> Any:
    """Convert a sign: that of a NaN is 0 in PyTorch, that of a truth value is itself."""
    dtype = ctx.type(x).dtype
    if dtype is DType.BOOL:
        return x
    sign = ctx.emit("sign", x)
    return ctx.emit("where", ctx.emit("is_nan", x), ctx.constant(0, dtype=dtype), sign) if dtype.is_float else sign


def _negative(ctx: ImportContext, x: Value) -> Any:
    """Convert a sign bit, which is set for negative zero."""
    dtype = ctx.type(x).dtype
    if dtype is DType.BOOL:
        return ctx.constant(np.broadcast_to(np.False_, ctx.shape(x)))
    sign = ctx.emit("copysign", ctx.constant(1, dtype=dtype), x) if dtype.is_float else x
    return ctx.emit("less", sign, ctx.constant(0, dtype=dtype))


def _gelu(ctx: ImportContext, x: Value, approximate: str = "none") -> Any:
    return ctx.emit("gelu", x, approximate=approximate)


def _factor(ctx: ImportContext, x: Value, number: float) -> float:
    """Return a factor of a function, checked in the computation type of half types."""
    kind = ctx.type(x).dtype
    convert_checked(number, torch.float64 if kind is DType.F64 else torch.float32)
    return float(number)


def _leaky_relu(ctx: ImportContext, x: Value, slope: float = 0.01) -> Any:
    return ctx.emit("leaky_relu", x, alpha=_factor(ctx, x, slope))


def _elu(ctx: ImportContext, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    if input_scale != 1:
        ctx.fail(f"only an input scale of 1 is supported, found {input_scale}")
    y = ctx.emit("elu", x, alpha=_factor(ctx, x, alpha))
    return y if scale == 1 else ctx.emit("mul", y, ctx.constant(scale, dtype=ctx.type(x).dtype))


def _scaled_unary(op: str, before: float = 1, after: float = 1) -> Convert:
    """Return the conversion of `after * op(before * x)`."""

    def convert(ctx: ImportContext, x: Value) -> Any:
        x = x if ctx.type(x).dtype.is_float else ctx.cast(x, DType.F32)
        dtype = ctx.type(x).dtype
        x = x if before == 1 else ctx.emit("mul", x, ctx.constant(before, dtype=dtype))
        y = ctx.emit(op, x)
        return y if after == 1 else ctx.emit("mul", y, ctx.constant(after, dtype=dtype))

    return convert


def _softplus(ctx: ImportContext, x: Value, beta: float = 1, threshold: float = 20) -> Any:
    """Convert a softplus; beyond the threshold it is the operand itself, up to rounding."""
    y = _scaled_unary("softplus", beta, 1 / beta)(ctx, x)
    dtype = ctx.type(y).dtype
    if threshold > 0 and math.exp(-threshold) < dtype.element.epsilon / 2 * threshold:
        return y
    scaled = ctx.emit("mul", x, ctx.constant(beta, dtype=dtype))
    return ctx.emit("where", ctx.emit("greater", scaled, ctx.constant(threshold, dtype=dtype)), x, y)


def _round_decimals(ctx: ImportContext, x: Value, *, decimals: int) -> Any:
    return _scaled_unary("round", 10.0**decimals, 10.0**-decimals)(ctx, x)


def _randomised_relu(
    ctx: ImportContext, x: Value, noise: Value, low: float = 1 / 8, high: float = 1 / 3, training: bool = False, *_: Any
) -> Any:
    if training:
        ctx.fail("random slopes are not supported; export the model for inference")
    return ctx.emit("leaky_relu", x, alpha=(low + high) / 2), noise


def _frexp(ctx: ImportContext, x: Value) -> Any:
    return ctx.emit("frexp", x, outputs=2)


def _convert(ctx: ImportContext, x: Value, dtype: torch.dtype | None = None, **_: Any) -> Any:
    return x if dtype is None else ctx.cast(x, dtype_of(dtype))


def _copy(ctx: ImportContext, x: Value, *_: Any, **__: Any) -> Any:
    return x


_UNARY = (
    "acos acosh asin asinh atan atanh cos cosh erf erfc exp expm1 log log1p reciprocal rsqrt sigmoid sin sinh sqrt "
    "tan tanh"
)

TABLE: dict[str, Convert] = {
    **{f"aten.{name}": _unary(name) for name in _UNARY.split()},
    **{f"aten.{name}": _same_operation(name) for name in ("abs", "neg", "relu")},
    **{f"aten.{name}": _rounding(name) for name in ("ceil", "floor", "round", "trunc")},
    "aten.sign": _sign, "aten.signbit": _negative, "aten.frexp": _frexp,
    "aten.gelu": _gelu, "aten.leaky_relu": _leaky_relu, "aten.elu": _elu,
    "aten.silu": _unary("swish"), "aten.softplus": _softplus, "aten.exp2": _scaled_unary("exp", float(np.log(2))),
    "aten.log2": _scaled_unary("log", 1, float(1 / np.log(2))),
    "aten.log10": _scaled_unary("log", 1, float(1 / np.log(10))),
    "aten.round.decimals": _round_decimals, "aten.rrelu_with_noise_functional": _randomised_relu,
    "aten.hardswish": _unary("hard_swish"), "aten.hardsigmoid": _unary("hard_sigmoid", alpha=1 / 6, beta=0.5),
    "aten.mish": _unary("mish"),
    "aten.isnan": _float_condition("is_nan"), "aten.isinf": _float_condition("is_inf"), "aten._to_copy": _convert,
    "prims.convert_element_type": _convert,
    "aten.clone": _copy, "aten.alias": _copy, "aten.detach": _copy, "aten.lift_fresh_copy": _copy,
    "aten.contiguous": _copy,
    "aten._assert_tensor_metadata": lambda ctx, *_, **__: None, "aten._assert_async": lambda ctx, *_, **__: None,
}  # fmt: skip
