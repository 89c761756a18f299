"""Deferred normalisation: the division of softmax weights follows the product.

A softmax whose result only multiplies other rows leaves it in memory, a row of many numbers, although each is an
exponential of scores that are in memory anyway. Two numbers of a row suffice, its maximum and the sum of its
exponentials: the product computes the exponentials as it loads them, and divides its own, fewer, results.

    m[i] = max_j z[i, j];   e[i, j] = exp(z[i, j] - m[i]);   t[i] = sum_j e[i, j];   w[i, j] = e[i, j] / t[i]
    y[i, f] = sum_j w[i, j] * v[j, f]
      ->   m[i] = max_j z[i, j];   t[i] = sum_j exp(z[i, j] - m[i]);   w[i, j] = exp(z[i, j] - m[i])
           s[i, f] = sum_j w[i, j] * v[j, f];   y[i, f] = s[i, f] / t[i]

The exponentials are a unit of their own, which the partition may give to the rows' kernel or to the product. None is
above one, so no sum leaves its range newly. A sum that a constant replaces where it is one number, as 0 for rows that
are masked whole, divides as it is written. Half types would round the sums and the maxima, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from attrs import evolve, frozen

from ....ir import (
    Call,
    Expr,
    Index,
    Read,
    Statement,
    Var,
    factors,
    guarded_read,
    indirects,
    reads,
    rebuild,
    solve,
    substitute,
    substitute_expr,
    variables,
)
from ..programs import Programs, Unit
from .rewriter import DefUseRewriter

#: Fewest weights of a row whose store is worth avoiding.
MIN_WEIGHTS = 16


def defer_normalisation(programs: Programs) -> Programs:
    """Return programs in which exponentials are normalised after the weighted sum."""
    writer = _NormalisationRewriter(programs)
    found = [w for unit in programs.units for s in unit.statements if (w := writer.weights_of(s)) is not None]
    for weights in found:
        writer.divide(weights)
    return writer.result


@frozen
class _Weights:
    """A weighted sum. `total` is the sum of the rows and `weights` the exponentials, both over operands that are not
    computed elementwise beside them; `own` are the statements that they replace, `weighted` is the weighted sum, and
    `divisor` the divisor of each result.
    """

    total: Statement
    weights: Statement
    own: tuple[Statement, Statement, Statement]
    weighted: Statement
    divisor: Expr


class _NormalisationRewriter(DefUseRewriter):
    """Rewrites weighted sums."""

    # ---- matching

    def weights_of(self, weighted: Statement) -> _Weights | None:
        """Return the weights of a sum, if they are normalised exponentials."""
        if weighted.combine != "sum" or weighted.into is not None or not self._is_wide(weighted.target):
            return None
        parts = factors(weighted.body)
        for part in parts if len(parts) > 1 else ():
            found = self._weights(weighted, part)
            if found is not None and parts.count(part) == 1:
                return found
        return None

    def _weights(self, weighted: Statement, part: Expr) -> _Weights | None:
        weights = self._only(part, [weighted])
        quotient = weights.body if weights is not None else None
        if weights is None or not isinstance(quotient, Call) or quotient.fn != "div":
            return None
        exponential, divided = quotient.args
        sum_ = guarded_read(divided)
        total = self._maker(sum_) if sum_ is not None else None
        if sum_ is None or total is None or total.combine != "sum" or not isinstance(total.body, Read):
            return None
        exponentials = self._only(exponential, [total, weights])
        if exponentials is None or total.body.tensor != exponentials.target or not self._is_shifted(exponentials.body):
            return None
        operand = _operand_at(sum_, weights, part)
        own = (weights, total, exponentials)
        unit = next((u for u in self.units if {*own} <= {*u.statements}), None)
        if operand is None or unit is None or prod(v.extent for v in total.reduce) < MIN_WEIGHTS:
            return None
        if any(s.is_pointwise and s.target in unit.writes for s in unit.statements if s not in own):
            return None  # only sums would read the unit's results, without a statement of each instance
        along = {v for i in operand.indices for v in variables(i)} & {*weighted.reduce}
        wide = all(self._is_wide(s.target) for s in own)
        terms, weight = (self._inlined_body(body, unit) for body in (total.body, exponential))
        if along or not wide or terms is None or weight is None:
            return None
        divisor = rebuild(divided, lambda node: operand if node == sum_ else node)
        return _Weights(evolve(total, body=terms), evolve(weights, body=weight), own, weighted, divisor)

    def _inlined_body(self, body: Expr, unit: Unit) -> Expr | None:
        """Return an expression over results of reductions and of other units: elementwise statements of the unit are
        inlined. None where a read is guarded or of another element.
        """
        makers = {s.target: s for s in unit.statements if s.is_pointwise}
        found: dict[Expr, Expr] = {}
        for read in reads(body):
            if read.tensor in makers:
                values = _values(makers[read.tensor], read.indices)
                body_there = None if values is None else substitute_expr(makers[read.tensor].body, values)
                inner = None if body_there is None or read.guards else self._inlined_body(body_there, unit)
                if inner is None or not self._is_wide(read.tensor):
                    return None
                found[read] = inner
        return rebuild(body, lambda node: found.get(node, node))

    def _is_shifted(self, body: Expr) -> bool:
        """Return whether an expression is the exponential of a difference from a maximum."""
        if not isinstance(body, Call) or body.fn != "exp" or not isinstance(body.args[0], Call):
            return False
        difference = body.args[0]
        shift = guarded_read(difference.args[-1]) if difference.fn == "sub" else None
        greatest = self._maker(shift) if shift is not None else None
        return greatest is not None and greatest.combine == "max" and self._is_wide(greatest.target)

    def _is_wide(self, tensor: str) -> bool:
        """Return whether a tensor is stored in the type of its sums."""
        dtype = self.types[tensor].dtype
        return dtype.is_float and dtype.accumulator is dtype

    def _maker(self, read: Expr) -> Statement | None:
        """Return the only statement that writes the tensor of an unguarded read, if it is outside of loops and
        scatters.
        """
        if not isinstance(read, Read) or read.guards or any(map(indirects, read.indices)):
            return None
        found = self.definitions.get(read.tensor, [])
        plain = len(found) == 1 and found[0].into is None and found[0].step is None and found[0].along is None
        return found[0] if plain and any(found[0] in unit.statements for unit in self.units) else None

    def _only(self, read: Expr, readers: Sequence[Statement]) -> Statement | None:
        """Return the pointwise statement of a read tensor, if only `uses` read it."""
        maker = self._maker(read)
        if maker is None or not maker.is_pointwise or maker.target in self.programs.graph.outputs:
            return None
        return maker if [*self.uses.get(maker.target, ())] == [*readers] else None

    # ---- rewriting

    def divide(self, found: _Weights) -> None:
        """Replace weights by exponentials, and divide the weighted sum."""
        weighted = found.weighted
        name = self.add_tensor(f"{weighted.target}.weighted", self.types[weighted.target])
        quotient = Call("div", (Read(name, weighted.write), found.divisor))
        weights, total, exponentials = found.own
        new = {
            weights: [],
            exponentials: [],
            total: [found.total],
            weighted: [evolve(weighted, target=name), evolve(weighted, body=quotient, reduce=(), combine=None)],
        }
        self.units = [each for unit in self.units for each in self._rewrite_unit(unit, found, new)]
        self.has_changed = True

    def _rewrite_unit(self, unit: Unit, found: _Weights, new: dict[Statement, list[Statement]]) -> Iterator[Unit]:
        """Yield the units that replace a unit; the weights follow the unit of the rows."""
        statements = tuple(n for s in unit.statements for n in new.get(s, [s]))
        if statements == unit.statements:
            yield unit
            return
        own, moved = {s.target for s in statements}, found.weights
        rows = moved.target not in own and moved.target in unit.writes
        needed = (t for t in (*moved.tensors_read, found.total.target) if rows and t in own)
        writes = dict.fromkeys((*(t for t in unit.writes if t in own), *needed))
        yield self.update_uses(evolve(unit, statements=statements, writes=tuple(writes)))
        if rows:
            yield self.update_uses(
                evolve(unit, name=f"{unit.name}.weights", statements=(moved,), writes=(moved.target,))
            )


def _operand_at(read: Expr, statement: Statement, element: Expr) -> Read | None:
    """Return the operand of a pointwise statement for an element of its result, None for guarded elements."""
    values = _values(statement, element.indices) if isinstance(element, Read) else None
    if not isinstance(read, Read) or values is None:
        return None
    return evolve(read, indices=tuple(substitute(i, values) for i in read.indices))


def _values(statement: Statement, indices: Sequence[Index]) -> Mapping[Var, Index] | None:
    """Return the axes of a statement for the element at some indices, None where there is no one element."""
    found = solve(list(zip(statement.write, indices, strict=True)), statement.axes)
    return found.values if found is not None and not found.free and not found.guards else None
