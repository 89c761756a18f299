"""Whether a schedule is legal for a group on a target: the scalar counterpart of the vectorised rules, with reasons in
words.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from ...ir import (
    MATH_MODES,
    MATRIX_ATOMS,
    FusedGroup,
    PassError,
    ReduceDim,
    Reduction,
    ReductionSchedule,
    Schedule,
    Segment,
    SegmentSchedule,
    Target,
    TileDim,
    Var,
    as_index,
    dtype_of,
    operands,
)
from ..lowering import (
    AxisBinding,
    Frame,
    Layout,
    Tile,
    atom_faults,
    atom_operands,
    bind_dims,
    lay_out,
    local_vars,
    stage,
)
from ..model import Features, Geometry, SegmentStructure, count_features, next_power

#: Most operations of the unrolled body of a loop, per thread: compile time grows superlinearly past it.
MAX_BODY = 4096
#: Most buffers a loop over chunks cycles through.
MAX_STAGES = 4


def check_schedule(group: FusedGroup, schedule: Schedule, target: Target) -> list[str]:
    """Return why a schedule is not legal for a group on a target; nothing where it is."""
    if len(schedule.segments) != len(group.segments):
        return [f"the schedule has {len(schedule.segments)} segments, expected {len(group.segments)}"]
    found = [
        reason
        for pair in zip(group.segments, schedule.segments, strict=True)
        for reason in _check_shape(*pair, group, target)
    ]
    if schedule.index not in ("computed", "table"):
        found.append(f"index function '{schedule.index}' is not one of computed, table")
    if schedule.raster < 1 or schedule.min_blocks < 0:
        found.append("raster must be at least 1 and min_blocks at least 0")
    return found or list(_check_resources(group, schedule, target))


def _power(value: int) -> bool:
    return value >= 1 and value & (value - 1) == 0


def _check_shape(segment: Segment, schedule: SegmentSchedule, group: FusedGroup, target: Target) -> Iterator[str]:
    """Yield what is wrong with a segment's dims and loops, sizes of memory apart."""
    covered = [a for d in schedule.dims for a in d.axes]
    # Atoms take all axes of a class as one dim, wherever they stand.
    if sorted(covered, key=segment.axes.index) != [*segment.axes] if schedule.atomic else covered != [*segment.axes]:
        yield "the tile dims do not cover the parallel axes in order"
    held = any(o.tensor in group.shared for o in segment.outputs)
    for d, dim in enumerate(schedule.dims):
        name = "*".join(a.name for a in dim.axes)
        if dim.thread < 1 or dim.vector < 1:
            yield f"dim {name}: thread tile {dim.thread} and vector {dim.vector} must be positive"
        elif dim.block % dim.thread or dim.thread % dim.vector:
            expected = f"must be a multiple of thread {dim.thread}, and that of vector {dim.vector}"
            yield f"dim {name}: block {dim.block} {expected}"
        if not held and dim.block > max(next_power(dim.extent), _least_block(schedule, d)):
            yield f"dim {name}: block {dim.block} exceeds its extent {dim.extent} needlessly"
        if held and len(dim.axes) > 1:
            yield f"dim {name}: a tensor in shared memory has one dim per axis"
    if not _power(schedule.lanes) or not _power(schedule.row_vector):
        yield f"lanes {schedule.lanes} and row vector {schedule.row_vector} must be powers of two"
    if schedule.warp and (len(schedule.warp) != len(schedule.dims) or prod(schedule.warp) != target.warp_size):
        yield f"the warp map {schedule.warp} must place {target.warp_size} lanes on {len(schedule.dims)} dims"
    elif schedule.warp and any(d.threads % w for d, w in zip(schedule.dims, schedule.warp, strict=True)):
        yield f"the warp map {schedule.warp} does not divide the threads of each dim"
    if len(schedule.reductions) != len(segment.reductions):
        yield f"the schedule has {len(schedule.reductions)} reductions, expected {len(segment.reductions)}"
        return
    if schedule.atomic is not None:
        yield from _check_atom(segment, schedule, schedule.atomic)
    own = [r.name for r in segment.reductions]
    for reduction, loop in zip(segment.reductions, schedule.reductions, strict=True):
        yield from _check_loop(reduction, loop, schedule, len(operands(reduction, own)))


