"""Mask bounds: a chain's mask as lines through rows and keys.

    z[i, j] = s[i, j] if -window < j - i <= offset else -inf
      ->   row i begins at i - window + 1, and ends before i + offset + 1

Only a condition that selects -inf gives a bound: the scores that it masks take no part, even if they are NaN. An added
0 or -inf would propagate NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import inf

from attrs import evolve, frozen

from ...ir import (
    Call,
    Cast,
    Const,
    Expr,
    FusedGroup,
    Guard,
    Index,
    InRange,
    Output,
    Read,
    Segment,
    Var,
    as_index,
    reads,
)
from .row_sharing import split_divisor


@frozen
class MaskBound:
    """Mask bound of a chained contraction's rows.

    In the row that `row`, an axis of the last segment, numbers, all elements other than -inf lie before `(slope * row +
    const) // step + 1`, or from `-(-(slope * row + const) // step)` on where it `begins` rows.
    """

    row: Var
    slope: int
    const: int
    step: int
    begins: bool = False

    def end_of_rows(self, first: Index, rows: int) -> Index:
        """Return the end of `rows` rows that begin at row `first`."""
        last = first + (rows - 1) if self.slope > 0 else first
        return (last * self.slope + self.const) // self.step + 1

    def begin_of_rows(self, first: Index, rows: int) -> Index:
        """Return the begin of `rows` rows that begin at row `first`."""
        least = first if self.slope > 0 else first + (rows - 1)
        return (least * self.slope + self.const + (self.step - 1)) // self.step


def mask_bounds(group: FusedGroup) -> tuple[MaskBound, ...]:
    """Return the mask bounds of a chain's rows.

    There are none where masked elements contribute more than weights of 0.
    """
    return _chain_bounds(group.segments) if len(group.segments) == 3 else ()


@lru_cache(maxsize=4096)
def tile_bounds(segments: tuple[Segment, ...], column: int, rows: tuple[int, int]) -> tuple[MaskBound, ...]:
    """Return the mask bounds of a chain of two segments.

    All its values beyond them are 0.

    `column` is the position of the axis along a row, `rows` those of the row axis in both segments.
    """
    first, last = segments
    found = [dict.fromkeys(_vanishing_conditions(output.body)) for output in first.outputs]
    common = [guard for guard in found[0] if all(guard in other for other in found)]
    key, row = first.axes[column], first.axes[rows[0]]
    return tuple(evolve(b, row=last.axes[rows[1]]) for b in _bounds_of_guards(common, key) if b.row == row)


def _vanishing_conditions(body: Expr) -> Iterator[Guard]:
    """Yield conditions on indices without which a value is 0."""
    if isinstance(body, Cast) and body.dtype.is_float:
        yield from _vanishing_conditions(body.arg)
    elif isinstance(body, Call) and body.fn == "mul":
        for factor in body.args:
            yield from _vanishing_conditions(factor)
    elif isinstance(body, Call) and body.fn == "exp":
        exponent = body.args[0]
        while isinstance(exponent, Cast) or (isinstance(exponent, Call) and exponent.fn == "sub"):
            exponent = exponent.arg if isinstance(exponent, Cast) else exponent.args[0]
        yield from _masks(exponent)


def _bounds_of_guards(guards: Iterable[Guard], key: Var) -> list[MaskBound]:
    """Return the begins and ends of rows that conditions on a row and a key give."""
    found = [b for guard in guards for b in (_bound_of_guard(guard, key), _begin_of_guard(guard, key))]
    return [bound for bound in found if bound is not None]


def _begin_of_guard(guard: Guard, key: Var) -> MaskBound | None:
    """Return the begin of rows that a condition on a row and a key gives."""
    end = _bound_of_guard(guard, key)
    if end is None:
        return None
    const = guard.low - guard.index.const if guard.index.coefficient(key) > 0 else guard.index.const - guard.high + 1
    return evolve(end, const=const, begins=True)


@lru_cache(maxsize=4096)
def _chain_bounds(segments: tuple[Segment, ...]) -> tuple[MaskBound, ...]:
    first, rows, last = segments
    greatest, *others = rows.reductions
    scores = greatest.body
    wide = [o for o in rows.outputs if o.extra]
    weights = (*(r.body for r in others), *(split_divisor(o.body)[0] for o in wide))
    if not isinstance(scores, Read) or len(wide) != 1 or not all(_is_weight(body, scores) for body in weights):
        return ()
    (masked,) = (o for o in first.outputs if o.tensor == scores.tensor)
    at = _read_indices(masked, scores)
    key = next((axis for axis, index in at.items() if index == as_index(greatest.reduce[0])), None)
    (weight,) = {r for body in last.expressions for r in reads(body) if r.tensor == wide[0].tensor}
    weight_at = _read_indices(wide[0], weight)
    found = []
    for edge in _bounds_of_guards(_masks(masked.body), key) if key is not None else ():
        rows_axis = _axis(at.get(edge.row))
        row = _axis(weight_at.get(rows_axis)) if rows_axis is not None else None
        found += [evolve(edge, row=row)] if row is not None else []
    return tuple(found)


def _read_indices(output: Output, read: Read) -> dict[Var, Index]:
    """Return, for each axis that numbers a dim of an output, the index at which a later segment reads it."""
    pairs = zip(map(_axis, output.write), read.indices, strict=True)
    return {axis: index for axis, index in pairs if axis is not None}


def _axis(index: Index | None) -> Var | None:
    """Return the variable that an index equals, None for other indices."""
    primary = index.terms[0][0] if index is not None and len(index.terms) == 1 else None
    return primary if isinstance(primary, Var) and index == as_index(primary) else None


def _is_weight(body: Expr, scores: Read) -> bool:
    """Return whether a body is exactly the exponential of a difference from a score."""
    return isinstance(body, Call) and body.fn == "exp" and isinstance(b := body.args[0], Call) and b.args[0] == scores


def _masks(body: Expr) -> Iterator[Guard]:
    """Yield conditions on indices without which a score is -inf."""
    while isinstance(body, Call) and body.fn == "select":
        condition, body, other = body.args
        if not isinstance(other, Const) or other.value != -inf:
            return
        if isinstance(condition, InRange):
            yield from condition.guards


def _bound_of_guard(guard: Guard, key: Var) -> MaskBound | None:
    """Return the mask bound that a condition on a row and a key gives."""
    terms = dict(guard.index.terms)
    step = terms.pop(key, 0)
    if not step or len(terms) != 1:
        return None
    ((row, factor),) = terms.items()
    if not isinstance(row, Var):
        return None
    if step > 0:
        return MaskBound(row, -factor, guard.high - 1 - guard.index.const, step)
    return MaskBound(row, factor, guard.index.const - guard.low, -step)
