"""Deterministic scatters: atomic operations whose order does not change the result.

Updates arrive at an element in any order on a device. For integers, and for `max` and `min`, that changes nothing. Sums
of floats round, so they are made of integers: the greatest magnitude at an element determines a unit, a power of two,
so that 62 bits hold all terms as multiples of it, and their sum is exact. Its error is far below that of single
precision; doubles, which have more digits, are counted twice, first coarsely, then the rest.

    scatter sum y[at[j], k] = u[j, k]
      ->  scatter max size[at[j], k] = |u[j, k]|
          unit[v, k] = 2 ** floor((bits - logb(size[v, k])) / 2)
          scatter sum total[at[j], k] = i64(round(u[j, k] * unit[at[j], k] ** 2))
          y[v, k] = total[v, k] / unit[v, k] ** 2

Where there are about as many terms as elements, each term computes its unit, which spares a kernel. Infinite terms are
counted instead, and NaN is in the magnitude already. The work is that of the terms and of the elements, not of all
pairs of them. Where far fewer rows arrive than the tensor has (the rows of a table that a batch looked up), rows with
updates are numbered by their last one, and only they have integers; all others share a row of zeros, so that the tensor
itself is written once, by the conversion to floats:

    scatter max slot[at[j]] = j + 1                                       0 where nothing arrives
    place[j] = slot[at[j]]
    scatter max size[place[j], k] = |u[j, k]|  ...  y[v, k] = total[slot[v], k] * ...

Where the pairs are few, or each element has few terms that could arrive at it (the others differ from it in a dim that
both run along), one kernel that compares each of them is faster, and fuses with readers of the tensor; so is every
product of floats computed, for which there are no such integers.

    scatter prod y[at[j], k] = u[j, k]    ->    y[v, k] = prod over j of (u[j, k] if at[j] == v else 1)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from attrs import define, evolve, frozen

from ...ir import (
    COMBINERS,
    Call,
    Cast,
    Const,
    DType,
    Expr,
    Guard,
    Index,
    IndexValue,
    Indirect,
    InRange,
    Program,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    dtype_of,
    indirects,
    linearise,
    row_major,
    variables,
)
from ...ops.language import unused_name

#: Most pairs of a term and an element that are compared.
MAX_COMPARED_PAIRS = 1 << 15
#: Most terms of an element that are compared: with counts, an element is read and written as
#: often before a term is looked at.
MAX_COMPARED_TERMS = 4
#: Least reduction of counted elements that is worth numbering rows, which takes two kernels more.
MIN_SAVED_ELEMENTS = 1 << 19
#: Fewest terms an element with which its unit is computed once, in a kernel of its own.
MIN_TERMS_FOR_UNITS = 8
#: Bits of an integer that hold sums: one is the sign, one is left for rounding.
SUM_BITS = 62
#: Count of a negative infinity: positive ones have the digits below.
_NEGATIVE_INFINITY = 1 << 32


def make_scatters_deterministic(program: Program) -> Program:
    """Return an equal program with deterministic scatters.

    Scatters that ask for atomic operations stay.
    """
    if not any(s.into and not s.atomic for s in program.statements):
        return program
    writer = _ScatterRewriter(dict(program.tensors))
    statements = tuple(new for s in program.statements for new in writer.rewrite(s))
    return evolve(program, tensors=writer.tensors, statements=statements)


@define
class _ScatterRewriter:
    """Rewrites statements; `tensors` grows by the intermediate ones."""

    tensors: dict[str, TensorType]

    def rewrite(self, statement: Statement) -> Iterator[Statement]:
        """Yield the replacement of a statement."""
        type_ = self.tensors[statement.target]
        if statement.into is None or statement.atomic:
            yield statement
        elif _few(statement, type_) or (statement.into == "prod" and type_.dtype.is_float):
            yield _compare_terms(statement, type_, self.tensors)
        elif statement.into == "sum" and type_.dtype.is_float:
            yield from self._count_terms(statement, type_)
        else:
            yield statement

    # ---- sums of floats, counted

    def _count_terms(self, statement: Statement, type_: TensorType) -> Iterator[Statement]:
        wide = DType.F64 if type_.dtype is DType.F64 else DType.F32
        bits = (SUM_BITS - 1 - (prod(a.extent for a in statement.axes) - 1).bit_length()) // 2 * 2
        value = statement.body
        if not isinstance(value, Read):
            name = self._tensor(f"{statement.target}.value", type_.dtype, tuple(a.extent for a in statement.axes))
            place = tuple(map(as_index, statement.axes))
            yield evolve(statement, target=name, write=place, into=None)
            value = Read(name, place)
        value = _convert(value, wide, self.tensors)
        rows = _Rows.of(statement, type_)
        if rows is not None:
            slot = self._tensor(f"{statement.target}.slot", DType.U32, rows.extents)
            where = self._tensor(f"{statement.target}.place", DType.U32, tuple(a.extent for a in rows.keys))
            yield from rows.number_rows(slot, where, self.tensors)
            statement = evolve(statement, write=rows.at(where, tuple(map(as_index, rows.keys)), statement.write))
            counted = rows.shape(type_)
            elements = rows.at(slot, tuple(_elements(type_)[1][n] for n in rows.dims), _elements(type_)[1])
        else:
            counted, elements = type_.shape, _elements(type_)[1]
        size = self._tensor(f"{statement.target}.size", wide, counted)
        yield evolve(statement, target=size, body=Call("abs", (value,)), into="max")
        unit = _unit(Read(size, statement.write), bits, wide)
        if prod(a.extent for a in statement.axes) >= MIN_TERMS_FOR_UNITS * prod(counted):
            axes, place = _elements(self.tensors[size])
            name = self._tensor(f"{statement.target}.unit", wide, counted)
            yield Statement(name, axes, place, _unit(Read(size, place), bits, wide), span=statement.span)
            unit = Read(name, statement.write)
        totals: list[str] = []
        left: Expr = Call("mul", (Call("mul", (value, unit)), unit))
        for number in range(2 if wide is DType.F64 else 1):
            whole: Expr = Call("round", (left,))
            left = Call("mul", (Call("sub", (left, whole)), Const(2.0**bits, wide)))
            totals.append(self._tensor(f"{statement.target}.total{number}", DType.I64, counted))
            mark = _mark(value, wide) if number == 0 else _whole(0)
            body = Call("select", (_finite(unit, wide), Cast(DType.I64, whole), mark))
            yield evolve(statement, target=totals[-1], body=body)
        yield self._result(statement, type_, elements, size, totals, bits)

    def _result(
        self, statement: Statement, type_: TensorType, place: Sequence[Index], size: str, totals: list[str], bits: int
    ) -> Statement:
        """Return the statement that converts counts to numbers, for each element at its place."""
        axes, write = _elements(type_)
        place = tuple(place)
        wide = self.tensors[size].dtype
        greatest = Read(size, place)
        parts = [Read(name, place) for name in totals]
        step = _unit(greatest, bits, wide, back=True)
        value: Expr = Call("mul", (Call("mul", (Cast(wide, parts[0]), step)), step))
        for part in parts[1:]:
            finer = Call("mul", (Cast(wide, part), Const(2.0**-bits, wide)))
            value = Call("add", (value, Call("mul", (Call("mul", (finer, step)), step))))
        value = Call("select", (_finite(greatest, wide), value, _infinite(greatest, parts[0], wide)))
        return Statement(statement.target, axes, write, _convert(value, type_.dtype, self.tensors), span=statement.span)

    def _tensor(self, name: str, dtype: DType, shape: tuple[int, ...]) -> str:
        name = unused_name(name, self.tensors)
        self.tensors[name] = TensorType(dtype, shape)
        return name


@frozen
class _Rows:
    """The rows that a scatter sends, one for each value of `keys`, where they are far fewer than those of the tensor.
    The integers in `write` index the rows along `dims` of the tensor.
    """

    keys: tuple[Var, ...]
    dims: tuple[int, ...]
    extents: tuple[int, ...]
    write: tuple[Index, ...]

    @classmethod
    def of(cls, statement: Statement, type_: TensorType) -> _Rows | None:
        """Return the rows of a scatter that are worth numbering."""
        own = statement.own_dims(type_.shape)
        keys = tuple(a for a in statement.axes if a not in own.values())
        dims = tuple(n for n in range(len(type_.shape)) if n not in own)
        rows = cls(keys, dims, tuple(type_.shape[n] for n in dims), tuple(statement.write[n] for n in dims))
        plain = all(rows._looked_up(number) or not indirects(index) for number, index in enumerate(rows.write))
        saved = (prod(rows.extents) - rows.count) * prod(type_.shape[n] for n in own)
        plain = plain and any(map(indirects, rows.write)) and statement.step is None
        return rows if plain and saved >= MIN_SAVED_ELEMENTS else None

    @property
    def count(self) -> int:
        """Number of rows that arrive."""
        return prod(a.extent for a in self.keys)

    def _looked_up(self, number: int) -> bool:
        """Return whether an integer is the whole index along a dim."""
        found = indirects(self.write[number])
        return (
            len(found) > 0
            and self.write[number] == Index(0, ((found[0], 1),))
            and found[0].extent == self.extents[number]
        )

    def shape(self, type_: TensorType) -> tuple[int, ...]:
        """Return the shape of a tensor of arriving rows and zeros."""
        return tuple(
            self.count + 1 if n == self.dims[0] else extent
            for n, extent in enumerate(type_.shape)
            if n not in self.dims[1:]
        )

    def at(self, tensor: str, indices: tuple[Index, ...], write: Sequence[Index]) -> tuple[Index, ...]:
        """Return the place of an element in a tensor of rows."""
        row = Index(0, ((Indirect(tensor, indices, self.count + 1), 1),))
        return tuple(row if n == self.dims[0] else index for n, index in enumerate(write) if n not in self.dims[1:])

    def number_rows(self, slot: str, place: str, tensors: Mapping[str, TensorType]) -> Iterator[Statement]:
        """Yield statements that number rows with updates, and each update's row.

        Updates outside of the tensor have a row after the last.
        """
        number = linearise([as_index(a) for a in self.keys], row_major(tuple(a.extent for a in self.keys))) + 1
        yield Statement(slot, self.keys, self.write, IndexValue(number, DType.U32), into="max")
        body: Expr = Read(slot, self.write)
        for index in self.write:
            for found in indirects(index):
                for condition in _is_index(found, tensors):
                    body = Call("select", (condition, body, Const(self.count + 1, DType.U32)))
        yield Statement(place, self.keys, tuple(map(as_index, self.keys)), body)


def _is_index(place: Indirect, tensors: Mapping[str, TensorType]) -> Iterator[Expr]:
    """Yield conditions under which an element of an integer tensor is an index of its axis, if its type does not imply
    them.
    """
    dtype = tensors[place.tensor].dtype
    read = Read(place.tensor, place.indices)
    low = -place.extent if place.wraps else 0
    if place.extent <= dtype.element.highest:
        yield Call("lt", (read, Const(place.extent, dtype)))
    if low > dtype.element.lowest:
        yield Call("ge", (read, Const(low, dtype)))


def _whole(value: int) -> Const:
    return Const(value, DType.I64)


def _convert(value: Expr, dtype: DType, tensors: dict[str, TensorType]) -> Expr:
    return value if dtype_of(value, tensors) is dtype else Cast(dtype, value)


def _unit(greatest: Expr, bits: int, dtype: DType, back: bool = False) -> Expr:
    """Return the square root of the units of an element in one, which is a power of two, or (`back`) that of the value
    of a unit; NaN where a term is NaN or infinite.

    A number times both roots is exact: one power could leave the range of the type.
    """
    power = Call("logb", (Call("max", (greatest, Const(0.0, dtype))),))  # an empty maximum is -inf
    half = Call("floor", (Call("mul", (Call("sub", (Const(float(bits), dtype), power)), Const(0.5, dtype))),))
    root = Call("ldexp", (Const(1.0, dtype), Call("neg", (half,)) if back else half))
    return Call("select", (_finite(greatest, dtype), root, Const(math.nan, dtype)))


def _finite(value: Expr, dtype: DType) -> Expr:
    return Call("lt", (value, Const(math.inf, dtype)))


def _mark(value: Expr, dtype: DType) -> Expr:
    """Return the count of an infinite term; a finite one beside it counts for nothing."""
    negative = Call("select", (Call("eq", (value, Const(-math.inf, dtype))), _whole(_NEGATIVE_INFINITY), _whole(0)))
    return Call("select", (Call("eq", (value, Const(math.inf, dtype))), _whole(1), negative))


def _infinite(greatest: Expr, marks: Expr, dtype: DType) -> Expr:
    """Return the sum where a term is infinite or NaN: NaN where infinities of both signs meet."""
    both = Call("sub", (greatest, greatest))
    above = Call("select", (Call("ge", (marks, _whole(_NEGATIVE_INFINITY))), both, greatest))
    has_above = Call("ne", (Call("bitand", (marks, _whole(_NEGATIVE_INFINITY - 1))), _whole(0)))
    infinity = Call("select", (has_above, above, Const(-math.inf, dtype)))
    return Call("select", (Call("isnan", (greatest,)), greatest, infinity))


# ---- comparisons


def _elements(type_: TensorType) -> tuple[tuple[Var, ...], tuple[Index, ...]]:
    """Return variables for the dims of a tensor, and its element there."""
    axes = tuple(Var(f"p{n}", extent) for n, extent in enumerate(type_.shape))
    return tuple(a for a in axes if a.extent > 1), tuple(map(as_index, axes))


def _matched_dims(statement: Statement, type_: TensorType) -> dict[int, Var]:
    """Return the dims along which a term arrives at elements of its own place, each with its axis, for any integers
    along the others.
    """
    found: dict[Var, int] = {}
    for number, (index, extent) in enumerate(zip(statement.write, type_.shape, strict=True)):
        for axis in statement.axes:
            if index == as_index(axis) and axis.extent == extent > 1:
                found.setdefault(axis, number)
    return {number: axis for axis, number in found.items()}


def _few(statement: Statement, type_: TensorType) -> bool:
    """Return whether few pairs of a term and an element may meet, overall or at each element."""
    own = _matched_dims(statement, type_)
    others = prod(extent for number, extent in enumerate(type_.shape) if number not in own)
    terms = prod(a.extent for a in statement.axes)
    at_each = terms // prod(axis.extent for axis in own.values()) if statement.step is None else terms
    return terms * others <= MAX_COMPARED_PAIRS or at_each <= MAX_COMPARED_TERMS


def _only_index(place: Indirect, tensors: Mapping[str, TensorType]) -> Expr:
    """Return the condition that an element of an integer tensor is an index of an axis of one element.

    No guard expresses it: the algebra of indices simplifies a variable with one value.
    """
    dtype = tensors[place.tensor].dtype
    read = Read(place.tensor, place.indices)
    first: Expr = Call("eq", (read, Const(0, dtype)))
    if not place.wraps or dtype.element.kind != "signed":
        return first
    return Call("or", (first, Call("eq", (read, Const(-1, dtype)))))


def _compare_terms(statement: Statement, type_: TensorType, tensors: Mapping[str, TensorType]) -> Statement:
    """Return the statement in which every element searches for its terms."""
    own, combiner = _matched_dims(statement, type_), COMBINERS[str(statement.into)]
    taken = {a.name for a in statement.axes}
    places = [as_index(own.get(n) or Var(unused_name(f"p{n}", taken), extent)) for n, extent in enumerate(type_.shape)]
    guards = [
        Guard(index - place, 0, 1)
        for number, (index, place) in enumerate(zip(statement.write, places, strict=True))
        if number not in own
    ]
    asked = tuple(dict.fromkeys(g for g in guards if not g.always))
    conditions: list[Expr] = [InRange(asked)] if asked else []
    conditions += [_only_index(i, tensors) for g in guards if g.always for i in indirects(g.index)]
    body = statement.body
    for condition in reversed(conditions):
        body = Call("select", (condition, body, Const(combiner.identity(type_.dtype), type_.dtype)))
    axes = tuple(v for place in places for v in variables(place))
    reduce = tuple(a for a in statement.axes if a not in own.values() and a.extent > 1)
    combine = combiner.name if reduce else None
    return Statement(statement.target, axes, tuple(places), body, reduce, combine, span=statement.span)
