"""Elementwise values between the contractions of a chain, computed in f32.

    w[i, j] = exp(s[i, j] - l[i] if j <= i else -inf)
      ->  w = exp2(s * k - l * k)  with k = log2(e);   where the part reaches beyond the mask:  w = w if j <= i else 0

A condition without which a value is 0, because an exponential of -inf is a factor of it, is applied to the value.
"""

from __future__ import annotations

from math import inf

from attrs import evolve

from ....ir import Convert, DType, Guard, Literal, Op, Test, Value, with_operands
from .score_scale import LOG2_E


def without_rounding(value: Value) -> Value:
    """Return a value without conversions of f32 to shorter types."""
    if isinstance(value, Convert) and value.dtype is DType.F32 and isinstance(value.arg, Convert):
        source = value.arg.arg
        if source.dtype is DType.F32 and value.arg.dtype.is_float:
            return without_rounding(source)
    return with_operands(value, without_rounding)


def with_powers_of_two(value: Value) -> Value:
    """Return a value with exponentials as powers of two."""
    if isinstance(value, Op) and value.fn == "exp" and value.dtype is DType.F32:
        return Op("near_exp2", (_scale(with_powers_of_two(value.args[0]), LOG2_E),), value.dtype)
    return with_operands(value, with_powers_of_two)


def _scale(value: Value, factor: float) -> Value:
    """Return a value times a factor, which joins the factors of its terms."""
    if isinstance(value, Literal):
        return evolve(value, value=value.value * factor)
    if isinstance(value, Op) and value.fn in ("add", "sub"):
        return evolve(value, args=tuple(_scale(term, factor) for term in value.args))
    if isinstance(value, Op) and value.fn == "mul":
        for number, (literal, other) in enumerate((value.args, value.args[::-1])):
            if isinstance(literal, Literal):
                args = evolve(literal, value=literal.value * factor), other
                return evolve(value, args=args[:: -1 if number else 1])
    return Op("mul", (value, Literal(factor, value.dtype)), value.dtype)


def split_conditions(value: Value) -> tuple[Value, tuple[Guard, ...]]:
    """Return a value without conditions on indices, and the conditions.

    Where one fails, the value is 0.
    """
    if isinstance(value, Convert) and value.dtype.is_float:
        inner, guards = split_conditions(value.arg)
        return evolve(value, arg=inner), guards
    if not isinstance(value, Op):
        return value, ()
    if value.fn == "mul":
        parts = [split_conditions(arg) for arg in value.args]
        return evolve(value, args=tuple(p for p, _ in parts)), tuple(g for _, guards in parts for g in guards)
    if value.fn == "exp":
        inner, guards = _split_infinite(value.args[0])
        return evolve(value, args=(inner,)), guards
    return value, ()


def _split_infinite(value: Value) -> tuple[Value, tuple[Guard, ...]]:
    """Return an exponent without conditions, and the conditions.

    Where one fails, the exponent is -inf.
    """
    if isinstance(value, Convert) and value.dtype.is_float:
        inner, guards = _split_infinite(value.arg)
        return evolve(value, arg=inner), guards
    if not isinstance(value, Op):
        return value, ()
    if value.fn == "sub":
        inner, guards = _split_infinite(value.args[0])
        return evolve(value, args=(inner, value.args[1])), guards
    if value.fn == "select":
        condition, inner, other = value.args
        if isinstance(other, Literal) and other.value == -inf and isinstance(condition, Test):
            inner, guards = _split_infinite(inner)
            return inner, (*condition.guards, *guards)
    return value, ()
