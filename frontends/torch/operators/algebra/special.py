"""PyTorch's special functions, and common divisors of integers."""

from __future__ import annotations

from typing import Any

from .....ir import DType
from ...import_context import Convert, ImportContext, Value


def _special(op: str, **attributes: Any) -> Convert:
    """Return the conversion of a function; integers become f32 first."""

    def convert(ctx: ImportContext, x: Value) -> Any:
        return ctx.emit(op, x if ctx.type(x).dtype.is_float else ctx.cast(x, DType.F32), **attributes)

    return convert


def _polygamma(ctx: ImportContext, n: int, x: Value) -> Any:
    return _special("polygamma", n=n)(ctx, x)


def _divisor(op: str) -> Convert:
    return lambda ctx, a, b: ctx.emit(op, *ctx.promote(a, b))


TABLE: dict[str, Convert] = {
    **{f"aten.{name}": _special(name) for name in ("lgamma", "digamma", "erfinv")}, "aten.polygamma": _polygamma,
    "aten.i0": _special("bessel_i", order=0), "aten.special_i1": _special("bessel_i", order=1),
    "aten.special_i0e": _special("bessel_ie", order=0), "aten.special_i1e": _special("bessel_ie", order=1),
    **{f"aten.{name}": _divisor(name) for name in ("gcd", "lcm")},
}  # fmt: skip
