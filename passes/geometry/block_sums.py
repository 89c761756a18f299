"""Sums of a block: bins of privatised scatters, parts of column sums.

Bins are the elements that a block's values may belong to. A part has the instances whose rows a block adds up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from attrs import evolve, frozen

from ...ir import (
    VECTOR_ADDITIONS,
    FusedGroup,
    Index,
    Read,
    Segment,
    Var,
    as_index,
    expr_variables,
    linearise,
    reads,
    row_major,
    substitute,
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
