"""Products of dequantised bytes multiply the bytes, and scale their sums.

A sum of products of scaled bytes is the sum of the products of the bytes, times the scales that no term of it moves.
Sums of integers are exact in 32 bits, and matrix instructions multiply bytes at twice the rate of halves:

    w[k, c] = (f32(v[k, c]) - 0) * s[k];   d[n, c] = (f32(q[n, c]) - 0) * t;   y[n, k] = sum_c w[k, c] * d[n, c]
      ->   z[n, k] = sum_c i32(v[k, c]) * i32(q[n, c]);   y[n, k] = f32(z[n, k]) * (s[k] * t)

Both factors have an axis that the other has not: without one, as in a convolution of each channel, a number of one
factor meets one of the other, and threads multiply floats at twice the rate of integers. Other readers of a dequantised
value compute it as before. 8-bit floats are multiplied and added up in f32. Unsigned bytes stay floats.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from attrs import evolve, frozen

from ....ir import (
    Call,
    Cast,
    Const,
    DType,
    Expr,
    Index,
    IndexValue,
    Program,
    Read,
    Statement,
    TensorType,
    Var,
    distinct,
    expr_variables,
    factors,
    reads,
    solve,
    substitute_expr,
    variables,
)
from ...statements import DefUse, Match, Programs, RewriteRule, anything, is_plain, reduction, rewrite
from ..fold_units import drop_unused

#: Most products of signed bytes whose sum 32 bits hold.
MAX_EXACT_TERMS = ((1 << 31) - 1) // (1 << 7) ** 2
SUM = reduction("sum", anything())


@frozen
class _Scaled:
    """A factor `scale * byte`, with the read of the byte; without a scale it is the byte."""

    byte: Read
    scales: tuple[Expr, ...]


def multiply_bytes(programs: Programs) -> Programs:
    """Return programs that multiply bytes before they scale them."""
    found = rewrite(programs, RewriteRule(SUM, _scaled_factors, _scale_sum))
    return found if found is programs else drop_unused(found)


def widens_bytes(program: Program) -> bool:
    """Return whether a declaration computes scaled bytes, with any zero point."""
    if len(program.statements) != 1 or not program.statements[0].is_pointwise:
        return False
    (made,) = program.statements
    bytes_ = {t for t in made.tensors_read if _is_number_of_a_byte(program.tensors[t].dtype)}
    wide = (e.arg for part in factors(made.body) for e in distinct(part) if isinstance(e, Cast))
    return any(isinstance(r, Read) and r.tensor in bytes_ and {*made.axes} <= expr_variables(r) for r in wide)


def widened_byte(factor: Expr, types: dict[str, TensorType]) -> Read | None:
    """Return the byte that a factor converts to f32, else None.

    It may subtract a zero point of 0.
    """
    if isinstance(factor, Call) and factor.fn == "sub" and is_zero(factor.args[1]):
        factor = factor.args[0]
    wide = isinstance(factor, Cast) and factor.dtype is DType.F32 and isinstance(factor.arg, Read)
    read = factor.arg if isinstance(factor, Cast) and wide else None
    return read if isinstance(read, Read) and _is_number_of_a_byte(types[read.tensor].dtype) else None


def _is_number_of_a_byte(dtype: DType) -> bool:
    return dtype.size == 1 and dtype is not DType.BOOL


def is_zero(expr: Expr) -> bool:
    """Return whether an expression is the number 0."""
    while isinstance(expr, Cast):
        expr = expr.arg
    return expr.index == Index() if isinstance(expr, IndexValue) else isinstance(expr, Const) and expr.value == 0


def _scaled_factors(match: Match) -> tuple[_Scaled, _Scaled] | None:
    """Return the factors of a sum of products of scaled bytes, if instructions may multiply the bytes."""
    total, index = match.root, match.index
    parts = factors(total.body)
    if not is_plain(total) or index.types[total.target].dtype is not DType.F32 or len(parts) != 2:
        return None
    left, right = (_scaled_byte(part, total.reduce, index) for part in parts)
    if left is None or right is None or not (left.scales or right.scales):
        return None
    own = (expr_variables(left.byte) ^ expr_variables(right.byte)) & {*total.axes}
    if not own & expr_variables(left.byte) or not own & expr_variables(right.byte):
        return None
    kinds = {index.types[each.byte.tensor].dtype for each in (left, right)}
    terms = prod(v.extent for v in total.reduce)
    exact = all(kind.is_float for kind in kinds) or (kinds == {DType.I8} and terms <= MAX_EXACT_TERMS)
    return (left, right) if exact else None


def _scaled_byte(part: Expr, reduced: Collection[Var], index: DefUse) -> _Scaled | None:
    """Return a factor as a byte and scales that no reduced axis moves."""
    if (byte := widened_byte(part, index.types)) is not None:
        return _Scaled(byte, ())
    if not isinstance(part, Read) or part.fill != 0 or (made := index.single_definition(part.tensor)) is None:
        return None
    place = solve(list(zip(made.write, part.indices, strict=True)), made.axes) if made.is_pointwise else None
    if place is None or place.free or not {*place.guards} <= {*part.guards} or not is_plain(made):
        return None
    found = [(f, widened_byte(f, index.types)) for f in factors(substitute_expr(made.body, place.values))]
    bytes_, scales = [b for _, b in found if b is not None], tuple(f for f, b in found if b is None)
    guarded = {v for guard in part.guards for v in variables(guard.index)}
    moved = frozenset().union(*map(expr_variables, scales)) & {*reduced, *guarded}
    if len(bytes_) != 1 or moved or bytes_[0].guards or any(r.guards for scale in scales for r in reads(scale)):
        return None
    return _Scaled(evolve(bytes_[0], guards=part.guards, fill=0), scales)


def _scale_sum(match: Match, found: tuple[_Scaled, _Scaled]) -> list[Statement]:
    """Return the sum of products of bytes, and the sum times the scales."""
    total, index = match.root, match.index
    kind = DType.F32 if index.types[found[0].byte.tensor].dtype.is_float else DType.I32
    name = index.add_tensor(f"{total.target}.bytes", evolve(index.types[total.target], dtype=kind))
    product = Call("mul", tuple(Cast(kind, each.byte) for each in found))
    value: Expr = index.convert(Read(name, total.write), DType.F32)
    scale, *others = (*found[0].scales, *found[1].scales)
    for other in others:
        scale = Call("mul", (scale, other))
    scaled = evolve(total, body=Call("mul", (value, scale)), reduce=(), combine=None)
    return [evolve(total, target=name, body=product), scaled]
