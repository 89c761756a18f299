"""Sums of a block: bins, parts of column sums, ends by data.

Bins are the elements that a block's values may belong to. A part has the instances whose rows a block adds up. All
terms of a sum are 0 from a place on that data say.

    y[g] = sum_m (a[begin[g] + m] if m < size[g] else 0)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from attrs import evolve, frozen

from ...ir import (
    VECTOR_ADDITIONS,
    Call,
    Clamp,
    Const,
    Expr,
    FusedGroup,
    Guard,
    Index,
    Indirect,
    InRange,
    Output,
    Read,
    Reduction,
    Segment,
    TensorType,
    Var,
    as_index,
    expr_variables,
    factors,
    indirects,
    linearise,
    primaries,
    reads,
    row_major,
    stored_factor,
    substitute,
    variables,
    walked_row,
)
from .footprint import Count, product
from .schedule_template import next_power


@frozen
class ScatterBins:
    """The elements of a tensor that a block's values may belong to.

    `parts` are the runs of its dims in order, each a tile dim (by position) or a dim of the tensor that a block holds
    entirely.
    """

    tensor: str
    into: str
    shape: tuple[int, ...]
    own: tuple[tuple[int, Var], ...]
    parts: tuple[tuple[str, int], ...]

    def extents(self, blocks: Sequence[Count]) -> tuple[Count, ...]:
        """Return the elements along each part.

        `blocks` are the block's elements along each tile dim.
        """
        return tuple(blocks[n] if kind == "tile" else self.shape[n] for kind, n in self.parts)


def is_scatter_only(segment: Segment) -> bool:
    """Return whether a segment only combines values in memory."""
    return not segment.reductions and len(segment.outputs) == 1 and segment.outputs[0].into is not None


def index_axes(segment: Segment, group: FusedGroup) -> frozenset[Var]:
    """Return the axes that equal an index of the scattered output."""
    return frozenset(_own_dims(segment, group).values())


def _own_dims(segment: Segment, group: FusedGroup) -> dict[int, Var]:
    """Return the dims of a tensor whose index is an axis alone, each with that axis."""
    (output,) = segment.outputs
    shape = group.tensors[output.tensor].shape
    found: dict[Var, int] = {}
    for number, (index, extent) in enumerate(zip(output.write, shape, strict=True)):
        axis = next((a for a in segment.axes if index == as_index(a) and a.extent == extent > 1), None)
        if axis is not None:
            found.setdefault(axis, number)
    return {number: axis for axis, number in found.items()}


def added_neighbours(segment: Segment, group: FusedGroup) -> int:
    """Return the most neighbours that a thread adds at once."""
    output, last = segment.outputs[0], segment.axes[-1] if segment.axes else None
    row = last in index_axes(segment, group) and output.write[-1] == as_index(last) if last is not None else False
    name = f"{output.into}_{group.tensors[output.tensor].dtype}"
    widths = (w for w in VECTOR_ADDITIONS.values() if f"{name}x{w}" in VECTOR_ADDITIONS)
    return max((w for w in widths if row and last is not None and last.extent % w == 0), default=1)


def scatter_bins(segment: Segment, group: FusedGroup, dims: Sequence[Sequence[Var]]) -> ScatterBins:
    """Return the bins of a segment with the given tile dims.

    The axes of each dim all equal an index of the output, or none does.
    """
    (output,) = segment.outputs
    shape = group.tensors[output.tensor].shape
    own = _own_dims(segment, group)
    tiles = {axis: d for d, axes in enumerate(dims) for axis in axes}
    parts = dict.fromkeys(("tile", tiles[own[n]]) if n in own else ("dim", n) for n in range(len(shape)))
    return ScatterBins(output.tensor, str(output.into), shape, tuple(own.items()), tuple(parts))


def scatter_tile_dim(segment: Segment, group: FusedGroup, dims: Sequence[Sequence[Var]]) -> int:
    """Return the dim along which blocks take several tiles.

    It is the longest of those without axes that equal an index, -1 where there is none.
    """
    own = index_axes(segment, group)
    free = [d for d, axes in enumerate(dims) if not own & {*axes}]
    return max(free, key=lambda d: prod(a.extent for a in dims[d]), default=-1)


def bin_count(segment: Segment, group: FusedGroup, dims: Sequence[Sequence[Var]], blocks: Sequence[Count]) -> Count:
    """Return the number of bins of a block of these sizes."""
    return product(scatter_bins(segment, group, dims).extents(blocks))


# ---- parts of column sums


def part_place(axes: Sequence[Var], rows: int) -> Index:
    """Return the number of an instance's part, of `rows` instances each."""
    return linearise(tuple(map(as_index, axes)), row_major(tuple(axis.extent for axis in axes))) // rows


