"""Order of places: rows that a scatter sends, sorted by their places.

Rows are sorted by some bits of their places, the digit, least bits first. A row of a tile stands after all rows of
lesser digits, those of its digit in tiles before, and those before it in its sorted tile:

    scatter sum count[b, digit[b, j]] = 1
    start[e, b] = rows of lesser digits than e, and with e in tiles before b;   lesser[b, e] = sum[f < e] count[b, f]
    sorted[b, r] = the row of tile b with rank r by digit, of equals the first;   d = digit[b, sorted[b, r]]
    scatter one order[r + start[d, b] - lesser[b, d]] = tile * b + sorted[b, r]

Rows outside of the tensor have the place after the last one, and those beyond the last row the greatest key.
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
    """Return the order of rows by their places, and its statements."""
    places, count = prod(rows.extents), rows.count
    passes = -(-places.bit_length() // DIGIT_BITS)
    bits = -(-places.bit_length() // passes)
    tile = max(MIN_TILE, min(MAX_TILE, 1 << (count // FULL_TILES).bit_length()))
    sort = _Sort(index, statement.target, -(-count // tile), tile, bits, passes)
    found = [_buckets(rows, sort.add("bucket", DType.U32, count), index)]
    found.append(sort.first_digits(found[0].target))
    keys = _Keys(found[0].target, "", found[-1].target)
    for number in range(passes):
        keys, statements = sort.sort_by_digit(keys, number)
        marked = mark_sorts(Program(index.types, (), (keys.key, keys.order), tuple(statements)))
        divided = divide_scans(marked)
        index.types.update(divided.tensors)
        found += divided.statements
    row = Var("n", count)
    at = Indirect(keys.key, (as_index(row),), places)
    bounded, bounds = order_of_rows(statement.target, evolve(rows, extents=(places,)), at, index, row)
    return evolve(bounded, order=keys.order), [*found, *bounds]


def _buckets(rows: ScatterRows, key: str, index: DefUse) -> Statement:
    """Return the statement of the rows' places."""
    body: Expr = IndexValue(linearise(list(rows.write), row_major(rows.extents)), DType.U32)
    for condition in (c for i in rows.write for found in indirects(i) for c in index_tests(found, index.types)):
        body = Call("select", (condition, body, Const(prod(rows.extents), DType.U32)))
    number = linearise([as_index(a) for a in rows.keys], row_major(tuple(a.extent for a in rows.keys)))
    return Statement(key, rows.keys, (number,), body)


@frozen
class _Keys:
    """Keys of rows, the rows themselves (their own order where empty), and the digits of the next pass."""

    key: str
    order: str
    digit: str


