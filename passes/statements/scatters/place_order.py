"""Order of places: rows that a scatter sends, sorted by their places.

Rows are sorted by some bits of their places, the digit, least bits first. A row of a tile stands after all rows of
lesser digits, those of its digit in tiles before, and those before it in its sorted tile:

    scatter sum count[b, digit[b, j]] = 1
    start[e, b] = rows of lesser digits than e, and with e in tiles before b
    shift[b, e] = start[e, b] - sum[f < e] count[b, f]
    sorted[b, r] = the row of tile b with rank r by digit, of equals the first
    scatter one order[r + shift[b, digit[b, sorted[b, r]]]] = tile * b + sorted[b, r]

Rows outside of the tensor have the place after the last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from attrs import evolve, frozen

from ....ir import (
    ONE_ARRIVAL,
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
    indirects,
    linearise,
    row_major,
)
from ..def_use import DefUse
from ..prefix_scan import divide_scans
from ..sorts import mark_sorts
from .ordered_rows import OrderedRows, order_of_rows
from .scatter_rows import ScatterRows, index_tests, looked_up

#: Most bits of a digit; least and most rows of a tile, and tiles that have work for a machine.
DIGIT_BITS, MIN_TILE, MAX_TILE, FULL_TILES = 8, 512, 4096, 128
_NONE = Const(0, DType.I32)


def order_places(statement: Statement, rows: ScatterRows, index: DefUse) -> tuple[OrderedRows, list[Statement]]:
    """Return the order of a scatter's rows by their places, and its statements."""
    places, count = prod(rows.extents), rows.count

    def add(name: str, dtype: DType, *shape: int) -> str:
        return index.add_tensor(f"{statement.target}.{name}", TensorType(dtype, shape))

    key, order, statements = add("bucket", DType.U32, count), "", list[Statement]()
    statements.append(_buckets(rows, key, index))
    passes = -(-places.bit_length() // DIGIT_BITS)
    bits = -(-places.bit_length() // passes)
    tile = max(MIN_TILE, min(MAX_TILE, 1 << (count // FULL_TILES).bit_length()))
    for number in range(passes):
        sort = _DigitSort(index, statement.target, key, order, bits * number, bits, tile)
        key, order = (add(name, DType.U32, count) for name in ("key", "order"))
        marked = mark_sorts(Program(index.types, (sort.key,), (key, order), tuple(sort.statements(key, order))))
        divided = divide_scans(marked)
        index.types.update(divided.tensors)
        statements += divided.statements
    row = Var("n", count)
    at = Indirect(key, (as_index(row),), places)
    found, bounds = order_of_rows(statement.target, evolve(rows, extents=(places,)), at, index, row)
    return evolve(found, order=order), [*statements, *bounds]


def _buckets(rows: ScatterRows, key: str, index: DefUse) -> Statement:
    """Return the statement of the rows' places."""
    body: Expr = IndexValue(linearise(list(rows.write), row_major(rows.extents)), DType.U32)
    for condition in (c for i in rows.write for found in indirects(i) for c in index_tests(found, index.types)):
        body = Call("select", (condition, body, Const(prod(rows.extents), DType.U32)))
    number = linearise([as_index(a) for a in rows.keys], row_major(tuple(a.extent for a in rows.keys)))
    return Statement(key, rows.keys, (number,), body)


@frozen
class _DigitSort:
    """Sort of rows by `bits` of their keys from `low` on, which keeps the order of equals."""

    index: DefUse
    target: str
    key: str
    order: str
    low: int
    bits: int
    tile: int

    @property
    def _count(self) -> int:
        return self.index.types[self.key].size

    @property
    def _tiles(self) -> int:
        return -(-self._count // self.tile)

    def _add(self, name: str, dtype: DType, *shape: int) -> str:
        return self.index.add_tensor(f"{self.target}.{name}", TensorType(dtype, shape))

    def statements(self, moved: str, order: str) -> Iterator[Statement]:
        """Yield the statements of the sorted keys and the order of rows."""
        tiles, digits = self._tiles, 1 << self.bits
        b, j, e, r = Var("b", tiles), Var("j", self.tile), Var("e", digits), Var("r", self.tile)
        digit, sorted_ = (
            self._add("digit", DType.U8, tiles, self.tile),
            self._add("sorted", DType.I32, tiles, self.tile),
        )
        shift = self._add("shift", DType.I32, tiles, digits)
        own = Call("bitand", (Call("shr", (self._element(b, as_index(j)), _u32(self.low))), _u32(digits - 1)))
        yield Statement(digit, (b, j), _at(b, j), Cast(DType.U8, own))
        yield from self._shifts(digit, shift, b, j, e)
        yield from self._ranks(digit, sorted_, b, r)
        place = looked_up(sorted_, _at(b, r), self.tile)
        to = (
            as_index(r) + looked_up(shift, (as_index(b), looked_up(digit, (as_index(b), place), digits)), self._count),
        )
        yield Statement(moved, (b, r), to, self._element(b, place), into=ONE_ARRIVAL)
        there = self._place(b, place)
        number = IndexValue(there, DType.U32)
        before = Read(self.order, (there,), self._inside(b, place)) if self.order else number
        yield Statement(order, (b, r), to, before, into=ONE_ARRIVAL)

    def _place(self, tile: Var, place: Index) -> Index:
        return as_index(tile) * self.tile + place

    def _inside(self, tile: Var, place: Index) -> tuple[Guard, ...]:
        guard = Guard(self._place(tile, place), 0, self._count)
        return () if guard.always else (guard,)

    def _element(self, tile: Var, place: Index) -> Read:
        """Return the key of a row of a tile; beyond the last row its digit is the greatest."""
        fill = (1 << self.bits) - 1 << self.low
        return Read(self.key, (self._place(tile, place),), self._inside(tile, place), fill)

    def _shifts(self, digit: str, shift: str, b: Var, j: Var, e: Var) -> Iterator[Statement]:
        """Yield the statements that count digits, and by them the places of the first rows with each."""
        tiles, digits = b.extent, e.extent
        found = looked_up(digit, _at(b, j), digits)
        count, counts = self._add("count", DType.I32, tiles, digits), self._add("counts", DType.I32, digits, tiles)
        row, start = (self._add(name, DType.I32, digits * tiles) for name in ("row", "start"))
        lesser = self._add("lesser", DType.I32, tiles, digits)
        c, before, f = Var("c", digits * tiles), Var("before", digits * tiles), Var("f", digits)
        one = Const(1, DType.I32)
        yield Statement(count, (b, j), (as_index(b), found), one, into="sum")
        yield Statement(counts, (b, j), (found, as_index(b)), one, into="sum")
        yield Statement(row, (c,), _at(c), Read(counts, (c // tiles, c % tiles)))
        yield Statement(start, (c,), _at(c), _earlier(c, before, Read(row, _at(before))), (before,), "sum")
        yield Statement(lesser, (b, e), _at(b, e), _earlier(e, f, Read(count, _at(b, f))), (f,), "sum")
        first = Read(start, (as_index(e) * tiles + b,))
        yield Statement(shift, (b, e), _at(b, e), Call("sub", (first, Read(lesser, _at(b, e)))))

    def _ranks(self, digit: str, target: str, b: Var, r: Var) -> Iterator[Statement]:
        """Yield the statements of the rows of sorted tiles."""
        near = self._add("near", DType.I32, b.extent, r.extent)
        i, j = Var("i", self.tile), Var("j", self.tile)
        own, other = (Read(digit, _at(b, v)) for v in (i, j))
        equal = Call("and", (Call("eq", (other, own)), InRange((Guard(as_index(i) - j, 1, self.tile),))))
        first = Call("or", (Call("lt", (other, own)), equal))
        counted = Call("select", (first, Const(1, DType.I32), _NONE))
        yield Statement(near, (b, i), _at(b, i), counted, (j,), "sum")
        here = Call("eq", (Read(near, _at(b, j)), IndexValue(as_index(r), DType.I32)))
        place = Call("select", (here, IndexValue(as_index(j), DType.I32), _NONE))
        yield Statement(target, (b, r), _at(b, r), place, (j,), "sum")


def _at(*variables: Var) -> tuple[Index, ...]:
    return tuple(map(as_index, variables))


def _u32(value: int) -> Const:
    return Const(value, DType.U32)


def _earlier(place: Var, other: Var, value: Expr) -> Expr:
    """Return a value where it lies before a place, else 0."""
    return Call("select", (InRange((Guard(as_index(place) - other, 1, place.extent),)), value, _NONE))
