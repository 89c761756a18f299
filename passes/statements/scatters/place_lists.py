"""Lists of places: few rows of a scatter, grouped by their places.

Rows are appended to lists, whose lengths are counted before. Each of a place's S lists has every S-th row, in any
order; a row then takes the rank that it has in its list, so that the order is always the same. A list has T rows at
most, so that ranks take at most T steps a row, and neighbours with one place are not appended one after another.

    bucket[j] = at[j] * S + j % S
    scatter sum length[bucket[j] + 1] = 1
    list[e] = start + sum[f < e] length[f]                      where list e begins; rows follow from `start` on
    scatter append list[bucket[j] + 1] = j                      where list e ends, and its rows
    rank[t] = sum[i < T] (1 if list[begin + i] < list[start + t] and begin + i < end else 0)
    scatter one order[begin - start + rank[t]] = list[start + t]
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
from .scatter_rows import ScatterRows, index_tests, looked_up

#: Rows that a list may have in any case, and most lists for each row.
LIST_ROWS, MAX_LISTS_PER_ROW = 4096, 4
#: Factors of the sizes of tensors: elements of a part of a scan, and threads of a block, which then need no conditions.
SCAN_PART, WHOLE_BLOCK = 1024, 256
_ONE, _NONE = Const(1, DType.U32), Const(0, DType.U32)


@frozen
class PlaceLists:
    """Order of `count` rows by their places.

    `order` has the rows, `bucket` the list of each row; each place has so many `shares`, a list each. `lists` has the
    ends of lists and their rows. Rows outside of the tensor have the place after the last one.
    """

    order: str
    bucket: str
    lists: str
    count: int
    places: int
    shares: int

    @property
    def longest(self) -> int:
        """Most rows of a list."""
        return -(-self.count // self.shares)

    @property
    def start(self) -> int:
        """Beginning of all lists, after whole parts of a scan."""
        return -(-((self.places + 1) * self.shares + 1) // SCAN_PART) * SCAN_PART

    @property
    def end(self) -> int:
        """End of all lists in their tensor."""
        return self.start + self.count

    @property
    def size(self) -> int:
        """Size of the tensor of lists, with room after the last one."""
        return self.end + self.longest

    def begin(self, place: Index) -> Index:
        """Return where the rows of a place begin in the order."""
        return self.list_begin(place * self.shares)

    def end_of(self, place: Index) -> Index:
        """Return where the rows of a place end in the order."""
        return self.begin(place + 1)

    def list_begin(self, number: Index) -> Index:
        """Return where the rows of a list begin in the order."""
        return clamp(looked_up(self.lists, (number,), self.end + 1) - self.start, 0, self.count)

    def row(self, number: Index) -> Index:
        """Return the row at a place of the order."""
        return looked_up(self.order, (clamp(number, 0, self.count - 1),), self.count)

    def place_at(self, number: Index) -> Index:
        """Return the place of the row at a place of the order."""
        return looked_up(self.bucket, (self.row(number),), self.start - 1) // self.shares


def list_places(statement: Statement, rows: ScatterRows, index: DefUse) -> tuple[PlaceLists, list[Statement]]:
    """Return the order of a scatter's rows, and its statements."""
    count, places = rows.count, prod(rows.extents)

    def add(name: str, extent: int) -> str:
        return index.add_tensor(f"{statement.target}.{name}", TensorType(DType.U32, (extent,)))

    shares = max(1, min(-(-count // LIST_ROWS), MAX_LISTS_PER_ROW * count // (places + 1)))
    ranked = -(-count // WHOLE_BLOCK) * WHOLE_BLOCK
    found = PlaceLists(add("order", count), add("bucket", count), "", count, places, shares)
    found = evolve(found, lists=add("lists", found.size))
    length, ahead = (add(name, found.start) for name in ("length", "ahead"))
    j, e, f = Var("j", count), Var("e", found.start), Var("f", found.start)
    rest = Var("r", found.size - found.start)
    own = looked_up(found.bucket, (as_index(j),), found.start - 1) + 1
    counted = InRange((Guard(as_index(e) - f, 1, e.extent),))
    before = Call("select", (counted, Read(length, (as_index(f),)), _NONE))
    scan = Statement(ahead, (e,), (as_index(e),), before, (f,), "sum")
    scanned = divide_scans(Program(index.types, (length,), (), (scan,)))
    index.types.update(scanned.tensors)
    start = Call("add", (Read(ahead, (as_index(e),)), Const(found.start, DType.U32)))
    return found, [
        _buckets(rows, found, index),
        Statement(found.lists, (rest,), (as_index(rest) + found.start,), _NONE),
        Statement(length, (j,), (own,), _ONE, into="sum"),
        *scanned.statements,
        Statement(found.lists, (e,), (as_index(e),), start),
        Statement(found.lists, (j,), (own,), IndexValue(as_index(j), DType.U32), into=APPEND),
        *_ranks(found, add("rank", ranked), ranked),
    ]


def _ranks(found: PlaceLists, rank: str, ranked: int) -> Iterator[Statement]:
    """Yield the statements of the places of rows in the order; ranks beyond the last row have none."""
    t, i = Var("t", ranked), Var("i", found.longest)
    last, beyond = clamp(as_index(t), 0, found.count - 1), clamp(as_index(t) - found.count + 1, 0, 1)
    own = Read(found.lists, (last + found.start,))
    number = looked_up(found.bucket, (looked_up(found.lists, (last + found.start,), found.count),), found.start - 1)
    begin, end = (looked_up(found.lists, (n,), found.end + 1) for n in (number, number + 1))
    inside = InRange((Guard(begin + i - end, -found.size, 0),))
    earlier = Call("lt", (Read(found.lists, (begin + i,)), own))
    counted = Call("select", (inside, Call("select", (earlier, _ONE, _NONE)), _NONE))
    yield Statement(rank, (t,), (as_index(t),), counted, (i,), "sum")
    place = found.list_begin(number) + looked_up(rank, (as_index(t),), found.longest) + beyond * found.count
    yield Statement(found.order, (t,), (place,), own, into=ONE_ARRIVAL)


def _buckets(rows: ScatterRows, found: PlaceLists, index: DefUse) -> Statement:
    """Return the statement of the lists of rows."""
    body: Expr = IndexValue(linearise(list(rows.write), row_major(rows.extents)), DType.U32)
    for condition in (c for i in rows.write for found_ in indirects(i) for c in index_tests(found_, index.types)):
        body = Call("select", (condition, body, Const(found.places, DType.U32)))
    number = linearise([as_index(a) for a in rows.keys], row_major(tuple(a.extent for a in rows.keys)))
    if found.shares > 1:
        body = Call("mul", (body, Const(found.shares, DType.U32)))
        body = Call("add", (body, IndexValue(number % found.shares, DType.U32)))
    return Statement(found.bucket, rows.keys, (number,), body)
