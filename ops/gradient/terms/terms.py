"""Terms of gradients, and products over separate ranges.

Slices of one tensor that are multiplied separately, such as the gates of a recurrence, give its gradient a sum of
products, each zero outside of its slice. Added up everywhere, they would cost as many times the work as there are
slices:

    dr[j] = sum (a[q, j] outside 0 * h[q]) + sum (b[q, j - 8] outside 0 * h[q])
      ->   dr[j] = sum (a[q, j] * h[q])  for j < 8;   dr[j + 8] = sum (b[q, j] * h[q])  for j < 8
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from attrs import evolve, frozen

from ....ir import Expr, Guard, Index, Read, Var, as_index, reads, rebuild, substitute, substitute_expr
from .conditions import vanishes


@frozen
class Term:
    """Part of a gradient: the sum of `body` over `free`.

    It holds at `element`, for all `axes`.
    """

    axes: tuple[Var, ...]
    element: tuple[Index, ...]
    body: Expr
    free: tuple[Var, ...] = ()


def split_ranges(terms: Sequence[Term], contracts: Callable[[Term], bool]) -> tuple[Term, ...]:
    """Return terms over separate ranges of an axis.

    There is one for each product that is zero elsewhere. The result is empty where ranges overlap or leave elements
    out.
    """
    if len(terms) < 2 or len({t.axes for t in terms}) > 1 or not all(map(contracts, terms)):
        return ()
    for axis in terms[0].axes:
        found = [next(_ranges(term, axis), None) for term in terms]
        ranges = sorted(r for r in found if r is not None)
        ends = [0, *(end for _, end in ranges)]
        if len(ranges) == len(terms) and [start for start, _ in ranges] == ends[:-1] and ends[-1] == axis.extent:
            return tuple(_restrict(t, axis, *r) for t, r in zip(terms, found, strict=True) if r is not None)
    return ()


def _ranges(term: Term, axis: Var) -> Iterator[tuple[int, int]]:
    """Yield ranges of an axis outside which a term is zero by one guard."""
    for guard in dict.fromkeys(g for read in reads(term.body) for g in read.guards):
        distance = guard.index - as_index(axis)
        if distance.is_const and vanishes(term.body, guard):
            low, high = max(0, guard.low - distance.const), min(axis.extent, guard.high - distance.const)
            if low < high:
                yield low, high


def _restrict(term: Term, axis: Var, start: int, end: int) -> Term:
    """Return a term over a range of an axis, without guards that always hold there."""
    part = Var(axis.name, end - start)
    moved = {axis: as_index(part) + start}

    def leaf(node: Expr) -> Expr:
        return evolve(node, guards=_unmet_guards(node.guards)) if isinstance(node, Read) else node

    axes = tuple(part if a == axis else a for a in term.axes)
    element = tuple(substitute(index, moved) for index in term.element)
    return Term(axes, element, rebuild(substitute_expr(term.body, moved), leaf), term.free)


def _unmet_guards(guards: Sequence[Guard]) -> tuple[Guard, ...]:
    return tuple(guard for guard in guards if not guard.always)
