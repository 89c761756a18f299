"""Facts of integers: greatest elements where none is negative, and order.

Integers that a program counts with have bounds that follow from its statements, and prefix sums of them are in order.
So are positions, and integers of ordered tensors at ordered places:

    ended[e] = sum[i < n] (1 where ends[i] arrives at e)          0 to n
    row[j] = sum[e < m] (ended[e] if j - e >= 0 else 0)           0 to n * m, in order

Facts hold for any values of the other tensors. Results that might exceed their type have none, as integers wrap.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from attrs import frozen

from ...ir import (
    Array,
    Call,
    Cast,
    Const,
    DType,
    Expr,
    Index,
    IndexValue,
    Indirect,
    Program,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    dtype_of,
    expr_variables,
    linearise,
    primary_index,
    row_major,
    variables,
)
from .prefix_scan import match_scan


@frozen
class IntegerFact:
    """Elements from 0 to `high`.

    Where it is `ordered`, each one is at least the one before it.
    """

    high: int
    ordered: bool = False


def fact_of_array(array: Array) -> IntegerFact | None:
    """Return the fact of a constant."""
    if array.dtype.kind not in "iu" or not array.size or sum(n > 1 for n in array.shape) > 1 or array.min() < 0:
        return None
    return IntegerFact(int(array.max()), bool((np.diff(array.reshape(-1)) >= 0).all()))


def integer_facts(program: Program, known: Mapping[str, IntegerFact]) -> dict[str, IntegerFact]:
    """Return the facts of tensors, with those `known` of inputs."""
    facts = _Facts(program.tensors, dict(known))
    for tensor in dict.fromkeys(s.target for s in program.statements):
        type_, written = program.tensors[tensor], program.producers(tensor)
        if type_.dtype.is_int and len(written) == 1 and sum(n > 1 for n in type_.shape) <= 1:
            found = facts.of_statement(written[0], type_)
            if found is not None:
                facts.known[tensor] = found
    return facts.known


@frozen
class _Facts:
    types: Mapping[str, TensorType]
    known: dict[str, IntegerFact]

    def of_statement(self, statement: Statement, type_: TensorType) -> IntegerFact | None:
        """Return the fact of a tensor that one statement writes."""
        terms = prod(a.extent for a in (statement.axes if statement.into else statement.reduce))
        high = self._high(statement.body)
        if high is None or statement.step is not None or {statement.into, statement.combine} - {None, "sum"}:
            return None
        summed = statement.into or statement.combine
        high = high * terms if summed else high
        if high > type_.dtype.element.highest:
            return None
        return IntegerFact(high, not statement.into and self._is_ordered(statement, type_))

    def _is_ordered(self, statement: Statement, type_: TensorType) -> bool:
        """Return whether elements never decrease along the one axis of a tensor."""
        place = linearise(statement.write, row_major(type_.shape))
        if len(statement.axes) != 1 or place != as_index(statement.axes[0]):
            return False
        scan = match_scan(statement)
        return not scan.backwards if scan is not None else self._rises(statement.body, statement.axes[0])

    def _high(self, expr: Expr) -> int | None:
        """Return the greatest value of an expression; None where it may be negative, or wraps."""
        high = self._greatest(expr)
        return high if high is not None and high <= dtype_of(expr, self.types).element.highest else None

    def _greatest(self, expr: Expr) -> int | None:
        if dtype_of(expr, self.types) is DType.BOOL:
            return 1
        if isinstance(expr, Const):
            return int(expr.value) if expr.dtype.is_int and expr.value >= 0 else None
        if isinstance(expr, IndexValue):
            low, high = expr.index.bounds()
            return high if low >= 0 else None
        if isinstance(expr, Read):
            fact = self.known.get(expr.tensor)
            return None if fact is None or expr.fill < 0 else max(fact.high, int(expr.fill) if expr.guards else 0)
        if isinstance(expr, Cast):
            return self._high(expr.arg)
        if not isinstance(expr, Call) or expr.fn not in ("add", "mul", "min", "max", "select"):
            return None
        highs = [self._high(a) for a in (expr.args[1:] if expr.fn == "select" else expr.args)]
        found = [high for high in highs if high is not None]
        if len(found) < len(highs):
            return None
        return sum(found) if expr.fn == "add" else prod(found) if expr.fn == "mul" else max(found)

    def _rises(self, expr: Expr, axis: Var) -> bool:
        """Return whether a value never decreases along an axis."""
        if axis not in expr_variables(expr):
            return True
        if isinstance(expr, IndexValue):
            return self._index_rises(expr.index, axis)
        if isinstance(expr, Read):
            return not expr.guards and self._element_rises(expr.tensor, expr.indices, axis)
        if isinstance(expr, Cast):
            return expr.dtype.is_int and self._high(expr) is not None and self._rises(expr.arg, axis)
        if not isinstance(expr, Call) or expr.fn not in ("add", "mul", "min", "max") or self._high(expr) is None:
            return False
        return all(self._rises(a, axis) for a in expr.args)

    def _element_rises(self, tensor: str, indices: tuple[Index, ...], axis: Var) -> bool:
        """Return whether elements of an ordered tensor are taken in their order."""
        fact, place = self.known.get(tensor), linearise(indices, row_major(self.types[tensor].shape))
        return fact is not None and fact.ordered and self._index_rises(place, axis)

    def _index_rises(self, index: Index, axis: Var) -> bool:
        """Return whether an index never decreases along an axis, as it is or as the nearest one of a tensor."""
        moving = [(primary, factor) for primary, factor in index.terms if axis in variables(primary_index(primary))]
        return all(
            factor > 0
            and (primary == axis or isinstance(primary, Indirect))
            and (not isinstance(primary, Indirect) or self._element_rises(primary.tensor, primary.indices, axis))
            for primary, factor in moving
        )
