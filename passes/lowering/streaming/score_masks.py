"""Masks of scores on indices, applied in the parts that they reach.

    for each part:   z = p if j - i <= offset else -inf
      ->   for each part:   z = p;   where the part reaches beyond the mask:   z = z if j - i <= offset else -inf

A part is a block of rows and columns: the extremes of an index over it depend on the block and the part alone, so that
all threads of a block take the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from math import inf

from attrs import frozen

from ....ir import Convert, Guard, Index, Literal, Op, Test, Value, Var, primary_index, variables


@frozen
class ScoreMask:
    """One bound of an index, beyond which scores are -inf.

    It cuts a part `when` the index passes it.
    """

    bound: Guard
    when: tuple[Guard, ...]


def split_masks(value: Value, places: Collection[Var]) -> tuple[Value, tuple[ScoreMask, ...]]:
    """Return a score without its masks on indices, and these masks.

    `places` are the variables of a part's elements.
    """
    if isinstance(value, Convert) and value.dtype.is_float:
        inner, masks = split_masks(value.arg, places)
        return (inner, masks) if masks else (value, ())
    if not isinstance(value, Op) or value.fn != "select":
        return value, ()
    condition, inner, other = value.args
    if not isinstance(other, Literal) or other.value != -inf or not isinstance(condition, Test):
        return value, ()
    own = score_masks(condition.guards, places)
    if own is None:
        return value, ()
    rest, more = split_masks(inner, places)
    return rest, (*own, *more)


def score_masks(guards: Iterable[Guard], places: Collection[Var]) -> tuple[ScoreMask, ...] | None:
    """Return the bounds of guards.

    None where an index has no extremes over a part.
    """
    found: list[ScoreMask] = []
    for guard in guards:
        if any(not isinstance(p, Var) and variables(primary_index(p)) & {*places} for p, _ in guard.index.terms):
            return None
        found += _bounds(guard, places)
    return tuple(found)


def _bounds(guard: Guard, places: Collection[Var]) -> Iterator[ScoreMask]:
    """Yield the bounds of a guard that some index passes."""
    inside = Index(0, tuple(t for t in guard.index.terms if t[0] in places))
    (least, most), (first, last) = guard.index.bounds(), inside.bounds()
    sides = (
        (Guard(guard.index, least, guard.high), Guard(guard.index - inside + last, guard.high, most + 1)),
        (Guard(guard.index, guard.low, most + 1), Guard(guard.index - inside + first, least, guard.low)),
    )
    for bound, passed in sides:
        if not bound.always:
            yield ScoreMask(bound, () if passed.always else (passed,))
