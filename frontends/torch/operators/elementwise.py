"""PyTorch's elementwise operations, comparisons and conversions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ....ir import DType
from ..reader import Convert, Reader, Value, dtype_of


def _unary(op: str, **attributes: Any) -> Convert:
    """Return the conversion of a function of one tensor; integers become real numbers first, as PyTorch does."""

    def convert(reader: Reader, x: Value) -> Any:
        return reader.emit(op, x if reader.type(x).dtype.is_float else reader.cast(x, DType.F32), **attributes)

    return convert


def _same(op: str) -> Convert:
    return lambda reader, x: reader.emit(op, x)


#: What arithmetic means for truth values.
_OF_TRUTH = {"add": "logical_or", "mul": "logical_and", "max": "logical_or", "min": "logical_and"}


def _binary(op: str) -> Convert:
    """Return the conversion of a function of two operands; `alpha` multiplies the second."""

    def convert(reader: Reader, a: Any, b: Any, alpha: float = 1) -> Any:
        first, second = reader.common(a, b)
        if op in _OF_TRUTH and reader.type(first).dtype is DType.BOOL:
            return reader.emit(_OF_TRUTH[op], first, second)
        if alpha != 1:
            second = reader.emit("mul", second, reader.constant(alpha, dtype=reader.type(second).dtype))
        return reader.emit(op, first, second)

    return convert


def _fmod(reader: Reader, a: Any, b: Any) -> Any:
    return reader.emit("mod", *reader.common(a, b), fmod=True)


def _atan2(reader: Reader, y: Any, x: Any) -> Any:
    """The angle of a point: twice that of half the way,
    which needs no cases but where the point lies to the left on the axis.
    """
    y, x = reader.common(y, x)
    dtype = reader.type(y).dtype
    zero = reader.constant(0, dtype=dtype)
    radius = reader.emit("sqrt", reader.emit("add", reader.emit("mul", x, x), reader.emit("mul", y, y)))
    half = reader.emit("atan", reader.emit("div", y, reader.emit("add", radius, x)))
    steep = reader.emit("atan", reader.emit("div", reader.emit("sub", radius, x), y))  # exact where x is negative
    left = reader.emit("less", x, zero)
    flat = reader.emit("where", left, reader.constant(np.pi, dtype=dtype), zero)
    angle = reader.emit("mul", reader.emit("where", left, steep, half), reader.constant(2, dtype=dtype))
    return reader.emit("where", reader.emit("equal", y, zero), flat, angle)


def divide(reader: Reader, a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    """Convert a division, rounded to a whole number or not."""
    first, second = reader.common(a, b)
    if rounding_mode is None and not reader.type(first).dtype.is_float:
        first, second = reader.cast(first, DType.F32), reader.cast(second, DType.F32)
    whole = reader.emit("div", first, second)
    if rounding_mode is None or (rounding_mode == "trunc" and not reader.type(whole).dtype.is_float):
        return whole
    if reader.type(whole).dtype.is_float:
        return reader.emit("floor" if rounding_mode == "floor" else "trunc", whole)
    rest = reader.emit("sub", first, reader.emit("mod", first, second))  # a multiple of the divisor
    return reader.emit("div", rest, second)


def _pow(reader: Reader, a: Any, b: Any) -> Any:
    first, second = reader.common(a, b)
    if isinstance(b, (int, float)) and b == 2:
        return reader.emit("mul", first, first)
    return reader.emit("pow", first, second)


def _rsub(reader: Reader, a: Any, b: Any, alpha: float = 1) -> Any:
    return _binary("sub")(reader, b, a, alpha)


def _clamp(reader: Reader, x: Value, low: Any = None, high: Any = None, **bounds: Any) -> Any:
    low, high = bounds.get("min", low), bounds.get("max", high)
    dtype = reader.type(x).dtype
    if dtype.is_float and not isinstance(low, Value) and not isinstance(high, Value):
        return reader.emit(
            "clip", x, min=None if low is None else float(low), max=None if high is None else float(high)
        )
    for bound, op in ((low, "max"), (high, "min")):
        x = x if bound is None else reader.emit(op, x, reader.operand(bound, dtype))
    return x


def _gelu(reader: Reader, x: Value, approximate: str = "none") -> Any:
    return reader.emit("gelu", x, approximate=approximate)


def _leaky_relu(reader: Reader, x: Value, slope: float = 0.01) -> Any:
    return reader.emit("leaky_relu", x, alpha=float(slope))


def _elu(reader: Reader, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    if input_scale != 1:
        reader.fail(f"only an input scale of 1 is supported, found {input_scale}")
    y = reader.emit("elu", x, alpha=float(alpha))
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
    return _scaled_unary("softplus", beta, 1 / beta)(reader, x)


def _round_decimals(reader: Reader, x: Value, *, decimals: int) -> Any:
    return _scaled_unary("round", 10.0**decimals, 10.0**-decimals)(reader, x)


def _hypot(reader: Reader, a: Any, b: Any) -> Any:
    return reader.emit("sqrt", reader.emit("add", *(reader.emit("mul", v, v) for v in reader.common(a, b))))


def _negative(reader: Reader, x: Value) -> Any:
    return reader.emit("less", x, reader.constant(0, dtype=reader.type(x).dtype))


def _sign(reader: Reader, x: Value) -> Any:
    """The sign of a NaN is 0 in PyTorch."""
    sign = reader.emit("sign", x)
    if not reader.type(x).dtype.is_float:
        return sign
    return reader.emit("where", reader.emit("is_nan", x), reader.constant(0, dtype=reader.type(x).dtype), sign)


def _copy_sign(reader: Reader, x: Any, sign: Any) -> Any:
    x, sign = reader.common(x, sign)
    size = reader.emit("abs", x)
    return reader.emit("where", _negative(reader, sign), reader.emit("neg", size), size)


def _shift(direction: str) -> Convert:
    return lambda reader, a, b: reader.emit("bit_shift", *reader.common(a, b), direction=direction)


def _randomised_relu(
    reader: Reader, x: Value, noise: Value, low: float = 1 / 8, high: float = 1 / 3, training: bool = False, *_: Any
) -> Any:
    if training:
        reader.fail("random slopes are not supported; export the model for inference")
    return reader.emit("leaky_relu", x, alpha=(low + high) / 2), noise


def _logical(op: str) -> Convert:
    def convert(reader: Reader, *operands: Any) -> Any:
        if all(isinstance(v, Value) and reader.type(v).dtype.is_int for v in operands) and op in (
            "and",
            "or",
            "xor",
            "not",
        ):
            return reader.emit(f"bitwise_{op}", *operands)
        return reader.emit(f"logical_{op}", *(reader.operand(v, DType.BOOL) for v in operands))

    return convert


def _where(reader: Reader, condition: Value, a: Any, b: Any) -> Any:
    first, second = reader.common(a, b)
    return reader.emit("where", condition, first, second)


def _to(reader: Reader, x: Value, dtype: torch.dtype | None = None, **_: Any) -> Any:
    return x if dtype is None else reader.cast(x, dtype_of(dtype))


def _copy(reader: Reader, x: Value, *_: Any, **__: Any) -> Any:
    return x


_UNARY = (
    "acos acosh asin asinh atan atanh ceil cos cosh erf exp expm1 floor log log1p "
    "reciprocal round rsqrt sigmoid sin sinh sqrt tan tanh trunc"
)

TABLE: dict[str, Convert] = {
    **{f"aten.{name}": _unary(name) for name in _UNARY.split()},
    **{f"aten.{name}": _same(name) for name in ("abs", "neg", "relu")},
    "aten.sign": _sign,    **{f"aten.{name}": _binary(name) for name in ("add", "sub", "mul")},
    "aten.maximum": _binary("max"), "aten.minimum": _binary("min"), "aten.remainder": _binary("mod"),
    "aten.eq": _binary("equal"), "aten.ne": _binary("not_equal"), "aten.lt": _binary("less"),
    "aten.le": _binary("less_or_equal"),
    "aten.gt": _binary("greater"), "aten.ge": _binary("greater_or_equal"),
    "aten.fmod": _fmod, "aten.atan2": _atan2,
    "aten.div": divide, "aten.pow": _pow, "aten.rsub": _rsub, "aten.clamp": _clamp, "aten.hardtanh": _clamp,
    "aten.clamp_min": lambda reader, x, low: _clamp(reader, x, low),
    "aten.clamp_max": lambda reader, x, high: _clamp(reader, x, None, high),
    "aten.gelu": _gelu, "aten.leaky_relu": _leaky_relu, "aten.elu": _elu, "aten.silu": _unary("swish"),
    "aten.softplus": _softplus, "aten.exp2": _scaled_unary("exp", float(np.log(2))),
    "aten.log2": _scaled_unary("log", 1, float(1 / np.log(2))),
    "aten.log10": _scaled_unary("log", 1, float(1 / np.log(10))), "aten.hypot": _hypot, "aten.copysign": _copy_sign,
    "aten.signbit": _negative, "aten.round.decimals": _round_decimals,
    "aten.erfc": lambda reader, x: reader.emit("sub", reader.constant(1, dtype=reader.type(x).dtype),
                                               reader.emit("erf", x)), "aten.__lshift__": _shift("LEFT"),
    "aten.bitwise_left_shift": _shift("LEFT"), "aten.rrelu_with_noise_functional": _randomised_relu,
    "aten.__rshift__": _shift("RIGHT"), "aten.bitwise_right_shift": _shift("RIGHT"),
    "aten.hardswish": _unary("hard_swish"), "aten.hardsigmoid": _unary("hard_sigmoid", alpha=1 / 6, beta=0.5),
    "aten.mish": _unary("mish"),
    "aten.isnan": _unary("is_nan"), "aten.isinf": _unary("is_inf"),
    "aten.logical_and": _logical("and"), "aten.logical_or": _logical("or"),
    "aten.logical_xor": _logical("xor"), "aten.logical_not": _logical("not"),
    "aten.bitwise_and": _logical("and"), "aten.bitwise_or": _logical("or"),
    "aten.bitwise_xor": _logical("xor"), "aten.bitwise_not": _logical("not"),
    "aten.where": _where, "aten._to_copy": _to, "prims.convert_element_type": _to,
    "aten.clone": _copy, "aten.alias": _copy, "aten.detach": _copy, "aten.lift_fresh_copy": _copy,
    "aten.contiguous": _copy, "aten._assert_tensor_metadata": lambda reader, *_, **__: None,
    "aten._assert_async": lambda reader, *_, **__: None,
}  # fmt: skip
