"""Folds constant divisors into the constant scales before them.

A quantisation divides by its scale. A positive divisor moves through sums, maxima and minima to the constant factors
and terms, which are divided once, in f64. A kernel then multiplies a sum by one number and adds another, instead of a
scale, a shift and a division:

    c[n, k] = f32(z[n, k]) * (s[k] * t) + b[k];   r[n, k] = max(c[n, k], 0);   q[n, k] = i8(round(r[n, k] / u))
      ->   q[n, k] = i8(round(max(f32(z[n, k]) * a[k] + d[k], 0)))     with constants  a = s * t / u,   d = b / u

The values between are those that nothing else reads. A conversion of floats to integers saturates: limits that are
those of its type, and a zero point of 0, are no work of their own. Nor are scales of 1, and a rounding of an integer:

    q[n, k] = i8(round(f32(p[n, k]) * (t / t)))   ->   q[n, k] = p[n, k]
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from math import inf

import numpy as np
from attrs import define, evolve, field

from ....ir import (
    Array,
    Call,
    Cast,
    Const,
    DType,
    Expr,
    Read,
    Statement,
    TensorType,
    as_dtype,
    as_index,
    dtype_of,
    expr_variables,
    factors,
    reads,
    substitute_expr,
)
from ...statements import DefUse, Programs, apply, axis_values, is_plain, rewritten
from .constant_values import constant_value
from .narrow_products import is_zero

#: Bytes of the least integers whose limits f32 does not have.
MAX_EXACT_BYTES = 4
#: Functions that a positive factor of all operands leaves.
_HOMOGENEOUS = ("add", "sub", "max", "min")


def fold_scales(programs: Programs) -> Programs:
    """Return programs whose constant scales contain the divisors that follow them."""
    folder = _Folder(DefUse.of_programs(programs), dict(programs.graph.constants))
    changes = [folder.change(s) for unit in reversed(programs.units) for s in reversed(unit.statements)]
    if not any(changes):
        return programs
    folder.index.remove_unused(folder.inlined)
    graph, types = programs.graph, folder.index.types
    constants = {**graph.constants, **folder.made}
    graph = evolve(graph, constants=constants, types={**graph.types, **{t: types[t] for t in folder.made}})
    return rewritten(evolve(programs, graph=graph), folder.index)


@define
class _Folder:
    """Folds scales into `made` constants; `constants` are those of the graph, `inlined` the values between."""

    index: DefUse
    constants: Mapping[str, Array]
    made: dict[str, Array] = field(factory=dict)
    inlined: set[str] = field(factory=set)

    def change(self, statement: Statement) -> bool:
        """Fold the scales of a pointwise statement; return whether it changed."""
        standing = statement in self.index.definitions.get(statement.target, ()) and self.index.unit_of(statement)
        if not standing or not statement.is_pointwise or not is_plain(statement):
            return False
        body = self._rewrite(statement.body, statement)
        if body == statement.body:
            return False
        apply(self.index, {statement: [evolve(statement, body=body)]})
        return True

    def _rewrite(self, node: Expr, root: Statement) -> Expr:
        if node.children:
            node = node.with_children(tuple(self._rewrite(child, root) for child in node.children))
        if isinstance(node, Cast) and node.dtype.is_int and dtype_of(node.arg, self.index.types).is_float:
            return self._convert(_without_limits(node.arg, node.dtype), node.dtype)
        if isinstance(node, Call) and node.fn == "div" and self._is_positive(node.args[1]):
            return self._divide(node.args[0], node.args[1], root, root) or node
        return node

    def _convert(self, value: Expr, dtype: DType) -> Expr:
        """Return the integer of a value, without conversions of one of its own type."""
        rounded = value.args[0] if isinstance(value, Call) and value.fn == "round" else value
        wide = isinstance(rounded, Cast) and rounded.dtype is DType.F32 and dtype.size < MAX_EXACT_BYTES
        own = isinstance(rounded, Cast) and wide and dtype_of(rounded.arg, self.index.types) is dtype
        return rounded.arg if isinstance(rounded, Cast) and own else Cast(dtype, value)

    def _is_positive(self, divisor: Expr) -> bool:
        array = self.constants.get(divisor.tensor) if isinstance(divisor, Read) and not divisor.guards else None
        return array is not None and array.dtype == np.float32 and 0.0 < float(array.min()) <= float(array.max()) < inf

    def _divide(self, expr: Expr, divisor: Expr, reader: Statement, root: Statement) -> Expr | None:
        """Return an expression of a reader, over the axes of the root, divided by a constant that its constants take.

        None where a part has none.
        """
        if isinstance(expr, Const) and expr.value == 0:
            return expr
        if self._is_constant(expr):
            return self._constant(Call("div", (expr, divisor)), root)
        if isinstance(expr, Read):
            made = self._only_use(expr, reader)
            values = None if made is None else axis_values(made, expr.indices)
            if made is None or values is None:
                return None
            found = self._divide(substitute_expr(made.body, values), divisor, made, root)
            self.inlined |= set() if found is None else {expr.tensor}
            return found
        if not isinstance(expr, Call):
            return None
        if expr.fn in _HOMOGENEOUS:
            parts = [self._divide(part, divisor, reader, root) for part in expr.args]
            done = tuple(part for part in parts if part is not None)
            return Call(expr.fn, done) if len(done) == len(parts) else None
        scales = [part for part in factors(expr) if self._is_constant(part)]
        others = [part for part in factors(expr) if not self._is_constant(part)]
        if not scales or len(others) != 1:
            return None
        scale = self._constant(Call("div", (reduce(_product, scales), divisor)), root)
        if scale is None:
            return None
        if np.all(self.made[scale.tensor] == 1.0):
            del self.made[scale.tensor]
            return _without_zero(others[0])
        return _product(_without_zero(others[0]), scale)

    def _only_use(self, read: Read, reader: Statement) -> Statement | None:
        """Return the definition of a value in f32 that one statement alone reads, else None."""
        made, wide = self.index.definition(read), self.index.types[read.tensor].dtype is DType.F32
        only = wide and made is not None and made.is_pointwise and self.index.unit_of(made) is not None
        return made if only and self.index.is_only_read_by(read.tensor, [reader]) else None

    def _is_constant(self, expr: Expr) -> bool:
        found = reads(expr)
        fixed = all(r.tensor in self.constants and not r.guards for r in found)
        return bool(found) and fixed and dtype_of(expr, self.index.types) is DType.F32

    def _constant(self, value: Expr, root: Statement) -> Read | None:
        """Return a new constant over the axes that move a value; None where it is too large for f32."""
        axes = tuple(a for a in root.axes if a in expr_variables(value))
        type_, place = TensorType(DType.F32, tuple(a.extent for a in axes)), tuple(map(as_index, axes))
        exact = constant_value(value, axes, DType.F32, self.index.types, self.constants)
        if {*axes} != expr_variables(value) or not np.all(np.abs(exact) <= np.finfo(np.float32).max):
            return None
        name = self.index.add_tensor(f"{root.target}.scale", type_)
        self.made[name] = as_dtype(exact, type_.dtype.numpy)
        return Read(name, place)


def _product(left: Expr, right: Expr) -> Expr:
    return Call("mul", (left, right))


def _without_zero(expr: Expr) -> Expr:
    """Return an expression without a zero that it is added to, or that is subtracted from it."""
    signed = isinstance(expr, Call) and expr.fn in ("add", "sub") and is_zero(expr.args[1])
    return expr.args[0] if isinstance(expr, Call) and signed else expr


def _without_limits(expr: Expr, dtype: DType) -> Expr:
    """Return an operand of a conversion to integers without limits that are those of the type."""
    lowest, highest = dtype.element.lowest, dtype.element.highest
    while isinstance(expr, Call) and expr.fn in ("min", "max", "add", "sub"):
        inner, limit = _without_zero(expr), expr.args[1]
        if isinstance(limit, Const) and dtype.size < MAX_EXACT_BYTES:
            vain = limit.value >= highest if expr.fn == "min" else limit.value <= lowest and expr.fn == "max"
            inner = expr.args[0] if vain else inner
        if inner is expr:
            break
        expr = inner
    return expr
