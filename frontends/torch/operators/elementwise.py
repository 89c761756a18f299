"""PyTorch's functions of one tensor, element by element, and conversions between element types."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ....ir import DType
from ..reader import Convert, Reader, Value, dtype_of
from ..scalars import filled


def _unary(op: str, **attributes: Any) -> Convert:
    """Return the conversion of a function of one tensor; integers become real numbers first, as PyTorch does."""

    def convert(reader: Reader, x: Value) -> Any:
        return reader.emit(op, x if reader.type(x).dtype.is_float else reader.cast(x, DType.F32), **attributes)

    return convert


def _same(op: str) -> Convert:
    return lambda reader, x: reader.emit(op, x)


def _whole(op: str) -> Convert:
    """Return the conversion of a rounding, which leaves integers alone."""
    return lambda reader, x: reader.emit(op, x) if reader.type(x).dtype.is_float else x


def _of_float(op: str) -> Convert:
    """Return the conversion of a condition that no integer meets."""

    def convert(reader: Reader, x: Value) -> Any:
        none = np.broadcast_to(np.False_, reader.shape(x))
        return reader.emit(op, x) if reader.type(x).dtype.is_float else reader.constant(none)

    return convert


def _sign(reader: Reader, x: Value) -> Any:
    """The sign of a NaN is 0 in PyTorch, that of a truth value is itself."""
    dtype = reader.type(x).dtype
    if dtype is DType.BOOL:
        return x
    sign = reader.emit("sign", x)
    return (
        reader.emit("where", reader.emit("is_nan", x), reader.constant(0, dtype=dtype), sign)
        if dtype.is_float
        else sign
    )


def _negative(reader: Reader, x: Value) -> Any:
    """Whether the sign is set, which that of a negative zero is."""
    dtype = reader.type(x).dtype
    if dtype is DType.BOOL:
        return reader.constant(np.broadcast_to(np.False_, reader.shape(x)))
    sign = reader.emit("copysign", reader.constant(1, dtype=dtype), x) if dtype.is_float else x
    return reader.emit("less", sign, reader.constant(0, dtype=dtype))


def _gelu(reader: Reader, x: Value, approximate: str = "none") -> Any:
    return reader.emit("gelu", x, approximate=approximate)


def _factor(reader: Reader, x: Value, number: float) -> float:
    """Return a number that a function multiplies by, in the type that half types are computed in."""
    kind = reader.type(x).dtype
    filled(number, torch.float64 if kind is DType.F64 else torch.float32)
    return float(number)


def _leaky_relu(reader: Reader, x: Value, slope: float = 0.01) -> Any:
    return reader.emit("leaky_relu", x, alpha=_factor(reader, x, slope))


def _elu(reader: Reader, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    if input_scale != 1:
        reader.fail(f"only an input scale of 1 is supported, found {input_scale}")
    y = reader.emit("elu", x, alpha=_factor(reader, x, alpha))
    return y if scale == 1 else reader.emit("mul", y, reader.constant(scale, dtype=reader.type(x).dtype))


def _scaled_unary(op: str, before: float = 1, after: float = 1) -> Convert:
    """Return the conversion of `after * op(before * x)`."""

    def convert(reader: Reader, x: Value) -> Any:
        x = x if reader.type(x).dtype.is_float else reader.cast(x, DType.F32)
        dtype = reader.type(x).dtype
        x = x if before == 1 else reader.emit("mul", x, reader.constant(before, dtype=dtype))
        y = reader.emit(op, x)
        return y if after == 1 else reader.emit("mul", y, reader.constant(after, dtype=dtype))

    return convert


def _softplus(reader: Reader, x: Value, beta: float = 1, threshold: float = 20) -> Any:
    """Beyond the threshold it is the operand itself, from which it may differ by less than rounding anyway."""
    y = _scaled_unary("softplus", beta, 1 / beta)(reader, x)
    dtype = reader.type(y).dtype
    if threshold > 0 and math.exp(-threshold) < dtype.element.epsilon / 2 * threshold:
        return y
    scaled = reader.emit("mul", x, reader.constant(beta, dtype=dtype))
    return reader.emit("where", reader.emit("greater", scaled, reader.constant(threshold, dtype=dtype)), x, y)


def _round_decimals(reader: Reader, x: Value, *, decimals: int) -> Any:
    return _scaled_unary("round", 10.0**decimals, 10.0**-decimals)(reader, x)


def _randomised_relu(
    reader: Reader, x: Value, noise: Value, low: float = 1 / 8, high: float = 1 / 3, training: bool = False, *_: Any
) -> Any:
    if training:
        reader.fail("random slopes are not supported; export the model for inference")
    return reader.emit("leaky_relu", x, alpha=(low + high) / 2), noise


def _to(reader: Reader, x: Value, dtype: torch.dtype | None = None, **_: Any) -> Any:
    return x if dtype is None else reader.cast(x, dtype_of(dtype))


def _copy(reader: Reader, x: Value, *_: Any, **__: Any) -> Any:
    return x


_UNARY = (
    "acos acosh asin asinh atan atanh cos cosh erf erfc exp expm1 log log1p reciprocal rsqrt sigmoid sin sinh sqrt "
    "tan tanh"
)

TABLE: dict[str, Convert] = {
    **{f"aten.{name}": _unary(name) for name in _UNARY.split()},
    **{f"aten.{name}": _same(name) for name in ("abs", "neg", "relu")},
    **{f"aten.{name}": _whole(name) for name in ("ceil", "floor", "round", "trunc")},
    "aten.sign": _sign, "aten.signbit": _negative, "aten.gelu": _gelu, "aten.leaky_relu": _leaky_relu, "aten.elu": _elu,
    "aten.silu": _unary("swish"), "aten.softplus": _softplus, "aten.exp2": _scaled_unary("exp", float(np.log(2))),
    "aten.log2": _scaled_unary("log", 1, float(1 / np.log(2))),
    "aten.log10": _scaled_unary("log", 1, float(1 / np.log(10))),
    "aten.round.decimals": _round_decimals, "aten.rrelu_with_noise_functional": _randomised_relu,
    "aten.hardswish": _unary("hard_swish"), "aten.hardsigmoid": _unary("hard_sigmoid", alpha=1 / 6, beta=0.5),
    "aten.mish": _unary("mish"),
    "aten.isnan": _of_float("is_nan"), "aten.isinf": _of_float("is_inf"), "aten._to_copy": _to,
    "prims.convert_element_type": _to,
    "aten.clone": _copy, "aten.alias": _copy, "aten.detach": _copy, "aten.lift_fresh_copy": _copy,
    "aten.contiguous": _copy,
    "aten._assert_tensor_metadata": lambda reader, *_, **__: None, "aten._assert_async": lambda reader, *_, **__: None,
}  # fmt: skip
