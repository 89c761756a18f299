"""Rows that threads hold: readers of some elements, column sums.

    order[c] = element c + low of the sorted row            for c < k
      ->  row = sort of x[j] over j;   order[r - low] = row[r]   where low <= r < low + k

Readers range over the whole row then, as threads hold it, and write only their own elements. The gradient of a norm
sums rows for its input, and columns for its parameters. Where instances hold rows, a column sum is an output along the
row, `across` the instances; a block accumulates those of its instances (`passes.split.split_columns` divides them):

    s[i] = sum_r x[i, r];   y[i, r] = x[i, r] - s[i];   w[r] = sum_i x[i, r] * s[i]
      ->   instance i: acc0 = sum over r of x[i, r];   y[i, r] for r;   w[r] across instances for r = x[i, r] * acc0

A sum may keep an axis of the row and sum others, as those of a channel in the gradient of a group norm do. Each
instance has its own, and a second kernel adds them up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from math import prod
from typing import TypeAlias

from attrs import evolve, field, frozen

from ...ir import (
    SCAN_MODES,
    Cast,
    DType,
    Expr,
    Index,
    Read,
    Segment,
    Statement,
    TensorType,
    Var,
    as_index,
    is_bijection,
    is_recurrence,
    reads,
    rebuild,
    solve,
    substitute,
    substitute_expr,
    variables,
    walked_row,
)
from ..statements import FusionError, RowSort, match_scan, match_sort

Tensors: TypeAlias = Mapping[str, TensorType]
#: Fewest instances of a group with column sums, and fewest elements of its rows.
MIN_INSTANCES, MIN_ROW = 256, 32


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
        if statement.is_recurrence:
            return self._walk_row(statement)
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

    def _walk_row(self, statement: Statement) -> tuple[Statement, Statement]:
        """Return a recurrence as a reduction, whose body reads its value for the element before, and its reader."""
        row = statement.along
        assert row is not None
        axes = tuple(a for a in statement.axes if a != row)
        name, instance = f"{statement.target}.along", tuple(map(as_index, (*axes, row)))
        self.tensors[name] = evolve(self.tensors[statement.target], shape=tuple(a.extent for a in (*axes, row)))
        self.tensors[earlier_name(name)] = self.tensors[name]
        self.along[name] = "upto"
        earlier = tuple(substitute(w, {row: as_index(row) - 1}) for w in statement.write)

        def leaf(node: Expr) -> Expr:
            own = isinstance(node, Read) and node.tensor == statement.target
            if not own:
                return node
            assert isinstance(node, Read)
            if node.indices != earlier:
                raise FusionError(f"{statement.target} is needed at elements that other threads compute")
            return Read(earlier_name(name), instance)

        body = rebuild(statement.body, leaf)
        # Nothing combines values; of the combiners, products are rewritten least.
        terms = evolve(
            statement, target=name, axes=axes, write=instance[:-1], reduce=(row,), combine="prod", body=body, along=None
        )
        self._note_row(statement, row, 0, row.extent)
        return terms, evolve(statement, body=Read(name, instance), along=None)

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


def read_state(body: Expr, target: str, state: Read, dtype: DType, held: DType) -> Expr:
    """Return a recurrence's body that reads the state in registers."""
    value: Expr = state if held is dtype else Cast(dtype, state)
    return rebuild(body, lambda node: value if isinstance(node, Read) and node.tensor == earlier_name(target) else node)


def earlier_name(target: str) -> str:
    """Return the name of a recurrence's value for the element before."""
    return f"{target}.before"


def _replace_expr(body: Expr, old: Read, new: Read) -> Expr:
    return rebuild(body, lambda node: new if node == old else node)


# ---- column sums


@frozen
class ColumnSum:
    """Column sum of a group: reduction, and number of reduced leading axes."""

    combine: str
    reduced: int


def column_sums(statements: Sequence[Statement], tensors: Tensors, live: Collection[str]) -> Mapping[str, ColumnSum]:
    """Return the column sums of statements by target, none without rows.

    Nothing in the group reads a column sum; the others reduce rows that as many instances hold as it has terms.
    """
    statements = join_casts(statements, tensors, live)
    walked = next((s.axes for s in statements if s.along is not None), None)
    sums = [s for s in statements if s.combine and s.along is None and s.step is None and s.into is None]
    read = {t for s in statements for t in s.tensors_read}
    free = [s for s in sums if s.target in live and s.target not in read and tensors[s.target].dtype.is_float]
    rows = [s for s in sums if s not in free]

    def count(axes: Sequence[Var]) -> int:
        return prod(axis.extent for axis in axes)

    if walked is not None:
        every = [s for s in free if s.combine == "sum" and count((*s.axes, *s.reduce)) == count(walked)]
        return {s.target: ColumnSum("sum", len(s.reduce)) for s in every}
    if not free or not rows or any(s.combine and s not in sums for s in statements):
        return {}

    instances, row = count(rows[0].axes), count(rows[0].reduce)
    found = [s for s in free if count(s.reduce) * count(s.axes) == instances * row and s.combine == "sum"]
    square = instances == row and len(found) < len(free)
    few = instances < MIN_INSTANCES and any(count(s.reduce) == instances for s in found)
    if few or row < MIN_ROW or square:
        return {}
    return {s.target: ColumnSum(str(s.combine), len(s.reduce)) for s in found}


