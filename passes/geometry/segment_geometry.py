"""Block, thread and loop sizes of all candidate schedules, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np
from attrs import evolve, field, fields, frozen

from ...ir import (
    MMA_INSTRUCTIONS,
    FusedGroup,
    Index,
    ReductionSchedule,
    Segment,
    SegmentSchedule,
    Staging,
    Var,
    is_exchange,
    owned_axes,
    reads,
)
from .footprint import Count, Cover, ceil_div, least, product
from .matrix_instructions import chained_vector, lanes_along
from .row_sharing import ROW_LANES, is_register_chain
from .schedule_template import ScheduleTemplate, SegmentTemplate, next_power
from .shared_tensors import axis_places, exchange_dims

#: Units of a row that the parameter of the row cache counts.
ROW_CACHE_UNITS = 8
#: The value of `order` that leaves tiles in their natural order, with register staging of operands along the depth.
REGISTER_STAGED_ORDER = 3
#: Arrays of parameter values by name; they broadcast against each other.
Columns = Mapping[str, Count]
T = TypeVar("T")


@frozen
class Geometry:
    """Sizes of one segment, as numbers, or as arrays over candidate schedules.

    They are the elements per block and per thread of each dim, threads along it, chunk and trips of each loop.
    `spread`, `loop` and `staging` hold the schedule parameters of the segment, of its loops, and of its staged
    operands, by the names of the IR. `order` 1 transposes staged tiles (`FORMAT_shared`), 2 only those whose memory
    runs along a reduced axis, 0 none; 3 stages those through registers instead (`REGISTER_STAGED_ORDER`). Operands of
    matrix instructions are padded for conflict-free fragments, or by `pads`, per operand. A block takes `tiles` tiles,
    one after another. Input of the segment before comes in parts of `part` elements, 0 where it is not streamed.
    """

    structure: SegmentTemplate
    block: tuple[Count, ...]
    thread: tuple[Count, ...]
    vector: tuple[Count, ...]
    counts: tuple[Count, ...]
    block_k: tuple[Count, ...]
    trips: tuple[Count, ...]
    spread: SegmentSchedule
    loop: ReductionSchedule
    staging: Staging
    warp: tuple[Count, ...] = ()
    order: Count = 0
    pads: tuple[Count, ...] = ()
    tiles: Count = 1
    part: Count = 0
    _known: dict[Hashable, Any] = field(factory=dict, init=False, eq=False, repr=False)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the memoised value of a key."""
        if key not in self._known:
            self._known[key] = make()
        found: T = self._known[key]
        return found

    @property
    def reduction_threads(self) -> Count:
        """Reduction threads of an instance, or warps that split its depth."""
        return self.spread.reduction_threads

    @property
    def row_vector(self) -> Count:
        """Neighbours of a row that a reduction thread takes at once."""
        return self.spread.row_vector

    def lanes_along(self, warp_size: int) -> list[Count]:
        """Return a warp's lanes along each dim.

        They follow the warp layout, or the last dim is the fastest, after the reduction threads, or before those over
        columns.
        """
        return self.once(("lanes", warp_size), lambda: self._warp_lanes(warp_size))

    def _warp_lanes(self, warp_size: int) -> list[Count]:
        if self.structure.mma:
            return [
                lanes_along(self.structure.rows, self.structure.columns, d) for d in range(len(self.structure.dims))
            ]
        fastest = 1 if self.structure.over_columns else self.reduction_threads
        left: Count = np.maximum(np.int64(warp_size) // fastest, 1)
        found: list[Count] = []
        for count in reversed(self.counts):
            along = least(left, count)
            left = np.maximum(left // along, 1)
            found.insert(0, along)
        if not self.warp:
            return found
        return [np.where(np.greater(w, 0), w, along) for w, along in zip(self.warp, found, strict=True)]

    def reduction_lanes(self, warp_size: int) -> Count:
        """Return a warp's lanes that share an instance."""
        columns = product(self.lanes_along(warp_size)) if self.structure.over_columns else 1
        return least(np.maximum(warp_size // columns, 1), self.reduction_threads)

    @property
    def threads(self) -> Count:
        """Threads of a block that the segment uses."""
        return self.once("threads", lambda: product(self.counts) * self.reduction_threads)

    def warps(self, warp_size: int) -> Count:
        """Return the warps of a block; the last one may be incomplete."""
        return self.once(("warps", warp_size), lambda: ceil_div(self.threads, warp_size))

    @property
    def block_cover(self) -> Cover:
        """Cover of a block over the parallel axes."""
        return self.once("block", lambda: self.cover(self.block))

    @property
    def thread_cover(self) -> Cover:
        """Cover of a thread over the parallel axes, taken as contiguous."""
        return self.once("thread", lambda: self.cover(self.thread))

    def cover(self, sizes: Sequence[Count]) -> Cover:
        """Return the cover of the parallel axes for sizes of the dims."""
        return Cover.of(self.structure.dims, sizes)

    def extents(self, which: Sequence[int]) -> list[int]:
        """Return the whole extents of some loops."""
        return [prod(a.extent for a in self.structure.loops[k]) for k in which]


def geometries(
    group: FusedGroup, structure: ScheduleTemplate, columns: Columns, warp_size: int
) -> tuple[Geometry, ...]:
    """Return the sizes of every segment.

    Segments that fill shared memory take theirs from the later segments that read it.
    """
    found: list[Geometry] = []
    chained = is_register_chain(structure.segments)
    if chained:
        columns = _chain_columns(structure.segments, columns)
    for position in range(len(group.segments) - 1, -1, -1):
        parts = structure.segments[position]
        boxes: list[Count] = []
        if parts.shared:
            boxes = _boxes(group, position, parts.shared, found)
        threads = found[-1].threads if parts.passes_rows or parts.holds_results else 0
        if parts.holds_results:
            boxes[parts.columns] = found[0].block_k[0]
        if chained and parts.shared:  # the index of a single row does not show that lanes hold an instruction's rows
            boxes[parts.rows if parts.mma else -1] = found[-1].block[structure.segments[-1].rows]
        found.insert(0, _geometry(parts, f"s{position}.", columns, boxes, warp_size, threads))
    return tuple(found)


def _chain_columns(segments: Sequence[SegmentTemplate], columns: Columns) -> Columns:
    """Return the columns of a chain in registers with those that follow from its parameters."""
    unit, last = MMA_INSTRUCTIONS[segments[0].mma].k, len(segments) - 1
    depths = [prod(a.extent for a in loop) for loop in segments[0].loops]
    columns = {**columns, **{f"s0.c{k}": ceil_div(depth, unit) * unit for k, depth in enumerate(depths)}}
    columns |= {f"s0.{name}": columns.get(f"s{last}.{name}", 0) for name in ("stages", "tma")}
    if last == 1:
        parts = {f"s1.c{k}": columns["s1.part"] for k in range(len(segments[1].loops))}
        return {**columns, **parts, "s0.order": 2, "s1.order": 2}
    return {
        **columns,
        "s1.reduction_threads": ROW_LANES,
        "s1.row_vector": chained_vector(segments[0].mma),
        "s2.c0": columns["s1.part"],
        "s0.order": 2,
        "s2.order": 2,
    }


def _boxes(group: FusedGroup, position: int, shared: Sequence[str], found: Sequence[Geometry]) -> list[Count]:
    """Return the extents of a segment's axes that the later ones read, whose sizes are `found`."""
    segment = group.segments[position]
    if is_exchange(group):
        return _exchange_boxes(group, position, found[-1])
    later = list(zip(group.segments[position + 1 :], found, strict=True))
    boxes: list[Count] = [1] * len(segment.axes)
    for tensor in shared:
        places = axis_places(segment, tensor)
        for place, box in zip(places, shared_box(tensor, later, len(places)), strict=True):
            if place is not None:
                boxes[place] = np.maximum(boxes[place], box)
    return boxes


def _exchange_boxes(group: FusedGroup, position: int, last: Geometry) -> list[Count]:
    """Return the extents of the tile dims of a segment of an exchange: whole ones, or those of the last segment."""
    owned = owned_axes(group.segments, group.shared)
    sizes = {dim[0]: size for dim, size in zip(last.structure.dims, last.block, strict=True)}
    axes, others = group.segments[position].axes, group.segments[-1].axes
    blocks = {axes[a]: sizes[others[b]] for a, b in zip(owned[position], owned[-1], strict=True)}
    dims = exchange_dims(group.segments[position], owned[position])
    return [blocks.get(dim[0], prod(a.extent for a in dim)) for dim in dims]


def _geometry(
    parts: SegmentTemplate, prefix: str, columns: Columns, boxes: Sequence[Count], warp_size: int, threads: Count
) -> Geometry:
    rank = range(len(parts.dims))
    spread = SegmentSchedule((), **_parameter_columns(SegmentSchedule, prefix, columns))
    step = spread.reduction_threads * spread.row_vector
    thread: tuple[Count, ...]
    counts: tuple[Count, ...]
    if parts.passes_rows:  # all threads of the block take part, and hold whole rows
        counts = tuple(np.maximum(threads // spread.reduction_threads, 1) if d == rank[-1] else 1 for d in rank)
        thread = tuple(ceil_div(box, count) for box, count in zip(boxes, counts, strict=True))
        part = columns.get(f"{prefix}part", 0)
        whole = (ceil_div(prod(a.extent for a in k), step) * step for k in parts.loops)
        chunk = tuple(np.where(np.equal(part, 0), length, part) for length in whole)
    elif parts.holds_results:
        lanes = {parts.rows: threads // ROW_LANES, parts.columns: ROW_LANES}
        counts = tuple(lanes.get(d, 1) for d in rank)
        thread = tuple(ceil_div(box, count) for box, count in zip(boxes, counts, strict=True))
        chunk = tuple(columns[f"{prefix}c{k}"] for k in range(len(parts.loops)))
    else:
        thread = tuple(columns[f"{prefix}e{d}"] for d in rank)
        lanes = {d: lanes_along(parts.rows, parts.columns, d) if parts.boxed else 1 for d in rank}
        counts = tuple(
            ceil_div(boxes[d], thread[d] * lanes[d]) * lanes[d] if parts.shared else columns[f"{prefix}t{d}"]
            for d in rank
        )
        chunk = tuple(columns[f"{prefix}c{k}"] * step for k in range(len(parts.loops)))
    trips = tuple(ceil_div(prod(a.extent for a in loop), c) for loop, c in zip(parts.loops, chunk, strict=True))
    block = tuple(t * e for t, e in zip(counts, thread, strict=True))
    tiles = ceil_div(parts.part_rows, block[0]) if parts.part_rows else columns.get(f"{prefix}tiles", 1)
    kept = _cached_elements(parts, spread.row_cache, chunk[0], trips[0]) if parts.caches_rows else 0
    if parts.clusters and parts.caches_rows:
        own = ceil_div(trips[0], spread.cluster)
        cached = np.greater(spread.row_cache, 0)
        kept = np.where(cached, np.where(np.greater(own, 1), own * chunk[0], -1), 0)
    return Geometry(
        parts,
        block,
        thread,
        tuple(
            columns.get(f"{prefix}v{d}", chained_vector(parts.mma) if parts.holds_results and d == parts.columns else 1)
            for d in rank
        ),
        counts,
        chunk,
        trips,
        evolve(spread, row_cache=kept),
        ReductionSchedule((), **_parameter_columns(ReductionSchedule, prefix, columns)),
        Staging(-1, **_parameter_columns(Staging, prefix, columns)),
        _warp_map(parts, columns.get(f"{prefix}warp"), warp_size),
        columns.get(f"{prefix}order", 0),
        tiles=tiles,
        part=columns.get(f"{prefix}part", 0) if parts.parts >= 0 else 0,
    )


def _parameter_columns(kind: type, prefix: str, columns: Columns) -> dict[str, Count]:
    """Return the columns of a segment that are schedule parameters of a class of the IR."""
    return {name: columns[prefix + name] for name in numbers_of(kind) if prefix + name in columns}


def numbers_of(kind: type) -> Mapping[str, type]:
    """Return a schedule class's numbers with a default, and their types."""
    return _NUMBERS[kind]


#: Fields of each class of schedules that are numbers with a default, and their types.
_NUMBERS: Mapping[type, Mapping[str, type]] = {
    kind: {f.name: type(f.default) for f in fields(kind) if type(f.default) in (int, bool)}
    for kind in (SegmentSchedule, ReductionSchedule, Staging)
}


def _cached_elements(parts: SegmentTemplate, eighths: Count, chunk: Count, trips: Count) -> Count:
    """Return the elements of the row cache for a number of eighths.

    Eight are the whole row. It is -1 where fewer are no whole trips, or hold it whole.
    """
    kept, whole = eighths * (next_power(prod(a.extent for a in parts.loops[0])) // ROW_CACHE_UNITS), trips * chunk
    idle = np.not_equal(kept % chunk, 0) | np.greater_equal(kept, whole)
    return np.where(np.equal(eighths, ROW_CACHE_UNITS), whole, np.where(idle, -1, kept))


def _warp_map(parts: SegmentTemplate, along: Count | None, warp_size: int) -> tuple[Count, ...]:
    """Return a warp's lanes along each dim for a parameter that counts those of the patch's faster dim; 0 means no
    layout.
    """
    if along is None:
        return ()
    slow, fast = parts.patch
    off = np.equal(along, 0)
    other = np.where(off, 0, warp_size // np.maximum(along, 1))
    return tuple(along if d == fast else other if d == slow else np.where(off, 0, 1) for d in range(len(parts.dims)))


def shared_box(tensor: str, later: Sequence[tuple[Segment, Geometry]], rank: int) -> list[Count]:
    """Return the box of a shared tensor that a block reads.

    The readers are later segments (`staging.needed_box` in arrays).
    """
    sizes: list[Count] = [1] * rank
    for segment, geometry in later:
        found = [r for body in segment.expressions for r in reads(body) if r.tensor == tensor]
        if not found:
            continue
        local: dict[Var, Count] = {}
        for dim, size in zip(geometry.structure.dims, geometry.block, strict=True):
            local.update({a: size if len(dim) == 1 else least(size, a.extent) for a in dim})
        if geometry.structure.passes_rows:
            loops = zip(geometry.structure.loops, geometry.block_k, strict=True)
            local.update({a: least(chunk, a.extent) for (a,), chunk in loops})
        for k in geometry.structure.streamed_loops:
            for axis in geometry.structure.loops[k]:
                local[axis] = np.where(np.equal(geometry.part, 0), axis.extent, least(geometry.part, axis.extent))
        for d in range(rank):
            base = found[0].indices[d]
            low: Count = 0
            high: Count = 0
            for k, read in enumerate(found):
                first, last = _bounds(read.indices[d], local)
                shift = (read.indices[d] - base).const
                low = first + shift if k == 0 else least(low, first + shift)
                high = last + shift if k == 0 else np.maximum(high, last + shift)
            sizes[d] = np.maximum(sizes[d], high - low + 1)
    return sizes


def _bounds(index: Index, local: Mapping[Var, Count]) -> tuple[Count, Count]:
    low: Count = 0
    high: Count = 0
    for atom, factor in index.terms:
        reach = factor * (local.get(atom, atom.extent) - 1) if isinstance(atom, Var) else factor * atom.bounds()[1]
        low, high = (low, high + reach) if factor > 0 else (low + reach, high)
    return low, high
