"""Folding of scalar expressions: constants, signs and common subexpressions.

    0 * x -> nothing      1 * x -> x      -1 * x -> -x      a + -b -> a - b      c*a + c*b -> c * (a + b)

A `Folder` builds expressions and hands back the one it already has where an equal one, or its negative, was built
before. Unrolled over a tile this turns the matrices of a fast transform into its textbook operation count. Products
with zero vanish even where a NaN would have come of them, so it is meant for constant tables, whose zeros are
structure.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from ..ir import (
    COMBINERS,
    FUNCTIONS,
    Call,
    Cast,
    Const,
    DType,
    Expr,
    Index,
    IndexLike,
    IndexValue,
    InRange,
    Program,
    Read,
    Statement,
    TensorType,
    Var,
    dtype_of,
    row_major,
    substitute,
    substitute_expr,
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


class Expansion:
    """Program as scalar expressions over the elements of its inputs.

    It has an expression for every element of every computed tensor.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.folder = Folder(program.tensors)
        self.elements: dict[tuple[str, Element], Expr] = {}
        for statement in program.statements:
            self._expand(statement)

    def results(self) -> list[Expr]:
        """Return the elements of the outputs in row-major order."""
        shapes = ((name, self.program.tensors[name].shape) for name in self.program.outputs)
        return [
            self.elements[name, element] for name, shape in shapes for element in itertools.product(*map(range, shape))
        ]

    def _expand(self, statement: Statement) -> None:
        for point in itertools.product(*(range(v.extent) for v in statement.axes)):
            values: dict[Var, IndexLike] = dict(zip(statement.axes, point, strict=True))
            element = tuple(substitute(w, values).const for w in statement.write)
            self.elements[statement.target, element] = self._value(statement, values)

    def _value(self, statement: Statement, values: Mapping[Var, IndexLike]) -> Expr:
        if statement.combine is None:
            return self._scalar(substitute_expr(statement.body, values))
        combiner = COMBINERS[statement.combine]
        assert not combiner.position, f"{combiner.name} has no scalar expansion"
        terms = [
            self._scalar(substitute_expr(statement.body, {**values, **dict(zip(statement.reduce, point, strict=True))}))
            for point in itertools.product(*(range(v.extent) for v in statement.reduce))
        ]
        if not terms:
            dtype = self.program.tensors[statement.target].dtype
            return Const(combiner.identity(dtype), dtype)
        total = terms[0]
        for term in terms[1:]:
            total = self.folder.call(combiner.fn, total, term)
        return total

    def _scalar(self, expr: Expr) -> Expr:
        """Fold an expression whose indices are all constant."""
        if isinstance(expr, Call):
            return self.folder.call(expr.fn, *(self._scalar(a) for a in expr.args))
        if isinstance(expr, Cast):
            return self.folder.intern(Cast(expr.dtype, self._scalar(expr.arg)))
        if isinstance(expr, IndexValue):
            return self.folder.intern(Const(_literal(expr.index.const, expr.dtype), expr.dtype))
        if isinstance(expr, InRange):
            return self.folder.intern(Const(all(g.always for g in expr.guards), DType.BOOL))
        return self._read(expr) if isinstance(expr, Read) else self.folder.intern(expr)

    def _read(self, read: Read) -> Expr:
        type_ = self.program.tensors[read.tensor]
        if not all(g.always for g in read.guards):
            return self.folder.intern(Const(_literal(read.fill, type_.dtype), type_.dtype))
        element = tuple(_constant_index(i) for i in read.indices)
        if read.tensor in self.program.constants:
            flat = sum(i * step for i, step in zip(element, row_major(type_.shape), strict=True))
            return self.folder.intern(
                Const(_literal(self.program.constants[read.tensor][flat], type_.dtype), type_.dtype)
            )
        return self.elements.get((read.tensor, element)) or self.folder.intern(Read(read.tensor, read.indices))


def operations(roots: Iterable[Expr]) -> Counter[str]:
    """Return the number of calls of each function, after CSE."""
    seen: set[int] = set()
    count: Counter[str] = Counter()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        stack.extend(node.children)
        if isinstance(node, Call):
            count[node.fn] += 1
    return count


def _constant_index(index: Index) -> int:
    assert index.is_const, f"{index.text} is not constant"
    return index.const


def _literal(value: float, dtype: DType) -> float | int | bool:
    return float(value) if dtype.is_float else bool(value) if dtype is DType.BOOL else int(value)