def join_casts(statements: Sequence[Statement], tensors: Tensors, live: Collection[str]) -> list[Statement]:
    """Return statements in which sums that are only narrowed are narrow.

    s[c] = sum_r f32(x[r, c]);   y[c] = bf16(s[c])      ->      y[c] = sum_r f32(x[r, c])
    """
    sums = {s.target: s for s in statements if s.combine == "sum" and s.target not in live}
    found = list(statements)
    for narrow in statements:
        read = narrow.body.arg if isinstance(narrow.body, Cast) and narrow.is_pointwise else None
        if not isinstance(read, Read) or read.guards:
            continue
        wide = sums.get(read.tensor)
        if wide is None or sum(wide.target in s.tensors_read for s in statements) > 1:
            continue
        accumulates = tensors[narrow.target].dtype.accumulator is tensors[wide.target].dtype
        solution = solve(list(zip(read.indices, wide.write, strict=True)), narrow.axes)
        if accumulates and solution is not None and not solution.guards and not solution.free:
            write = tuple(substitute(w, solution.values) for w in narrow.write)
            found[found.index(narrow)] = evolve(wide, target=narrow.target, write=write)
            found.remove(wide)
    return found


def spread_columns(
    statements: Sequence[Statement], columns: Mapping[str, ColumnSum], tensors: Tensors, live: Collection[str]
) -> Sequence[Statement]:
    """Return statements in which column sums are statements of their terms."""
    if not columns:
        return statements
    return [
        evolve(s, axes=(*s.reduce, *s.axes), reduce=(), combine=None) if s.target in columns else s
        for s in join_casts(statements, tensors, live)
    ]


def place_column(
    number: int, statements: Sequence[Statement], known: Mapping[int, Mapping[Var, Index]], axes: Sequence[Var]
) -> Mapping[Var, Index] | None:
    """Return the axes of a column sum's terms, by a placed statement.

    Both read a tensor; None without such a statement. Axes that instances determine are theirs, others are the row's.
    """
    own = statements[number]
    for other, values in known.items():
        for read, theirs in product(own.reads, statements[other].reads):
            if read.tensor != theirs.tensor:
                continue
            right = [substitute(index, values) for index in theirs.indices]
            solution = solve(list(zip(read.indices, right, strict=True)), own.axes)
            if solution is None or solution.guards:
                continue
            found = [v for a in own.axes for v in sorted(variables(solution.values[a]), key=lambda v: v.name)]
            rows = [v for v in dict.fromkeys(found) if v not in axes]
            fresh = {v: as_index(Var(f"c{number}_{n}", v.extent)) for n, v in enumerate(rows)}
            placed = {a: substitute(solution.values[a], fresh) for a in own.axes}
            if _is_every_term(own, placed, axes):
                return placed
    return None


def check_column(
    statement: Statement, column: ColumnSum, values: Mapping[Var, Index], axes: Sequence[Var], along: bool
) -> None:
    """Raise `FusionError` where a column sum lacks terms of instances."""
    reduced, kept = statement.axes[: column.reduced], statement.axes[column.reduced :]
    own, others = (frozenset[Var]().union(*(variables(values[a]) for a in part)) for part in (reduced, kept))
    rows = {*own, *others} - {*axes}
    every = _is_every_term(statement, values, axes)
    if along and (not every or own & others or len(rows) != 1):
        raise FusionError(f"the terms of {statement.target} are not those of walked rows")
    if not along and (not every or (others & {*axes} and rows <= others)):
        raise FusionError(f"the terms of {statement.target} are not those of each row")


def _is_every_term(statement: Statement, values: Mapping[Var, Index], axes: Sequence[Var]) -> bool:
    """Return whether a column sum has a term for each element of the rows of instances."""
    rows = frozenset[Var]().union(*(variables(values[a]) for a in statement.axes)) - {*axes}
    onto = [v for v in (*axes, *sorted(rows, key=lambda v: v.name)) if v.extent > 1]
    return is_bijection(values, [a for a in statement.axes if a.extent > 1], onto)


def check_rows(segment: Segment) -> None:
    """Raise `FusionError` where column sums are beside rows of several kinds."""
    rows = {r.reduce for r in segment.reductions} | {o.extra for o in segment.outputs if o.extra}
    separate = walked_row(segment) is None if any(r.along for r in segment.reductions) else len(rows) != 1
    if any(o.across for o in segment.outputs) and separate:
        raise FusionError("column sums are beside rows of several kinds")
    if any(map(is_recurrence, segment.reductions)) and walked_row(segment) is None:
        raise FusionError("a recurrence is beside rows of several kinds")
    directions = {SCAN_MODES[r.along][0] for r in segment.reductions if r.along in SCAN_MODES}
    held = any(variables(o.write[-1]) & {*o.extra} for o in segment.outputs if o.write)
    scans = {r.name for r in segment.reductions if r.along in SCAN_MODES}
    again = any(read.tensor in scans for r in segment.reductions if not r.along for read in reads(r.body))
    if not held and (len(directions) > 1 or again):
        raise FusionError("rows that no lanes hold are scanned from both ends, or reduced after a scan")