@frozen
class _Sort:
    """Sort of keys in `tiles` of `tile` rows by digits of so many `bits`."""

    index: DefUse
    target: str
    tiles: int
    tile: int
    bits: int
    passes: int

    @property
    def _size(self) -> int:
        return self.tiles * self.tile

    def add(self, name: str, dtype: DType, *shape: int) -> str:
        """Add a tensor, and return its name."""
        return self.index.add_tensor(f"{self.target}.{name}", TensorType(dtype, shape))

    def _digit(self, key: Expr, number: int) -> Expr:
        shifted = Call("shr", (key, _u32(self.bits * number))) if number else key
        return Cast(DType.U8, Call("bitand", (shifted, _u32((1 << self.bits) - 1))))

    def first_digits(self, key: str) -> Statement:
        """Return the statement of the digits of the first pass."""
        j, digit = Var("j", self._size), self.add("digit", DType.U8, self._size)
        return Statement(digit, (j,), _at(j), self._digit(self._read(key, as_index(j)), 0))

    def _read(self, key: str, place: Index) -> Read:
        """Return the key at a place, the greatest one beyond the last row."""
        count = self.index.types[key].size
        guards = (Guard(place, 0, count),) if count < self._size else ()
        return Read(key, (place,), guards, (1 << self.bits * self.passes) - 1 if guards else 0)

    def sort_by_digit(self, keys: _Keys, number: int) -> tuple[_Keys, list[Statement]]:
        """Return keys sorted stably by one digit, and statements."""
        digits = 1 << self.bits
        b, r = Var("b", self.tiles), Var("r", self.tile)
        rank, start, lesser = (
            self.add(name, DType.I32, size)
            for name, size in (("rank", self._size), ("start", digits * self.tiles), ("lesser", digits * self.tiles))
        )
        row = as_index(b) * self.tile + looked_up(rank, (as_index(b) * self.tile + r,), self.tile)
        digit = looked_up(keys.digit, (row,), digits)
        first = looked_up(start, (digit * self.tiles + b,), self._size)
        to = (first - looked_up(lesser, (as_index(b) * digits + digit,), self.tile + 1) + r,)
        key, order = (self.add(name, DType.U32, self._size) for name in ("key", "order"))
        moved = self._read(keys.key, row)
        values: dict[str, Expr] = {key: moved, order: IndexValue(row, DType.U32)}
        if keys.order:
            values[order] = Read(keys.order, (row,))
        following = ""
        if number + 1 < self.passes:
            following = self.add("digit", DType.U8, self._size)
            values[following] = self._digit(moved, number + 1)
        moves = [Statement(target, (b, r), to, value, into=ONE_ARRIVAL) for target, value in values.items()]
        found = [*self._count_digits(keys.digit, start, lesser), *self._ranks(keys.digit, rank), *moves]
        return _Keys(key, order, following), found

    def _count_digits(self, digit: str, start: str, lesser: str) -> Iterator[Statement]:
        """Yield the statements that count digits: those before a tile's, and those of lesser ones in a tile."""
        tiles, digits = self.tiles, 1 << self.bits
        b, j, e, f = Var("b", tiles), Var("j", self.tile), Var("e", digits), Var("f", digits)
        found = looked_up(digit, (as_index(b) * self.tile + j,), digits)
        count, counts = self.add("count", DType.I32, tiles, digits), self.add("counts", DType.I32, digits, tiles)
        row = self.add("row", DType.I32, digits * tiles)
        c, before = Var("c", digits * tiles), Var("before", digits * tiles)
        one = Const(1, DType.I32)
        yield Statement(count, (b, j), (as_index(b), found), one, into="sum")
        yield Statement(counts, (b, j), (found, as_index(b)), one, into="sum")
        yield Statement(row, (c,), _at(c), Read(counts, (c // tiles, c % tiles)))
        yield Statement(start, (c,), _at(c), _earlier(c, before, Read(row, _at(before))), (before,), "sum")
        place = (as_index(b) * digits + e,)
        yield Statement(lesser, (b, e), place, _earlier(e, f, Read(count, _at(b, f))), (f,), "sum")

    def _ranks(self, digit: str, rank: str) -> Iterator[Statement]:
        """Yield the statements of the rows of sorted tiles."""
        near = self.add("near", DType.I32, self.tiles, self.tile)
        b, i, j, r = Var("b", self.tiles), Var("i", self.tile), Var("j", self.tile), Var("r", self.tile)
        own, other = (Read(digit, (as_index(b) * self.tile + v,)) for v in (i, j))
        equal = Call("and", (Call("eq", (other, own)), InRange((Guard(as_index(i) - j, 1, self.tile),))))
        first = Call("or", (Call("lt", (other, own)), equal))
        counted = Call("select", (first, Const(1, DType.I32), _NONE))
        yield Statement(near, (b, i), _at(b, i), counted, (j,), "sum")
        here = Call("eq", (Read(near, _at(b, j)), IndexValue(as_index(r), DType.I32)))
        place = Call("select", (here, IndexValue(as_index(j), DType.I32), _NONE))
        yield Statement(rank, (b, r), (as_index(b) * self.tile + r,), place, (j,), "sum")


def _at(*variables: Var) -> tuple[Index, ...]:
    return tuple(map(as_index, variables))


def _u32(value: int) -> Const:
    return Const(value, DType.U32)


def _earlier(place: Var, other: Var, value: Expr) -> Expr:
    """Return a value where it lies before a place, else 0."""
    return Call("select", (InRange((Guard(as_index(place) - other, 1, place.extent),)), value, _NONE))
