"""Ordered rows: a scatter whose rows have the order of their places.

So do those of a matrix in CSR form, and elements of consecutive segments. Where a place differs from that of the row
before or after it, its rows begin or end, which needs no sort:

    scatter max first[at[j]] = n - j if at[j - 1] != at[j] else 0         n less the first row, 0 of no rows
    scatter max last[at[j]] = j + 1 if at[j + 1] != at[j] else 0          the end, 0 of no rows
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from attrs import evolve, frozen

from ....ir import (
    Call,
    Const,
    DType,
    Expr,
    Guard,
    Index,
    IndexValue,
    Indirect,
    InRange,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    clamp,
    linearise,
    row_major,
    substitute,
)
from ..def_use import DefUse
from .scatter_rows import ScatterRows, looked_up


@frozen
class OrderedRows:
    """Order of `count` rows by their places.

    It is their own, or `order` has the rows. The integer `at` of a `key` is the place of the row that stands there, and
    the tensors `first` and `last` bound the rows of each place.
    """

    count: int
    at: Indirect
    key: Var
    first: str
    last: str
    order: str = ""

    def begin(self, place: Index) -> Index:
        """Return where the rows of a place begin."""
        return clamp(as_index(self.count) - looked_up(self.first, (place,), self.count + 1), 0, self.count)

    def end_of(self, place: Index) -> Index:
        """Return where the rows of a place end."""
        return looked_up(self.last, (place,), self.count + 1)

    def row(self, number: Index) -> Index:
        """Return the row at a place of the order."""
        number = clamp(number, 0, self.count - 1)
        return looked_up(self.order, (number,), self.count) if self.order else number

    def place_at(self, number: Index) -> Index:
        """Return the place of the row at a place of the order."""
        moved = {self.key: clamp(number, 0, self.count - 1)}
        indices = tuple(substitute(i, moved) for i in self.at.indices)
        return Index(0, ((evolve(self.at, indices=indices), 1),))


def ordered_place(rows: ScatterRows, index: DefUse, ordered: Collection[str]) -> Indirect | None:
    """Return the integer that is the place of each row, if ordered."""
    if len(rows.keys) != 1 or len(rows.write) != 1 or min(rows.count, *rows.extents) < 2:
        return None
    ((found, _),) = rows.write[0].terms
    if not isinstance(found, Indirect) or found.tensor not in ordered:
        return None
    type_ = index.types[found.tensor]
    own = linearise(found.indices, row_major(type_.shape)) == as_index(rows.keys[0])
    return found if own and type_.size == rows.count else None


def order_of_rows(
    target: str, rows: ScatterRows, at: Indirect, index: DefUse, key: Var
) -> tuple[OrderedRows, list[Statement]]:
    """Return the order of ordered rows, and its statements."""
    kind = TensorType(DType.U32, rows.extents)
    first, last = (index.add_tensor(f"{target}.{name}", kind) for name in ("first", "last"))
    order = OrderedRows(rows.count, at, key, first, last)
    return order, [*_bounds(order)]


def _bounds(order: OrderedRows) -> Iterator[Statement]:
    """Yield the statements of the first and the last row of each place."""
    at, key, count = order.at, order.key, order.count
    own: Expr = Read(at.tensor, at.indices)
    place = order.place_at(as_index(key))
    for target, step, number in ((order.first, -1, as_index(count) - key), (order.last, 1, as_index(key) + 1)):
        there = as_index(key) + step
        near = tuple(substitute(i, {key: there}) for i in at.indices)
        inside = (Guard(there, 0, count),)
        differs = Call("or", (Call("ne", (Read(at.tensor, near, inside), own)), Call("not", (InRange(inside),))))
        body = Call("select", (differs, IndexValue(number, DType.U32), Const(0, DType.U32)))
        yield Statement(target, (key,), (place,), body, into="max")
