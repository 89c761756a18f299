"""PyTorch's binary operations: arithmetic, comparisons, bits and truth.

Operands are promoted as PyTorch does.
"""

from __future__ import annotations

from typing import Any

import torch

from ....ir import DType
from ..import_context import TORCH_TYPES, Convert, ImportContext, Value
from ..scalars import convert_checked, convert_for_where, is_beyond

#: Arithmetic of truth values.
_OF_TRUTH = {"add": "logical_or", "mul": "logical_and", "max": "logical_or", "min": "logical_and"}


def _binary(op: str) -> Convert:
    """Return the conversion of a function of two operands; `alpha` multiplies the second."""

    def convert(ctx: ImportContext, a: Any, b: Any, alpha: float = 1) -> Any:
        kind = ctx.promoted_type(a, b)
        if _overflows(kind, a, b) and op in ("add", "sub", "mul"):
            first, second = (ctx.operand(v, DType.F32) for v in (a, b))
            return ctx.cast(convert(ctx, first, second, alpha), kind)
        first, second = (ctx.operand(v, kind) for v in (a, b))
        if alpha != 1:
            if isinstance(alpha, float) and not kind.is_float:
                ctx.fail(f"factor {alpha}: expected an integer beside {kind.value}")
            second = _product(ctx, second, ctx.number(alpha, kind))
        if op in _OF_TRUTH and kind is DType.BOOL:
            return ctx.emit(_OF_TRUTH[op], first, second)
        return ctx.emit(op, first, second)

    return convert


def _product(ctx: ImportContext, a: Value, b: Value) -> Value:
    """Return the product of two values of a type."""
    return ctx.emit("logical_and" if ctx.type(a).dtype is DType.BOOL else "mul", a, b)  # type: ignore[no-any-return]


def _overflows(kind: DType, *operands: Any) -> bool:
    """Return whether a half type overflows at a number that PyTorch computes with in f32."""
    return kind in (DType.F16, DType.BF16) and any(
        is_beyond(v, TORCH_TYPES[kind]) and not is_beyond(v, TORCH_TYPES[DType.F32])
        for v in operands
        if not isinstance(v, Value)
    )


def _compare(op: str) -> Convert:
    """Return the conversion of a comparison; truth values are ordered as numbers."""

    def convert(ctx: ImportContext, a: Any, b: Any) -> Any:
        operands = ctx.promote(a, b)
        if ctx.type(operands[0]).dtype is DType.BOOL:
            operands = [ctx.cast(v, DType.U8) for v in operands]
        return ctx.emit(op, *operands)

    return convert


def _real_function(op: str) -> Convert:
    """Return the conversion of a function of two real numbers."""
    return lambda ctx, a, b: ctx.emit(op, *_real(ctx, a, b))


def _real(ctx: ImportContext, a: Any, b: Any) -> list[Value]:
    """Return both operands in the type that PyTorch promotes them to; integers become real numbers."""
    kind = ctx.promoted_type(a, b)
    return [ctx.operand(v, kind if kind.is_float else DType.F32) for v in (a, b)]


def _extreme_number(op: str) -> Convert:
    """Return the conversion of an extremum that ignores a NaN where there is a number."""

    def convert(ctx: ImportContext, a: Any, b: Any) -> Any:
        first, second = ctx.promote(a, b)
        extreme = _binary(op)(ctx, first, second)
        if not ctx.type(first).dtype.is_float:
            return extreme
        number = ctx.emit("where", ctx.emit("is_nan", second), first, extreme)
        return ctx.emit("where", ctx.emit("is_nan", first), second, number)

    return convert


