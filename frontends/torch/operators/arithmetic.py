"""PyTorch's operations of two operands: arithmetic, comparisons, bits and truth, in the types that it promotes to."""

from __future__ import annotations

from typing import Any

import torch

from ....ir import DType
from ..reader import TORCH_TYPES, Convert, Reader, Value
from ..scalars import chosen, filled, is_beyond

#: What arithmetic means for truth values.
_OF_TRUTH = {"add": "logical_or", "mul": "logical_and", "max": "logical_or", "min": "logical_and"}


def _binary(op: str) -> Convert:
    """Return the conversion of a function of two operands; `alpha` multiplies the second."""

    def convert(reader: Reader, a: Any, b: Any, alpha: float = 1) -> Any:
        kind = reader.promoted(a, b)
        if _any_beyond(kind, a, b) and op in ("add", "sub", "mul"):
            first, second = (reader.operand(v, DType.F32) for v in (a, b))
            return reader.cast(convert(reader, first, second, alpha), kind)
        first, second = (reader.operand(v, kind) for v in (a, b))
        if alpha != 1:
            if isinstance(alpha, float) and not kind.is_float:
                reader.fail(f"factor {alpha}: expected an integer beside {kind.value}")
            second = _product(reader, second, reader.number(alpha, kind))
        if op in _OF_TRUTH and kind is DType.BOOL:
            return reader.emit(_OF_TRUTH[op], first, second)
        return reader.emit(op, first, second)

    return convert


def _product(reader: Reader, a: Value, b: Value) -> Value:
    """Return the product of two values of a type."""
    return reader.emit("logical_and" if reader.type(a).dtype is DType.BOOL else "mul", a, b)  # type: ignore[no-any-return]


def _any_beyond(kind: DType, *operands: Any) -> bool:
    """Whether a half type cannot hold a number that PyTorch computes with in single precision."""
    return kind in (DType.F16, DType.BF16) and any(
        is_beyond(v, TORCH_TYPES[kind]) and not is_beyond(v, TORCH_TYPES[DType.F32])
        for v in operands
        if not isinstance(v, Value)
    )


def _compare(op: str) -> Convert:
    """Return the conversion of a comparison; truth values are ordered as numbers."""

    def convert(reader: Reader, a: Any, b: Any) -> Any:
        operands = reader.common(a, b)
        if reader.type(operands[0]).dtype is DType.BOOL:
            operands = [reader.cast(v, DType.U8) for v in operands]
        return reader.emit(op, *operands)

    return convert


def _of_real(op: str) -> Convert:
    """Return the conversion of a function of two real numbers."""
    return lambda reader, a, b: reader.emit(op, *_real(reader, a, b))


def _real(reader: Reader, a: Any, b: Any) -> list[Value]:
    """Return both operands in the type that PyTorch promotes them to; integers become real numbers."""
    kind = reader.promoted(a, b)
    return [reader.operand(v, kind if kind.is_float else DType.F32) for v in (a, b)]


def _extreme_number(op: str) -> Convert:
    """Return the conversion of an extremum that ignores a NaN where there is a number."""

    def convert(reader: Reader, a: Any, b: Any) -> Any:
        first, second = reader.common(a, b)
        extreme = _binary(op)(reader, first, second)
        if not reader.type(first).dtype.is_float:
            return extreme
        number = reader.emit("where", reader.emit("is_nan", second), first, extreme)
        return reader.emit("where", reader.emit("is_nan", first), second, number)

    return convert


