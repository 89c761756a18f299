"""Masks of reductions, and tensors of pieces that begin at a size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve

from ...ir import (
    COMBINERS,
    Call,
    Cast,
    Const,
    Expr,
    Guard,
    Index,
    InRange,
    Read,
    Statement,
    SymbolicExtent,
    TensorType,
    Var,
    as_float,
    as_index,
    call,
    dtype_of,
    substitute,
    substitute_expr,
)
from .unify import SizeDependence, Unifier


def mask_reduction(statement: Statement, guards: tuple[Guard, ...], tensors: Mapping[str, TensorType]) -> Statement:
    """Return a reduction over the positions where guards hold.

    sum[r < 64] x[r] * w[r]   ->   sum[r < 64] (x[r] if r < n else 0) * (w[r] if r < n else 0)

    Factors are masked one by one, as positions that are not there may hold a NaN; so a contraction stays one.
    """
    kind = COMBINERS[str(statement.combine)]
    dtype = dtype_of(statement.body, tensors)
    body = _mask(statement.body, guards, as_float(kind.identity(dtype)), statement.combine == "sum")
    if body is None:
        body = call("select", InRange(guards), statement.body, Const(kind.identity(dtype), dtype))
    return evolve(statement, body=body)


def _mask(expr: Expr, guards: tuple[Guard, ...], fill: float, products: bool) -> Expr | None:
    if isinstance(expr, Read):
        if expr.guards and expr.fill != fill:
            return None
        return Read(expr.tensor, expr.indices, (*expr.guards, *guards), fill)
    if isinstance(expr, Cast) and fill == 0:
        arg = _mask(expr.arg, guards, fill, products)
        return arg and Cast(expr.dtype, arg)
    if products and isinstance(expr, Call) and expr.fn == "mul":
        args = [_mask(arg, guards, 0.0, products) for arg in expr.args]
        return None if None in args else expr.with_children(tuple(arg for arg in args if arg is not None))
    return None


def mask_arrivals(statement: Statement, guards: tuple[Guard, ...], tensors: Mapping[str, TensorType]) -> Statement:
    """Return a scatter of the values whose positions are there."""
    dtype = tensors[statement.target].dtype
    identity = Const(COMBINERS[str(statement.into)].identity(dtype), dtype)
    return evolve(statement, body=call("select", InRange(guards), statement.body, identity))


def join_pieces(
    pieces: Sequence[tuple[Statement, Mapping[Var, SymbolicExtent]]], shape: Sequence[int], unifier: Unifier
) -> Statement:
    """Return one statement for all pieces of a tensor.

    y[i] = a[i] for i < n;  y[n + i] = b[i] for i < m    ->    y[p] = a[p] if p < n else b[p - n]

    Raises `SizeDependence` where a piece is a reduction, a recurrence, or has no axis for a dim.
    """
    axes = tuple(Var(f"p{number}", size) for number, size in enumerate(shape))
    body: Expr | None = None
    for statement, extents in reversed(pieces):
        if statement.combine or statement.into or statement.step:
            raise SizeDependence(f"a part of '{statement.target}' that begins at a size is a reduction or a recurrence")
        values, guards = _places(statement, extents, axes, unifier)
        piece = substitute_expr(statement.body, values)
        body = piece if body is None else call("select", InRange(guards), piece, body)
    assert body is not None, "a tensor has pieces"
    first = pieces[0][0]
    return Statement(first.target, axes, tuple(map(as_index, axes)), body, span=first.span)


def _places(
    statement: Statement, extents: Mapping[Var, SymbolicExtent], axes: Sequence[Var], unifier: Unifier
) -> tuple[dict[Var, Index], tuple[Guard, ...]]:
    """Return a piece's axes by position in the whole, and the guards of its positions."""
    values: dict[Var, Index] = {}
    guards: list[Guard] = []
    for index, position in zip(statement.write, axes, strict=True):
        own = [axis for axis in statement.axes if index.coefficient(axis) == 1]
        begin = substitute(index, dict.fromkeys(own, 0))
        if len(own) > 1 or any(begin.coefficient(axis) for axis in statement.axes):
            raise SizeDependence(f"a part of '{statement.target}' that begins at a size has no axis of its own")
        place = as_index(position) - begin
        if own:
            values[own[0]] = place
        end = extents[own[0]] if own else SymbolicExtent(1)
        low, high = place.bounds()
        guards += [Guard(place, 0, max(1, high + 1))] if low < 0 else []
        guards += unifier.guards_below(place, end) if not (end.is_const and high < end.const) else []
    if set(statement.axes) - set(values):
        raise SizeDependence(f"a part of '{statement.target}' that begins at a size has an axis without a place")
    return values, tuple(guards)
