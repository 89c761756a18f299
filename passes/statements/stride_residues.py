"""Stride residues: sums over every n-th term skip the others.

A transposed convolution tests for each tap whether it lies on a stride; with a stride of two in two directions three of
four do not:

    y[o] = sum[c < C, r < R] x[c, (o + 1 - r) // 2] * w[c, r] if (o + 1 - r) % 2 == 0 else 0

The remaining taps depend on the residue of `o` alone: for `o = 2*t + i` they are `r = 2*q + 1 - i`. Where each residue
leaves as many taps, and has as many elements, residues are an axis, and the result is a convolution like any other:

    y[2*t + i] = sum[c < C, q < R // 2] x[c, t + i - q] * w[c, 2*q + 1 - i]

Else there is a statement for each residue, over its own terms. These write one tensor in pieces, as gradients of
strided reads do. Only elementwise statements are fused with them (`pieces`), so only sums are split that also run over
enough other terms to be limited by arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import gcd, prod

from attrs import evolve, frozen

from ...ir import (
    Call,
    Const,
    Expr,
    Guard,
    Index,
    InRange,
    Program,
    Statement,
    Var,
    as_index,
    congruence,
    primary_index,
    substitute,
    substitute_expr,
)
from ...ops.language import split_axis
from .match import Match
from .patterns import anything, fn, number, reduction
from .rewriter import RewriteRule, rewrite_program

#: Most statements that one becomes, and fewest terms over axes without conditions.
MAX_PIECES, MIN_TERMS = 16, 8


@frozen
class _Condition:
    """`(factor * var + rest) % period == 0` for a reduced variable, which occurs nowhere else in it; without a variable
    only the residue of axes decides.
    """

    var: Var | None
    factor: int
    rest: Index
    period: int


@frozen
class _Split:
    """The sum over terms that satisfy all but its conditions on residues, and the periods of these along axes."""

    kept: Statement
    conditions: tuple[_Condition, ...]
    periods: Mapping[Var, int]
    is_even: bool
    zero: Const


TESTED_SUM = reduction("sum", fn("select", anything("condition"), anything("term"), number("zero", 0)))


def split_residues(program: Program) -> Program:
    """Return the program with sums that test residues split by them."""
    return rewrite_program(program, RewriteRule(TESTED_SUM, _split, _split_sum))


def _split(match: Match) -> _Split | None:
    """Return the residues that a sum tests, if others of its terms are enough and its pieces are few."""
    statement, zero = match.root, match.get("zero", Const)
    guards = list(_conjuncts(match.expr("condition")))
    if None in guards:
        return None
    conditions: list[_Condition] = []
    other: list[Guard] = []
    for guard in (g for g in guards if g is not None):
        known = _condition(guard, statement)
        if known is None or (known.var is not None and known.var in [each.var for each in conditions]):
            other.append(guard)
        else:
            conditions.append(known)
    thinned = {c.var for c in conditions}
    if not conditions or prod(v.extent for v in statement.reduce if v not in thinned) < MIN_TERMS:
        return None
    periods = {axis: _period(axis, conditions) for axis in statement.axes}
    is_even = _is_even(conditions, periods)
    body = Call("select", (InRange(tuple(other)), match.expr("term"), zero)) if other else match.expr("term")
    few = is_even or prod(periods.values()) <= MAX_PIECES
    return _Split(evolve(statement, body=body), tuple(conditions), periods, is_even, zero) if few else None


def _split_sum(match: Match, found: _Split) -> Iterable[Statement]:
    """Return one statement with an axis for residues, or a statement for each residue."""
    if found.is_even:
        return [_fold_residues(found.kept, found.conditions, found.periods)]
    return _pieces(found)


def _pieces(found: _Split) -> Iterator[Statement]:
    """Yield the statement of each residue of the axes that has elements."""
    statement, periods = found.kept, found.periods
    for residues in product(*(range(periods[axis]) for axis in statement.axes)):
        firsts = dict(zip(statement.axes, residues, strict=True))
        turns = {axis: Var(axis.name, -(-(axis.extent - first) // periods[axis])) for axis, first in firsts.items()}
        if all(turn.extent > 0 for turn in turns.values()):
            moved = {axis: as_index(turns[axis]) * periods[axis] + first for axis, first in firsts.items()}
            whole = evolve(
                statement,
                axes=tuple(turns.values()),
                write=tuple(substitute(index, dict(moved)) for index in statement.write),
                body=substitute_expr(statement.body, moved),
            )
            yield _single_residue(whole, found.conditions, moved, found.zero)


def _is_even(conditions: Sequence[_Condition], periods: Mapping[Var, int]) -> bool:
    """Return whether every residue of the axes leaves as many terms, and has as many elements."""
    reduced = all(c.var is not None and c.var.extent % c.period == 0 == gcd(c.factor, c.period) - 1 for c in conditions)
    return reduced and all(axis.extent % period == 0 for axis, period in periods.items())


def _fold_residues(statement: Statement, conditions: Sequence[_Condition], periods: Mapping[Var, int]) -> Statement:
    """Return one statement, with an axis for the residues of each axis, over the remaining terms."""
    left: dict[Var, Var] = {}
    reduced: dict[Var, Index] = {}
    for condition in conditions:
        var, period = condition.var, condition.period
        assert var is not None
        left[var] = Var(var.name, var.extent // period)
        reduced[var] = as_index(left[var]) * period + _first_of_all(condition)
    reduce = tuple(left.get(v, v) for v in statement.reduce)
    found = evolve(statement, body=substitute_expr(statement.body, reduced), reduce=reduce)
    for axis, period in periods.items():
        found = split_axis(found, axis, period) if period > 1 else found
    return found


def _first_of_all(condition: _Condition) -> Index:
    """Return the least value of the variable for which a condition holds, for any residue of the axes.

    It is written with a quotient, not as a remainder, so that a later division by the period leaves neither.
    """
    turn, period = -pow(condition.factor, -1, condition.period), condition.period
    value = Index(condition.rest.const * turn % period)
    for primary, factor in condition.rest.terms:
        value += primary_index(primary) * (factor * turn % period)
    return value - value // period * period


def _conjuncts(condition: Expr) -> Iterator[Guard | None]:
    """Yield the guards of a conjunction, none for another condition."""
    if isinstance(condition, InRange):
        yield from condition.guards
    elif isinstance(condition, Call) and condition.fn == "and":
        for part in condition.args:
            yield from _conjuncts(part)
    else:
        yield None


def _condition(guard: Guard, statement: Statement) -> _Condition | None:
    """Return a guard as a condition on a residue."""
    found = congruence(guard)
    if found is None:
        return None
    index, period = found
    known = {*statement.axes, *statement.reduce}
    reduced = [(p, f) for p, f in index.terms if p in statement.reduce]
    if len(reduced) > 1 or any(p not in known for p, _ in index.terms):
        return None
    if not reduced:
        return _Condition(None, 0, index, period)
    var, factor = reduced[0]
    assert isinstance(var, Var)
    return _Condition(var, factor, index - as_index(var) * factor, period)


def _period(axis: Var, conditions: Sequence[_Condition]) -> int:
    """Return the period of all conditions along an axis."""
    found = 1
    for condition in conditions:
        factor = next((f for p, f in condition.rest.terms if p == axis), 0)
        own = condition.period // gcd(factor, condition.period)
        found = found * own // gcd(found, own)
    return found


def _single_residue(
    piece: Statement, conditions: Sequence[_Condition], moved: Mapping[Var, Index], zero: Const
) -> Statement:
    """Return the statement for one residue of each axis over the remaining terms, or zero where none remains."""
    left = {v: v for v in piece.reduce}
    reduced: dict[Var, Index] = {}
    for condition in conditions:
        residue = _residue(substitute(condition.rest, dict(moved)), condition.period)
        first, step = _first_match(condition, residue)
        extent = 1 if condition.var is None else condition.var.extent
        if first is None or first >= extent:
            return evolve(piece, body=zero, reduce=(), combine=None)
        if condition.var is not None:
            left[condition.var] = Var(condition.var.name, -(-(extent - first) // step))
            reduced[condition.var] = as_index(left[condition.var]) * step + first
    return evolve(piece, body=substitute_expr(piece.body, reduced), reduce=tuple(left.values()))


def _residue(rest: Index, period: int) -> int:
    """Return the remainder of an index, which is the same for all values of its variables."""
    assert all(factor % period == 0 for _, factor in rest.terms), f"{rest} has more than one residue of {period}"
    return rest.const % period


def _first_match(condition: _Condition, residue: int) -> tuple[int | None, int]:
    """Return the least value of the variable for which a condition holds, none where there is none, and the step to the
    next.
    """
    common = gcd(condition.factor, condition.period)
    step = condition.period // common
    if residue % common:
        return None, step
    return -(residue // common) * pow(condition.factor // common, -1, step) % step, step
