"""Canonical order of arithmetic: bits that do not depend on the batch.

The order in which a result is added up follows from a schedule's *order key*: the instruction and its steps along k,
how reduction threads deal a row, the elements of a trip or part. Under the policy `batch-invariant` (`ir.machine`) only
schedules with the canonical key of their group are legal: it follows from reduced extents, types, structure and target,
never from extents of results. Tiles, stages, layouts and launches stay free.

| reduction | canonical order |
|---|---|
| sum of products that matrix instructions compute | along k, step by step, in one accumulator |
| other sum of products of tiles | element by element along k |
| row | lanes by its length, each with whole vectors, then a tree |
| chain | part by part of 128 elements, or one part |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from ...ir import (
    HALF_BYTES,
    MMA_INSTRUCTIONS,
    FusedGroup,
    Segment,
    Target,
    is_recurrence,
    is_tiled,
    reads,
    variables,
)
from ..geometry import Count, ScheduleParameter, SegmentTemplate, is_register_chain, next_power
from .rules import Finding, ScheduleSizes, axes_text
from .staging_parameters import MAX_STRIDES

#: Shortest row that lanes share; vectors of a lane, most lanes of a row; elements of a chain's part.
MIN_LANE_ROW, LANE_VECTORS, MAX_ROW_LANES, CHAIN_PART = 32, 4, 512, 128
#: Most elements of a row that a lane holds at once.
MAX_HELD = 32
#: Rows of a column that a lane takes, and most lanes.
COLUMN_ROWS, MAX_COLUMN_LANES = 16, 32


def is_exact(group: FusedGroup, segment: Segment) -> bool:
    """Return whether any order of a segment's reductions has the same results."""
    return not any(group.tensors[r.name].dtype.is_float for r in segment.reductions)


def adds_like_warps(instruction: str) -> bool:
    """Return whether an instruction adds as those of a warp do.

    Those of warpgroups do for halves: 16 products at once, to one accumulator.
    """
    atom = MMA_INSTRUCTIONS[instruction]
    return not atom.reads_shared or atom.held.size == HALF_BYTES


def invariant_templates(
    group: FusedGroup, segment: Segment, found: Sequence[SegmentTemplate], target: Target
) -> list[SegmentTemplate]:
    """Return the templates of one kind: the order of others differs.

    Segments of several have none but those of chains in registers.
    """
    if len(group.segments) > 1 and any(s.reductions for s in group.segments):
        return []
    alone = [t for t in found if not t.clusters]
    if is_exact(group, segment):
        return alone
    own = [r.name for r in segment.reductions]
    if products := [t for t in alone if t.mma and adds_like_warps(t.mma)]:
        deepest = max(MMA_INSTRUCTIONS[t.mma].k for t in products)
        return [t for t in products if MMA_INSTRUCTIONS[t.mma].k == deepest]
    rows, others = ([t for t in alone if t.reduction_threads is lanes] for lanes in (True, False))
    walked = [t for t in others if t.walked >= 0]
    if walked and (not target.lockstep or any(map(is_recurrence, segment.reductions))):
        return walked
    tiled = any(is_tiled(r, segment.axes, own) for r in segment.reductions)
    short = all(prod(v.extent for v in r.reduce) < MIN_LANE_ROW for r in segment.reductions)
    others = [t for t in others if t.walked < 0]
    return (others or rows) if tiled or short else (rows or others)


def invariant_parameters(
    group: FusedGroup, structures: Sequence[SegmentTemplate], found: Sequence[ScheduleParameter], target: Target
) -> Iterator[ScheduleParameter]:
    """Yield parameters, those that determine an order with canonical values."""
    chosen: dict[str, tuple[int, ...]] = {}
    if len(structures) == 1 and structures[0].reduction_threads:
        chosen = _lane_values(group.segments[0], structures[0], found, target)
    for knob in found:
        name, values = knob.names[0], knob.values
        if name in chosen:
            values = (chosen[name],)
        elif name == "s1.part" and is_register_chain(structures):
            values = tuple(v for v in values if v[0] == CHAIN_PART) or values[-1:]
        yield ScheduleParameter(knob.names, values)


def _lane_values(
    segment: Segment, structure: SegmentTemplate, found: Sequence[ScheduleParameter], target: Target
) -> dict[str, tuple[int, ...]]:
    """Return the lanes, vector and trips of rows by their length."""
    lanes = next(p for p in found if p.names[0] == "s0.reduction_threads")
    longest = max((prod(a.extent for a in loop) for loop in structure.loops), default=1)
    widths = {v for _, v in lanes.values}
    columns = bool(structure.over_columns) or _sums_columns(segment)
    vector = max((v for v in widths if longest % v == 0), default=min(widths))
    vector = (max if structure.over_columns else min)(widths) if columns else vector
    share, most = (COLUMN_ROWS, MAX_COLUMN_LANES) if columns else (LANE_VECTORS * vector, MAX_ROW_LANES)
    wanted = min(next_power(-(-longest // share)), most) if target.lockstep else 1
    able = [n for n, v in lanes.values if v == vector and n == next_power(n)]
    if structure.whole:  # registers hold all of a row
        wanted = max(wanted, 2, next_power(-(-longest // (vector * MAX_STRIDES))))
    count = max((n for n in able if n <= wanted), default=min(able))
    chosen: dict[str, tuple[int, ...]] = {lanes.names[0]: (count, vector)}
    for k, loop in enumerate(structure.loops):
        strides = next(p for p in found if p.names == (f"s0.c{k}",)).values
        trips = -(-prod(a.extent for a in loop) // (count * vector))
        whole = [c for c in strides if c[0] >= trips and (k in structure.whole or c[0] * vector <= MAX_HELD)]
        chosen[f"s0.c{k}"] = min(whole) if whole else max(c for c in strides if c[0] <= LANE_VECTORS)
    return chosen


def _sums_columns(segment: Segment) -> bool:
    """Return whether no reduced axis runs along the last dim of a tensor, of one element or more."""
    reduced = {v for r in segment.reductions for v in r.reduce}
    own = {r.name for r in segment.reductions}
    last = [read.indices[-1] for r in segment.reductions for read in reads(r.body) if read.tensor not in own]
    return bool(last) and all(reduced.isdisjoint(variables(index)) for index in last)


def check_order_invariant(sizes: ScheduleSizes) -> Iterator[Finding]:
    """Sums have the canonical order under the policy `batch-invariant`."""
    if not sizes.target.invariant or is_register_chain([p.structure for p in sizes.parts]):
        return
    for segment, part in zip(sizes.group.segments, sizes.parts, strict=True):
        if is_exact(sizes.group, segment):
            continue
        parts = part.structure
        if parts.mma:
            uneven = np.not_equal(part.block_k[0] % MMA_INSTRUCTIONS[parts.mma].k, 0) & np.greater(part.trips[0], 1)
            yield (
                uneven | np.not_equal(part.reduction_threads, 1),
                "k is divided among {} warps",
                part.reduction_threads,
            )
        elif not parts.reduction_threads and parts.walked < 0:
            for which in parts.reduces:
                for n, outer in enumerate(which):
                    later: Count = np.bool_(False)
                    for inner in which[n + 1 :]:
                        later = later | np.greater(part.trips[inner], 1)
                    swapped = later & np.greater(part.block_k[outer], 1)
                    yield swapped, "K blocks of {} change the order of a sum", axes_text(parts.loops[outer])
