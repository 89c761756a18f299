"""Sums over a row in which a condition leaves one term."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir import Call, Const, Expr, Guard, InRange, Statement, Var, as_index, expr_variables, variables


def single_term(body: Expr, statement: Statement, rows: Sequence[Var]) -> Expr | None:
    """Return a sum's only term, where a condition names its element.

    sum over r of (v if r = k else 0)   ->   v if 0 <= k < r.extent else 0
    """
    if statement.combine != "sum" or statement.along or not isinstance(body, Call) or body.fn != "select":
        return None
    condition, value, other = body.args
    if not isinstance(condition, InRange) or len(condition.guards) != 1 or len(rows) != 1:
        return None
    (guard,), (row,) = condition.guards, rows
    factor = dict(guard.index.terms).get(row, 0)
    if abs(factor) != 1 or guard.high != guard.low + 1 or not isinstance(other, Const) or other.value != 0:
        return None
    place = (guard.index - as_index(row) * factor - guard.low) * -factor
    if row in variables(place) or row in expr_variables(value):
        return None
    inside = Guard(place, 0, row.extent)
    return value if inside.always else Call("select", (InRange((inside,)), value, other))
