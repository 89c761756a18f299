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

Where the stride of a convolution is greater than its filters, one such piece of its gradient is a sum and all others
are zero. The sum is then a dense tensor of its own, and an elementwise statement spreads it: it fuses with readers of
the whole, and writes whole lines, where kernels for pieces would write scattered elements:

    dx[2*t] = sum[k] w[k] * dy[k, t];   dx[2*t + 1] = 0
      ->   p[t] = sum[k] w[k] * dy[k, t];   dx[i] = p[i // 2] if i % 2 == 0 else 0
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    Mod,
    Program,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    primary_index,
    substitute,
    substitute_expr,
)
from ...ops.language import canonicalise, split_axis, unused_name

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


def split_residues(program: Program) -> Program:
    """Return the program with sums that test residues split by them."""
    pieces = [tuple(_pieces(s, program)) or (s,) for s in program.statements]
    return evolve(program, statements=tuple(s for each in pieces for s in each))


def _pieces(statement: Statement, program: Program) -> Iterator[Statement]:
    """Yield the statements that replace one, nothing where it stays."""
    if statement.combine != "sum" or statement.step is not None or statement.into is not None:
        return
    found = _split_conditions(statement)
    if found is None:
        return
    conditions, other, body, zero = found
    thinned = {c.var for c in conditions}
    if not conditions or prod(v.extent for v in statement.reduce if v not in thinned) < MIN_TERMS:
        return
    periods = {axis: _period(axis, conditions) for axis in statement.axes}
    kept = Call("select", (InRange(tuple(other)), body, zero)) if other else body
    if _is_even(conditions, periods):
        yield _fold_residues(evolve(statement, body=kept), conditions, periods)
        return
    if prod(periods.values()) > MAX_PIECES:
        return
    for residues in product(*(range(periods[axis]) for axis in statement.axes)):
        turns = {
            axis: Var(axis.name, -(-(axis.extent - first) // periods[axis]))
            for axis, first in zip(statement.axes, residues, strict=True)
        }
        if all(turn.extent > 0 for turn in turns.values()):
            moved = {
                axis: as_index(turns[axis]) * periods[axis] + first
                for axis, first in zip(statement.axes, residues, strict=True)
            }
            whole = evolve(
                statement,
                axes=tuple(turns.values()),
                write=tuple(substitute(index, dict(moved)) for index in statement.write),
                body=substitute_expr(kept, moved),
            )
            yield _single_residue(whole, conditions, moved, zero)


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


def _split_conditions(statement: Statement) -> tuple[list[_Condition], list[Guard], Expr, Const] | None:
    """Return the residue conditions of a sum, its other conditions, the term where they hold, and the zero where they
    do not; none for other forms.
    """
    body = statement.body
    if not (isinstance(body, Call) and body.fn == "select"):
        return None
    condition, inner, zero = body.args
    guards = list(_conjuncts(condition))
    if not (isinstance(zero, Const) and zero.value == 0) or None in guards:
        return None
    found: list[_Condition] = []
    other: list[Guard] = []
    for guard in (g for g in guards if g is not None):
        known = _condition(guard, statement)
        if known is None or (known.var is not None and known.var in [each.var for each in found]):
            other.append(guard)
        else:
            found.append(known)
    return found, other, inner, zero


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
    if (guard.low, guard.high) != (0, 1) or guard.index.const or len(guard.index.terms) != 1:
        return None
    primary, times = guard.index.terms[0]
    if not isinstance(primary, Mod) or times != 1:
        return None
    known = {*statement.axes, *statement.reduce}
    reduced = [(p, f) for p, f in primary.num.terms if p in statement.reduce]
    if len(reduced) > 1 or any(p not in known for p, _ in primary.num.terms):
        return None
    if not reduced:
        return _Condition(None, 0, primary.num, primary.den)
    var, factor = reduced[0]
    assert isinstance(var, Var)
    return _Condition(var, factor, primary.num - as_index(var) * factor, primary.den)


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
        first, step = _first(condition, residue)
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


def _first(condition: _Condition, residue: int) -> tuple[int | None, int]:
    """Return the least value of the variable for which a condition holds, none where there is none, and the step to the
    next.
    """
    common = gcd(condition.factor, condition.period)
    step = condition.period // common
    if residue % common:
        return None, step
    return -(residue // common) * pow(condition.factor // common, -1, step) % step, step


# ---- one piece among zeros


def separate_lone_pieces(program: Program) -> Program:
    """Return the program with lone sums as dense tensors.

    Separate statements spread them.
    """
    tensors, statements = dict(program.tensors), list(program.statements)
    for target in dict.fromkeys(s.target for s in program.statements):
        pieces = [s for s in program.statements if s.target == target]
        found = _lone(pieces)
        if found is None:
            continue
        name = unused_name(f"{target}_piece", tensors)
        type_ = program.tensors[target]
        tensors[name] = TensorType(type_.dtype, tuple(a.extent for a in found.axes))
        alone = evolve(found, target=name, write=tuple(map(as_index, found.axes)))
        last = statements.index(pieces[-1])
        statements[last : last + 1] = [pieces[-1], alone, canonicalise(_spread_statement(found, name, type_))]
        statements = [s for s in statements if s not in pieces]
    return evolve(program, tensors=tensors, statements=tuple(statements))


def _lone(pieces: Sequence[Statement]) -> Statement | None:
    """Return the piece that is a long sum, written at multiples of its axes, where all others are zero."""
    sums = [s for s in pieces if s.combine == "sum" and prod(v.extent for v in s.reduce) >= MIN_TERMS]
    others = [s for s in pieces if s not in sums]
    if len(sums) != 1 or not others or any(s.step is not None or s.into is not None for s in pieces):
        return None
    (found,) = sums
    if not all(s.is_pointwise and isinstance(s.body, Const) and s.body.value == 0 for s in others):
        return None
    places = [_place(index) for index in found.write]
    used = [var for place in places if place is not None for var in place[:1] if var is not None]
    return found if None not in places and sorted(used, key=str) == sorted(found.axes, key=str) else None


def _place(index: Index) -> tuple[Var | None, int] | None:
    """Return the variable of an index `n * v + first`, with n; no variable for a constant."""
    if not index.terms:
        return None, 1
    (primary, factor), *rest = index.terms
    return (primary, factor) if isinstance(primary, Var) and factor > 0 and not rest else None


def _spread_statement(piece: Statement, name: str, type_: TensorType) -> Statement:
    """Return the statement that writes a whole tensor from its only piece that is not zero."""
    axes = tuple(Var(f"e{n}", extent) for n, extent in enumerate(type_.shape))
    tests: list[Guard] = []
    values: dict[Var, Index] = {}
    for axis, index in zip(axes, piece.write, strict=True):
        place = _place(index)
        assert place is not None
        var, factor = place
        moved = as_index(axis) - index.const
        if var is None:
            tests.append(Guard(moved, 0, 1))
            continue
        values[var] = moved // factor
        tests += [Guard(moved % factor, 0, 1), Guard(values[var], 0, var.extent)]
    kept = tuple(test for test in tests if not test.always)
    body = Read(name, tuple(values[a] for a in piece.axes), kept, 0.0)
    wide = tuple(a for a in axes if a.extent > 1)
    write = tuple(as_index(a) if a.extent > 1 else as_index(0) for a in axes)
    return Statement(piece.target, wide, write, body, span=piece.span)
