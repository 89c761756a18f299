"""Folding of scalar expressions: constants, signs and common subexpressions.

    0 * x -> nothing      1 * x -> x      -1 * x -> -x      a + -b -> a - b      c*a + c*b -> c * (a + b)

A `Folder` builds expressions and hands back the one it already has where an equal one, or its negative, was built
before. Unrolled over a tile this turns the matrices of a fast transform into its textbook operation count. Products
with zero vanish even where a NaN would have come of them, so it is meant for constant tables, whose zeros are
structure.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..ir import (
    FUNCTIONS,
    Call,
    Const,
    Expr,
    TensorType,
    dtype_of,
)

Element = tuple[int, ...]


class Folder:
    """Builder of folded scalar expressions over a program's tensors.

    Equal expressions are one object.
    """

    def __init__(self, tensors: Mapping[str, TensorType]) -> None:
        self._tensors = tensors
        self._known: dict[Expr, Expr] = {}
        self._order: dict[Expr, int] = {}

    def intern(self, expr: Expr) -> Expr:
        """Return the one object that stands for an expression."""
        found = self._known.setdefault(expr, expr)
        self._order.setdefault(found, len(self._order))
        return found

    def call(self, fn: str, *args: Expr) -> Expr:
        """Return `fn(args)`, folded."""
        if all(isinstance(a, Const) for a in args):
            return self._constant(fn, args)
        if not dtype_of(args[-1], self._tensors).is_float:
            return self.intern(Call(fn, args))
        if fn in ("add", "sub"):
            return self._sum(fn, *args)
        if fn == "mul":
            return self._product(*args)
        if fn == "neg":
            return self._negative(*args)
        return self.intern(Call(fn, args))

    def _constant(self, fn: str, args: tuple[Expr, ...]) -> Expr:
        # Numbers of the constants' own types: integers wrap, as they do everywhere.
        values = [
            np.asarray(a.value, np.float64 if a.dtype.is_float else a.dtype.numpy) for a in args if isinstance(a, Const)
        ]
        with np.errstate(all="ignore"):
            value = FUNCTIONS[fn].numpy(*values)
        dtype = dtype_of(Call(fn, args), self._tensors)
        return self.intern(Const(value.item() if hasattr(value, "item") else value, dtype))

    def _negative(self, arg: Expr) -> Expr:
        if isinstance(arg, Const):
            return self.intern(Const(-arg.value, arg.dtype))
        inner = _negative_of(arg)
        if inner is not None:
            return inner
        if isinstance(arg, Call) and arg.fn == "sub":
            reverse = Call("sub", (arg.args[1], arg.args[0]))
            if reverse in self._known:
                return self.intern(reverse)
        return self.intern(Call("neg", (arg,)))

    def _product(self, a: Expr, b: Expr) -> Expr:
        if isinstance(b, Const):
            a, b = b, a
        if isinstance(a, Const):
            return self._scale_by(a, b)
        for one, other in ((a, b), (b, a)):
            inner = _negative_of(one)
            if inner is not None:
                return self._negative(self._product(inner, other))
        return self._commutative("mul", a, b)

    def _scale_by(self, factor: Const, arg: Expr) -> Expr:
        if factor.value == 0:
            return self.intern(Const(0.0, factor.dtype))
        if factor.value == 1:
            return arg
        if factor.value < 0:
            return self._negative(self._scale_by(Const(-factor.value, factor.dtype), arg))
        inner = _negative_of(arg)
        if inner is not None:
            return self._negative(self._scale_by(factor, inner))
        scale, rest = _scale(arg)
        if scale is not None:
            return self._scale_by(Const(factor.value * scale.value, factor.dtype), rest)
        return self.intern(Call("mul", (self.intern(factor), arg)))

    def _sum(self, fn: str, a: Expr, b: Expr) -> Expr:
        if fn == "sub":
            return self._sum("add", a, self._negative(b)) if _negative_of(b) is not None else self._difference(a, b)
        for one, other in ((a, b), (b, a)):
            if isinstance(one, Const) and one.value == 0:
                return other
            inner = _negative_of(one)
            if inner is not None:
                return self._difference(other, inner)
        return self._factor_out("add", a, b) or self._commutative("add", a, b)

    def _difference(self, a: Expr, b: Expr) -> Expr:
        if isinstance(b, Const) and b.value == 0:
            return a
        if isinstance(a, Const) and a.value == 0:
            return self._negative(b)
        inner = _negative_of(a)
        if inner is not None:
            return self._negative(self._sum("add", inner, b))
        factored = self._factor_out("sub", a, b)
        if factored is not None:
            return factored
        reverse = Call("sub", (b, a))
        if reverse in self._known:
            return self._negative(self.intern(reverse))
        return self.intern(Call("sub", (a, b)))

    def _factor_out(self, fn: str, a: Expr, b: Expr) -> Expr | None:
        """Take a common constant factor out of a sum."""
        (scale, left), (other, right) = _scale(a), _scale(b)
        if scale is None or other is None or scale != other:
            return None
        return self._scale_by(scale, self._sum(fn, left, right))

    def _commutative(self, fn: str, a: Expr, b: Expr) -> Expr:
        a, b = self.intern(a), self.intern(b)
        return self.intern(Call(fn, (a, b) if self._order[a] <= self._order[b] else (b, a)))


def _negative_of(expr: Expr) -> Expr | None:
    return expr.args[0] if isinstance(expr, Call) and expr.fn == "neg" else None


def _scale(expr: Expr) -> tuple[Const | None, Expr]:
    if isinstance(expr, Call) and expr.fn == "mul" and isinstance(expr.args[0], Const):
        return expr.args[0], expr.args[1]
    return None, expr
