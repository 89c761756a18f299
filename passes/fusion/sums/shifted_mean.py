"""Shifted mean: a mean is summed relative to one of the values.

A sum of n numbers far from zero loses digits in proportion to their size, and the difference of a value and such a mean
keeps this error: rows of one number, which no norm should change from 0, become noise that the division by their
deviation makes large. Where a mean is subtracted from the values that it is the mean of, the first term is subtracted
from every term and added to the mean. The shift is exact in real arithmetic (Chan, Golub, LeVeque 1983, "Algorithms for
computing the sample variance", section 3):

    t[i] = sum_r x[i, r];             m[i] = t[i] / n;              d[i, r] = x[i, r] - m[i]
      ->   t[i] = sum_r x[i, r] - x[i, 0];   m[i] = x[i, 0] + t[i] / n;     d as it was

A first term that is infinite, no number, or so large that differences overflow is not subtracted. The cost is a
subtraction for each term and a load for each row. Means that nothing is centred by stay as they are, and so do
declarations, gradients and the reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from attrs import evolve, frozen

from ....ir import (
    Call,
    Cast,
    Const,
    Expr,
    Read,
    Statement,
    TensorType,
    distinct,
    dtype_of,
    indirects,
    solve,
    substitute_expr,
)
from ..programs import Programs, Unit


def shift_means(programs: Programs) -> Programs:
    """Return programs in which means for centring are sums of differences."""
    every = [s for unit in programs.units for s in unit.statements]
    pairs = {(taken.tensor, mean.tensor) for s in every for taken, mean in _differences(s.body)}
    if not pairs:
        return programs
    readers: dict[str, list[Statement]] = {}
    for statement in every:
        for read in statement.reads:
            readers.setdefault(read.tensor, []).append(statement)
    looped = (t for unit in programs.units if unit.repeat is not None for t in unit.reads)
    found = _Centring(programs.types, pairs, readers, frozenset((*programs.graph.outputs, *looped)))
    return evolve(programs, units=tuple(found.unit(unit) for unit in programs.units))


#: First terms of at least this size are not subtracted.
_MAX_SHIFT = 2.0**64


@frozen
class _Centring:
    """Rewriter of units: pairs of a tensor and the mean subtracted from it, and the readers of each tensor."""

    types: Mapping[str, TensorType]
    pairs: set[tuple[str, str]]
    readers: Mapping[str, Sequence[Statement]]
    kept: frozenset[str]

    def unit(self, unit: Unit) -> Unit:
        """Return a unit with its means centred."""
        statements = list(unit.statements)
        for total in [n for n, s in enumerate(statements) if self._is_plain_sum(s)]:
            users = [n for n, s in enumerate(statements) if any(r.tensor == statements[total].target for r in s.reads)]
            means = [self._shifted_mean(statements[n], statements[total]) for n in users]
            if not users or None in means or len(users) != len(self.readers[statements[total].target]):
                continue
            for n, mean in zip(users, means, strict=True):
                assert mean is not None
                statements[n] = mean
            statements[total] = evolve(
                statements[total], body=Call("sub", (statements[total].body, self._first(statements[total])))
            )
        return evolve(unit, statements=tuple(statements))

    def _is_plain_sum(self, statement: Statement) -> bool:
        """Return whether a statement adds up elements of one tensor of floats, and only statements read the result."""
        read = _element(statement.body)
        plain = (
            statement.combine == "sum"
            and self.types[statement.target].dtype.is_float
            and statement.target not in self.kept
        )
        return plain and read is not None and not read.guards and not any(indirects(i) for i in read.indices)

    def _shifted_mean(self, mean: Statement, total: Statement) -> Statement | None:
        """Return the statement of a mean over the differences, None where it is no mean of the sum, or nothing is
        centred by it.
        """
        body, read = mean.body, _element(total.body)
        if (
            not mean.is_pointwise
            or not isinstance(body, Call)
            or body.fn != "div"
            or read is None
            or (read.tensor, mean.target) not in self.pairs
        ):
            return None
        quotient, count = body.args
        if not isinstance(quotient, Read) or quotient.guards or quotient.tensor != total.target:
            return None
        if not isinstance(count, Const) or count.value != prod(v.extent for v in total.reduce):
            return None
        solution = solve(list(zip(total.write, quotient.indices, strict=True)), total.axes)
        if solution is None or solution.free or solution.guards:
            return None
        return evolve(mean, body=Call("add", (substitute_expr(self._first(total), solution.values), body)))

    def _first(self, total: Statement) -> Expr:
        """Return the first term of a sum where it may be subtracted from the others, else 0."""
        first = substitute_expr(total.body, dict.fromkeys(total.reduce, 0))
        dtype = dtype_of(first, self.types)
        return Call("select", (Call("lt", (Call("abs", (first,)), Const(_MAX_SHIFT, dtype))), first, Const(0.0, dtype)))


def _element(expr: Expr) -> Read | None:
    """Return the read that an expression is, ignoring conversions."""
    while isinstance(expr, Cast):
        expr = expr.arg
    return expr if isinstance(expr, Read) else None


def _differences(body: Expr) -> Iterator[tuple[Read, Read]]:
    """Yield the pairs of reads that an expression subtracts from each other."""
    for node in distinct(body):
        if isinstance(node, Call) and node.fn == "sub":
            left, right = map(_element, node.args)
            if left is not None and right is not None:
                yield left, right
