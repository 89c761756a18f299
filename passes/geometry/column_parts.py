"""Instances whose rows a block adds up: the parts of column sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from attrs import evolve

from ...ir import (
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
from .schedule_template import next_power


def part_place(axes: Sequence[Var], rows: int) -> Index:
    """Return the number of the part of an instance, with `rows` consecutive instances in each."""
    return linearise(tuple(map(as_index, axes)), row_major(tuple(axis.extent for axis in axes))) // rows


def part_rows(segment: Segment, group: FusedGroup) -> int:
    """Return the instances of each part of a segment's column sums, 0 where these are not divided."""
    if not segment.column_sums:
        return 0
    parts = group.tensors[segment.column_sums[0].tensor].shape[0]
    rows = next_power(-(-prod(axis.extent for axis in segment.axes) // max(1, parts)))
    place = part_place(segment.axes, rows)
    return rows if all(o.write[:1] == (place,) for o in segment.column_sums) else 0


def row_reads(segment: Segment) -> tuple[Read, ...]:
    """Return the elements of rows that the instances of a segment with column sums read."""
    rows = {v for r in segment.reductions for v in r.reduce}
    own, found = {r.name for r in segment.reductions}, dict[Read, None]()
    for body in segment.expressions:
        for read in reads(body):
            used = expr_variables(read)
            if read.tensor not in own and not used.isdisjoint(rows) and not used.isdisjoint(segment.axes):
                found[read] = None
    return tuple(found)


def single_elements(segment: Segment, row: Read) -> Iterator[tuple[Read, Index]]:
    """Yield the reads of single elements of a row that a segment reads, with their places in the row."""
    (axes,) = {r.reduce for r in segment.reductions}
    for read in dict.fromkeys(r for body in segment.expressions for r in reads(body)):
        pairs = zip(row.indices, read.indices, strict=True) if read.tensor == row.tensor else ()
        fixed = {v: b for a, b in pairs for v in axes if a == as_index(v) and b.is_const}
        if fixed.keys() == {*axes} and evolve(row, indices=tuple(substitute(i, fixed) for i in row.indices)) == read:
            yield read, linearise([fixed[v] for v in axes], row_major(tuple(v.extent for v in axes)))
