"""One schedule, chosen or handwritten: staged tiles, shared memory, and features."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np
from attrs import evolve

from ...ir import (
    DType,
    FusedGroup,
    ReduceDim,
    Schedule,
    Segment,
    SegmentSchedule,
    Target,
    TileDim,
    Var,
    as_index,
    dtype_of,
    operands,
    streamable_axis,
    streamed_variables,
)
from ..geometry import (
    REGISTER_STAGED_ORDER,
    Geometry,
    SegmentTemplate,
    cached_reads,
    can_stream_rows,
    contiguous_side,
    partial_sum_elements,
    scatter_tile_dim,
    whole_loops,
)
from ..lowering import AxisBinding, BlockLayout, Frame, Tile, bind_dims, bins_buffer, local_vars, stage
from ..model import Features, count_features, most_staged


def staging_orders(schedule: Schedule) -> list[tuple[int, ...]]:
    """Return the layout orders of all staged tiles."""
    return [s.order for part in schedule.segments for r in part.reductions for s in r.staging]


class StagedOperand(NamedTuple):
    """Tile of a staged operand.

    It comes with the bytes of its pipeline buffers, the position of its segment, and its type.
    """

    tile: Tile
    nbytes: int
    segment: int
    dtype: DType


def staged_tiles_of(layout: BlockLayout) -> list[StagedOperand]:
    """Return the tile of every staged operand, and its bytes."""
    return [found for number in range(len(layout.frames)) for found in _frame_tiles(layout, number)]


def _frame_tiles(layout: BlockLayout, position: int) -> Iterator[StagedOperand]:
    frame = layout.frames[position]
    shapes = {t: kind.shape for t, kind in layout.group.tensors.items()}
    own = [r.name for r in frame.segment.reductions]
    for number, (reduction, loop) in enumerate(zip(frame.segment.reductions, frame.schedule.reductions, strict=True)):
        _, locals_ = local_vars(frame.schedule, loop, f"check{number}")
        starts = tuple(as_index(Var(f"trip{k}", d.trips)) * d.chunk for k, d in enumerate(loop.dims))
        dims: tuple[TileDim | ReduceDim, ...] = (*frame.schedule.dims, *loop.dims)
        places, valid = bind_dims(dims, (*frame.tiles, *locals_), (*frame.starts, *starts))
        binding = AxisBinding(places, dims, (*frame.tiles, *locals_), valid)
        for choice in loop.staging:
            part = operands(reduction, own)[choice.operand]
            tile = stage(part, shapes, binding, choice, "c")
            dtype = dtype_of(part, layout.group.tensors)
            yield StagedOperand(tile, -(-tile.size * loop.stages * dtype.size // 16) * 16, position, dtype)


def shared_bytes(layout: BlockLayout, tiles: list[StagedOperand]) -> int:
    """Return the shared memory of a block.

    It holds tensors passed between segments, staged tiles, scratch of reductions across threads, row caches, and bins.
    """
    staged: dict[tuple[int, DType], Any] = {}
    for tile in tiles:
        staged[tile.segment, tile.dtype] = staged.get((tile.segment, tile.dtype), 0) + tile.nbytes
    # Where rows are streamed, K blocks of the next part are in flight while those of this one are used.
    together = sum(staged.values()) if layout.part is not None else most_staged(staged)
    total = sum(b.nbytes for b in layout.buffers.values()) + int(together)
    widest = [
        layout.group.tensors[r.name].dtype.size
        for frame in layout.frames
        if frame.schedule.lanes > 1 and not frame.schedule.atomic
        for r in frame.segment.reductions
    ]
    bins = sum(
        bins_buffer(frame.segment, layout.group, frame.schedule.dims).nbytes
        for frame in layout.frames
        if frame.schedule.meets
    )
    kept = sum(-(-size // 16) * 16 for frame in layout.frames for size in _kept_bytes(layout.group, frame))
    joined = sum(-(-_joined_bytes(layout.group, frame) // 16) * 16 for frame in layout.frames)
    return total + kept + bins + joined + -(-layout.schedule.threads * max(widest, default=0) // 16) * 16


def _joined_bytes(group: FusedGroup, frame: Frame) -> int:
    """Return the bytes of partial sums in a warp split-K."""
    loop, dims = frame.schedule.atomic, frame.schedule.dims
    if loop is None or frame.schedule.lanes == 1:
        return 0
    fast = contiguous_side(frame.segment, [d.axes for d in dims], loop.rows, loop.columns)
    blocks = dims[fast].block, dims[loop.rows + loop.columns - fast].block
    places = partial_sum_elements(*blocks, fast == loop.rows, frame.schedule.lanes)
    return int(places) * group.tensors[frame.segment.reductions[0].name].dtype.size


def _kept_bytes(group: FusedGroup, frame: Frame) -> Iterator[int]:
    """Yield the bytes of each read in the row cache."""
    rows = prod(d.block for d in frame.schedule.dims)
    for read in cached_reads(frame.segment, (*group.shared, *group.constants)) if frame.schedule.kept else ():
        yield rows * frame.schedule.kept * group.tensors[read.tensor].dtype.size


def geometry_of(group: FusedGroup, schedule: Schedule) -> tuple[Geometry, ...]:
    """Return the sizes of a schedule's segments for the models."""
    found = [_geometry(s, group, segment) for s, segment in zip(schedule.segments, group.segments, strict=True)]
    if (axis := streamable_axis(group)) is not None and schedule.segments[0].dims[axis].blocks > 1:
        structure = with_streamed_input(found[-1].structure, group, axis)
        found[-1] = evolve(found[-1], structure=structure, part=found[0].block[axis])
    return tuple(found)