def least_block(atom: str, rows: int, columns: int, dim: int) -> int:
    """Return the least block of a tile dim where an atom multiplies: its rows or its columns; 0 of other dims."""
    if not atom:
        return 0
    return MATRIX_ATOMS[atom].m if dim == rows else MATRIX_ATOMS[atom].n if dim == columns else 0


def least_chunk(atom: str) -> int:
    """Return the least chunk of a reduced dim where an atom multiplies; 0 where none does."""
    return MATRIX_ATOMS[atom].k if atom else 0


def _least_block(schedule: SegmentSchedule, dim: int) -> int:
    loop = schedule.atomic
    return 0 if loop is None else least_block(loop.atom, loop.rows, loop.columns, dim)


def _check_atom(segment: Segment, schedule: SegmentSchedule, loop: ReductionSchedule) -> Iterator[str]:
    """Yield why atoms cannot compute a segment's reduction as the schedule spreads it."""
    if loop.atom not in MATRIX_ATOMS:
        yield f"'{loop.atom}' is no atom"
        return
    yield from atom_faults(loop, schedule.dims, schedule.threads)
    if len(segment.reductions) != 1:
        yield f"atom {loop.atom}: a segment with atoms has one reduction"
        return
    (reduction,) = segment.reductions
    mode = MATH_MODES.get(reduction.math)
    if atom_operands(reduction, schedule.dims[loop.rows].axes, schedule.dims[loop.columns].axes) is None:
        yield f"atom {loop.atom}: reduction {reduction.name} is no sum of products of its rows and columns"
    if mode is not None and mode.every and any(d.chunk > mode.every for d in loop.dims):
        yield f"atom {loop.atom}: math mode {reduction.math} promotes partial sums after at most {mode.every} elements"


def _check_loop(reduction: Reduction, loop: ReductionSchedule, schedule: SegmentSchedule, count: int) -> Iterator[str]:
    """Yield what is wrong with the loop of one reduction."""
    name = reduction.name
    if tuple(a for d in loop.dims for a in d.axes) != reduction.reduce:
        yield f"reduction {name}: the reduce dims do not cover its axes in order"
    for dim in loop.dims:
        if not 1 <= dim.chunk <= max(next_power(dim.extent), least_chunk(loop.atom)):
            yield f"reduction {name}: chunk {dim.chunk} is not between 1 and the extent {dim.extent}"
    step = schedule.lanes * schedule.row_vector
    if step > 1 and (len(loop.dims) != 1 or loop.dims[0].chunk % step):
        yield f"reduction {name}: lanes need one reduce dim whose chunk is a multiple of {step}"
    if step > 1 and loop.staging:
        yield f"reduction {name}: a reduction shared by lanes stages nothing"
    if not 1 <= loop.stages <= MAX_STAGES:
        yield f"reduction {name}: {loop.stages} stages, expected 1 to {MAX_STAGES}"
    chosen = [s.operand for s in loop.staging]
    if len(set(chosen)) != len(chosen) or any(not 0 <= o < count for o in chosen):
        yield f"reduction {name}: staged operands {chosen} are not distinct positions below {count}"


