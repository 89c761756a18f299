"""Slices of tensors that one step of a recurrence touches.

An access of `x[t + 1, n]` in a statement with step t is, at each step, an access of element `n` of a *slice*: the part
of x that begins at `[t + 1, 0]` and has one row. Statements over slices do not mention the step, so one kernel serves
all steps.

    h[t + 1, n] = h[t, n] * x[2*t + r, n]    ->    h.1[n] = h.0[n] * x.0[r, n]        h.1 = h[t + 1, :], ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import define, evolve, field, frozen

from .affine import Guard, Index, Indirect, Primary, Var, as_index, map_guards, map_primaries, substitute, variables
from .expr import Expr, IndexValue, InRange, Read
from .statement import Statement
from .traversal import addressed_elements, map_indices, rebuild, substitute_expr
from .types import TensorType


class Unsliceable(Exception):
    """Access that is no slice moving evenly with the step.

    The text gives the reason.
    """


@frozen
class Slice:
    """Part of tensor `whole` that moves with a step.

    Its element `i` is element `starts + i`. `starts` are constants or multiples of the step plus constants; `extents`
    has None for a dim that the part lacks, as it is one element thick there.
    """

    whole: str
    starts: tuple[Index, ...]
    extents: tuple[int | None, ...]

    def type(self, whole: TensorType) -> TensorType:
        """Return the type of the part."""
        return TensorType(whole.dtype, tuple(n for n in self.extents if n is not None))

    def inside(self, indices: tuple[Index, ...]) -> tuple[Index, ...]:
        """Convert indices of the whole to indices of the part."""
        pairs = zip(indices, self.starts, self.extents, strict=True)
        return tuple(index - start for index, start, extent in pairs if extent is not None)

    def outside(self, indices: tuple[Index, ...]) -> tuple[Index, ...]:
        """Convert indices of the part to indices of the whole."""
        own = iter(indices)
        return tuple(
            start if extent is None else start + next(own)
            for start, extent in zip(self.starts, self.extents, strict=True)
        )

    def overlaps(self, other: Slice) -> bool:
        """Return whether two parts of one tensor may overlap at a step."""
        return not any(map(_is_disjoint, self.starts, other.starts, self.extents, other.extents))


def _is_disjoint(start: Index, other: Index, extent: int | None, other_extent: int | None) -> bool:
    distance = other - start
    return distance.is_const and not -(other_extent or 1) < distance.const < (extent or 1)


def split_step(index: Index, step: Var) -> tuple[int, Index]:
    """Split an index into a multiple of the step and the rest.

    Raises `Unsliceable` where it moves in another way.
    """
    factor = index.coefficient(step)
    rest = index - as_index(step) * factor
    if step in variables(rest):
        raise Unsliceable(f"index {index.text} is no multiple of '{step.name}' and what does not depend on it")
    return factor, rest


def slice_of(tensor: str, type_: TensorType, indices: tuple[Index, ...], step: Var) -> Slice:
    """Return the part of a tensor that a step touches.

    Raises `Unsliceable` where it does not move evenly, or leaves the tensor.
    """
    starts, extents = [], []
    for index, extent in zip(indices, type_.shape, strict=True):
        factor, rest = split_step(index, step)
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
    """Rewriter of a recurrence's statements to statements over slices.

    `names` has the slices found, and their names. Tensors that a step touches at the same place each time stay as they
    are.
    """

    step: Var
    tensors: Mapping[str, TensorType]
    names: dict[Slice, str] = field(factory=dict)

    def statement(self, statement: Statement) -> Statement:
        """Return a statement at one step.

        Raises `Unsliceable` where it depends on the step.
        """
        body = self.expr(statement.body)
        target, write = self._slice_name(statement.target, statement.write)
        axes = tuple(axis for axis in statement.axes if axis != self.step)
        return evolve(statement, target=target, axes=axes, write=write, body=body, step=None)

    def expr(self, expr: Expr) -> Expr:
        """Return a value at one step.

        Raises `Unsliceable` where it depends on the step by more than the elements that it reads.
        """
        return rebuild(expr, self._leaf)

    def _leaf(self, node: Expr) -> Expr:
        if isinstance(node, Read):
            tensor, indices = self._slice_name(node.tensor, tuple(map(self._index, node.indices)))
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
            tensor, indices = self._slice_name(primary.tensor, parts)
            return Index(0, ((Indirect(tensor, indices, primary.extent, primary.wraps), 1),))

        return map_primaries(index, change) if self.step in variables(index) else index

    def _slice_name(self, tensor: str, indices: tuple[Index, ...]) -> tuple[str, tuple[Index, ...]]:
        if not any(self.step in variables(index) for index in indices):
            return tensor, indices
        found = slice_of(tensor, self.tensors[tensor], indices, self.step)
        return self.names.setdefault(found, f"{tensor}[{_text(found)}]"), found.inside(indices)


def _text(part: Slice) -> str:
    """Return the name of a slice: its begin, with its extent where that is more than one element."""
    places = zip(part.starts, part.extents, strict=True)
    moving = [(s, n) for s, n in places if n is None or s.terms]
    return ", ".join(s.text if n is None else f"{s.text}: {n}" for s, n in moving)


def unslice(statement: Statement, slices: Mapping[str, Slice]) -> Statement:
    """Convert a statement over slices to one over whole tensors."""

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
    """Return one element of a tensor's first axis as a slice."""
    rest = type_.shape[1:]
    return Slice(whole, (Index(row), *(Index() for _ in rest)), (None, *rest))


def with_rows(statement: Statement, rows: Mapping[tuple[str, int], str]) -> Statement:
    """Replace named rows of tensors by tensors of their own.

    `rows` maps tensor and row number to the name.
    """

    def row_name(tensor: str, indices: tuple[Index, ...]) -> str | None:
        return rows.get((tensor, indices[0].const)) if indices and indices[0].is_const else None

    def change(primary: Primary, parts: tuple[Index, ...]) -> Index | None:
        if not isinstance(primary, Indirect) or (name := row_name(primary.tensor, parts)) is None:
            return None
        return Index(0, ((Indirect(name, parts[1:], primary.extent, primary.wraps), 1),))

    def leaf(node: Expr) -> Expr:
        if not isinstance(node, Read) or (name := row_name(node.tensor, node.indices)) is None:
            return node
        return Read(name, node.indices[1:], node.guards, node.fill)

    body = rebuild(map_indices(statement.body, lambda index: map_primaries(index, change)), leaf)
    target = row_name(statement.target, statement.write)
    if target is None:
        return evolve(statement, body=body)
    return evolve(statement, target=target, write=statement.write[1:], body=body)


def touched_rows(statement: Statement) -> Iterator[tuple[str, int | None, bool]]:
    """Yield (tensor, row, whether it is written) of a statement's accesses.

    The row is None for several rows, or for a tensor without axes.
    """
    touched = [(e.tensor, e.indices) for e in addressed_elements(statement.body)]
    for tensor, places in (*touched, (statement.target, statement.write)):
        yield tensor, places[0].const if places and places[0].is_const else None, tensor == statement.target


def at_step(statement: Statement, turn: int) -> Statement:
    """Return a statement at one value of its step, without the step."""
    assert statement.step is not None, "only statements of a recurrence have turns"
    values = {statement.step: turn}
    return evolve(
        statement,
        axes=tuple(axis for axis in statement.axes if axis != statement.step),
        write=tuple(substitute(index, values) for index in statement.write),
        body=substitute_expr(statement.body, values),
        step=None,
    )