def with_streamed_input(structure: SegmentTemplate, group: FusedGroup, axis: int) -> SegmentTemplate:
    """Return the last segment's template with streamed input.

    Parts divide the given axis, where that is a loop of its own.
    """
    rows = streamed_variables(group)
    along = tuple(k for k, loop in enumerate(structure.loops) if rows & {*loop})
    alone = all(len(structure.loops[k]) == 1 for k in along)
    return evolve(structure, parts=axis, streamed_loops=along) if alone else structure


def _geometry(schedule: SegmentSchedule, group: FusedGroup, segment: Segment) -> Geometry:
    loops = list(dict.fromkeys(d for r in schedule.reductions for d in r.dims))
    reduces = tuple(tuple(loops.index(d) for d in r.dims) for r in schedule.reductions)
    structure = SegmentTemplate(
        tuple(d.axes for d in schedule.dims),
        tuple(d.axes for d in loops),
        reduces,
        tuple(tuple(s.operand for s in r.staging) for r in schedule.reductions),
        schedule.atomic is None and (schedule.lanes > 1 or schedule.row_vector > 1),
        tuple(o.tensor for o in segment.outputs if o.tensor in group.shared),
        **_atom_of(schedule),
        caches_rows=schedule.kept > 0,
        whole=whole_loops(segment, reduces),
        scatter_dim=scatter_tile_dim(segment, group, [d.axes for d in schedule.dims]) if schedule.meets else -1,
        streams=any(o.extra and o.tensor in group.shared for o in segment.outputs) and can_stream_rows(group),
    )
    return Geometry(
        structure,
        tuple(np.int64(d.block) for d in schedule.dims),
        tuple(np.int64(d.thread) for d in schedule.dims),
        tuple(np.int64(d.vector) for d in schedule.dims),
        tuple(np.int64(d.threads) for d in schedule.dims),
        tuple(np.int64(d.chunk) for d in loops),
        tuple(np.int64(d.trips) for d in loops),
        np.int64(schedule.lanes),
        np.int64(schedule.row_vector),
        np.int64(max((r.stages for r in schedule.reductions if r.staging), default=1)),
        np.int64(max((s.pad for r in schedule.reductions for s in r.staging), default=0)),
        tuple(np.int64(w) for w in schedule.warp),
        np.int64(_order(schedule)),
        _pads(schedule),
        np.int64(max((r.ahead for r in schedule.reductions), default=0)),
        np.int64(any(s.cached for r in schedule.reductions for s in r.staging)),
        np.int64(schedule.kept),
        np.int64(prod(d.turns for d in schedule.dims)),
    )


def _pads(schedule: SegmentSchedule) -> tuple[np.int64, ...]:
    """Return the padding of each operand of a matrix instruction, nothing without one."""
    if schedule.atomic is None:
        return ()
    found = {s.operand: s.pad for s in schedule.atomic.staging}
    return tuple(np.int64(found.get(n, 0)) for n in range(max(found, default=-1) + 1))


def _atom_of(schedule: SegmentSchedule) -> dict[str, Any]:
    """Return a schedule's matrix instruction as fields of a template."""
    loop = schedule.atomic
    return {} if loop is None else {"atom": loop.atom, "rows": loop.rows, "columns": loop.columns}


def _order(schedule: SegmentSchedule) -> int:
    """Return the parameter value for the layouts of staged tiles: all natural, all or some transposed, or some staged
    through registers.
    """
    if any(s.carried for r in schedule.reductions for s in r.staging):
        return REGISTER_STAGED_ORDER
    orders = [s.order for r in schedule.reductions for s in r.staging]
    turned = [bool(o) and o[0] == len(o) - 1 for o in orders]
    return 0 if not any(turned) else 1 if all(turned) else 2


def features_of(group: FusedGroup, schedule: Schedule, target: Target) -> Features:
    """Return the counts of one schedule, chosen or handwritten."""
    launch = (np.int64(schedule.raster), np.int64(schedule.min_blocks))
    return count_features(group, geometry_of(group, schedule), target, *launch, index=schedule.index)