def _check_resources(group: FusedGroup, schedule: Schedule, target: Target) -> Iterator[str]:
    """Yield which limits of the machine a well-formed schedule exceeds."""
    if schedule.threads > target.MAX_thread:
        yield f"{schedule.threads} threads in a block, at most {target.MAX_thread}"
    try:
        layout = lay_out(group, schedule, target)
        tiles = staged_tiles_of(layout)
    except PassError as error:
        yield error.message
        return
    if any(sorted(order) != list(range(len(order))) for order in staging_orders(schedule)):
        yield "the layout order of a staged tile is no permutation"
    if any(tile.count <= 1 for tile, _ in tiles):
        yield "a staged tile has one element only"
    used = shared_bytes(layout, tiles)
    if used > target.MAX_shared:
        yield f"{used} bytes of shared memory, at most {target.MAX_shared}"
    counts = features_of(group, schedule, target)
    if counts.needed > counts.limit:
        yield f"about {int(counts.needed)} registers per thread, at most {int(counts.limit)}"
    if counts.body > MAX_BODY:
        yield f"an unrolled body of {int(counts.body)} operations per thread, at most {MAX_BODY}"


def staging_orders(schedule: Schedule) -> list[tuple[int, ...]]:
    """Return the layout orders of all staged tiles."""
    return [s.order for part in schedule.segments for r in part.reductions for s in r.staging]


def staged_tiles_of(layout: Layout) -> list[tuple[Tile, int]]:
    """Return the tile of every staged operand, and the bytes of its buffer."""
    return [found for frame in layout.frames for found in _frame_tiles(layout, frame)]


def _frame_tiles(layout: Layout, frame: Frame) -> Iterator[tuple[Tile, int]]:
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
            size = tile.size * loop.stages * dtype_of(part, layout.group.tensors).size
            yield tile, -(-size // 16) * 16


def shared_bytes(layout: Layout, tiles: list[tuple[Tile, int]]) -> int:
    """Return the shared memory of a block: tensors passed between segments, staged tiles, scratch of reductions across
    lanes.
    """
    total = sum(b.nbytes for b in layout.buffers.values()) + sum(size for _, size in tiles)
    widest = [
        layout.group.tensors[r.name].dtype.size
        for frame in layout.frames
        if frame.schedule.lanes > 1
        for r in frame.segment.reductions
    ]
    return total + -(-layout.schedule.threads * max(widest, default=0) // 16) * 16


def geometry_of(group: FusedGroup, schedule: Schedule) -> tuple[Geometry, ...]:
    """Return the sizes of a schedule's segments in the form that the models count from."""
    return tuple(_geometry(s, group, segment) for s, segment in zip(schedule.segments, group.segments, strict=True))


def _geometry(schedule: SegmentSchedule, group: FusedGroup, segment: Segment) -> Geometry:
    loops = list(dict.fromkeys(d for r in schedule.reductions for d in r.dims))
    structure = SegmentStructure(
        tuple(d.axes for d in schedule.dims),
        tuple(d.axes for d in loops),
        tuple(tuple(loops.index(d) for d in r.dims) for r in schedule.reductions),
        tuple(tuple(s.operand for s in r.staging) for r in schedule.reductions),
        schedule.lanes > 1 or schedule.row_vector > 1,
        next((o.tensor for o in segment.outputs if o.tensor in group.shared), ""),
        **_atom_of(schedule),
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
    )


def _atom_of(schedule: SegmentSchedule) -> dict[str, Any]:
    """Return what a structure says of the atom that a schedule uses."""
    loop = schedule.atomic
    return {} if loop is None else {"atom": loop.atom, "rows": loop.rows, "columns": loop.columns}


def _order(schedule: SegmentSchedule) -> int:
    """Return the knob that describes the layouts of staged tiles: none, all, or some turned round."""
    orders = [s.order for r in schedule.reductions for s in r.staging]
    turned = [bool(o) and o[0] == len(o) - 1 for o in orders]
    return 0 if not any(turned) else 1 if all(turned) else 2


def features_of(group: FusedGroup, schedule: Schedule, target: Target) -> Features:
    """Return the counts of one schedule, chosen here or written by hand."""
    launch = (np.int64(schedule.raster), np.int64(schedule.min_blocks))
    return count_features(group, geometry_of(group, schedule), target, *launch, index=schedule.index)
