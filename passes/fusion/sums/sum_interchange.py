"""Sum interchange: reorders a sum over the results of a product.

    g[i, j] = sum_c x[i, c] * v[j, c];    d[i] = sum_j g[i, j] * w[i, j]
      ->   y[i, c] = sum_j w[i, j] * v[j, c];    d[i] = sum_c x[i, c] * y[i, c]

Both add up the same terms. The operands of d are then as long as a row of x, and y is often available: weights w of
rows v are the result of attention, and its gradient subtracts d from every score. With an infinite x, terms of both
signs are no number in the first form, and d may be infinite in the second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from ....ir import (
    Call,
    Expr,
    Index,
    Read,
    Statement,
    Var,
    as_index,
    expr_variables,
    factors,
    solve,
    substitute,
    substitute_expr,
)


@frozen
class InterchangedSum:
    """An interchanged sum: `total` over the results of `weighted`.

    Both write tensors of their own, under the given names.
    """

    weighted: Statement
    total: Statement


def interchange_sums(total: Statement, product: Statement, name: str) -> InterchangedSum | None:
    """Return a sum over a product's results through weighted sums `name`.

    None where the product's factors are not one that moves along the sum's rows alone and others that move with all
    reduced axes.
    """
    parts = factors(total.body)
    found = [p for p in parts if isinstance(p, Read) and p.tensor == product.target and not p.guards]
    if total.combine != "sum" or product.combine != "sum" or len(found) != 1 or len(parts) < 2:
        return None
    (read,) = found
    assert isinstance(read, Read)
    inner = {v: Var(f"sum{n}", v.extent) for n, v in enumerate(product.reduce)}
    values = _values(product, read)
    if values is None:
        return None
    body = substitute_expr(product.body, {**values, **{old: as_index(new) for old, new in inner.items()}})
    separate = [p for p in factors(body) if not expr_variables(p) & {*total.reduce}]
    moved = [p for p in factors(body) if expr_variables(p) & {*total.reduce}]
    if not separate or not moved or any(not expr_variables(p) & {*inner.values()} for p in moved):
        return None
    rest = [p for p in parts if p is not read]
    place = (*total.write, *map(as_index, inner.values()))
    weighted = Statement(name, (*total.axes, *inner.values()), place, _product([*rest, *moved]), total.reduce, "sum")
    again = _product([*separate, Read(name, place)])
    return InterchangedSum(weighted, evolve(total, body=again, reduce=tuple(inner.values())))


def same_sum(weighted: Statement, statements: Sequence[Statement]) -> Read | None:
    """Return the read of a statement with the same sum, if any.

    It is over the axes of `weighted`; dims of one element may be missing.
    """
    single = {v: Index() for v in weighted.axes if v.extent == 1}
    place = [i for w in weighted.write if (i := substitute(w, single)).terms]
    wanted = Counter(factors(substitute_expr(weighted.body, single)))
    for known in statements:
        plain = known.combine == "sum" and not (known.into or known.step or known.along)
        alone = {v: Index() for v in known.axes if v.extent == 1}
        there = [i for w in known.write if (i := substitute(w, alone)).terms]
        matches = len(there) == len(place) and [v.extent for v in known.reduce] == [v.extent for v in weighted.reduce]
        found = solve(list(zip(there, place, strict=True)), known.axes) if plain and matches else None
        if found is None or found.free or found.guards:
            continue
        rows = dict(zip(known.reduce, map(as_index, weighted.reduce), strict=True))
        if Counter(factors(substitute_expr(known.body, {**found.values, **rows}))) == wanted:
            return Read(known.target, tuple(substitute(w, found.values) for w in known.write))
    return None


def _values(product: Statement, read: Read) -> Mapping[Var, Index] | None:
    """Return the axes of a product for the element that is read."""
    found = solve(list(zip(product.write, read.indices, strict=True)), product.axes)
    return found.values if found is not None and not found.free and not found.guards else None


def _product(parts: Sequence[Expr]) -> Expr:
    """Return the product of some factors."""
    first, *others = parts
    for part in others:
        first = Call("mul", (first, part))
    return first
