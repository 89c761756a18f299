"""Block layout: grid, tiles of each segment, threads, tensors passed between segments.

A segment leaves its block's elements of each parallel axis, and whole rows where reduction threads hold rows. Such rows
have a pitch of an odd multiple of 16 bytes, so that threads that read a column of vectors hit different banks. A tensor
that reduction threads compute from rows, element by element, replaces its source in place: each thread reads its own
elements before it writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from attrs import define, field, frozen

from ....ir import (
    LANES,
    Define,
    FusedGroup,
    Guard,
    Index,
    Item,
    PassError,
    Producer,
    Schedule,
    Segment,
    SegmentSchedule,
    Share,
    SharedBuffer,
    Target,
    TensorMap,
    TileDim,
    Var,
    as_index,
    delinearise,
    is_exchange,
    owned_axes,
    reads,
    streamable_axis,
    streamed_variables,
    variables,
)
from ...geometry import (
    axis_places,
    column_run,
    exchange_extents,
    extents_of,
    holds_rows,
    is_register_chain,
    keeps_row_order,
    lanes_along,
    outermost_dim,
    owned_dims,
    place_together,
    row_place,
    tensors_in_place,
)
from .matrix_instructions import WarpFrame, thread_places
from .staging import Box, bind_dims, local_vars, needed_box

#: The buffer that passes each row's scale from the threads that hold the row to the threads that hold its sums.
SCALES = "scales"


@frozen
class Frame:
    """Layout of one segment in its kernel.

    `starts` are the begins of its tiles, `tiles` the block-local variables, `shares` how threads divide them,
    `unrolled` a thread's own variables in loop order, `lane` numbers the reduction threads of an instance, `when`
    guards the participating threads, `warp` is the thread's position in its warp where matrix instructions multiply.
    `rank` numbers the blocks of a cluster, which take a trip over a row each.
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
    warp: WarpFrame | None = None
    rank: Index = Index()


@define
class BlockLayout:
    """Layout of a kernel; buffers are added during lowering.

    `opening` are the items before all others, `maps` and `producer` those of bulk copies, `launched` the blocks of a
    persistent grid, `teams` the warpgroups that take them in turn. `boxes`, `pitches` and `names` describe, per tensor
    passed between segments, the block's box of it and its buffer.
    """

    group: FusedGroup
    schedule: Schedule
    target: Target
    block: Var
    thread: Var
    frames: list[Frame] = field(factory=list)
    defines: list[Define] = field(factory=list)
    buffers: dict[str, SharedBuffer] = field(factory=dict)
    maps: list[TensorMap] = field(factory=list)
    opening: list[Item] = field(factory=list)
    producer: list[Producer] = field(factory=list)
    launched: int = 0
    teams: int = 1
    boxes: dict[str, Box] = field(factory=dict)
    pitches: dict[str, tuple[int, ...]] = field(factory=dict)
    names: dict[str, str] = field(factory=dict)
    part: Var | None = None
    part_length: int = 0


def lay_out(group: FusedGroup, schedule: Schedule, target: Target) -> BlockLayout:
    """Lay out all segments, the last one first.

    The box that a segment computes depends on its reader's tiles.
    """
    layout = BlockLayout(group, schedule, target, Var("blk", schedule.blocks), Var("tid", schedule.threads))
    layout.part, layout.part_length = streamed_parts(group, schedule)
    starts = _grid(layout, schedule.segments[-1])
    for number in reversed(range(len(group.segments))):
        segment, chosen = group.segments[number], schedule.segments[number]
        if number < len(group.segments) - 1:
            starts = _shared_starts(layout, segment, chosen)
        layout.frames.insert(0, _frame(layout, segment, chosen, f"s{number}", starts))
    if is_register_chain(schedule.segments):
        return layout
    _place_shared(layout)
    if layout.part is not None and len(group.segments) > 2:
        rows, chosen = next(zip(group.segments[1:], schedule.segments[1:], strict=True))
        dtype = group.tensors[rows.reductions[0].name].dtype
        layout.buffers[SCALES] = SharedBuffer(SCALES, dtype, prod(d.block for d in chosen.dims))
    return layout