def divide(ctx: ImportContext, a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    """Convert a division, rounded or not."""
    if rounding_mode is None:
        kind = ctx.promoted_type(a, b)
        if _overflows(kind, a, b):
            return ctx.cast(ctx.emit("div", *(ctx.operand(v, DType.F32) for v in (a, b))), kind)
        return ctx.emit("div", *_real(ctx, a, b))
    first, second = ctx.promote(a, b)
    if rounding_mode == "floor":
        return _floor_quotient(ctx, first, second)
    whole = ctx.emit("div", first, second)
    return ctx.emit("trunc", whole) if ctx.type(whole).dtype.is_float else whole


def _floor_quotient(ctx: ImportContext, a: Value, b: Value) -> Value:
    """Return the greatest integer not above a quotient.

    For integers it is the truncated quotient, less 1 where truncation rounded up. For floats it comes from the
    remainder, which is exact, while a rounded quotient may reach the next integer.
    """
    dtype = ctx.type(a).dtype
    zero = ctx.constant(0, dtype=dtype)
    rest = ctx.emit("mod", a, b, fmod=True)
    signs = [ctx.emit("less", v, zero) for v in (rest, b)]
    above = ctx.emit("logical_and", ctx.emit("not_equal", rest, zero), ctx.emit("logical_xor", *signs))
    quotient = ctx.emit("div", a if not dtype.is_float else ctx.emit("sub", a, rest), b)
    below = ctx.emit("sub", quotient, ctx.cast(above, dtype))
    if not dtype.is_float:
        return below  # type: ignore[no-any-return]
    by_zero = ctx.emit("equal", b, zero)
    return ctx.emit("where", by_zero, ctx.emit("div", a, b), ctx.emit("round", below))  # type: ignore[no-any-return]


def _remainder(fmod: bool) -> Convert:
    return lambda ctx, a, b: ctx.emit("mod", *ctx.promote(a, b), fmod=fmod)


def _pow(ctx: ImportContext, a: Any, b: Any) -> Any:
    kind = ctx.promoted_type(a, b)
    first = ctx.operand(a, kind)
    checked = not isinstance(b, Value) and kind not in (DType.F32, DType.F64)
    second = ctx.number(b, kind) if checked else ctx.operand(b, kind)
    if kind is DType.BOOL:
        return ctx.emit("logical_or", first, ctx.emit("logical_not", second))
    if isinstance(b, (int, float)) and b == 2:
        return _binary("mul")(ctx, first, first)
    if isinstance(b, (int, float)) and b == 3 and kind in (DType.F32, DType.F64):  # PyTorch multiplies, too
        return ctx.emit("mul", ctx.emit("mul", first, first), first)
    return ctx.emit("pow", first, second)


def _multiply_add(ctx: ImportContext, a: Any, b: Any, c: Any) -> Any:
    return _binary("add")(ctx, _binary("mul")(ctx, a, b), c)


def _rsub(ctx: ImportContext, a: Any, b: Any, alpha: float = 1) -> Any:
    return _binary("sub")(ctx, b, a, alpha)


def _clamp(ctx: ImportContext, x: Value, low: Any = None, high: Any = None, **bounds: Any) -> Any:
    """Convert a clamp; bounds take part in the promotion: integers with a real bound become real."""
    low, high = bounds.get("min", low), bounds.get("max", high)
    given = [bound for bound in (low, high) if bound is not None]
    kind = ctx.type(ctx.promote(x, *given)[0]).dtype
    return _limit(ctx, ctx.cast(x, kind), low, high)


def _hard_tanh(ctx: ImportContext, x: Value, low: Any = -1, high: Any = 1) -> Any:
    """Convert a hard tanh, whose bounds have the type of the operand."""
    if not ctx.type(x).dtype.is_float:
        low, high = (convert_checked(bound, torch.int64).item() for bound in (low, high))
    return _limit(ctx, x, low, high)


def _limit(ctx: ImportContext, x: Value, low: Any, high: Any) -> Any:
    dtype = ctx.type(x).dtype
    for bound in (low, high):
        if isinstance(bound, (int, float)):
            convert_checked(bound, TORCH_TYPES[dtype])
    if dtype.is_float and not isinstance(low, Value) and not isinstance(high, Value):
        low, high = (None if bound is None else float(bound) for bound in (low, high))
        return ctx.emit("clip", x, min=low, max=high)
    for bound, op in ((low, "max"), (high, "min")):
        if bound is not None:
            limit = ctx.operand(bound, dtype) if isinstance(bound, Value) else ctx.number(bound, dtype)
            x = ctx.emit(op, x, limit)
    return x


def _threshold(ctx: ImportContext, x: Value, least: float, value: float) -> Any:
    """Convert a threshold; both numbers have the tensor's type, the bound of half types is f32."""
    dtype = ctx.type(x).dtype
    half = dtype in (DType.F16, DType.BF16)
    bound = convert_checked(least, torch.float32).item() if half else least
    low = ctx.emit("less_or_equal", x, ctx.operand(bound, dtype) if half else ctx.number(bound, dtype))
    return ctx.emit("where", low, ctx.number(value, dtype), x)


def _ldexp(ctx: ImportContext, x: Any, exponent: Any) -> Any:
    """Convert the product with a power of two, whose infinity and zero PyTorch keeps."""
    kind = ctx.promoted_type(x, exponent)
    kind = kind if kind.is_float else DType.F32
    power = ctx.emit("pow", ctx.constant(2, dtype=kind), ctx.operand(exponent, kind))
    return ctx.emit("mul", ctx.operand(x, kind), power)


def _shift(direction: str) -> Convert:
    return lambda ctx, a, b: ctx.emit("bit_shift", *ctx.promote(a, b), direction=direction)


def _logical(op: str) -> Convert:
    """Return the conversion of a connective of truth values; numbers are true but for 0."""
    return lambda ctx, *operands: ctx.emit(f"logical_{op}", *(ctx.operand(v, DType.BOOL) for v in operands))


def _bitwise(op: str) -> Convert:
    """Return the conversion of a connective of bits, the logical one for truth values."""

    def convert(ctx: ImportContext, *operands: Any) -> Any:
        values = ctx.promote(*operands)
        truth = ctx.type(values[0]).dtype is DType.BOOL
        return ctx.emit(f"{'logical' if truth else 'bitwise'}_{op}", *values)

    return convert


def _where(ctx: ImportContext, condition: Value, a: Any, b: Any) -> Any:
    kind = ctx.promoted_type(a, b)
    values = [
        ctx.operand(v, kind) if isinstance(v, Value) else ctx.number(v, kind, (), convert_for_where) for v in (a, b)
    ]
    return ctx.emit("where", condition, *values)


TABLE: dict[str, Convert] = {
    **{f"aten.{name}": _binary(name) for name in ("add", "sub", "mul")},
    "prims.fma": _multiply_add,
    "aten.maximum": _binary("max"), "aten.minimum": _binary("min"), "aten.fmax": _extreme_number("max"),
    "aten.fmin": _extreme_number("min"),
    "aten.eq": _binary("equal"), "aten.ne": _binary("not_equal"), "aten.lt": _compare("less"),
    "aten.le": _compare("less_or_equal"),
    "aten.gt": _compare("greater"), "aten.ge": _compare("greater_or_equal"),
    "aten.remainder": _remainder(fmod=False), "aten.fmod": _remainder(fmod=True),
    **{f"aten.{op}": _real_function(op) for op in ("atan2", "hypot", "copysign")},
    "aten.nextafter": _real_function("nextafter"),
    "aten.div": divide, "aten.pow": _pow, "aten.rsub": _rsub, "aten.clamp": _clamp, "aten.hardtanh": _hard_tanh,
    "aten.clamp_min": lambda ctx, x, low: _clamp(ctx, x, low),
    "aten.clamp_max": lambda ctx, x, high: _clamp(ctx, x, None, high),
    "aten.__lshift__": _shift("LEFT"), "aten.bitwise_left_shift": _shift("LEFT"),
    "aten.__rshift__": _shift("RIGHT"), "aten.bitwise_right_shift": _shift("RIGHT"),
    **{f"aten.logical_{name}": _logical(name) for name in ("and", "or", "xor", "not")},
    **{f"aten.bitwise_{name}": _bitwise(name) for name in ("and", "or", "xor", "not")},
    "aten.ldexp": _ldexp, "aten.where": _where, "aten.threshold": _threshold,
}  # fmt: skip
