"""Where everything of a kernel lies: the grid, the tiles of each segment, how threads divide them, tensors shared
between segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from attrs import define, field, frozen

from ...ir import (
    LANES,
    Define,
    FusedGroup,
    Guard,
    Index,
    PassError,
    Schedule,
    Segment,
    SegmentSchedule,
    Share,
    SharedBuffer,
    Target,
    TileDim,
    Var,
    as_index,
    delinearise,
    reads,
    row_major,
)
from .atoms import AtomFrame, lanes_along, thread_places
from .staging import Box, bind_dims, local_vars, needed_box
from .tabulate import Tables


@frozen
class Frame:
    """A segment in its kernel.

    `starts` say where its tiles begin, `tiles` are the block-local variables, `shares` how threads divide them,
    `unrolled` a thread's own variables in loop order, `lane` numbers the threads of an instance, `when` holds for the
    threads that take part, `warp` says where the thread lies in its warp where atoms multiply.
    """

    segment: Segment
    schedule: SegmentSchedule
    prefix: str
    starts: tuple[Index, ...]
    tiles: tuple[Var, ...]
    shares: tuple[Share, ...]
    unrolled: tuple[Var, ...]
    lane: Var
    when: tuple[Guard, ...]
    warp: AtomFrame | None = None


@define
class BlockLayout:
    """The layout of a kernel; buffers are added while it is lowered."""

    group: FusedGroup
    schedule: Schedule
    target: Target
    block: Var
    thread: Var
    frames: list[Frame] = field(factory=list)
    defines: list[Define] = field(factory=list)
    buffers: dict[str, SharedBuffer] = field(factory=dict)
    boxes: dict[str, Box] = field(factory=dict)
    pitches: dict[str, tuple[int, ...]] = field(factory=dict)
    tables: Tables = field(factory=Tables)


def lay_out(group: FusedGroup, schedule: Schedule, target: Target) -> BlockLayout:
    """Lay out all segments, the last first: the box that an earlier one computes depends on its reader's tiles."""
    layout = BlockLayout(group, schedule, target, Var("blk", schedule.blocks), Var("tid", schedule.threads))
    starts = _grid(layout, schedule.segments[-1])
    for number in reversed(range(len(group.segments))):
        segment, chosen = group.segments[number], schedule.segments[number]
        if number < len(group.segments) - 1:
            starts = _shared_starts(layout, segment, chosen)
        layout.frames.insert(0, _frame(layout, segment, chosen, f"s{number}", starts))
    return layout


