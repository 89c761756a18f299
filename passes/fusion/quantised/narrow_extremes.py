"""Extremes of rounded values instead of rounded extremes.

A rising function and a maximum change places, so that a quantisation follows the layer before a pooling, and the
pooling moves bytes. So do a rising function and a minimum:

    m[n, p] = max_r x[n, 2*p + r] outside lowest;   q[n, p] = i8(round(m[n, p] / s))
      ->   v[n, i] = i8(round(x[n, i] / s));        q[n, p] = max_r v[n, 2*p + r] outside -128

Nothing else reads the values and their extreme, and the values are certainly finite, as sums of bytes are: a NaN would
be an extreme, but not after its conversion.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod

import numpy as np
from attrs import evolve, frozen

from ....ir import (
    Array,
    Call,
    Cast,
    Const,
    Expr,
    IndexValue,
    Program,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    dtype_of,
    expr_variables,
    reads,
    rebuild,
    substitute_expr,
)
from ....ops import evaluate
from ...statements import (
    DefUse,
    Edit,
    Match,
    NewUnit,
    Programs,
    RewriteRule,
    anything,
    axis_values,
    is_plain,
    pointwise,
    rewrite,
)

#: Rising functions of one operand, and of a first operand where the second one is fixed.
_RISING, _RISING_WITH = ("round", "floor", "ceil", "trunc"), ("add", "sub", "max", "min")


def narrow_extremes(programs: Programs) -> Programs:
    """Return programs that round values before their maxima and minima."""
    constants = programs.graph.constants

    def guard(match: Match) -> _Extreme | None:
        return _Finder(match.index, constants).find(match.root)

    return rewrite(programs, RewriteRule(pointwise(anything()), guard, _round_first))


@frozen
class _Extreme:
    """Extreme of the values `source` that a statement reads as `read`; outside of them it is `fill` after rounding."""

    made: Statement
    read: Read
    source: Read
    fill: float


@frozen
class _Finder:
    index: DefUse
    constants: Mapping[str, Array]

    def find(self, root: Statement) -> _Extreme | None:
        """Return the extreme that a statement rounds, else None."""
        moving = [r for r in reads(root.body) if r.tensor not in self.constants]
        made = self.index.definition(moving[0]) if len(moving) == 1 else None
        if made is None or made.combine not in ("max", "min") or not isinstance(made.body, Read):
            return None
        (read,), source, types = moving, made.body, self.index.types
        narrow = types[root.target].dtype.size < types[source.tensor].dtype.size
        alone = self.index.is_only_read_by(read.tensor, [root]) and self.index.is_only_read_by(source.tensor, [made])
        fixed = {v for r in reads(root.body) if r != read for v in expr_variables(r)}
        if not (narrow and alone and not fixed and is_plain(root) and self._rises(root.body, read)):
            return None
        if (
            axis_values(made, read.indices) is None
            or not self._magnitude(evolve(source, guards=(), fill=0.0)) < np.finfo(np.float32).max
        ):
            return None
        return _Extreme(made, read, source, self._rounded_form(root, read, source.fill))

    def _rises(self, expr: Expr, read: Read) -> bool:
        """Return whether an expression of one read never falls as the read rises."""
        if expr == read:
            return True
        if isinstance(expr, Cast):
            return self._rises(expr.arg, read)
        if not isinstance(expr, Call) or any(r == read for arg in expr.args[1:] for r in reads(arg)):
            return False
        kept = expr.fn in _RISING or expr.fn in _RISING_WITH
        kept = kept or (expr.fn in ("mul", "div") and self._is_positive(expr.args[1]))
        return kept and self._rises(expr.args[0], read)

    def _is_positive(self, factor: Expr) -> bool:
        if isinstance(factor, Const):
            return factor.value > 0
        return isinstance(factor, Read) and float(self.constants[factor.tensor].min()) > 0

    def _magnitude(self, expr: Expr) -> float:
        """Return a size that no value of an expression exceeds; inf where there may be one, or a NaN."""
        if isinstance(expr, Const):
            return abs(float(expr.value))
        if isinstance(expr, IndexValue):
            return float(max(map(abs, expr.index.bounds())))
        if isinstance(expr, Read):
            return self._magnitude_of_read(expr)
        if isinstance(expr, Cast):
            return self._magnitude(expr.arg)
        sizes = [self._magnitude(arg) for arg in expr.args] if isinstance(expr, Call) else []
        if not isinstance(expr, Call) or inf in sizes:
            return inf
        if expr.fn in ("add", "sub"):
            return sum(sizes)
        return max(sizes) if expr.fn in ("max", "min") else prod(sizes) if expr.fn == "mul" else inf

    def _magnitude_of_read(self, read: Read) -> float:
        element = self.index.types[read.tensor].dtype.element
        if read.tensor in self.constants and element.kind == "float":
            found = float(np.abs(self.constants[read.tensor].astype(np.float64)).max(initial=0.0))
            return found if found < inf else inf
        if element.kind in ("signed", "unsigned"):
            return float(max(-element.lowest, element.highest))
        made = self.index.single_definition(read.tensor)
        if made is None or not is_plain(made) or made.combine not in (None, "sum", "max", "min"):
            return inf
        terms = prod(v.extent for v in made.reduce) if made.combine == "sum" else 1
        return max(abs(read.fill) if read.guards else 0.0, terms * self._magnitude(made.body))

    def _rounded_form(self, root: Statement, read: Read, value: float) -> float:
        """Return the rounded form of a number."""
        number = Const(value, dtype_of(read, self.index.types))
        body = rebuild(root.body, lambda node: number if node == read else node)
        used = tuple(dict.fromkeys(r.tensor for r in reads(body)))
        tensors = {**{t: self.index.types[t] for t in used}, "y": evolve(self.index.types[root.target], shape=())}
        program = Program(tensors, used, ("y",), (Statement("y", (), (), body),))
        return float(evaluate(program, {t: self.constants[t] for t in used})["y"].item())


def _round_first(match: Match, found: _Extreme) -> Edit:
    """Return the rounded values in a unit of their own, and their extreme instead of the rounded one."""
    root, index, source = match.root, match.index, found.source
    shape = index.types[source.tensor].shape
    axes = tuple(Var(f"d{n}", extent) for n, extent in enumerate(shape))
    place = tuple(map(as_index, axes))
    name = index.add_tensor(f"{source.tensor}.rounded", TensorType(index.types[root.target].dtype, shape))
    body = rebuild(root.body, lambda node: Read(source.tensor, place) if node == found.read else node)
    values = axis_values(found.made, found.read.indices)
    assert values is not None, "checked by the guard"
    extreme = substitute_expr(evolve(source, tensor=name, fill=found.fill), values)
    rounded = NewUnit("rounded", (Statement(name, axes, place, body),))
    own = evolve(root, body=extreme, reduce=found.made.reduce, combine=found.made.combine)
    return {found.made: [rounded], root: [own]}
