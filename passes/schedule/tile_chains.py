"""Schedule templates and parameters of contractions chained by elementwise results in registers.

Warpgroups divide the rows. Each computes its rows of a part of all contractions of the first segment, and multiplies
their elementwise results, as rows in registers, by the other factors of the last segment (`geometry.row_sharing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

import numpy as np

from ...ir import (
    ACCUMULATOR_THREADS,
    HALF_BYTES,
    MMA_INSTRUCTIONS,
    PERSISTENT,
    WARPGROUP,
    WITH_PRODUCER,
    FusedGroup,
    Segment,
    Target,
    Var,
    operands,
)
from ..geometry import (
    ROW_LANES,
    ROW_VECTOR,
    ScheduleParameter,
    SegmentTemplate,
    TileChain,
    ceil_div,
    is_register_chain,
    mma_operands,
    next_power,
    promotion_depth,
    runs,
    tile_bounds,
    tile_chain,
)
from .mma_templates import MIN_SIDES, multiplies
from .rules import Finding, ScheduleSizes

#: Warpgroups along the rows, elements of a part, stages.
TILE_WARPGROUPS, TILE_PARTS, TILE_STAGES = (1, 2, 3), (32, 48, 64, 80, 96, 128), (1, 2, 3, 4)
#: Longest row that is one part, and most sums of a row: a thread holds a half of them, beside a part.
MAX_SINGLE_PART, MAX_SUMS = 256, 256


def tile_chain_templates(group: FusedGroup, target: Target) -> Iterator[tuple[SegmentTemplate, SegmentTemplate]]:
    """Yield the templates of two segments as a chain in registers."""
    chain = tile_chain(group)
    if chain is None or chain.sums(group) > MAX_SUMS:
        return
    axes = group.segments[0].axes
    if axes[chain.rows[0]].extent < MIN_SIDES[0] or axes[chain.column].extent < MIN_SIDES[1]:
        return
    reductions = [r for s in group.segments for r in s.reductions]
    for name, _ in target.atoms:
        atom = MMA_INSTRUCTIONS[name]
        able = (
            atom.reads_shared
            and atom.held.size == HALF_BYTES
            and not any(r.math or promotion_depth(r, name) for r in reductions)
        )
        if able and all(multiplies(atom, r, group) for r in reductions):
            yield _templates(group, chain, name)


def _templates(group: FusedGroup, chain: TileChain, name: str) -> tuple[SegmentTemplate, SegmentTemplate]:
    """Return the templates of both segments: the first one stages all factors, the last one those it has not."""
    first, last = group.segments
    axes = tuple((axis,) for axis in first.axes)
    loops, reduces = _loops(r.reduce for r in first.reductions)
    staged: tuple[tuple[int, ...], ...] = tuple((0, 1) for _ in first.reductions)
    one = SegmentTemplate(axes, loops, reduces, staged, shared=tuple(o.tensor for o in first.outputs), mma=name,
                          rows=chain.rows[0], columns=chain.column)  # fmt: skip
    loops, reduces = _loops(r.reduce for r in last.reductions)
    staged = tuple(
        () if again is not None else (_column_factor(last, n, chain),) for n, again in enumerate(chain.again)
    )
    two = SegmentTemplate(tuple((axis,) for axis in last.axes), loops, reduces, staged, mma=name, rows=chain.rows[1],
                          columns=chain.width, parts=chain.column, streamed_loops=tuple(range(len(loops))))  # fmt: skip
    return one, two


def _loops(reduced: Iterable[tuple[Var, ...]]) -> tuple[tuple[tuple[Var, ...], ...], tuple[tuple[int, ...], ...]]:
    """Return the distinct loops of reductions, and the position of each reduction's."""
    every = tuple(reduced)
    loops = tuple(dict.fromkeys(every))
    return loops, tuple((loops.index(r),) for r in every)


