"""Rows that threads hold, and statements that read some of their elements.

    order[c] = element c + low of the sorted row            for c < k
      ->  row = sort of x[j] over j;   order[r - low] = row[r]   where low <= r < low + k

Readers range over the whole row then, as threads hold it, and write only their own elements.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, field, frozen

from ...ir import (
    Expr,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    rebuild,
    substitute,
    substitute_expr,
)
from ..statements import RowSort, match_scan, match_sort


@frozen
class _RowPlace:
    """Elements of a row that a tensor has along a dim: those from `low` on, of `extent`."""

    extent: int
    low: int
    dim: int


@frozen
class HeldRows:
    """Rows of a group that is brought to normal form.

    `along` has the kind of each reduction along a row, `rows` the elements of a row that a tensor has, and `limits` the
    elements that a statement writes.
    """

    tensors: dict[str, TensorType]
    along: dict[str, str] = field(factory=dict)
    rows: dict[str, _RowPlace] = field(factory=dict)
    limits: dict[str, tuple[Var, int, int]] = field(factory=dict)

    def reduce_row(self, statement: Statement, before: Sequence[Statement]) -> tuple[Statement, Statement] | None:
        """Return a statement along a row as a reduction and its reader.

        The reduction has a value for each element of its row. None where the operand of ranks is not computed here.
        """
        along = match_sort(statement, before, self.tensors) or match_scan(statement)
        if along is None or along.axis != statement.along:
            return None
        axes = tuple(a for a in statement.axes if a != along.axis)
        name, instance = f"{statement.target}.along", tuple(map(as_index, axes))
        self.tensors[name] = evolve(self.tensors[statement.target], shape=tuple(a.extent for a in (*axes, along.term)))
        self.along[name] = along.along
        combine, low = (along.combine, along.low) if isinstance(along, RowSort) else (statement.combine, 0)
        row = evolve(statement, target=name, axes=axes, write=instance, body=along.value, combine=combine, along=None)
        held = Read(name, (*instance, as_index(Var(along.axis.name, along.term.extent))))
        reader = evolve(statement, body=held, reduce=(), combine=None, along=None)
        self._note_row(statement, along.axis, low, along.term.extent)
        return row, self._extend_axis(reader, along.axis, low, along.term.extent)

    def _note_row(self, statement: Statement, axis: Var, low: int, extent: int) -> None:
        """Record the elements of a row that a statement's target has, if a dim has them."""
        dim = self._row_dim(statement, axis)
        if dim is not None:
            self.rows[statement.target] = _RowPlace(extent, low, dim)

    def _row_dim(self, statement: Statement, axis: Var) -> int | None:
        """Return the dim of a statement's target that an axis enumerates."""
        extents = self.tensors[statement.target].shape
        dims = [d for d, w in enumerate(statement.write) if extents[d] == axis.extent and w == as_index(axis)]
        return dims[-1] if dims else None

    def _extend_axis(self, statement: Statement, axis: Var, low: int, extent: int) -> Statement:
        """Return a statement over all of a row whose elements from `low` on it writes along an axis."""
        if axis.extent == extent:
            return statement
        wide = Var(axis.name, extent)
        moved, dim = {axis: as_index(wide) - low}, self._row_dim(statement, axis)
        self.limits[statement.target] = wide, low, low + axis.extent
        write = [substitute(w, moved) for w in statement.write]
        if axis.extent == 1 and dim is not None:
            write[dim] = moved[axis]
        axes = tuple(wide if a == axis else a for a in statement.axes)
        return evolve(statement, axes=axes, write=tuple(write), body=substitute_expr(statement.body, moved))

    def extend_reader(self, statement: Statement) -> Statement:
        """Return a pointwise statement that ranges over a whole row.

        It does not write elements besides its own.
        """
        for read in statement.reads if statement.is_pointwise else ():
            row = self.rows.get(read.tensor)
            if row is None:
                continue
            place = read.indices[row.dim]
            axis = next((a for a in statement.axes if place == as_index(a)), None)
            if place.is_const:
                axis, low = Var(f"{statement.target}.row", 1), row.low + place.const
                indices = [*read.indices]
                indices[row.dim] = as_index(Var(axis.name, row.extent)) - row.low
                body = _replace_expr(statement.body, read, evolve(read, indices=tuple(indices)))
                statement = evolve(statement, axes=(*statement.axes, axis), body=body)
            elif axis is not None and axis.extent < row.extent:
                low = row.low
            else:
                continue
            self._note_row(statement, axis, low, row.extent)
            return self._extend_axis(statement, axis, low, row.extent)
        return statement


def _replace_expr(body: Expr, old: Read, new: Read) -> Expr:
    return rebuild(body, lambda node: new if node == old else node)
