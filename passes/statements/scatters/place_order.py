"""Order of places: rows that a scatter sends, sorted by their places.

The sort is stable (`radix_passes`). Edges of the sorted places say where the rows of one begin
and end in the order.

    key[j] = at[j]                                            sorted: place[t], order[t]
    scatter max begin[place[t]] = t where place[t - 1] differs
    scatter max end[place[t]] = t + 1 where place[t + 1] differs          0 and 0 for a place without rows
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from attrs import frozen

from ....ir import (
    Call,
    Const,
    DType,
    Expr,
    Guard,
    Index,
    IndexValue,
    Indirect,
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
from .radix_passes import sort_keys
from .scatter_rows import ScatterRows, index_tests

#: A place that no row has.
NO_PLACE = float((1 << 32) - 1)


@frozen
class PlaceOrder:
    """Tensors of an order of rows.

    They are the sorted places, their rows, and begin and end of each place in the order. Rows outside of the tensor
    have the place after the last one.
    """

    place: str
    order: str
    begin: str
    end: str


def order_places(statement: Statement, rows: ScatterRows, index: DefUse) -> tuple[PlaceOrder, list[Statement]]:
    """Return the order of a scatter's rows, and its statements."""
    places = prod(rows.extents)

    def add(name: str, extent: int) -> str:
        return index.add_tensor(f"{statement.target}.{name}", TensorType(DType.U32, (extent,)))

    key = add("key", rows.count)
    place, order, passes = sort_keys(key, places, index)
    found = PlaceOrder(place, order, add("begin", places), add("end", places))
    return found, [_keys(rows, key, index), *passes, *_edges(found, rows.count, places)]


def looked_up(tensor: str, place: Index, extent: int) -> Index:
    """Return an element of a tensor as an index below `extent`."""
    return Index(0, ((Indirect(tensor, (place,), extent, wraps=False), 1),))


def _keys(rows: ScatterRows, key: str, index: DefUse) -> Statement:
    """Return the statement of the places of rows."""
    places = prod(rows.extents)
    body: Expr = IndexValue(linearise(list(rows.write), row_major(rows.extents)), DType.U32)
    for condition in (c for i in rows.write for found in indirects(i) for c in index_tests(found, index.types)):
        body = Call("select", (condition, body, Const(places, DType.U32)))
    number = linearise([as_index(a) for a in rows.keys], row_major(tuple(a.extent for a in rows.keys)))
    return Statement(key, rows.keys, (number,), body)


def _edges(found: PlaceOrder, count: int, places: int) -> Iterator[Statement]:
    """Yield the scatters of the first row of each place, and of the end of its last one."""
    axis = Var("t", count)
    here, none = as_index(axis), Const(0, DType.U32)
    to = Index(0, ((Indirect(found.place, (here,), places), 1),))
    for target, beside, value in ((found.begin, here - 1, here), (found.end, here + 1, here + 1)):
        other = Read(found.place, (beside,), (Guard(beside, 0, count),), NO_PLACE)
        edge = Call("ne", (Read(found.place, (here,)), other))
        body = Call("select", (edge, IndexValue(value, DType.U32), none))
        yield Statement(target, (axis,), (to,), body, into="max")
