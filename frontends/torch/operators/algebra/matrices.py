"""PyTorch's factorisations of square matrices: solutions, inverses, determinants."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .....ir import DType
from ...calls import tensor_of
from ...import_context import Convert, ImportContext, Value
from ..movement import expand, unsqueeze


def _turn(ctx: ImportContext, x: Value) -> Value:
    """Return transposed matrices."""
    rank = len(ctx.shape(x))
    return ctx.emit("transpose", x, perm=(*range(rank - 2), rank - 1, rank - 2))  # type: ignore[no-any-return]


def _square(ctx: ImportContext, x: Value) -> int:
    *_, rows, columns = ctx.shape(x)
    if rows != columns or not rows:
        ctx.fail(f"expected square matrices of at least one row, found shape {list(ctx.shape(x))}")
    return rows


def _broadcast(ctx: ImportContext, *matrices: Value) -> list[Value]:
    """Return matrices with the batch axes that theirs broadcast to."""
    batch = np.broadcast_shapes(*(ctx.shape(m)[:-2] for m in matrices))
    return [expand(ctx, m, (*batch, *ctx.shape(m)[-2:])) for m in matrices]


def _diagonal(ctx: ImportContext, x: Value) -> Value:
    n = _square(ctx, x)
    flat = ctx.reshape(x, (*ctx.shape(x)[:-2], n * n))
    return ctx.emit("gather", flat, ctx.constant(np.arange(n) * (n + 1)), axis=-1)  # type: ignore[no-any-return]


def _identity(ctx: ImportContext, like: Value) -> Value:
    n = _square(ctx, like)
    return ctx.constant(np.broadcast_to(np.eye(n), ctx.shape(like)), dtype=ctx.type(like).dtype)


def _first_fault(ctx: ImportContext, faulty: Value) -> Value:
    """Return the number of the first faulty element of each row, from 1, as i32; 0 without any."""
    n = ctx.shape(faulty)[-1]
    from_the_end = ctx.emit("where", faulty, ctx.constant(np.arange(n, 0, -1)), ctx.constant(0, dtype=DType.I64))
    last = ctx.emit("reduce_max", from_the_end, axes=(-1,), keepdims=False)
    number = ctx.emit("sub", ctx.constant(n + 1, dtype=DType.I64), last)
    none = ctx.emit("equal", last, ctx.constant(0, dtype=DType.I64))
    return ctx.cast(ctx.emit("where", none, ctx.constant(0, dtype=DType.I64), number), DType.I32)


def _triangular(ctx: ImportContext, a: Value, b: Value, upper: bool, unit: bool = False) -> Value:
    return ctx.emit("solve_triangular", *_broadcast(ctx, a, b), upper=upper, unit=unit)  # type: ignore[no-any-return]


# ---- factors with exchanges


def _factors(ctx: ImportContext, x: Value) -> tuple[Value, Value, Value]:
    """Return triangular factors, the exchanges of rows, and the number of the first pivot that is 0."""
    _square(ctx, x)
    factors, pivots = ctx.emit("lu", x, outputs=2)
    zero = ctx.constant(0, dtype=ctx.type(x).dtype)
    return factors, pivots, _first_fault(ctx, ctx.emit("equal", _diagonal(ctx, factors), zero))


def _determinant_factors(ctx: ImportContext, x: Value) -> tuple[Value, Value, Value]:
    """Return the factors that PyTorch keeps for a determinant's gradient.

    They are those of the transposed matrices where the operand is contiguous.
    """
    first: Any = ctx.node.args[0] if ctx.node is not None else None
    example = tensor_of(first) if isinstance(first, torch.fx.Node) else None
    turned = example is None or example.is_contiguous()
    return _factors(ctx, _turn(ctx, x) if turned else x)


def _lu_factor(ctx: ImportContext, x: Value, *, pivot: bool = True, check_errors: bool = False) -> Any:
    if not pivot:
        ctx.fail("expected exchanges of rows")
    return _factors(ctx, x)


def _lu_solve(
    ctx: ImportContext, factors: Value, pivots: Value, b: Value, *, left: bool = True, adjoint: bool = False
) -> Any:
    """Convert the solution of `A x = b`, of its transpose with `adjoint`, or of `x A = b` without `left`."""
    if not left:
        return _turn(ctx, _lu_solve(ctx, factors, pivots, _turn(ctx, b), adjoint=not adjoint))
    factors, b = _broadcast(ctx, factors, b)
    order = ctx.emit("exchanges", pivots)
    rows = expand(ctx, unsqueeze(ctx, order, len(ctx.shape(order))), ctx.shape(b))
    if not adjoint:
        lower = _triangular(ctx, factors, ctx.emit("gather_elements", b, rows, axis=-2), upper=False, unit=True)
        return _triangular(ctx, factors, lower, upper=True)
    turned = _turn(ctx, factors)
    upper = _triangular(ctx, turned, _triangular(ctx, turned, b, upper=False), upper=True, unit=True)
    return ctx.emit("scatter_elements", ctx.zeros_like(b), rows, upper, axis=-2)


def _solve(ctx: ImportContext, a: Value, b: Value, *, left: bool = True, check_errors: bool = False) -> Any:
    """Convert a solution; right sides are vectors where they have the shape of the matrices without a last axis."""
    factors, pivots, info = _factors(ctx, a)
    vector = len(ctx.shape(b)) == 1 or ctx.shape(b) == ctx.shape(a)[:-1]
    sides = unsqueeze(ctx, b, len(ctx.shape(b))) if vector else b
    y = _lu_solve(ctx, factors, pivots, sides, left=left)
    return ctx.reshape(y, ctx.shape(y)[:-1]) if vector else y, factors, pivots, info


def _inverse(ctx: ImportContext, x: Value, *, check_errors: bool = False) -> Any:
    factors, pivots, info = _factors(ctx, x)
    return _lu_solve(ctx, factors, pivots, _identity(ctx, x)), info


def _with_signs(ctx: ImportContext, diagonal: Value, pivots: Value) -> Value:
    """Return a diagonal with another sign for each exchange of rows."""
    kind, n = ctx.type(diagonal).dtype, ctx.shape(pivots)[-1]
    moved = ctx.emit("not_equal", pivots, ctx.constant(np.arange(1, n + 1), dtype=ctx.type(pivots).dtype))
    sign = ctx.emit("where", moved, ctx.constant(-1, dtype=kind), ctx.constant(1, dtype=kind))
    return ctx.emit("mul", diagonal, sign)  # type: ignore[no-any-return]


def _determinant(ctx: ImportContext, x: Value) -> Any:
    factors, pivots, _ = _determinant_factors(ctx, x)
    diagonal = _with_signs(ctx, _diagonal(ctx, factors), pivots)
    return ctx.emit("reduce_prod", diagonal, axes=(-1,), keepdims=False), factors, pivots


def _log_determinant(ctx: ImportContext, x: Value) -> Any:
    factors, pivots, _ = _determinant_factors(ctx, x)
    diagonal = _with_signs(ctx, _diagonal(ctx, factors), pivots)
    sign = ctx.emit("reduce_prod", ctx.emit("sign", diagonal), axes=(-1,), keepdims=False)
    sizes = ctx.emit("reduce_sum", ctx.emit("log", ctx.emit("abs", diagonal)), axes=(-1,), keepdims=False)
    return sign, sizes, factors, pivots


def _unpack(ctx: ImportContext, factors: Value, pivots: Value, data: bool = True, exchanges: bool = True) -> Any:
    """Convert to a permutation, a lower factor with ones on its diagonal, and an upper one."""
    n, kind = _square(ctx, factors), ctx.type(factors).dtype
    order = ctx.emit("exchanges", pivots)
    rows = ctx.emit("equal", unsqueeze(ctx, order, len(ctx.shape(order)) - 1), ctx.constant(np.arange(n)[:, None]))
    lower = ctx.emit("add", ctx.emit("trilu", factors, upper=False, k=-1), _identity(ctx, factors))
    return ctx.cast(rows, kind), lower, ctx.emit("trilu", factors)


def _lu(ctx: ImportContext, x: Value, *, pivot: bool = True) -> Any:
    factors, pivots, _ = _lu_factor(ctx, x, pivot=pivot)
    return _unpack(ctx, factors, pivots)


# ---- triangular matrices


def _solve_triangular(
    ctx: ImportContext, a: Value, b: Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    _square(ctx, a)
    if left:
        return _triangular(ctx, a, b, upper, unitriangular)
    return _turn(ctx, _triangular(ctx, _turn(ctx, a), _turn(ctx, b), not upper, unitriangular))


def _cholesky(ctx: ImportContext, x: Value, *, upper: bool = False, check_errors: bool = False) -> Any:
    _square(ctx, x)
    y = ctx.emit("cholesky", _turn(ctx, x) if upper else x)
    return _turn(ctx, y) if upper else y, _first_fault(ctx, ctx.emit("is_nan", _diagonal(ctx, y)))


def _cholesky_solve(ctx: ImportContext, b: Value, factor: Value, upper: bool = False) -> Any:
    _square(ctx, factor)
    lower = _turn(ctx, factor) if upper else factor
    return _triangular(ctx, _turn(ctx, lower), _triangular(ctx, lower, b, upper=False), upper=True)


def _cholesky_inverse(ctx: ImportContext, factor: Value, upper: bool = False) -> Any:
    return _cholesky_solve(ctx, _identity(ctx, factor), factor, upper)


TABLE: dict[str, Convert] = {
    "aten.linalg_lu_factor_ex": _lu_factor, "aten.linalg_lu_solve": _lu_solve, "aten.linalg_lu": _lu,
    "aten.lu_unpack": _unpack, "aten._linalg_solve_ex": _solve, "aten.linalg_inv_ex": _inverse,
    "aten._linalg_det": _determinant, "aten._linalg_slogdet": _log_determinant,
    "aten.linalg_solve_triangular": _solve_triangular, "aten.linalg_cholesky_ex": _cholesky,
    "aten.cholesky_solve": _cholesky_solve, "aten.cholesky_inverse": _cholesky_inverse,
}  # fmt: skip
