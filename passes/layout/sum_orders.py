"""Order of reduced axes for the policy `batch-invariant`.

Layouts follow from sizes, and orders of reduced axes from layouts. Here they follow from accesses: axes of windows come
before others, whose elements then are neighbours where channels lie innermost.

    sum over c, r, s of x[n, c, p + r, q + s] * f[k, c, r, s]    ->    sum over r, s, c of the same
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from attrs import evolve

from ...ir import Primary, Statement, Var, reads
from ..fusion import Programs, Unit


def order_sums(declared: Programs, ordered: Programs) -> Programs:
    """Return ordered programs with the sums of their declarations, windows first."""
    known = {unit.name: unit.statements for unit in declared.units}

    def unit(new: Unit) -> Unit:
        before = known.get(new.name, ())
        if len(before) != len(new.statements):
            return new
        pairs = zip(before, new.statements, strict=True)
        return evolve(new, statements=tuple(_with_order(old, statement) for old, statement in pairs))

    return evolve(ordered, units=tuple(map(unit, ordered.units)))


def _with_order(old: Statement, new: Statement) -> Statement:
    """Return a statement with the reduced axes of its declaration, those of windows first."""
    if {*old.reduce} != {*new.reduce} or len(new.reduce) < 2:
        return new
    steps = [dict(index.terms) for read in reads(new.body) for index in read.indices]

    def slides(axis: Var) -> bool:
        return any(axis in found and _overlaps(axis, found, new.reduce) for found in steps)

    return evolve(new, reduce=tuple(sorted(old.reduce, key=lambda axis: not slides(axis))))


def _overlaps(axis: Var, steps: Mapping[Primary, int], reduce: Collection[Var]) -> bool:
    """Return whether places of a reduced axis reach into those of a next window.

    A batch and an axis of its rows do not overlap in one dim, and no dim has both in a batch of one.
    """
    reach = abs(steps[axis]) * (axis.extent - 1)
    return any(isinstance(v, Var) and v not in reduce and abs(step) <= reach for v, step in steps.items())