def divide(reader: Reader, a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    """Convert a division, rounded to a whole number or not."""
    if rounding_mode is None:
        kind = reader.promoted(a, b)
        if _any_beyond(kind, a, b):
            return reader.cast(reader.emit("div", *(reader.operand(v, DType.F32) for v in (a, b))), kind)
        return reader.emit("div", *_real(reader, a, b))
    first, second = reader.common(a, b)
    if rounding_mode == "floor":
        return _floor_quotient(reader, first, second)
    whole = reader.emit("div", first, second)
    return reader.emit("trunc", whole) if reader.type(whole).dtype.is_float else whole


def _floor_quotient(reader: Reader, a: Value, b: Value) -> Value:
    """The greatest whole number not above a quotient.

    Of integers it is the truncated one, less 1 where that was rounded up. That of real numbers comes from what a
    division leaves over, which is exact, while a rounded quotient may have reached the next whole number.
    """
    dtype = reader.type(a).dtype
    zero = reader.constant(0, dtype=dtype)
    rest = reader.emit("mod", a, b, fmod=True)
    signs = [reader.emit("less", v, zero) for v in (rest, b)]
    above = reader.emit("logical_and", reader.emit("not_equal", rest, zero), reader.emit("logical_xor", *signs))
    quotient = reader.emit("div", a if not dtype.is_float else reader.emit("sub", a, rest), b)
    below = reader.emit("sub", quotient, reader.cast(above, dtype))
    if not dtype.is_float:
        return below  # type: ignore[no-any-return]
    by_zero = reader.emit("equal", b, zero)
    return reader.emit("where", by_zero, reader.emit("div", a, b), reader.emit("round", below))  # type: ignore[no-any-return]


def _remainder(fmod: bool) -> Convert:
    return lambda reader, a, b: reader.emit("mod", *reader.common(a, b), fmod=fmod)


def _pow(reader: Reader, a: Any, b: Any) -> Any:
    kind = reader.promoted(a, b)
    first = reader.operand(a, kind)
    checked = not isinstance(b, Value) and kind not in (DType.F32, DType.F64)
    second = reader.number(b, kind) if checked else reader.operand(b, kind)
    if kind is DType.BOOL:
        return reader.emit("logical_or", first, reader.emit("logical_not", second))
    if isinstance(b, (int, float)) and b == 2:
        return _binary("mul")(reader, first, first)
    return reader.emit("pow", first, second)


def _multiply_add(reader: Reader, a: Any, b: Any, c: Any) -> Any:
    return _binary("add")(reader, _binary("mul")(reader, a, b), c)


def _rsub(reader: Reader, a: Any, b: Any, alpha: float = 1) -> Any:
    return _binary("sub")(reader, b, a, alpha)


def _clamp(reader: Reader, x: Value, low: Any = None, high: Any = None, **bounds: Any) -> Any:
    """Bounds take part in the promotion: integers with a real bound become real."""
    low, high = bounds.get("min", low), bounds.get("max", high)
    given = [bound for bound in (low, high) if bound is not None]
    kind = reader.type(reader.common(x, *given)[0]).dtype
    return _limit(reader, reader.cast(x, kind), low, high)


def _hard_tanh(reader: Reader, x: Value, low: Any = -1, high: Any = 1) -> Any:
    """Here bounds have the type of what they bound."""
    if not reader.type(x).dtype.is_float:
        low, high = (filled(bound, torch.int64).item() for bound in (low, high))
    return _limit(reader, x, low, high)


def _limit(reader: Reader, x: Value, low: Any, high: Any) -> Any:
    dtype = reader.type(x).dtype
    for bound in (low, high):
        if isinstance(bound, (int, float)):
            filled(bound, TORCH_TYPES[dtype])
    if dtype.is_float and not isinstance(low, Value) and not isinstance(high, Value):
        low, high = (None if bound is None else float(bound) for bound in (low, high))
        return reader.emit("clip", x, min=low, max=high)
    for bound, op in ((low, "max"), (high, "min")):
        if bound is not None:
            limit = reader.operand(bound, dtype) if isinstance(bound, Value) else reader.number(bound, dtype)
            x = reader.emit(op, x, limit)
    return x


def _threshold(reader: Reader, x: Value, least: float, value: float) -> Any:
    """Both numbers have the type of the tensor; the bound of half types is one of single precision."""
    dtype = reader.type(x).dtype
    half = dtype in (DType.F16, DType.BF16)
    bound = filled(least, torch.float32).item() if half else least
    low = reader.emit("less_or_equal", x, reader.operand(bound, dtype) if half else reader.number(bound, dtype))
    return reader.emit("where", low, reader.number(value, dtype), x)


def _shift(direction: str) -> Convert:
    return lambda reader, a, b: reader.emit("bit_shift", *reader.common(a, b), direction=direction)


def _logical(op: str) -> Convert:
    """Return the conversion of a connective of truth values; numbers are true but for 0."""
    return lambda reader, *operands: reader.emit(f"logical_{op}", *(reader.operand(v, DType.BOOL) for v in operands))


def _bitwise(op: str) -> Convert:
    """Return the conversion of a connective of bits, which of truth values is the logical one."""

    def convert(reader: Reader, *operands: Any) -> Any:
        values = reader.common(*operands)
        truth = reader.type(values[0]).dtype is DType.BOOL
        return reader.emit(f"{'logical' if truth else 'bitwise'}_{op}", *values)

    return convert


def _where(reader: Reader, condition: Value, a: Any, b: Any) -> Any:
    kind = reader.promoted(a, b)
    values = [reader.operand(v, kind) if isinstance(v, Value) else reader.number(v, kind, (), chosen) for v in (a, b)]
    return reader.emit("where", condition, *values)


TABLE: dict[str, Convert] = {
    **{f"aten.{name}": _binary(name) for name in ("add", "sub", "mul")},
    "prims.fma": _multiply_add,
    "aten.maximum": _binary("max"), "aten.minimum": _binary("min"), "aten.fmax": _extreme_number("max"),
    "aten.fmin": _extreme_number("min"),
    "aten.eq": _binary("equal"), "aten.ne": _binary("not_equal"), "aten.lt": _compare("less"),
    "aten.le": _compare("less_or_equal"),
    "aten.gt": _compare("greater"), "aten.ge": _compare("greater_or_equal"),
    "aten.remainder": _remainder(fmod=False), "aten.fmod": _remainder(fmod=True),
    "aten.atan2": _of_real("atan2"), "aten.hypot": _of_real("hypot"), "aten.copysign": _of_real("copysign"),
    "aten.div": divide, "aten.pow": _pow, "aten.rsub": _rsub, "aten.clamp": _clamp, "aten.hardtanh": _hard_tanh,
    "aten.clamp_min": lambda reader, x, low: _clamp(reader, x, low),
    "aten.clamp_max": lambda reader, x, high: _clamp(reader, x, None, high),
    "aten.__lshift__": _shift("LEFT"), "aten.bitwise_left_shift": _shift("LEFT"),
    "aten.__rshift__": _shift("RIGHT"), "aten.bitwise_right_shift": _shift("RIGHT"),
    **{f"aten.logical_{name}": _logical(name) for name in ("and", "or", "xor", "not")},
    **{f"aten.bitwise_{name}": _bitwise(name) for name in ("and", "or", "xor", "not")},
    "aten.where": _where, "aten.threshold": _threshold,
}  # fmt: skip
