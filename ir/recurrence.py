"""What one turn of a recurrence touches: parts of tensors that move along with the step.

An access of `x[t + 1, n]` in a statement with step t is, at each turn, an access of element `n` of a *slice*: the part
of x that begins at `[t + 1, 0]` and has one row. Statements over slices do not mention the step, so one kernel serves
all turns.

    h[t + 1, n] = h[t, n] * x[2*t + r, n]    ->    h.1[n] = h.0[n] * x.0[r, n]        h.1 = h[t + 1, :], ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import define, evolve, field, frozen

from .expr import Expr, Guard, IndexValue, InRange, Read
from .index import Index, Indirect, Primary, Var, as_index
from .ranges import elements
from .statement import Statement
from .types import TensorType
from .walk import map_guards, map_indices, map_primaries, rebuild, substitute, substitute_expr, variables


class Unsliceable(Exception):
    """An access whose place is no slice that moves evenly with the step; the text says why."""


@frozen
class Slice:
    """A part of tensor `whole` that moves with a step: its element `i` is element `starts + i`.

    `starts` are constants or multiples of the step plus constants; `extents` has None for a dim that the part does not
    have, being one element thick there.
    """

    whole: str
    starts: tuple[Index, ...]
    extents: tuple[int | None, ...]

    def type(self, whole: TensorType) -> TensorType:
        """Return the type of the part."""
        return TensorType(whole.dtype, tuple(n for n in self.extents if n is not None))

    def inside(self, indices: tuple[Index, ...]) -> tuple[Index, ...]:
        """Return where the part has the element that the whole has at these indices."""
        pairs = zip(indices, self.starts, self.extents, strict=True)
        return tuple(index - start for index, start, extent in pairs if extent is not None)

    def outside(self, indices: tuple[Index, ...]) -> tuple[Index, ...]:
        """Return where the whole has the element that the part has at these indices."""
        own = iter(indices)
        return tuple(
            start if extent is None else start + next(own)
            for start, extent in zip(self.starts, self.extents, strict=True)
        )

    def meets(self, other: Slice) -> bool:
        """Whether two parts of one tensor may have an element in common at the same turn."""
        return not any(map(_apart, self.starts, other.starts, self.extents, other.extents))


def _apart(start: Index, other: Index, extent: int | None, others: int | None) -> bool:
    """Whether two runs of elements are apart at every turn."""
    distance = other - start
    return distance.is_const and not -(others or 1) < distance.const < (extent or 1)


def pace(index: Index, step: Var) -> tuple[int, Index]:
    """Return by how much an index moves with each turn, and what it is without that.

    Raises `Unsliceable` where it moves in another way.
    """
    factor = index.coefficient(step)
    rest = index - as_index(step) * factor
    if step in variables(rest):
        raise Unsliceable(f"index {index.text} is no multiple of '{step.name}' and what does not depend on it")
    return factor, rest


def slice_of(tensor: str, type_: TensorType, indices: tuple[Index, ...], step: Var) -> Slice:
    """Return the part of a tensor that is touched at a turn.

    Raises `Unsliceable` where it does not move evenly, or leaves the tensor.
    """
    starts, extents = [], []
    for index, extent in zip(indices, type_.shape, strict=True):
        factor, rest = pace(index, step)
        low, high = rest.bounds()
        start = as_index(step) * factor + low
        begin, end = start.bounds()
        if factor and not 0 <= begin <= end + high - low < extent:
            raise Unsliceable(f"index {index.text} leaves an axis of {extent} elements")
        starts.append(start if factor else as_index(0))
        extents.append((None if low == high else high - low + 1) if factor else extent)
    return Slice(tensor, tuple(starts), tuple(extents))


@define
class Slicer:
    """Rewrites statements of a recurrence to statements over slices; `names` has the slices found, and their names.

    Tensors that a turn touches without the step, at the same place each time, stay as they are.
    """

    step: Var
    tensors: Mapping[str, TensorType]
    names: dict[Slice, str] = field(factory=dict)

    def statement(self, statement: Statement) -> Statement:
        """Return what a statement does at a turn.

        Raises `Unsliceable` where that depends on the turn.
        """
        body = self.expr(statement.body)
        target, write = self._part(statement.target, statement.write)
        axes = tuple(axis for axis in statement.axes if axis != self.step)
        return evolve(statement, target=target, axes=axes, write=write, body=body, step=None)

    def expr(self, expr: Expr) -> Expr:
        """Return a value at a turn.

        Raises `Unsliceable` where it depends on the turn by more than the elements that it reads.
        """
        return rebuild(expr, self._leaf)

    def _leaf(self, node: Expr) -> Expr:
        if isinstance(node, Read):
            tensor, indices = self._part(node.tensor, tuple(map(self._index, node.indices)))
            return Read(tensor, indices, self._guards(node.guards), node.fill)
        if isinstance(node, InRange):
            return InRange(self._guards(node.guards))
        if isinstance(node, IndexValue):
            return IndexValue(self._free(self._index(node.index)), node.dtype)
        return node

    def _guards(self, guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
        return map_guards(guards, lambda index: self._free(self._index(index)))

    def _free(self, index: Index) -> Index:
        if self.step in variables(index):
            raise Unsliceable(f"the value of {index.text} depends on '{self.step.name}'")
        return index

    def _index(self, index: Index) -> Index:
        """Return an index whose elements of integer tensors are those of slices."""

        def change(primary: Primary, parts: tuple[Index, ...]) -> Index | None:
            if not isinstance(primary, Indirect):
                return None
            tensor, indices = self._part(primary.tensor, parts)
            return Index(0, ((Indirect(tensor, indices, primary.extent, primary.wraps), 1),))

        return map_primaries(index, change) if self.step in variables(index) else index

    def _part(self, tensor: str, indices: tuple[Index, ...]) -> tuple[str, tuple[Index, ...]]:
        if not any(self.step in variables(index) for index in indices):
            return tensor, indices
        found = slice_of(tensor, self.tensors[tensor], indices, self.step)
        return self.names.setdefault(found, f"{tensor}[{_text(found)}]"), found.inside(indices)


def _text(part: Slice) -> str:
    """Return what a slice is called: where it begins, with its extent where that is more than one element."""
    places = zip(part.starts, part.extents, strict=True)
    moving = [(s, n) for s, n in places if n is None or s.terms]
    return ", ".join(s.text if n is None else f"{s.text}: {n}" for s, n in moving)


def unsliced(statement: Statement, slices: Mapping[str, Slice]) -> Statement:
    """Return the statement over whole tensors that a statement over slices is."""

    def change(primary: Primary, parts: tuple[Index, ...]) -> Index | None:
        if not isinstance(primary, Indirect) or primary.tensor not in slices:
            return None
        part = slices[primary.tensor]
        return Index(0, ((Indirect(part.whole, part.outside(parts), primary.extent, primary.wraps), 1),))

    def leaf(node: Expr) -> Expr:
        if not isinstance(node, Read) or node.tensor not in slices:
            return node
        part = slices[node.tensor]
        return Read(part.whole, part.outside(node.indices), node.guards, node.fill)

    body = rebuild(map_indices(statement.body, lambda index: map_primaries(index, change)), leaf)
    part = slices.get(statement.target)
    write = statement.write if part is None else part.outside(statement.write)
    target = statement.target if part is None else part.whole
    return evolve(statement, target=target, write=write, body=body)


def row_slice(whole: str, row: int, type_: TensorType) -> Slice:
    """Return the part of a tensor that is one element of its first axis."""
    rest = type_.shape[1:]
    return Slice(whole, (Index(row), *(Index() for _ in rest)), (None, *rest))


def with_rows(statement: Statement, rows: Mapping[tuple[str, int], str]) -> Statement:
    """Return a statement in which rows of tensors that have a name, by tensor and number, are tensors of their own."""

    def named(tensor: str, indices: tuple[Index, ...]) -> str | None:
        return rows.get((tensor, indices[0].const)) if indices and indices[0].is_const else None

    def change(primary: Primary, parts: tuple[Index, ...]) -> Index | None:
        if not isinstance(primary, Indirect) or (name := named(primary.tensor, parts)) is None:
            return None
        return Index(0, ((Indirect(name, parts[1:], primary.extent, primary.wraps), 1),))

    def leaf(node: Expr) -> Expr:
        if not isinstance(node, Read) or (name := named(node.tensor, node.indices)) is None:
            return node
        return Read(name, node.indices[1:], node.guards, node.fill)

    body = rebuild(map_indices(statement.body, lambda index: map_primaries(index, change)), leaf)
    target = named(statement.target, statement.write)
    if target is None:
        return evolve(statement, body=body)
    return evolve(statement, target=target, write=statement.write[1:], body=body)


def rows_touched(statement: Statement) -> Iterator[tuple[str, int | None, bool]]:
    """Yield the tensors that a statement touches, with the row where it is one (None for several, or none) and whether
    the statement writes it.
    """
    touched = [(e.tensor, e.indices) for e in elements(statement.body)]
    for tensor, places in (*touched, (statement.target, statement.write)):
        yield tensor, places[0].const if places and places[0].is_const else None, tensor == statement.target


def at_turn(statement: Statement, turn: int) -> Statement:
    """Return a statement with a step at one of its values, as a statement without."""
    assert statement.step is not None, "only statements of a recurrence have turns"
    values = {statement.step: turn}
    return evolve(
        statement,
        axes=tuple(axis for axis in statement.axes if axis != statement.step),
        write=tuple(substitute(index, values) for index in statement.write),
        body=substitute_expr(statement.body, values),
        step=None,
    )