def _grid(layout: BlockLayout, schedule: SegmentSchedule) -> tuple[Index, ...]:
    """Decode the block number into tile coordinates,
    `raster` rows of the outermost dim at a time (for locality in L2).
    """
    counts = [d.blocks for d in schedule.dims]
    raster = layout.schedule.raster
    flat = as_index(layout.block)
    if raster > 1 and len(counts) > 1 and counts[0] % raster == 0:
        inner = layout.schedule.blocks // counts[0]
        outer = flat // (raster * inner) * raster + flat % raster
        places = [outer, *delinearise(flat // raster % inner, counts[1:])]
    else:
        places = list(delinearise(flat, counts))
    starts = []
    for d, (dim, place) in enumerate(zip(schedule.dims, places, strict=True)):
        var = Var(f"b{d}", dim.blocks)
        if dim.blocks > 1:
            layout.defines.append(Define(var, place))
        starts.append(as_index(var) * (dim.block * dim.turns))
    return tuple(starts)


def _shared_starts(layout: BlockLayout, segment: Segment, schedule: SegmentSchedule) -> tuple[Index, ...]:
    """Find the box of the shared tensor that a later segment reads; its base is where this segment's tiles begin."""
    (output,) = segment.outputs
    readers = [f for f in layout.frames if output.tensor in f.segment.tensors_read]
    if len(readers) != 1:
        raise PassError(f"shared-memory-level fusion: {len(readers)} later segments read a shared tensor, expected one")
    frame = readers[0]
    found = [r for body in frame.segment.expressions for r in reads(body) if r.tensor == output.tensor]
    places, _ = bind_dims(frame.schedule.dims, frame.tiles, frame.starts)
    rows = {v for r in frame.segment.reductions for v in r.reduce} | {v for o in frame.segment.outputs for v in o.extra}
    box = needed_box(found, places, frozenset(frame.tiles) | rows)
    if isinstance(box, str):
        raise PassError(f"shared-memory-level fusion: {box}")
    blocks = tuple(d.block for d in schedule.dims)
    if any(b < e for b, e in zip(blocks, box.extents, strict=True)):
        raise PassError(
            f"shared-memory-level fusion: tile {blocks} is smaller than the box {box.extents} that its reader needs"
        )
    pitch = row_major(blocks)
    layout.boxes[output.tensor] = box
    layout.pitches[output.tensor] = pitch
    layout.buffers[output.tensor] = SharedBuffer(
        f"m{len(layout.boxes)}", layout.group.tensors[output.tensor].dtype, prod(blocks)
    )
    return box.base


def _frame(
    layout: BlockLayout, segment: Segment, schedule: SegmentSchedule, prefix: str, starts: tuple[Index, ...]
) -> Frame:
    lane = Var(f"{prefix}l", schedule.lanes)
    rest = as_index(layout.thread)
    if schedule.lanes > 1:
        each = schedule.threads // schedule.lanes
        place = rest // each if schedule.atomic else rest % schedule.lanes
        layout.defines.append(Define(lane, place))
        rest = rest % each if schedule.atomic else rest // schedule.lanes
    warp = _warp(layout, schedule, prefix, rest, lane)
    threads = _thread_coordinates(layout, schedule, prefix, rest, warp)
    tiles, _ = local_vars(schedule, None, prefix)
    shares, unrolled = divide(schedule.dims, tiles, threads, prefix)
    when = taking_part(layout, schedule.threads)
    return Frame(segment, schedule, prefix, starts, tiles, shares, unrolled, lane, when, warp)


def divide(
    dims: Sequence[TileDim], tiles: Sequence[Var], threads: Sequence[Var], prefix: str
) -> tuple[tuple[Share, ...], tuple[Var, ...]]:
    """Return how threads, numbered along each dim, divide the elements of a block, and a thread's own variables in loop
    order.
    """
    shares: list[Share] = []
    outer: list[Var] = []
    inner: list[Var] = []
    for d, (dim, tile, place) in enumerate(zip(dims, tiles, threads, strict=True)):
        group, element = Var(f"{prefix}j{d}", dim.thread // dim.vector), Var(f"{prefix}v{d}", dim.vector)
        register = as_index(group) * dim.vector + element
        shares.append(
            Share(tile, as_index(group) * (dim.threads * dim.vector) + as_index(place) * dim.vector + element, register)
        )
        outer.append(group)
        inner.append(element)
    return tuple(shares), tuple(v for v in (*outer, *inner) if v.extent > 1)


def taking_part(layout: BlockLayout, threads: int) -> tuple[Guard, ...]:
    """Return what holds for the first so many threads of a block; nothing where it has no more."""
    first = Guard(as_index(layout.thread), 0, threads)
    return () if first.always else (first,)


def _warp(layout: BlockLayout, schedule: SegmentSchedule, prefix: str, rest: Index, part: Var) -> AtomFrame | None:
    """Number lanes and warps where atoms multiply; the warps of the last dim are next to each other. `rest` numbers the
    threads that take the same part of the depth.
    """
    if schedule.atomic is None:
        return None
    lane = Var(f"{prefix}x", LANES)
    layout.defines.append(Define(lane, as_index(layout.thread) % LANES))
    rows, columns = schedule.atomic.rows, schedule.atomic.columns
    counts = [dim.threads // lanes_along(rows, columns, d) for d, dim in enumerate(schedule.dims)]
    warps = tuple(Var(f"{prefix}w{d}", count) for d, count in enumerate(counts))
    places = delinearise(rest // LANES, counts)
    layout.defines += [Define(warp, place) for warp, place in zip(warps, places, strict=True) if warp.extent > 1]
    return AtomFrame(lane, warps, part)


def _thread_coordinates(
    layout: BlockLayout, schedule: SegmentSchedule, prefix: str, rest: Index, warp: AtomFrame | None
) -> list[Var]:
    """Number threads over the tile dims, the last fastest; with a warp map, a warp covers a patch of several dims, with
    atoms that of their C.
    """
    counts = [d.threads for d in schedule.dims]
    places: Sequence[Index]
    if warp is not None and schedule.atomic is not None:
        places = thread_places(schedule.atomic, as_index(warp.lane), [as_index(w) for w in warp.warps])
    elif schedule.warp:
        size = layout.target.warp_size
        inside = _inside(rest % size, schedule.warp, schedule.zigzag)
        across = delinearise(rest // size, [c // w for c, w in zip(counts, schedule.warp, strict=True)])
        places = [a * w + i for a, w, i in zip(across, schedule.warp, inside, strict=True)]
    else:
        places = delinearise(rest, counts)
    found = []
    for d, (count, place) in enumerate(zip(counts, places, strict=True)):
        var = Var(f"{prefix}t{d}", count)
        if count > 1:
            layout.defines.append(Define(var, place))
        found.append(var)
    return found


def _inside(lane: Index, warp: Sequence[int], zigzag: bool) -> tuple[Index, ...]:
    """Return a lane's place in its warp's patch: row by row, or alternating between two neighbouring rows."""
    wide = [d for d, lanes in enumerate(warp) if lanes > 1]
    if not zigzag or len(wide) != 2 or warp[wide[0]] % 2:
        return delinearise(lane, warp)
    places = [Index() for _ in warp]
    across = warp[wide[1]]
    places[wide[0]] = lane // (2 * across) * 2 + lane % 2
    places[wide[1]] = lane // 2 % across
    return tuple(places)
