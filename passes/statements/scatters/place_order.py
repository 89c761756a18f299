"""Order of places: rows that a scatter sends, grouped by their places.

Rows are appended to lists, whose lengths are counted before. A list has the rows of a place in one tile of T rows, in
any order; each row then takes the rank that it has in its list, which makes the order that of a stable sort. A list has
T rows at most, so that ranks take at most T steps a row.

    bucket[j] = at[j] * tiles + j // T
    scatter sum length[bucket[j] + 1] = 1
    list[e] = start + sum[f < e] length[f]                      where list e begins; rows follow from `start` on
    scatter append list[bucket[j] + 1] = j                      where list e ends, and its rows
    rank[t] = sum[i < T] (1 if list[begin + i] < list[start + t] and begin + i < end else 0)
    order[begin - start + rank[t]] = list[start + t]
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from attrs import evolve, frozen

from ....ir import (
    APPEND,
    ONE_ARRIVAL,
    Call,
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
    clamp,
    indirects,
    linearise,
    row_major,
)
from ..def_use import DefUse
from ..prefix_scan import divide_scans
from .scatter_rows import ScatterRows, index_tests

#: Least rows of a tile, and most lists for each row.
MIN_TILE, MAX_LISTS_PER_ROW = 4096, 4
#: Factors of the sizes of tensors: elements of a part of a scan, and threads of a block, which then need no conditions.
SCAN_PART, WHOLE_BLOCK = 1024, 256
_ONE, _NONE = Const(1, DType.U32), Const(0, DType.U32)


@frozen
class PlaceOrder:
    """Order of `count` rows by their places.

    `order` has the rows, `bucket` the list of each row; each place has a list for each `tile`. `lists` has the ends
    of lists and their rows. Rows outside of the tensor have the place after the last one.
    """

    order: str
    bucket: str
    lists: str
    count: int
    places: int
    tile: int

    @property
    def tiles(self) -> int:
        """Number of tiles, and of lists of a place."""
        return -(-self.count // self.tile)

    @property
    def start(self) -> int:
        """First element of all lists in their tensor."""
        return (self.places + 1) * self.tiles + 1

    @property
    def end(self) -> int:
        """End of all lists in their tensor."""
        return self.start + self.count

    @property
    def size(self) -> int:
        """Elements of the tensor of lists.

        They are whole parts of a scan, with room for a tile after each list.
        """
        return -(-(self.end + self.tile) // SCAN_PART) * SCAN_PART

    def begin(self, place: Index) -> Index:
        """Return where the rows of a place begin in the order.

        Those of the next place end them.
        """
        return self.list_begin(place * self.tiles)

    def list_begin(self, number: Index) -> Index:
        """Return where the rows of a list begin in the order."""
        return clamp(looked_up(self.lists, number, self.end + 1) - self.start, 0, self.count)

    def row(self, number: Index) -> Index:
        """Return the row at a place of the order."""
        return looked_up(self.order, clamp(number, 0, self.count - 1), self.count)

    def place_of(self, row: Index) -> Index:
        """Return the place of a row."""
        return looked_up(self.bucket, row, self.start - 1) // self.tiles


def order_places(statement: Statement, rows: ScatterRows, index: DefUse) -> tuple[PlaceOrder, list[Statement]]:
    """Return the order of a scatter's rows, and its statements."""
    count, places = rows.count, prod(rows.extents)

    def add(name: str, extent: int) -> str:
        return index.add_tensor(f"{statement.target}.{name}", TensorType(DType.U32, (extent,)))

    tile = MIN_TILE
    while -(-count // tile) * (places + 1) > MAX_LISTS_PER_ROW * count and tile < count:
        tile *= 2
    ranked = -(-count // WHOLE_BLOCK) * WHOLE_BLOCK
    found = PlaceOrder(add("order", count), add("bucket", count), "", count, places, min(tile, count))
    found = evolve(found, lists=add("lists", found.size))
    length, ahead = (add(name, found.size) for name in ("length", "ahead"))
    j, e, f = Var("j", count), Var("e", found.size), Var("f", found.size)
    own = looked_up(found.bucket, as_index(j), found.start - 1) + 1
    counted = InRange((Guard(as_index(e) - f, 1, e.extent),))
    before = Call("select", (counted, Read(length, (as_index(f),)), _NONE))
    scan = Statement(ahead, (e,), (as_index(e),), before, (f,), "sum")
    scanned = divide_scans(Program(index.types, (length,), (), (scan,)))
    index.types.update(scanned.tensors)
    start = Call("add", (Read(ahead, (as_index(e),)), Const(found.start, DType.U32)))
    return found, [
        _buckets(rows, found, index),
        Statement(length, (j,), (own,), _ONE, into="sum"),
        *scanned.statements,
        Statement(found.lists, (e,), (as_index(e),), start),
        Statement(found.lists, (j,), (own,), IndexValue(as_index(j), DType.U32), into=APPEND),
        *_ranks(found, Var("i", found.tile), add("rank", ranked), add("near", ranked), index),
    ]


def _ranks(found: PlaceOrder, i: Var, rank: str, near: str, index: DefUse) -> Iterator[Statement]:
    """Yield the statements of the places of rows in the order; ranks beyond the last row are those of the last row."""
    t = Var("t", index.types[rank].size)
    here, last = as_index(t), clamp(as_index(t), 0, found.count - 1) + found.start
    own, row = Read(found.lists, (last,)), looked_up(found.lists, last, found.count)
    number = looked_up(found.bucket, row, found.start - 1)
    begin, end = (looked_up(found.lists, n, found.end + 1) for n in (number, number + 1))
    inside = InRange((Guard(begin + i - end, -found.size, 0),))
    other = Read(found.lists, (begin + i,))
    earlier = Call("select", (inside, Call("select", (Call("lt", (other, own)), _ONE, _NONE)), _NONE))
    yield Statement(rank, (t,), (here,), earlier, (i,), "sum")
    place = Call("add", (IndexValue(found.list_begin(number), DType.U32), Read(rank, (here,))))
    yield Statement(near, (t,), (here,), place)
    j = Var("j", found.count)
    row_there = Read(found.lists, (as_index(j) + found.start,))
    yield Statement(found.order, (j,), (looked_up(near, as_index(j), found.count),), row_there, into=ONE_ARRIVAL)


def looked_up(tensor: str, place: Index, extent: int) -> Index:
    """Return an element of a tensor as an index below `extent`."""
    return Index(0, ((Indirect(tensor, (place,), extent, wraps=False), 1),))


def _buckets(rows: ScatterRows, found: PlaceOrder, index: DefUse) -> Statement:
    """Return the statement of the lists of rows."""
    body: Expr = IndexValue(linearise(list(rows.write), row_major(rows.extents)), DType.U32)
    for condition in (c for i in rows.write for found_ in indirects(i) for c in index_tests(found_, index.types)):
        body = Call("select", (condition, body, Const(found.places, DType.U32)))
    number = linearise([as_index(a) for a in rows.keys], row_major(tuple(a.extent for a in rows.keys)))
    if found.tiles > 1:
        body = Call("mul", (body, Const(found.tiles, DType.U32)))
        body = Call("add", (body, IndexValue(number // found.tile, DType.U32)))
    return Statement(found.bucket, rows.keys, (number,), body)
