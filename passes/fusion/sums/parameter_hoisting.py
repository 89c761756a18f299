"""Hoists values of parameters out of large statements (loop-invariant code motion).

Parameters are inputs of the graph. An expression of a few of their elements that a large statement evaluates for each
of its results is computed once, by a small kernel of its own. Such kernels wait for nothing, so that they share a
launch:

    y[n, c, p, q] = (x[n, c, p, q] - mean[c]) * (scale[c] * rsqrt(var[c] + epsilon)) + bias[c]
      ->   h[c] = scale[c] * rsqrt(var[c] + epsilon);    y[n, c, p, q] = (x[n, c, p, q] - mean[c]) * h[c] + bias[c]

Values of half types stay: kernels compute them in f32, and memory would round them.

Weights that are multiplied element by element, as those of a depthwise convolution, are stored with the axes of the
results innermost, whose neighbours threads load together:

    acc[n, c, p, q] = sum_(r, s) x[n, c, p + r, q + s] * w[c, 0, r, s]
      ->   h[r, s, c] = w[c, 0, r, s];    acc[n, c, p, q] = sum_(r, s) x[n, c, p + r, q + s] * h[r, s, c]
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from attrs import evolve, field, frozen

from ....ir import (
    DType,
    Expr,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    call,
    dtype_of,
    expr_variables,
    factors,
    indirects,
    reads,
)
from ...statements import DefUse, NewUnit, Programs, apply, is_plain, issue_slots, rewritten

#: Fewest results of a statement, and fewest results for each hoisted value: a launch has to pay.
MIN_RESULTS, MIN_RESULTS_PER_VALUE = 1 << 19, 1 << 10
#: Fewest issue slots of a hoisted expression.
MIN_SLOTS = 4


def hoist_parameters(programs: Programs) -> Programs:
    """Return programs with the values of parameters hoisted from large statements."""
    index, changed = DefUse.of_programs(programs), False
    parameters = {*programs.graph.inputs} - {t for name, p in programs.slices.items() for t in (name, p.whole)}
    for statement in [s for unit in programs.units if unit.repeat is None for s in unit.statements]:
        if prod(axis.extent for axis in statement.axes) >= MIN_RESULTS and is_plain(statement):
            hoister = _Hoister(statement, index, parameters)
            body = hoister.rewrite(statement.body) if statement.is_pointwise else hoister.store_weights()
            if hoister.values:
                units = [NewUnit("hoisted", (value,), hoisted=True) for value in hoister.values.values()]
                apply(index, {statement: [*units, evolve(statement, body=body)]})
                changed = True
    return rewritten(programs, index) if changed else programs


@frozen
class _Hoister:
    """Replaces parts of a statement's body by reads of tensors; `values` has the statement that stores each part."""

    statement: Statement
    index: DefUse
    parameters: Collection[str]
    values: dict[Expr, Statement] = field(factory=dict)

    def rewrite(self, node: Expr) -> Expr:
        """Return an expression with its largest parts of parameters alone hoisted."""
        if axes := self._axes(node):
            exact = dtype_of(node, self.index.types).size >= DType.F32.size
            return self._store(node, axes) if exact and issue_slots(node) >= MIN_SLOTS else node
        return node.with_children(tuple(map(self.rewrite, node.children))) if node.children else node

    def store_weights(self) -> Expr:
        """Return the body of a sum of products with hoisted weights.

        The other factor varies with every axis of the weights: they are no matrix.
        """
        body, parts = self.statement.body, factors(self.statement.body)
        for weight, other in (parts, parts[::-1]) if self.statement.combine == "sum" and len(parts) == 2 else ():
            elementwise = expr_variables(weight) <= expr_variables(other)
            axes = self._axes(weight) if elementwise and isinstance(weight, Read) else ()
            if not {*axes}.isdisjoint(self.statement.reduce) and not _lies_so(weight, axes):
                return call("mul", other, self._store(weight, axes))
        return body

    def _axes(self, part: Expr) -> tuple[Var, ...]:
        """Return the axes of an expression of parameters, reduced ones first; none for others, and for many values."""
        used, found = expr_variables(part), reads(part)
        plain = (r.tensor in self.parameters and not r.guards and not any(map(indirects, r.indices)) for r in found)
        axes = tuple(axis for axis in (*self.statement.reduce, *self.statement.axes) if axis in used)
        results = prod(axis.extent for axis in self.statement.axes)
        few = prod(axis.extent for axis in axes) * MIN_RESULTS_PER_VALUE <= results
        floats = bool(found) and dtype_of(part, self.index.types).is_float
        return axes if floats and few and len(axes) == len(used) and all(plain) else ()

    def _store(self, value: Expr, axes: Sequence[Var]) -> Expr:
        """Return the read of a stored value."""
        place = tuple(map(as_index, axes))
        if value not in self.values:
            type_ = TensorType(dtype_of(value, self.index.types), tuple(axis.extent for axis in axes))
            self.values[value] = Statement(self.index.add_tensor("hoisted", type_), tuple(axes), place, value)
        return Read(self.values[value].target, place)


def _lies_so(weight: Expr, axes: Sequence[Var]) -> bool:
    """Return whether the indices of a read are some axes, in their order, beside constants."""
    return isinstance(weight, Read) and [i for i in weight.indices if not i.is_const] == [*map(as_index, axes)]