def _grid(layout: BlockLayout, schedule: SegmentSchedule) -> tuple[Index, ...]:
    """Decode the block number into tile coordinates, `raster` rows of the outermost dim at a time, for L2 locality.

    Dims of one element do not count.
    """
    counts = [d.blocks for d in schedule.dims]
    raster, first = layout.schedule.raster, outermost_dim(d.axes for d in schedule.dims)
    flat = as_index(layout.block) // schedule.cluster
    if raster > 1 and len(counts) > first + 1 and counts[first] % raster == 0:
        inner = layout.schedule.blocks // counts[first]
        outer = flat // (raster * inner) * raster + flat % raster
        places = [*(Index() for _ in range(first)), outer]
        places += delinearise(flat // raster % inner, counts[first + 1 :])
    else:
        places = list(delinearise(flat, counts))
    starts = []
    for d, (dim, place) in enumerate(zip(schedule.dims, places, strict=True)):
        var = Var(f"b{d}", dim.blocks)
        if dim.blocks > 1:
            layout.defines.append(Define(var, place))
        starts.append(as_index(var) * (dim.block * dim.tiles))
    return tuple(starts)


def _shared_starts(layout: BlockLayout, segment: Segment, schedule: SegmentSchedule) -> tuple[Index, ...]:
    """Find the boxes that later segments read of this segment's outputs: its tiles begin at their bases."""
    if is_exchange(layout.group):
        return _exchange_starts(layout, segment, schedule)
    starts: dict[int, Index] = {}
    for output in (o for o in segment.outputs if o.tensor in layout.group.shared):
        box = _box_read(layout, output.tensor)
        row = layout.part_length or row_length(schedule)
        extents = extents_of(segment, output.tensor, [d.block for d in schedule.dims], row)
        if any(b < e for b, e in zip(extents, box.extents, strict=True)):
            raise PassError(
                f"shared-memory-level fusion: tile {tuple(extents)} is smaller than the box {box.extents} that its "
                f"reader needs"
            )
        for base, place in zip(box.base, axis_places(segment, output.tensor), strict=True):
            if place is not None and starts.setdefault(place, base) != base:
                raise PassError("shared-memory-level fusion: what is read of several tensors begins at several places")
        layout.boxes[output.tensor] = Box(box.base, tuple(extents))
    return tuple(starts.get(n, Index()) for n in range(len(segment.axes)))


def _exchange_starts(layout: BlockLayout, segment: Segment, schedule: SegmentSchedule) -> tuple[Index, ...]:
    """Find the boxes of the tensors that a segment of an exchange writes: a tile along owned axes, all along others."""
    group, last = layout.group, layout.frames[-1]
    owned = owned_axes(group.segments, group.shared)
    begins = {dim.axes[0]: start for dim, start in zip(last.schedule.dims, last.starts, strict=True)}
    places = zip(owned[group.segments.index(segment)], owned[-1], strict=True)
    starts = {segment.axes[a]: begins[last.segment.axes[b]] for a, b in places}
    blocks = {dim.axes[0]: dim.block for dim in schedule.dims}
    for tensor in dict.fromkeys(o.tensor for o in segment.outputs):
        dims = owned_dims(segment, tensor, owned[group.segments.index(segment)])
        base = tuple(Index() if axis is None else starts[axis] for axis in dims)
        layout.boxes[tensor] = Box(base, tuple(exchange_extents(group, tensor, blocks)))
    return tuple(starts.get(dim.axes[0], Index()) for dim in schedule.dims)


def unique_writer_guards(layout: BlockLayout, frame: Frame) -> tuple[Guard, ...]:
    """Return guards that make one block store each row.

    They hold for the rows that a block has to compute, in the first of the blocks that compute the same ones. Rows that
    only fill up a tile are stored by other blocks, and may be incomplete here.
    """
    if frame.segment is layout.group.segments[-1]:
        return ()
    places = (Var(f"b{d}", dim.blocks) for d, dim in enumerate(layout.schedule.segments[-1].dims) if dim.blocks > 1)
    used = frozenset[object]().union(*(variables(start) for start in frame.starts))
    found = [Guard(as_index(place), 0, 1) for place in places if place not in used]
    for output in (o for o in frame.segment.outputs if o.tensor in layout.group.shared):
        extents = _box_read(layout, output.tensor).extents
        for place, extent in zip(axis_places(frame.segment, output.tensor), extents, strict=True):
            found += [] if place is None else [Guard(as_index(frame.tiles[place]), 0, extent)]
    return tuple(guard for guard in dict.fromkeys(found) if not guard.always)


def row_length(schedule: SegmentSchedule) -> int:
    """Return the elements that the trips over a row cover.

    It is 1 where there is no loop over one row.
    """
    loops = {d for r in schedule.reductions for d in r.dims}
    return max((d.trips * d.block_k for d in loops), default=1)


def streamed_parts(group: FusedGroup, schedule: Schedule) -> tuple[Var | None, int]:
    """Return the variable that numbers streamed parts, and their length.

    Parts divide the rows passed between segments, or the tiles of an axis that a later segment sums over; None and 0
    where nothing is streamed.
    """
    if (place := streamable_axis(group)) is not None:
        tile = schedule.segments[0].dims[place]
        return (Var("part", tile.blocks), tile.block) if tile.blocks > 1 else (None, 0)
    for segment, chosen in zip(group.segments, schedule.segments, strict=True):
        if any(o.extra and o.tensor in group.shared for o in segment.outputs):
            dim = chosen.reductions[0].dims[0]
            if dim.trips > 1:
                return Var("part", dim.trips), dim.block_k
    return None, 0


def _box_read(layout: BlockLayout, tensor: str) -> Box:
    readers = [f for f in layout.frames if tensor in f.segment.tensors_read]
    if len(readers) != 1:
        raise PassError(f"shared-memory-level fusion: {len(readers)} later segments read a shared tensor, expected one")
    frame = readers[0]
    found = [r for body in frame.segment.expressions for r in reads(body) if r.tensor == tensor]
    places, _ = bind_dims(frame.schedule.dims, frame.tiles, frame.starts)
    rows = {v for r in frame.segment.reductions for v in r.reduce} | {v for o in frame.segment.outputs for v in o.extra}
    if layout.part is not None:
        # Rows of reduction threads are all that the later segments iterate over.
        along = streamed_variables(layout.group) or rows
        inside = {v: Var(f"{v.name}part", layout.part_length) for v in rows & along}
        places |= {v: as_index(layout.part) * layout.part_length + at for v, at in inside.items()}
        rows = (rows - along) | {*inside.values()}
    box = needed_box(found, places, frozenset(frame.tiles) | rows)
    if isinstance(box, str):
        raise PassError(f"shared-memory-level fusion: {box}")
    return box


def _place_shared(layout: BlockLayout) -> None:
    """Allocate the tensors passed between segments; tensors replaced in place share one buffer."""
    group = layout.group
    places = tensors_in_place(group)
    sizes = {tensor: layout.boxes[tensor].extents for tensor in group.shared}
    for tensor in (t for t in group.shared if t not in places):
        pitches, elements = place_together(group, tensor, sizes)
        name = f"m{1 + sum(b.name.startswith('m') for b in layout.buffers.values())}"
        layout.buffers[tensor] = SharedBuffer(name, group.tensors[tensor].dtype, int(elements))
        for each, own in pitches.items():
            layout.pitches[each] = tuple(map(int, own))
            layout.names[each] = name


def _frame(
    layout: BlockLayout, segment: Segment, schedule: SegmentSchedule, prefix: str, starts: tuple[Index, ...]
) -> Frame:
    lane = Var(f"{prefix}l", schedule.reduction_threads)
    rest = as_index(layout.thread)
    if schedule.reduction_threads > 1:
        fast, slowest = lane.extent, schedule.atomic is not None or column_run(segment, layout.group.shared)
        fast = schedule.threads // fast if slowest else fast
        layout.defines.append(Define(lane, rest // fast if slowest else rest % fast))
        rest = rest % fast if slowest else rest // fast
    warp = _warp(layout, schedule, prefix, rest, lane)
    threads = _thread_coordinates(layout, schedule, prefix, rest, warp)
    tiles, _ = local_vars(schedule, None, prefix)
    shares, unrolled = divide_tile(schedule.dims, tiles, threads, prefix, warp.ordered if warp else -1)
    when = thread_guards(layout, schedule.threads)
    rank = as_index(layout.block) % schedule.cluster
    return Frame(segment, schedule, prefix, starts, tiles, shares, unrolled, lane, when, warp, rank)


def divide_tile(
    dims: Sequence[TileDim], tiles: Sequence[Var], threads: Sequence[Var], prefix: str, rows: int = -1
) -> tuple[tuple[Share, ...], tuple[Var, ...]]:
    """Return the shares of threads in a block's elements.

    `threads` are numbered along each dim, those of `rows` in the order of an instruction. The second result are a
    thread's own variables in loop order.
    """
    shares, outer, inner = list[Share](), list[Var](), list[Var]()
    for d, (dim, tile, place) in enumerate(zip(dims, tiles, threads, strict=True)):
        group, element = Var(f"{prefix}j{d}", dim.thread // dim.vector), Var(f"{prefix}v{d}", dim.vector)
        register = as_index(group) * dim.vector + element
        spread = as_index(group) * (dim.threads * dim.vector) + as_index(place) * dim.vector + element
        shares.append(Share(tile, row_place(place, register, dim.threads) if d == rows else spread, register))
        outer.append(group)
        inner.append(element)
    return tuple(shares), tuple(v for v in (*outer, *inner) if v.extent > 1)


def thread_guards(layout: BlockLayout, threads: int) -> tuple[Guard, ...]:
    """Return the guard of the first threads of a larger block."""
    first = Guard(as_index(layout.thread), 0, threads)
    return () if first.always else (first,)


def _warp(layout: BlockLayout, schedule: SegmentSchedule, prefix: str, rest: Index, part: Var) -> WarpFrame | None:
    """Number lanes and warps where matrix instructions multiply; the warps of the last dim are neighbours. `rest`
    numbers the threads of one part of the depth.
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
    ordered = keeps_row_order(schedule.atomic, schedule.dims, len(layout.group.segments) == 1)
    return WarpFrame(lane, warps, part, rows if ordered else -1)


def _thread_coordinates(
    layout: BlockLayout, schedule: SegmentSchedule, prefix: str, rest: Index, warp: WarpFrame | None
) -> list[Var]:
    """Number threads over the tile dims, the last fastest; a warp layout gives each warp a patch of several dims, a
    matrix instruction that of its C.
    """
    counts = [d.threads for d in schedule.dims]
    places: Sequence[Index]
    if warp is not None and schedule.atomic is not None:
        warps = [as_index(w) for w in warp.warps]
        places = thread_places(schedule.atomic, schedule.dims, as_index(warp.lane), warps)
    elif schedule.warp:
        size = layout.target.warp_size
        inside = _lane_in_patch(rest % size, schedule.warp)
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


def _lane_in_patch(lane: Index, warp: Sequence[int]) -> tuple[Index, ...]:
    """Return a lane's place in its warp's patch: alternating between two neighbouring rows, else row by row.

    Alternating lanes share more words of shared memory, and never fewer.
    """
    wide = [d for d, lanes in enumerate(warp) if lanes > 1]
    if len(wide) != 2 or warp[wide[0]] % 2:
        return delinearise(lane, warp)
    places = [Index() for _ in warp]
    across = warp[wide[1]]
    places[wide[0]] = lane // (2 * across) * 2 + lane % 2
    places[wide[1]] = lane // 2 % across
    return tuple(places)


# ---- tensors passed between segments


def read_padding(group: FusedGroup, tensor: str) -> tuple[tuple[int, ...], float] | None:
    """Return the padded dims of a shared tensor, and the fill value.

    Later segments read beyond the ends of these dims. The writer stores the fill value there once, so that reads need
    no guard. None where there is no such read, or where guards or fill values differ.
    """
    if holds_rows(group, tensor) or is_exchange(group):
        return None
    found = [r for s in group.segments for body in s.expressions for r in reads(body) if r.tensor == tensor]
    fills = {r.fill for r in found if r.guards}
    shape, dims = group.tensors[tensor].shape, set[int]()
    for read in found:
        ends = {Guard(index, 0, extent): d for d, (index, extent) in enumerate(zip(read.indices, shape, strict=True))}
        if not all(guard in ends for guard in read.guards):
            return None
        dims |= {ends[guard] for guard in read.guards}
    return (tuple(sorted(dims)), fills.pop()) if len(fills) == 1 else None
