"""Elementwise programs in multiple precision.

They are the truth for gradients in single precision.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from cuts.ir import Call, Cast, Const, Expr, Program, Read

mp: Any = pytest.importorskip("mpmath").mp.clone()
mp.dps = 120

_BEYOND = mp.mpf(10) ** 6


def _or_nan(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that gives NaN where its result is no real number, and infinity at a pole."""

    def call(*values: Any) -> Any:
        if any(map(mp.isnan, values)):
            return mp.nan
        try:
            found = function(*values)
        except (ValueError, ZeroDivisionError):
            return mp.nan
        return found if not isinstance(found, mp.mpc) else mp.nan

    return call


def _divide(a: Any, b: Any) -> Any:
    if b != 0:
        return a / b
    return mp.nan if a == 0 else mp.sign(a) * mp.inf


def _exp(x: Any) -> Any:
    """Numbers whose exponent itself has many digits are none of single precision."""
    return mp.inf if x > _BEYOND else mp.mpf(0) if x < -_BEYOND else mp.exp(x)


def _hyperbolic(sign: int) -> Callable[[Any], Any]:
    return lambda x: (_exp(x) + sign * _exp(-x)) / 2


def _remainder(whole: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: a - b * whole(a / b)


def _power(base: Any, exponent: Any) -> Any:
    if base == 0:
        return mp.mpf(exponent == 0) if exponent >= 0 else mp.inf
    size = _exp(exponent * mp.log(abs(base)))
    if base > 0:
        return size
    return mp.nan if exponent != int(exponent) else size * (1 - 2 * (int(exponent) % 2))


def _truncate(x: Any) -> Any:
    return mp.mpf(int(x))


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": _divide, "neg": operator.neg, "abs": abs,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
    "and": lambda a, b: a and b, "or": lambda a, b: a or b, "not": operator.not_, "min": min, "max": max,
    "sign": mp.sign, "copysign": lambda a, b: abs(a) * (1 if b >= 0 else -1), "floormod": _remainder(mp.floor),
    "fmod": _remainder(_truncate), "floor": mp.floor, "ceil": mp.ceil, "trunc": _truncate,
    "exp": _exp, "expm1": lambda x: _exp(x) - 1, "log": lambda x: mp.log(x) if x else -mp.inf,
    "log1p": lambda x: mp.log(1 + x) if x != -1 else -mp.inf, "pow": _power,
    "sqrt": mp.sqrt, "rsqrt": lambda x: _divide(mp.mpf(1), mp.sqrt(x)), "hypot": lambda a, b: mp.sqrt(a * a + b * b),
    "sin": mp.sin, "cos": mp.cos, "tan": mp.tan, "asin": mp.asin, "acos": mp.acos, "atan": mp.atan, "atan2": mp.atan2,
    "sinh": _hyperbolic(-1), "cosh": _hyperbolic(1), "tanh": lambda x: mp.sign(x) * (1 - 2 / (1 + _exp(2 * abs(x)))),
    "asinh": mp.asinh, "acosh": mp.acosh, "atanh": mp.atanh, "erf": mp.erf, "near_exp2": lambda x: mp.power(2, x),
    "erfc": lambda x: mp.erfc(x) if x < 1000 else mp.mpf(0),
    "logaddexp": lambda a, b: max(a, b) + mp.log(1 + _exp(min(a, b) - max(a, b))),
}  # fmt: skip


def evaluate_precisely(program: Program, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of a program of elementwise statements."""
    shape = next(iter(given.values())).shape
    found: dict[str, list[Any]] = {name: [] for name in program.outputs}
    for place in np.ndindex(shape):
        values = {name: _number(given[name][place]) for name in program.inputs}
        for statement in program.statements:
            assert not statement.reduce, statement.target
            values[statement.target] = _value(statement.body, values)
        for name in program.outputs:
            found[name].append(values[name])
    return {name: np.array([*parts, None], object)[:-1].reshape(shape) for name, parts in found.items()}


def _number(value: Any) -> Any:
    return value if isinstance(value, mp.mpf) else mp.mpf(float(value))


def _value(expr: Expr, values: Mapping[str, Any]) -> Any:
    if isinstance(expr, Read):
        return values[expr.tensor]
    if isinstance(expr, Const):
        return expr.value if isinstance(expr.value, bool) else mp.mpf(expr.value)
    if isinstance(expr, Cast):
        return _value(expr.arg, values)
    assert isinstance(expr, Call), expr
    if expr.fn == "select":
        test, yes, no = expr.args
        return _value(yes if _value(test, values) else no, values)
    return _or_nan(FUNCTIONS[expr.fn])(*(_value(arg, values) for arg in expr.args))
