"""Rows that a scatter sends, numbered by their last update.

scatter max slot[at[j]] = j + 1                                       0 where nothing arrives
place[j] = slot[at[j]]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

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

#: Least reduction of counted elements that is worth numbering rows, which takes two kernels more.
MIN_SAVED_ELEMENTS = 1 << 19


@frozen
class ScatterRows:
    """Rows that a scatter sends, far fewer than those of the tensor.

    There is one for each value of `keys`. The integers in `write` index the rows along `dims` of the tensor.
    """

    keys: tuple[Var, ...]
    dims: tuple[int, ...]
    extents: tuple[int, ...]
    write: tuple[Index, ...]

    @classmethod
    def of(cls, statement: Statement, type_: TensorType) -> ScatterRows | None:
        """Return the rows of a scatter that are worth numbering."""
        rows = cls.looked_up(statement, type_)
        if rows is None:
            return None
        saved = (prod(rows.extents) - rows.count) * (type_.size // max(1, prod(rows.extents)))
        return rows if saved >= MIN_SAVED_ELEMENTS else None

    @classmethod
    def looked_up(cls, statement: Statement, type_: TensorType) -> ScatterRows | None:
        """Return the rows of a scatter.

        None where integers are no whole indices, or steps send.
        """
        own = statement.own_dims(type_.shape)
        keys = tuple(a for a in statement.axes if a not in own.values())
        dims = tuple(n for n in range(len(type_.shape)) if n not in own)
        rows = cls(keys, dims, tuple(type_.shape[n] for n in dims), tuple(statement.write[n] for n in dims))
        plain = all(rows._looked_up(number) or not indirects(index) for number, index in enumerate(rows.write))
        return rows if plain and any(map(indirects, rows.write)) and statement.step is None else None

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
                for condition in index_tests(found, tensors):
                    body = Call("select", (condition, body, Const(self.count + 1, DType.U32)))
        yield Statement(place, self.keys, tuple(map(as_index, self.keys)), body)


@frozen
class ArrivingRows:
    """A scatter into a tensor of arriving rows, or of all.

    `numbering` are the statements that number them, `statement` is the scatter, which sends into a tensor of `shape`,
    and `elements` is the place there of each element of the target, which exists where `guards` hold.
    """

    numbering: tuple[Statement, ...]
    statement: Statement
    shape: tuple[int, ...]
    elements: tuple[Index, ...]
    guards: tuple[Guard, ...] = ()

    def read(self, tensor: str, fill: float = 0.0) -> Read:
        """Return the read of each element, `fill` where nothing arrived."""
        return Read(tensor, self.elements, self.guards, fill)


def arriving_rows(statement: Statement, index: DefUse) -> ArrivingRows:
    """Return a scatter into arriving rows where that pays."""
    type_ = index.types[statement.target]
    every = element_of(type_)[1]
    rows = ScatterRows.of(statement, type_)
    if rows is None:
        return ArrivingRows((), statement, type_.shape, every)
    keys = TensorType(DType.U32, tuple(a.extent for a in rows.keys))
    slot = index.add_tensor(f"{statement.target}.slot", TensorType(DType.U32, rows.extents))
    where = index.add_tensor(f"{statement.target}.place", keys)
    numbering = tuple(rows.number_rows(slot, where, index.types))
    sent = evolve(statement, write=rows.at(where, tuple(map(as_index, rows.keys)), statement.write))
    elements = rows.at(slot, tuple(every[n] for n in rows.dims), every)
    arrived = tuple(Guard(row, 1, rows.count + 1) for row in elements if indirects(row))
    return ArrivingRows(numbering, sent, rows.shape(type_), elements, arrived)


def element_of(type_: TensorType) -> tuple[tuple[Var, ...], tuple[Index, ...]]:
    """Return variables for the dims of a tensor, and its element there."""
    axes = tuple(Var(f"p{n}", extent) for n, extent in enumerate(type_.shape))
    return tuple(a for a in axes if a.extent > 1), tuple(map(as_index, axes))


def looked_up(tensor: str, place: tuple[Index, ...], extent: int) -> Index:
    """Return an element of a tensor as an index below `extent`."""
    return Index(0, ((Indirect(tensor, place, extent, wraps=False), 1),))


def index_tests(place: Indirect, tensors: Mapping[str, TensorType]) -> Iterator[Expr]:
    """Yield conditions under which an integer is an index.

    None are needed where its type implies them.
    """
    dtype = tensors[place.tensor].dtype
    read = Read(place.tensor, place.indices)
    low = -place.extent if place.wraps else 0
    if place.extent <= dtype.element.highest:
        yield Call("lt", (read, Const(place.extent, dtype)))
    if low > dtype.element.lowest:
        yield Call("ge", (read, Const(low, dtype)))
