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

from math import prod

from attrs import evolve

from ....ir import Call, Const, Expr, Read, Statement, distinct, dtype_of, indirects, substitute_expr
from ...statements import (
    Converted,
    DefUse,
    Edit,
    Match,
    NewUnit,
    Programs,
    RewriteRule,
    axis_values,
    element,
    fn,
    number,
    pointwise,
    read_of,
    reduction,
    rewrite,
)

#: First terms of at least this size are not subtracted.
_MAX_SHIFT = 2.0**64

TOTAL = reduction("sum", Converted(element("x")))


def shift_means(programs: Programs) -> Programs:
    """Return programs in which means for centring are sums of differences."""
    return rewrite(programs, RewriteRule(TOTAL, _centring_means, _shift))


def find_means(total: Statement, index: DefUse) -> tuple[Match, ...]:
    """Return the readers of a sum, if each makes its mean.

    Each captures its operand as `sum`."""
    mean = pointwise(element("sum") / number("count", prod(r.extent for r in total.reduce)))
    found = [mean.match_statement(reader, index) for reader in index.uses.get(total.target, ())]
    means = tuple(m for m in found if m is not None and m.get("sum", Read).tensor == total.target)
    return means if len(means) == len(found) and total.target not in index.pinned else ()


def _centring_means(match: Match) -> tuple[Match, ...] | None:
    """Return the means of a sum, if each is subtracted from the values, and all are in one unit."""
    total, index, x = match.root, match.index, match.get("x", Read)
    means, unit = find_means(total, index), index.unit_of(total)
    plain = index.types[total.target].dtype.is_float and not any(map(indirects, x.indices))
    own = unit is not None and all(m.root in unit.statements and _centres(m.root, x, index) for m in means)
    places = all(axis_values(total, m.get("sum", Read).indices) is not None for m in means)
    return means if means and plain and own and places else None


def _centres(mean: Statement, x: Read, index: DefUse) -> bool:
    """Return whether a statement subtracts a mean from values of a tensor."""
    difference = fn("sub", Converted(read_of(x.tensor)), Converted(read_of(mean.target)))
    readers = (r for r in index.uses.get(mean.target, ()) if index.unit_of(r) is not None)
    return any(difference.match(node, Match(r, index)) is not None for r in readers for node in distinct(r.body))


def _shift(match: Match, means: tuple[Match, ...]) -> Edit:
    """Return the sum of differences from the first term, and the means that add this term again."""
    total, first = match.root, _first_term(match)
    edit: dict[Statement, list[Statement | NewUnit]] = {total: [evolve(total, body=Call("sub", (total.body, first)))]}
    for mean in means:
        values = axis_values(total, mean.get("sum", Read).indices)
        assert values is not None, "checked by the guard"
        edit[mean.root] = [evolve(mean.root, body=Call("add", (substitute_expr(first, values), mean.root.body)))]
    return edit


def _first_term(match: Match) -> Expr:
    """Return the first term of a sum where it may be subtracted from the others, else 0."""
    first = substitute_expr(match.root.body, dict.fromkeys(match.root.reduce, 0))
    dtype = dtype_of(first, match.index.types)
    return Call("select", (Call("lt", (Call("abs", (first,)), Const(_MAX_SHIFT, dtype))), first, Const(0.0, dtype)))
