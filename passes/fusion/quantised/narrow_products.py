"""Products of dequantised bytes multiply the bytes, and scale their sums.

A sum of products of scaled bytes is the sum of the products of the bytes, times the scales that no term of it moves.
Sums of integers are exact in 32 bits, and matrix instructions multiply bytes at twice the rate of halves:

    w[k, c] = (f32(v[k, c]) - 0) * s[k];   d[n, c] = (f32(q[n, c]) - 3) * t;   y[n, k] = sum_c w[k, c] * d[n, c]
      ->   z[n, k] = sum_c i32(v[k, c]) * i32(q[n, c]);   u[k] = 3 * sum_c i32(v[k, c])
           y[n, k] = f32(z[n, k] - u[k]) * (s[k] * t)

A zero point is a factor of the sum of the other bytes: a constant, where these are weights. Bytes outside of a border
are no terms of either sum. Both factors have an axis that the other has not: without one, as in a convolution of each
channel, a number of one factor meets one of the other, and threads multiply floats at twice the rate of integers. Other
readers of a dequantised value compute it as before. 8-bit floats are multiplied and added up in f32.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import prod

from attrs import evolve, frozen

from ....ir import (
    Call,
    Cast,
    Const,
    DType,
    Expr,
    Guard,
    Index,
    IndexValue,
    InRange,
    Program,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    call,
    distinct,
    dtype_of,
    expr_variables,
    factors,
    reads,
    solve,
    substitute_expr,
    variables,
)
from ...statements import DefUse, Edit, Match, NewUnit, Programs, RewriteRule, anything, is_plain, reduction, rewrite
from ..fold_units import drop_unused, fold_units

#: Largest numbers of 32 bits.
MAX_EXACT_SUM = (1 << 31) - 1
SUM = reduction("sum", anything())


@frozen
class _Scaled:
    """A factor `scale * (byte - zero)`, with the read of the byte; without scales and a zero point it is the byte."""

    byte: Read
    scales: tuple[Expr, ...]
    zero: Expr | None = None

    def largest(self, types: dict[str, TensorType]) -> int:
        """Return the largest size of the byte less its zero point."""
        element = types[self.byte.tensor].dtype.element
        low, high = int(element.lowest), int(element.highest)
        return max(-low, high) if self.zero is None else high - low


def multiply_bytes(programs: Programs) -> Programs:
    """Return programs that multiply bytes before they scale them."""
    found = rewrite(programs, RewriteRule(SUM, _scaled_factors, _scale_sum))
    return found if found is programs else fold_units(drop_unused(found))


def widens_bytes(program: Program) -> bool:
    """Return whether a declaration computes scaled bytes, with any zero point."""
    if len(program.statements) != 1 or not program.statements[0].is_pointwise:
        return False
    (made,) = program.statements
    bytes_ = {t for t in made.tensors_read if _is_number_of_a_byte(program.tensors[t].dtype)}
    wide = (e.arg for part in factors(made.body) for e in distinct(part) if isinstance(e, Cast))
    return any(isinstance(r, Read) and r.tensor in bytes_ and {*made.axes} <= expr_variables(r) for r in wide)


def widened_byte(factor: Expr, types: dict[str, TensorType]) -> _Scaled | None:
    """Return the byte that a factor widens, with its zero point."""
    zero: Expr | None = None
    if isinstance(factor, Call) and factor.fn == "sub":
        factor, point = factor.args
        zero = point.arg if isinstance(point, Cast) else point
        if not is_zero(zero) and not (isinstance(point, Cast) and _is_integer_of_a_byte(dtype_of(zero, types))):
            return None
    wide = isinstance(factor, Cast) and factor.dtype is DType.F32 and isinstance(factor.arg, Read)
    read = factor.arg if isinstance(factor, Cast) and wide else None
    if not isinstance(read, Read) or not _is_number_of_a_byte(types[read.tensor].dtype):
        return None
    zero = None if zero is None or is_zero(zero) else zero
    return None if zero is not None and types[read.tensor].dtype.is_float else _Scaled(read, (), zero)


def _is_number_of_a_byte(dtype: DType) -> bool:
    return dtype.size == 1 and dtype is not DType.BOOL


def _is_integer_of_a_byte(dtype: DType) -> bool:
    return _is_number_of_a_byte(dtype) and dtype.is_int


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
    floats = [index.types[each.byte.tensor].dtype.is_float for each in (left, right)]
    if any(floats):
        return (left, right) if all(floats) else None
    size = prod(v.extent for v in total.reduce) * left.largest(index.types) * right.largest(index.types)
    return (left, right) if size <= MAX_EXACT_SUM else None


def _scaled_byte(part: Expr, reduced: Collection[Var], index: DefUse) -> _Scaled | None:
    """Return a factor as a byte, its zero point, and scales that no reduced axis moves."""
    found: Sequence[Expr] = (part,)
    guards: tuple[Guard, ...] = ()
    while len(found) == 1 and isinstance(read := found[0], Read) and read.fill == 0:
        if (made := index.single_definition(read.tensor)) is None or (guards and read.guards):
            break
        place = solve(list(zip(made.write, read.indices, strict=True)), made.axes) if made.is_pointwise else None
        if place is None or place.free or not {*place.guards} <= {*read.guards} or not is_plain(made):
            return None
        found, guards = factors(substitute_expr(made.body, place.values)), guards or read.guards
    widened = [(f, widened_byte(f, index.types)) for f in found]
    bytes_, scales = [b for _, b in widened if b is not None], tuple(f for f, b in widened if b is None)
    if len(bytes_) != 1 or (guards and bytes_[0].byte.guards):
        return None
    (byte,) = bytes_
    fixed = (*scales, *(() if byte.zero is None else (byte.zero,)))
    guarded = {v for guard in guards for v in variables(guard.index)}
    moved = frozenset().union(*map(expr_variables, fixed)) & {*reduced, *guarded}
    outside = byte.zero is not None and byte.byte.guards
    if moved or outside or any(r.guards for each in fixed for r in reads(each)):
        return None
    return evolve(byte, byte=evolve(byte.byte, guards=guards, fill=0) if guards else byte.byte, scales=scales)


def _scale_sum(match: Match, found: tuple[_Scaled, _Scaled]) -> Edit:
    """Return the sum of products of bytes, and the sum less zero points times the scales."""
    total, index = match.root, match.index
    kind = DType.F32 if index.types[found[0].byte.tensor].dtype.is_float else DType.I32
    name = index.add_tensor(f"{total.target}.bytes", evolve(index.types[total.target], dtype=kind))
    value: Expr = Read(name, total.write)
    zeros: list[Statement] = []
    for statements in _zero_points(total, found, index):
        zeros += statements
        value = call("sub", value, _element(zeros[-1]))
    scale, *others = (*found[0].scales, *found[1].scales)
    for other in others:
        scale = Call("mul", (scale, other))
    product = Call("mul", tuple(Cast(kind, each.byte) for each in found))
    body = Call("mul", (index.convert(value, DType.F32), scale))
    scaled = evolve(total, body=body, reduce=(), combine=None)
    units = [NewUnit(f"zeros{n}", (each,), hoisted=True) for n, each in enumerate(zeros)]
    return {total: [*units, evolve(total, target=name, body=product), scaled]}


def _zero_points(total: Statement, found: tuple[_Scaled, _Scaled], index: DefUse) -> Iterator[list[Statement]]:
    """Yield the statements that compute the terms of either zero point.

    sum (q - z) * (w - v) = sum q * w - z * sum (w - v) - v * sum q
    """
    left, right = found
    guards = tuple(dict.fromkeys((*left.byte.guards, *right.byte.guards)))
    for zero, other, less in ((left.zero, right.byte, right.zero), (right.zero, left.byte, None)):
        if zero is None:
            continue
        term: Expr = Cast(DType.I32, other)
        term = term if less is None else call("sub", term, index.convert(less, DType.I32))
        if other.guards:  # it is read inside of them alone
            term = call("select", InRange(guards), term, Const(0, DType.I32))
        borders = () if other.guards else guards
        guarded = {v for guard in borders for v in variables(guard.index)}
        inner = [v for v in total.reduce if v not in guarded]
        statements = [_define(index, total, term, [v for v in inner if v in expr_variables(term)])]
        for own, border in _borders([v for v in total.reduce if v in guarded], borders):
            part = call("select", InRange(border), _element(statements[-1]), Const(0, DType.I32))
            statements.append(_define(index, total, part, own))
        times = Const(prod(v.extent for v in inner if v not in expr_variables(term)), DType.I32)
        scaled = call("mul", _element(statements[-1]), call("mul", index.convert(zero, DType.I32), times))
        yield [*statements, _define(index, total, scaled, [])]


def _borders(reduced: Sequence[Var], guards: Sequence[Guard]) -> Iterator[tuple[list[Var], tuple[Guard, ...]]]:
    """Yield guards with the reduced axes that they move together: each axis alone, where guards permit."""
    left, rest = list(guards), list(reduced)
    for axis in reduced:
        own = [guard for guard in left if axis in variables(guard.index)]
        if all(variables(guard.index).isdisjoint(v for v in rest if v is not axis) for guard in own):
            left, rest = [guard for guard in left if guard not in own], [v for v in rest if v is not axis]
            yield [axis], tuple(own)
    if left or rest:
        yield rest, tuple(left)


def _element(made: Statement) -> Read:
    return Read(made.target, made.write)


def _define(index: DefUse, total: Statement, body: Expr, reduce: Sequence[Var]) -> Statement:
    """Return the definition of an expression over the axes that move it, added up along some."""
    axes = tuple(v for v in (*total.axes, *total.reduce) if v in expr_variables(body) and v not in reduce)
    name = index.add_tensor(f"{total.target}.zeros", TensorType(DType.I32, tuple(v.extent for v in axes)))
    return Statement(name, axes, tuple(map(as_index, axes)), body, tuple(reduce), "sum" if reduce else None)