def part_rows(segment: Segment, group: FusedGroup) -> int:
    """Return the instances of each part of column sums, 0 without parts."""
    if not segment.column_sums:
        return 0
    parts = group.tensors[segment.column_sums[0].tensor].shape[0]
    rows = next_power(-(-prod(axis.extent for axis in segment.axes) // max(1, parts)))
    place = part_place(segment.axes, rows)
    return rows if all(o.write[:1] == (place,) for o in segment.column_sums) else 0


def row_reads(segment: Segment) -> tuple[Read, ...]:
    """Return the elements of rows that instances beside column sums read."""
    rows = {v for r in segment.reductions for v in r.reduce}
    own, found = {r.name for r in segment.reductions}, dict[Read, None]()
    for body in segment.expressions:
        for read in reads(body):
            used = expr_variables(read)
            if read.tensor not in own and not used.isdisjoint(rows) and not used.isdisjoint(segment.axes):
                found[read] = None
    return tuple(found)


def single_elements(segment: Segment, row: Read) -> Iterator[tuple[Read, Index]]:
    """Yield the reads of single elements of a row and their places."""
    (axes,) = {r.reduce for r in segment.reductions}
    for read in dict.fromkeys(r for body in segment.expressions for r in reads(body)):
        pairs = zip(row.indices, read.indices, strict=True) if read.tensor == row.tensor else ()
        fixed = {v: b for a, b in pairs for v in axes if a == as_index(v) and b.is_const}
        if fixed.keys() == {*axes} and evolve(row, indices=tuple(substitute(i, fixed) for i in row.indices)) == read:
            yield read, linearise([fixed[v] for v in axes], row_major(tuple(v.extent for v in axes)))


@frozen
class DataEnd:
    """Axes and average terms of a sum that data begin and end."""

    axes: frozenset[Var]
    terms: float


def data_end(reduction: Reduction, axes: Sequence[Var], tensors: Mapping[str, TensorType]) -> DataEnd | None:
    """Return the end of a sum by data that may omit it."""
    if not (guards := ending_guards(reduction)):
        return None
    (step,) = (axis for axis in reduction.reduce if axis.extent > 1)
    used = frozenset(axes) & frozenset[Var]().union(*(variables(guard.index) for guard in guards))
    if any(isinstance(p, Clamp) and f == -step.extent for guard in guards for p, f in guard.index.terms):
        return DataEnd(used, 1.0)
    rows = max(_begun_rows(reduction.body, step, tensors), default=0)
    return DataEnd(used, rows / prod(a.extent for a in used)) if rows else None


def _begun_rows(body: Expr, step: Var, tensors: Mapping[str, TensorType]) -> Iterator[int]:
    """Yield the extents of dims along which a step counts from an integer of a tensor."""
    for read in reads(body):
        lookups = (p for index in read.indices for p in primaries(index) if isinstance(p, Indirect))
        every: tuple[Read | Indirect, ...] = (read, *lookups)
        for element in (e for e in every if read.tensor in tensors and e.tensor in tensors):
            pairs = zip(element.indices, tensors[element.tensor].shape, strict=True)
            yield from (extent for index, extent in pairs if _counts_from_data(index, step))


def _counts_from_data(index: Index, step: Var) -> bool:
    """Return whether an index, or one that it clamps, is the sum of a step and an integer of a tensor."""
    own = index.coefficient(step) == 1 and bool(indirects(index - step))
    return own or any(isinstance(p, Clamp) and _counts_from_data(p.arg * f, step) for p, f in index.terms)


def ending_guards(reduction: Reduction) -> list[Guard]:
    """Return conditions on data beyond which all factors are 0.

    They bound the only reduced axis of a sum.
    """
    axes = [axis for axis in reduction.reduce if axis.extent > 1]
    if reduction.combine != "sum" or len(axes) != 1:
        return []
    (axis,) = axes
    common = set.intersection(*({*_nonzero(stored_factor(part, reduction.math))} for part in factors(reduction.body)))
    rest = {guard: guard.index - axis for guard in sorted(common, key=lambda guard: guard.text)}
    return [g for g, r in rest.items() if indirects(r) and axis not in variables(r) and g.index.coefficient(axis) == 1]


def _nonzero(factor: Expr) -> Iterator[Guard]:
    """Yield conditions without which a factor is 0."""
    if isinstance(factor, Read) and factor.fill == 0:
        yield from factor.guards
    elif isinstance(factor, Call) and factor.fn == "select":
        condition, value, other = factor.args
        if isinstance(condition, InRange) and isinstance(other, Const) and other.value == 0:
            yield from (*condition.guards, *_nonzero(value))


def summed_dims(segment: Segment, dims: Sequence[tuple[Var, ...]]) -> tuple[int, ...]:
    """Return the dims along which outputs beside walked rows sum instances."""
    sums = segment.column_sums if walked_row(segment) is not None else ()
    return tuple(sorted({d for output in sums for d in dims_of_sum(segment, output, dims)}))


def sums_row(output: Output) -> bool:
    """Return whether a sum over instances is one along their rows, too."""
    return bool(output.across) and not any({*output.extra} & variables(index) for index in output.write)


def summed_axes(segment: Segment, output: Output) -> tuple[Var, ...]:
    """Return the axes whose instances an output along a row sums."""
    kept = frozenset[Var]().union(*map(variables, output.write)) if output.across else {*segment.axes}
    return tuple(a for a in segment.axes if a.extent > 1 and a not in kept)


def dims_of_sum(segment: Segment, output: Output, dims: Sequence[tuple[Var, ...]]) -> tuple[int, ...]:
    """Return the dims along which an output sums instances of walked rows."""
    return tuple(d for d, dim in enumerate(dims) if not {*summed_axes(segment, output)}.isdisjoint(dim))
