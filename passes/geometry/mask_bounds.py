"""Mask bounds: a chain's mask as lines through rows and keys.

    z[i, j] = s[i, j] if -window < j - i <= offset else -inf
      ->   row i begins at i - window + 1, and ends before i + offset + 1

A bound may add an integer that only the device knows, such as the position of a token in a cache:

    z[i, j] = s[i, j] if j <= i + p[] else -inf   ->   row i ends before i + p[] + 1

Only a condition that selects -inf gives a bound: the scores that it masks take no part, even if they are NaN. An added
0 or -inf would propagate NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import inf

from attrs import evolve, frozen

from ...ir import (
    ZERO,
    Call,
    Cast,
    Const,
    Expr,
    FusedGroup,
    Guard,
    Index,
    IndexValue,
    Indirect,
    InRange,
    Output,
    Read,
    Segment,
    Var,
    as_index,
    reads,
)
from .row_sharing import split_divisor

#: Comparisons of two numbers: the sign of the second one less the first one, and the least value of that.
COMPARISONS = {"le": (1, 0), "lt": (1, 1), "ge": (-1, 0), "gt": (-1, 1)}
#: Limits of an integer of a tensor, and of a difference: ends of ranges that limit nothing.
MAX_INTEGER, MAX_DIFFERENCE = 1 << 30, 1 << 62

#: The row of a bound that all rows have.
ONE_ROW = Var("row", 1)


@frozen
class MaskBound:
    """Mask bound of a chained contraction's rows.

    In the row that `row`, an axis of the last segment, numbers, all elements other than -inf lie before `(slope * row +
    const + data) // step + 1`, or from `-(-(slope * row + const) // step)` on where it `begins` rows. `data` is a sum
    of integers of tensors. Where all rows have one bound, the slope is 0 and `row` is `ONE_ROW`.
    """

    row: Var
    slope: int
    const: int
    step: int
    begins: bool = False
    data: Index = ZERO

    def end_of_rows(self, first: Index, rows: int) -> Index:
        """Return the end of `rows` rows that begin at row `first`."""
        last = first + (rows - 1) if self.slope > 0 else first
        return (last * self.slope + self.const + self.data) // self.step + 1

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
    rises = guard.index.coefficient(key) > 0
    row = _row_of_guard(guard, key)
    if row is None or row.data != ZERO or (guard.low <= -MAX_DIFFERENCE if rises else guard.high >= MAX_DIFFERENCE):
        return None
    const = guard.low - guard.index.const if rises else guard.index.const - guard.high + 1
    return evolve(row, const=const, begins=True)


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
        if edge.row == ONE_ROW:
            found.append(edge)
            continue
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
        yield from _conditions(condition)


def _conditions(condition: Expr) -> Iterator[Guard]:
    """Yield the conditions on indices, and on integers of tensors, that a condition implies."""
    if isinstance(condition, InRange):
        yield from condition.guards
    elif isinstance(condition, Call) and condition.fn == "and":
        for part in condition.args:
            yield from _conditions(part)
    elif isinstance(condition, Call) and condition.fn in COMPARISONS:
        sign, least = COMPARISONS[condition.fn]
        first, second = map(_integer, condition.args)
        if first is not None and second is not None:
            yield Guard((second - first) * sign, least, MAX_DIFFERENCE)


def _integer(value: Expr) -> Index | None:
    """Return an integer as an index of axes and of single elements of tensors."""
    if isinstance(value, IndexValue):
        return value.index
    if isinstance(value, Const) and isinstance(value.value, int):
        return Index(value.value)
    if isinstance(value, Read) and not value.guards and all(index.is_const for index in value.indices):
        return Index(0, ((Indirect(value.tensor, value.indices, MAX_INTEGER), 1),))
    if isinstance(value, Call) and value.fn in ("add", "sub"):
        first, second = map(_integer, value.args)
        if first is not None and second is not None:
            return first + second if value.fn == "add" else first - second
    return None


def _bound_of_guard(guard: Guard, key: Var) -> MaskBound | None:
    """Return the end of rows that a condition on a row and a key gives."""
    rises = guard.index.coefficient(key) > 0
    row = _row_of_guard(guard, key)
    if row is None or (guard.high >= MAX_DIFFERENCE if rises else guard.low <= -MAX_DIFFERENCE):
        return None
    return evolve(row, const=guard.high - 1 - guard.index.const if rises else guard.index.const - guard.low)


def _row_of_guard(guard: Guard, key: Var) -> MaskBound | None:
    """Return the mask bound without its constant that a condition on a row and a key gives.

    Integers of tensors are read as places, a negative one as a great one, so that a bound only adds them: it may be too
    far, never too near.
    """
    terms = dict(guard.index.terms)
    step = terms.pop(key, 0)
    sign = -1 if step > 0 else 1
    read = [(primary, factor * sign) for primary, factor in terms.items() if isinstance(primary, Indirect)]
    rows = [(primary, factor * sign) for primary, factor in terms.items() if isinstance(primary, Var)]
    if not step or len(rows) > 1 or len(read) + len(rows) < len(terms) or any(f < 0 for _, f in read):
        return None
    if not rows and not read:
        return None
    row, slope = rows[0] if rows else (ONE_ROW, 0)
    return MaskBound(row, slope, 0, abs(step), data=Index(0, tuple(read)))
