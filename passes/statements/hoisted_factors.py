"""Hoisted factors of sums, and guarded ones.

sum over c of x[n, c] * s[n]   ->   (sum over c of x[n, c]) * s[n]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve

from ...ir import (
    Call,
    Const,
    Expr,
    InRange,
    Read,
    Statement,
    TensorType,
    Var,
    expr_variables,
    factors,
    indirects,
    order_lookups_last,
)


def hoist_factors(
    body: Expr, statement: Statement, rows: frozenset[Var], tensors: Mapping[str, TensorType]
) -> tuple[Expr, Expr | None]:
    """Split off factors that do not depend on reduced axes."""
    parts = factors(body)
    if statement.combine != "sum" or len(parts) == 1 or not tensors[statement.target].dtype.is_float:
        return body, None
    fixed = [p for p in parts if not expr_variables(p) & rows]
    moving = [p for p in parts if expr_variables(p) & rows]
    if not fixed or not moving:
        return body, None
    return _product(moving), _product(fixed)


def guard_factors(part: Expr) -> Expr:
    """Return a product with guarded reads for factors that data masks."""
    if not isinstance(part, Call) or part.fn not in ("mul", "select"):
        return part
    if part.fn == "mul":
        return part.with_children(tuple(map(guard_factors, part.args)))
    condition, read, other = part.args
    if not isinstance(condition, InRange) or not any(indirects(guard.index) for guard in condition.guards):
        return part
    if not isinstance(read, Read) or read.fill != 0 or not isinstance(other, Const) or other.value != 0:
        return part
    return evolve(read, guards=order_lookups_last((*condition.guards, *read.guards)))


def _product(parts: Sequence[Expr]) -> Expr:
    result = parts[0]
    for part in parts[1:]:
        result = Call("mul", (result, part))
    return result
