"""Stride residues: sums over every n-th value of a variable.

They are rewritten as sums over those values.

    sum[r < 8] ((x[(r - i) // 2] outside 0 * y[r]) if (r - i) % 2 == 0 else 0)   ->   sum[q < 4] (x[q] * y[2 * q + i])

is the filter gradient of a transposed convolution: r = 2 * q + i, where q runs over the elements of x, as beyond them
the product is 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from ....ir import (
    ZERO,
    Expr,
    Guard,
    Index,
    Read,
    Var,
    as_index,
    congruence,
    substitute_expr,
    substitute_guards,
    variables,
    walk,
)
from .conditions import vanishes


@frozen
class Summand:
    """Summand over `free`: `core` under all tests and guards, else 0."""

    core: Expr
    tests: tuple[Expr, ...]
    guards: tuple[Guard, ...]
    free: tuple[Var, ...]

    def with_value(self, var: Var, value: Index, free: Sequence[Var], guards: Sequence[Guard]) -> Summand:
        """Return the summand with a value for a variable."""
        values = {var: value}
        tests = tuple(substitute_expr(t, values) for t in self.tests)
        left = tuple(v for v in self.free if v != var)
        return Summand(
            substitute_expr(self.core, values), tests, substitute_guards(tuple(guards), values), (*left, *free)
        )


def solve_congruences(summand: Summand) -> Summand:
    """Solve congruences of summed variables.

    They are guards of the form `(v + e) mod n = 0`. Each leaves a sum over one n-th of the values.
    """
    for guard in summand.guards:
        solution = _solution(guard, summand.free)
        if solution is None:
            continue
        var, value, turn = solution
        others = [g for g in summand.guards if g != guard]
        moved = summand.with_value(
            var, value, [turn] if turn.extent > 1 else [], [*others, Guard(as_index(var), 0, var.extent)]
        )
        return solve_congruences(_within_reads(moved, turn) if turn.extent > 1 else moved)
    return summand


def _solution(guard: Guard, free: Sequence[Var]) -> tuple[Var, Index, Var] | None:
    """Return the variable that a guard determines up to a multiple, its value, and the new variable in it."""
    found = congruence(guard)
    if found is None:
        return None
    base, period = found
    for var, sign in base.terms:
        if isinstance(var, Var) and var in free and abs(sign) == 1 and var.extent > 1:
            rest = base - as_index(var) * sign
            if var in variables(rest):
                continue
            low, high = base.bounds()
            first, last = -(-low // period), high // period
            if last < first:
                return None
            turn = Var(f"{var.name}_n", last - first + 1)
            return var, (_value(turn) * period + first * period - rest) * sign, turn
    return None


def _value(var: Var) -> Index:
    return as_index(var) if var.extent > 1 else ZERO


def _within_reads(summand: Summand, turn: Var) -> Summand:
    """Restrict a variable to the elements of a factor that is 0 outside its tensor."""
    guards = {
        g for node in walk(summand.core) if isinstance(node, Read) for g in node.guards if vanishes(summand.core, g)
    }
    for guard in guards:
        shift = guard.index - as_index(turn)
        low, high = (guard.low - shift.const, guard.high - shift.const) if shift.is_const else (0, turn.extent)
        low, high = max(low, 0), min(high, turn.extent)
        if low < high and (low, high) != (0, turn.extent):
            shorter = Var(turn.name, high - low)
            value = _value(shorter) + low
            return summand.with_value(turn, value, [shorter] if shorter.extent > 1 else [], summand.guards)
    return summand