def _column_factor(last: Segment, number: int, chain: TileChain) -> int:
    """Return the position of the factor along the columns among the operands of a contraction."""
    reduction, own = last.reductions[number], [r.name for r in last.reductions]
    pair = mma_operands(reduction, (last.axes[chain.rows[1]],), (last.axes[chain.width],))
    assert pair is not None, "a chain is made of products"
    return operands(reduction, own).index(pair[1])


def tile_chain_parameters(
    structures: Sequence[SegmentTemplate], target: Target, coarse: bool
) -> Iterator[ScheduleParameter]:
    """Yield the schedule parameters of a chain of two segments in registers."""
    first, last = structures
    atom = MMA_INSTRUCTIONS[last.mma]
    for d, axes in enumerate(last.dims):
        names, extent = tuple(f"s1.{kind}{d}" for kind in "tev"), prod(a.extent for a in axes)
        values: tuple[tuple[int, ...], ...] = ((1, 1, 1),)
        if d == last.rows:
            groups = (w for w in TILE_WARPGROUPS if w * atom.m <= max(next_power(extent), atom.m))
            values = tuple((w * WARPGROUP * ACCUMULATOR_THREADS[0], runs(atom)[0], 1) for w in groups)
        elif d == last.columns:
            columns = ceil_div(extent, atom.n) * atom.n
            columns = next((n for n in atom.columns if n >= columns), columns)
            values = ((ROW_LANES, columns // ROW_LANES, ROW_VECTOR),)
        yield ScheduleParameter(names, values)
    row = prod(a.extent for a in first.dims[first.columns])
    whole = ceil_div(row, atom.k) * atom.k
    parts = tuple(n for n in TILE_PARTS if n < whole)
    single = next((n for n in atom.columns if n >= whole), whole)
    yield ScheduleParameter.of("s1.part", (*parts, *((single,) if single <= MAX_SINGLE_PART else ())))
    yield ScheduleParameter.of("s1.stages", TILE_STAGES[:3] if coarse else TILE_STAGES)
    yield ScheduleParameter.of("s1.tma", (0, WITH_PRODUCER, PERSISTENT))


def check_tile_chain_held(sizes: ScheduleSizes) -> Iterator[Finding]:
    """Lanes hold elementwise results of a chain as its segments agree.

    A part is a K block of the last segment.
    """
    if len(sizes.parts) != 2 or not is_register_chain([part.structure for part in sizes.parts]):
        return
    first, last = sizes.parts
    column, width = first.structure.columns, last.structure.columns
    lanes = np.not_equal(first.counts[column], ROW_LANES) | np.not_equal(last.counts[width], ROW_LANES)
    yield lanes, "a row of a chain in registers lies in {} lanes, expected {}", first.counts[column], ROW_LANES
    yield np.not_equal(first.threads, last.threads), "{} threads hold what {} multiply", first.threads, last.threads
    several = [k for k, trips in enumerate(first.trips) if np.any(np.greater(trips, 1))]
    yield np.bool_(bool(several)), "contractions of a chain in registers take one K block each, not {}", first.trips[0]
    for block_k in last.block_k:
        uneven = np.not_equal(first.block[column], block_k)
        yield uneven, "parts of {} elements are K blocks of {}", first.block[column], block_k
    parts = ceil_div(prod(a.extent for a in first.structure.dims[column]), first.block[column])
    ring = np.where(np.equal(parts, 1), 1, 2)
    again, chain = np.equal(last.loop.tma, PERSISTENT), tile_chain(sizes.group)
    if chain is not None and tile_bounds(sizes.group.segments, chain.column, chain.rows):
        yield again, "tiles of a persistent grid have different numbers of parts of {} elements", first.block[column]
    alone = again & np.equal(parts, 1)
    yield alone, "a producer brings nothing of the next tile to {} stage", last.loop.stages
    fewer = np.less(last.loop.stages, ring) | np.greater(last.loop.stages, parts)
    yield fewer | np.not_equal(first.loop.stages, last.loop.stages), "{} stages of {} parts", last.loop.stages, parts
