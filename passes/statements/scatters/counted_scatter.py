"""Counted scatters: sums of floats as exact sums of integers.

Updates arrive at an element in any order on a device, and sums of floats round. They are made of integers: the greatest
magnitude of all terms that may meet determines a unit, a power of two, so that 62 bits hold all terms as multiples of
it, and their sum is exact. Terms of less than 2 ** (24 - bits) of the greatest leave a rest, which a double holds in
smaller units, exactly too; infinite terms and NaN join it. Few terms have one, and no other is sent. The error is below
that of single precision.

    scatter sum y[at[j], k] = u[j, k]
      ->  size[k] = max over j of (|u[j, k]| if finite else 0)
          unit[k] = 2 ** floor((bits - exponent(size[k])) / 2)
          left[j, k] = u[j, k] * unit[k] ** 2
          scatter sum total[at[j], k] = i64(round(left[j, k]))
          atomic sum rest[at[j], k] = f64(round((left[j, k] - round(left[j, k])) * 2 ** fine))
          y[v, k] = f32(f64(total[v, k]) + rest[v, k] / 2 ** fine) / unit[k] ** 2

Doubles, which have more digits, and terms of a recurrence have a unit at each element, that of the greatest term there.
They are counted twice, first coarsely, then the rest. Where there are about as many terms as elements, each term
computes its unit, which spares a kernel. Infinite terms are counted instead, and NaN is in the magnitude already.

    size[at[j], k] = max of |u[j, k]| by a scatter;   scatter sum total[at[j], k] = i64(round(u[j, k] * unit ** 2)) ...

The work is that of the terms and of the elements, not of all pairs of them. Where far fewer rows arrive than the tensor
has (the rows of a table that a batch looked up), rows with updates are numbered by their last one, and only they have
integers; all others share a row of zeros, so that the tensor itself is written once, by the conversion to floats:

    scatter max slot[at[j]] = j + 1                                       0 where nothing arrives
    place[j] = slot[at[j]]
    scatter sum total[place[j], k] = ...;  y[v, k] = total[slot[v], k] * ...
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from math import prod

from attrs import evolve

from ....ir import Call, Cast, Const, DType, Expr, Read, Statement, TensorType, as_index
from ..def_use import DefUse
from ..match import Match
from ..patterns import Scattered
from ..rewriter import RewriteRule
from .scatter_rows import ArrivingRows, arriving_rows, element_of

#: Fewest terms an element with which its unit is computed once, in a kernel of its own.
MIN_TERMS_FOR_UNITS = 8
#: Bits of an integer that hold sums: one is the sign, one is left for rounding. Digits of a double.
SUM_BITS, DOUBLE_DIGITS = 62, 53
#: Count of a negative infinity: positive ones have the digits below.
_NEGATIVE_INFINITY = 1 << 32


def _float_sum(match: Match) -> TensorType | None:
    """Return the type of a tensor of floats."""
    type_ = match.index.types[match.root.target]
    return type_ if type_.dtype.is_float else None


def _count_terms(match: Match, type_: TensorType) -> Iterator[Statement]:
    """Yield the statements of a sum that is counted in integers."""
    statement, index = match.root, match.index
    wide = DType.F64 if type_.dtype is DType.F64 else DType.F32
    bits = (SUM_BITS - 1 - (_most_terms(statement, type_) - 1).bit_length()) // 2 * 2
    value = statement.body
    if not isinstance(value, Read):
        name = _add_tensor(index, f"{statement.target}.value", type_.dtype, tuple(a.extent for a in statement.axes))
        place = tuple(map(as_index, statement.axes))
        yield evolve(statement, target=name, write=place, into=None)
        value = Read(name, place)
    value = index.convert(value, wide)
    rows = arriving_rows(statement, index)
    yield from rows.numbering
    if wide is DType.F32 and statement.step is None:
        yield from _sum_in_common_units(rows, value, index, bits)
        return
    statement, counted = rows.statement, rows.shape
    size = _add_tensor(index, f"{statement.target}.size", wide, counted)
    yield evolve(statement, target=size, body=Call("abs", (value,)), into="max")
    unit = _unit(Read(size, statement.write), bits, wide)
    if prod(a.extent for a in statement.axes) >= MIN_TERMS_FOR_UNITS * prod(counted):
        axes, place = element_of(index.types[size])
        name = _add_tensor(index, f"{statement.target}.unit", wide, counted)
        yield Statement(name, axes, place, _unit(Read(size, place), bits, wide), span=statement.span)
        unit = Read(name, statement.write)
    totals: list[str] = []
    left: Expr = Call("mul", (Call("mul", (value, unit)), unit))
    for number in range(2 if wide is DType.F64 else 1):
        whole: Expr = Call("round", (left,))
        left = Call("mul", (Call("sub", (left, whole)), Const(2.0**bits, wide)))
        totals.append(_add_tensor(index, f"{statement.target}.total{number}", DType.I64, counted))
        mark = _mark(value, wide) if number == 0 else _integer(0)
        body = Call("select", (_finite(unit, wide), Cast(DType.I64, whole), mark))
        yield evolve(statement, target=totals[-1], body=body)
    yield _result(index, rows, size, totals, bits)


def _sum_in_common_units(rows: ArrivingRows, value: Expr, index: DefUse, bits: int) -> Iterator[Statement]:
    """Yield the statements of a sum whose terms have one unit for all elements that data names."""
    statement, wide = rows.statement, DType.F32
    own = statement.own_dims(rows.shape)
    axes = tuple(a for a in statement.axes if a in own.values())
    keys, place = tuple(a for a in statement.axes if a not in axes), tuple(map(as_index, axes))
    size, unit = (
        _add_tensor(index, f"{statement.target}.{name}", wide, tuple(a.extent for a in axes))
        for name in ("size", "unit")
    )
    magnitude = Call("abs", (value,))
    finite = Call("select", (_finite(magnitude, wide), magnitude, Const(0.0, wide)))
    yield Statement(size, axes, place, finite, keys, "max" if keys else None, span=statement.span)
    yield Statement(unit, axes, place, _unit(Read(size, place), bits, wide), span=statement.span)
    left: Expr = Call("mul", (Call("mul", (value, Read(unit, place))), Read(unit, place)))
    whole: Expr = Call("round", (left,))
    total, rest = (
        _add_tensor(index, f"{statement.target}.{name}", kind, rows.shape)
        for name, kind in (("total", DType.I64), ("rest", DType.F64))
    )
    is_number = _finite(magnitude, wide)
    yield evolve(statement, target=total, body=Cast(DType.I64, Call("select", (is_number, whole, Const(0.0, wide)))))
    fine = DOUBLE_DIGITS - (prod(a.extent for a in keys) - 1).bit_length()
    finer: Expr = Call("round", (Call("mul", (Call("sub", (left, whole)), Const(2.0**fine, wide))),))
    arrives = Call("or", (Call("not", (is_number,)), Call("ne", (left, whole))))
    body = Call("select", (arrives, Cast(DType.F64, Call("select", (is_number, finer, value))), Const(0.0, DType.F64)))
    yield evolve(statement, target=rest, body=body, atomic=True)
    type_ = index.types[statement.target]
    free, write = element_of(type_)
    there = {axis: rows.elements[number] for number, axis in own.items()}
    step = _unit(Read(size, tuple(there[a] for a in axes)), bits, wide, back=True)
    fraction = Call("mul", (rows.read(rest), Const(2.0**-fine, DType.F64)))
    whole = Call("add", (Cast(DType.F64, rows.read(total)), fraction))
    result: Expr = Call("mul", (Call("mul", (Cast(wide, whole), step)), step))
    yield Statement(statement.target, free, write, index.convert(result, type_.dtype), span=statement.span)


def _most_terms(statement: Statement, type_: TensorType) -> int:
    """Return the most terms that may arrive at an element: each value of an axis that is an index has its own."""
    own = statement.own_dims(type_.shape).values()
    return prod(a.extent for a in statement.axes if a not in own)


def _result(index: DefUse, rows: ArrivingRows, size: str, totals: Sequence[str], bits: int) -> Statement:
    """Return the statement that converts counts to numbers, for each element at its place."""
    statement, wide = rows.statement, index.types[size].dtype
    type_ = index.types[statement.target]
    axes, write = element_of(type_)
    greatest, parts = rows.read(size), [rows.read(name) for name in totals]
    step = _unit(greatest, bits, wide, back=True)
    value: Expr = Call("mul", (Call("mul", (Cast(wide, parts[0]), step)), step))
    for part in parts[1:]:
        finer = Call("mul", (Cast(wide, part), Const(2.0**-bits, wide)))
        value = Call("add", (value, Call("mul", (Call("mul", (finer, step)), step))))
    value = Call("select", (_finite(greatest, wide), value, _infinite(greatest, parts[0], wide)))
    return Statement(statement.target, axes, write, index.convert(value, type_.dtype), span=statement.span)


def _add_tensor(index: DefUse, name: str, dtype: DType, shape: tuple[int, ...]) -> str:
    return index.add_tensor(name, TensorType(dtype, shape))


def _integer(value: int) -> Const:
    return Const(value, DType.I64)


def _unit(greatest: Expr, bits: int, dtype: DType, back: bool = False) -> Expr:
    """Return the square root of the units of an element in one, which is a power of two, or (`back`) that of the value
    of a unit; NaN where a term is NaN or infinite.

    A number times both roots is exact: one power could leave the range of the type. The exponent is that of the bits,
    a subnormal number has the least; both powers are normal numbers.
    """
    kind, digits = (DType.I64, 52) if dtype is DType.F64 else (DType.I32, 23)
    bias = (1 << (kind.size * 8 - digits - 2)) - 1
    known = Call(f"bits_of_{dtype}", (Call("max", (greatest, Const(0.0, dtype))),))  # an empty maximum is -inf
    power = Call("sub", (Const(bias, kind), Call("shr", (known, Const(digits, kind)))))
    half = Call("add", (Const(bits // 2, kind), Call("shr", (power, Const(1, kind)))))
    exponent = Call("sub" if back else "add", (Const(bias, kind), half))
    root = Call(f"{dtype}_of_bits", (Call("shl", (exponent, Const(digits, kind))),))
    return Call("select", (_finite(greatest, dtype), root, Const(math.nan, dtype)))


def _finite(value: Expr, dtype: DType) -> Expr:
    return Call("lt", (value, Const(math.inf, dtype)))


def _mark(value: Expr, dtype: DType) -> Expr:
    """Return the count of an infinite term; a finite one beside it counts for nothing."""
    negative = Call("select", (Call("eq", (value, Const(-math.inf, dtype))), _integer(_NEGATIVE_INFINITY), _integer(0)))
    return Call("select", (Call("eq", (value, Const(math.inf, dtype))), _integer(1), negative))


def _infinite(greatest: Expr, marks: Expr, dtype: DType) -> Expr:
    """Return the sum where a term is infinite or NaN: NaN where infinities of both signs meet."""
    both = Call("sub", (greatest, greatest))
    above = Call("select", (Call("ge", (marks, _integer(_NEGATIVE_INFINITY))), both, greatest))
    has_above = Call("ne", (Call("bitand", (marks, _integer(_NEGATIVE_INFINITY - 1))), _integer(0)))
    infinity = Call("select", (has_above, above, Const(-math.inf, dtype)))
    return Call("select", (Call("isnan", (greatest,)), greatest, infinity))


COUNTED_SUM = RewriteRule(Scattered(("sum",)), _float_sum, _count_terms)
