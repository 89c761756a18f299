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

from math import prod

from attrs import evolve, frozen

from ....ir import Call, Expr, Read, Statement, reads, rebuild, substitute_expr, variables
from ...statements import (
    DefinedElement,
    DefUse,
    Edit,
    Factor,
    Guarded,
    Match,
    NewUnit,
    Programs,
    RewriteRule,
    Unit,
    anything,
    axis_values,
    fn,
    pointwise,
    reduction,
    rewrite,
)

#: Fewest weights of a row whose store is worth avoiding.
MIN_WEIGHTS = 16

SHIFTED_SCORE = anything() - Guarded(reduction("max", anything(), "greatest"))
TOTAL = reduction("sum", pointwise(fn("exp", SHIFTED_SCORE), "term"), "total")
WEIGHTS = pointwise(pointwise(fn("exp", SHIFTED_SCORE), "exponential") / Guarded(TOTAL, "divisor"), "weights")
WEIGHTED_SUM = reduction("sum", Factor(WEIGHTS))


def defer_normalisation(programs: Programs) -> Programs:
    """Return programs in which exponentials are normalised after the weighted sum."""
    return rewrite(programs, RewriteRule(WEIGHTED_SUM, _row_sum, _divide))


@frozen
class _RowSum:
    """The sum of the rows and the exponentials, over operands that are not computed elementwise beside them."""

    total: Statement
    weights: Statement


def _row_sum(match: Match) -> _RowSum | None:
    """Return the sum and the weights of a weighted sum, if nothing else reads the weights and the exponentials."""
    weighted, index, divisor = match.root, match.index, match.get("total", DefinedElement)
    weights, total, exponential = (match.statement(name) for name in ("weights", "total", "exponential"))
    own, unit = (weights, total, exponential), index.unit_of(total)
    alone = index.is_only_read_by(weights.target, [weighted]) and match.statement("term") == exponential
    if not alone or not index.is_only_read_by(exponential.target, [total, weights]):
        return None
    if unit is None or not {*own} <= {*unit.statements} or weights.target not in unit.writes:
        return None
    if any(s.is_pointwise and s.target in unit.writes for s in unit.statements if s not in own):
        return None  # only sums would read the unit's results, without a statement of each instance
    along = {v for i in divisor.read.indices for v in variables(i)} & {*weighted.reduce}
    wide = all(_is_wide(s.target, index) for s in (weighted, match.statement("greatest"), *own))
    if along or not wide or prod(v.extent for v in total.reduce) < MIN_WEIGHTS or not isinstance(weights.body, Call):
        return None
    terms, weight = (_inlined_body(body, unit, index) for body in (total.body, weights.body.args[0]))
    return None if terms is None or weight is None else _RowSum(evolve(total, body=terms), evolve(weights, body=weight))


def _inlined_body(body: Expr, unit: Unit, index: DefUse) -> Expr | None:
    """Return an expression over results of reductions and of other units: elementwise statements of the unit are
    inlined. None where a read is guarded or of another element.
    """
    makers = {s.target: s for s in unit.statements if s.is_pointwise}
    found: dict[Expr, Expr] = {}
    for read in reads(body):
        if read.tensor in makers:
            values = axis_values(makers[read.tensor], read.indices)
            body_there = None if values is None else substitute_expr(makers[read.tensor].body, values)
            inner = None if body_there is None or read.guards else _inlined_body(body_there, unit, index)
            if inner is None or not _is_wide(read.tensor, index):
                return None
            found[read] = inner
    return rebuild(body, lambda node: found.get(node, node))


def _is_wide(tensor: str, index: DefUse) -> bool:
    """Return whether a tensor is stored in the type of its sums."""
    dtype = index.types[tensor].dtype
    return dtype.is_float and dtype.accumulator is dtype


def _divide(match: Match, found: _RowSum) -> Edit:
    """Return exponentials instead of weights, in a unit of their own, and the quotient of the weighted sum."""
    weighted, index = match.root, match.index
    name = index.add_tensor(f"{weighted.target}.weighted", index.types[weighted.target])
    quotient = Call("div", (Read(name, weighted.write), match.expr("divisor")))
    return {
        match.statement("weights"): [],
        match.statement("exponential"): [],
        match.statement("total"): [found.total, NewUnit("weights", (found.weights,))],
        weighted: [evolve(weighted, target=name), evolve(weighted, body=quotient, reduce=(), combine=None)],
    }
