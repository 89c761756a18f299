"""Schedule parameters of rows: reduction threads, row cache, streamed parts; their rules."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from ...ir import Segment, Target, numbers_per_byte
from ..geometry import (
    ROW_CACHE_UNITS,
    Count,
    Geometry,
    ScheduleParameter,
    SegmentTemplate,
    cached_reads,
    can_stream_rows,
    dims_of_sum,
    is_register_chain,
    next_power,
    powers,
    product,
    words_ahead,
)
from .rules import Finding, ScheduleSizes, axes_text

#: Elements of a streamed part of a row, or of an axis that is summed over.
STREAMED_PART_LENGTHS = (32, 64, 128, 256)


#: Most elements of a row that a thread of a cluster holds: with 64 a log softmax of halves took 1.45 times as long as
#: with 32, the gradient of a cross entropy 1.6 times; softmaxes of 131,072 columns as long.
MAX_HELD_ELEMENTS = 32
#: Most registers of elements of walked rows that a thread loads ahead.
MAX_WORDS_AHEAD = 128
#: Most bytes of shared memory for the sums of a block beside its rows.
MAX_EXCHANGED_BYTES = 8192
#: Most vectors side by side whose reduction threads are a part of a warp's.
ROW_VECTORS = 8
#: Bytes of the values that lanes exchange by shuffles.
SHUFFLED_BYTES = (4, 8)


def lane_parameter(
    segment: Segment, structure: SegmentTemplate, prefix: str, target: Target, widest: int
) -> ScheduleParameter:
    """Return the parameter of a row's reduction threads and vectors.

    Whole warps that divide a row are among them, so that no element needs a guard: 25,088 halves are 7 vectors of 448
    threads. Neighbours of a column are one vector. Several numbers of a byte are as many neighbours more.
    """
    widest *= max((numbers_per_byte(reduction.body) for reduction in segment.reductions), default=1)
    longest = max((prod(a.extent for a in loop) for loop in structure.loops), default=1)
    lanes = powers(1, min(next_power(longest), target.MAX_thread))
    vectors = tuple(n for n in powers(1, widest) if structure.over_columns % n == 0)
    vectors = vectors[-1:] if structure.over_columns else vectors
    pairs = [(n, v) for n in lanes for v in vectors if n * v <= next_power(longest)]
    alone = structure.passes_rows or structure.over_columns == 1 or any(r.along for r in segment.reductions)
    if target.lockstep and not alone:
        step = target.warp_size // ROW_VECTORS if structure.over_columns else target.warp_size
        others = {n for n in range(step, target.MAX_thread + 1, step) if n not in lanes}
        pairs += [(n, v) for n in sorted(others) for v in vectors if longest % (n * v) == 0]
    return ScheduleParameter((f"{prefix}reduction_threads", f"{prefix}row_vector"), tuple(pairs))


def part_parameter(structure: SegmentTemplate, prefix: str, coarse: bool) -> ScheduleParameter:
    """Return the elements of a row's streamed part, 0 for all.

    The part is that of a tile if a later segment sums over it.
    """
    loops = structure.streamed_loops if structure.parts >= 0 else (0,)
    extent = max(prod(a.extent for a in structure.loops[k]) for k in loops)
    thinned = STREAMED_PART_LENGTHS[:3] if structure.parts >= 0 else STREAMED_PART_LENGTHS[1:3]
    lengths = thinned if coarse else STREAMED_PART_LENGTHS
    return ScheduleParameter.of(f"{prefix}part", (0, *(n for n in lengths if n < extent)))


def row_cache_parameter(prefix: str, coarse: bool) -> ScheduleParameter:
    """Return the eighths of a row that a row cache holds."""
    half = ROW_CACHE_UNITS // 2
    eighths = (0, ROW_CACHE_UNITS) if coarse else (0, half, *range(half + 1, ROW_CACHE_UNITS + 1))
    return ScheduleParameter.of(f"{prefix}row_cache", eighths)


def check_rows_kept(sizes: ScheduleSizes) -> Iterator[Finding]:
    """The row cache holds whole trips over a longer row."""
    for part in (p for p in sizes.parts if p.structure.caches_rows):
        kept, chunk, trips = part.spread.row_cache, part.block_k[0], part.trips[0]
        whole = np.greater(trips, 1) & np.equal(kept % chunk, 0) & np.less_equal(kept, trips * chunk)
        text = "{} elements of rows are cached, not whole ones of {} trips of {}"
        yield np.less(kept, 0) | np.greater(kept, 0) & np.logical_not(whole), text, kept, trips, chunk


def check_rows_whole(sizes: ScheduleSizes) -> Iterator[Finding]:
    """Reduction threads hold a row of values in one trip."""
    for part in sizes.parts:
        for k in part.structure.whole:
            held = np.equal(part.trips[k], 1) & np.greater(part.reduction_threads, 1) & (not part.structure.stages_any)
            yield np.logical_not(held), "loop {}: lanes do not hold its whole row", axes_text(part.structure.loops[k])


def check_rows_walked(sizes: ScheduleSizes) -> Iterator[Finding]:
    """Registers hold the elements of walked rows that are loaded ahead."""
    for segment, part in zip(sizes.group.segments, sizes.parts, strict=True):
        if part.structure.walked < 0:
            continue
        chunk = part.block_k[part.structure.walked]
        ahead = words_ahead(segment, sizes.group.tensors, part.structure.dims, part.thread, chunk)
        yield np.greater(ahead, MAX_WORDS_AHEAD), "{} registers of elements of walked rows are loaded ahead", ahead


def check_sums_whole(sizes: ScheduleSizes) -> Iterator[Finding]:
    """A block sums all instances along a dim.

    The lanes of a warp share the elements of a K block evenly."""
    for segment, part in zip(sizes.group.segments, sizes.parts, strict=True):
        dims = part.structure.dims
        for d in part.structure.summed:
            extent = prod(a.extent for a in dims[d])
            text = "dim {}: a block of {} sums, not all of {}"
            yield np.less(part.block[d], extent), text, axes_text(dims[d]), part.block[d], extent
        for output in segment.column_sums if part.structure.summed else ():
            lanes = product(summed_lanes(part, d, sizes.target) for d in dims_of_sum(segment, output, dims))
            chunk, even = part.block_k[part.structure.walked], np.bool_(True)
            for count in part.counts:
                even = even & np.equal(count & (count - 1), 0)
            uneven = np.logical_not(even) | np.not_equal(chunk % np.maximum(lanes, 1), 0)
            yield uneven, "{} lanes share {} elements of walked rows", lanes, chunk


def summed_lanes(part: Geometry, d: int, target: Target) -> Count:
    """Return the lanes of a warp along a dim."""
    return np.minimum(part.counts[d], np.maximum(1, target.warp_size // product(part.counts[d + 1 :])))


def check_lanes_fill_warps(sizes: ScheduleSizes) -> Iterator[Finding]:
    """Reduction threads are a power of two, or fill whole warps."""
    for part in (p for p in sizes.parts if p.structure.reduction_threads):
        lanes = np.asarray(part.reduction_threads)
        odd = np.not_equal(lanes & (lanes - 1), 0) & np.not_equal(part.threads % sizes.target.warp_size, 0)
        yield odd, "{} reduction threads of {} are no power of two, and fill no warps", lanes, part.threads


def check_clusters(sizes: ScheduleSizes) -> Iterator[Finding]:
    """All threads of a cluster hold a part of its rows.

    They are in registers or, where they fit, in shared memory.
    """
    elsewhere = (*sizes.group.shared, *sizes.group.constants)
    for segment, part in zip(sizes.group.segments, sizes.parts, strict=True):
        cluster, threads = part.spread.cluster, part.threads
        several = np.greater(cluster, 1)
        many = np.greater(cluster, sizes.target.cluster_blocks) | np.less(cluster, 1)
        yield many, "{} blocks of a cluster, at most {}", cluster, sizes.target.cluster_blocks
        for trips in part.trips:
            yield several & np.less(trips, cluster), "{} blocks share {} trips over a row", cluster, trips
        own = 1 if part.structure.over_columns == 0 else product(part.counts)
        idle = np.not_equal(part.reduction_threads * own, threads) | np.less_equal(part.reduction_threads, 1)
        yield several & idle, "{} of {} threads share a row of a cluster", part.reduction_threads, threads
        whole = min(sizes.target.warp_size, sizes.target.MAX_thread)
        yield several & np.not_equal(threads % whole, 0), "{} threads of a cluster's block are no whole warps", threads
        for chunk in part.block_k:
            held = chunk / np.maximum(1, part.reduction_threads)
            yield several & (held > MAX_HELD_ELEMENTS), "{} elements of a cluster's row in a thread", held
        if part.structure.caches_rows:
            size = sum(sizes.group.tensors[r.tensor].dtype.size for r in cached_reads(segment, elsewhere))
            nbytes = size * prod(a.extent for a in part.structure.loops[0]) // sizes.target.cluster_blocks
            nbytes = nbytes * product(part.block)
            again = np.greater(part.trips[0], cluster) & np.equal(part.spread.row_cache, 0)
            again = again & (nbytes <= sizes.target.MAX_shared - MAX_EXCHANGED_BYTES)
            yield several & again, "{} bytes of a block's row are read again, which shared memory holds", nbytes
        narrow = any(sizes.group.tensors[r.name].dtype.size not in SHUFFLED_BYTES for r in segment.reductions)
        yield several & narrow, "values of a cluster are narrower than a word"


def check_kept_sums(sizes: ScheduleSizes) -> Iterator[Finding]:
    """Vectors and parts of rows are of whole runs of kept sums."""
    for part in (p for p in sizes.parts if p.structure.kept[0]):
        (length, inner), width, lanes = part.structure.kept, part.row_vector, part.reduction_threads
        row, taken = prod(a.extent for a in part.structure.loops[0]), part.trips[0] * part.block_k[0]
        several = np.greater(part.spread.cluster, 1)
        own = np.where(several, taken // part.spread.cluster, row)
        if inner > 1:
            whole = np.equal(own, length) & np.equal(inner % width, 0) & np.equal(lanes * width % inner, 0)
        else:
            whole = np.equal(own % length, 0) & np.equal(length % width, 0)
        whole = whole & (np.equal(taken, row) & np.equal(part.trips[0] % part.spread.cluster, 0) | ~several)
        text = "{} threads have vectors of {}, and blocks {} elements, of runs of {}"
        yield ~(whole & np.greater(lanes, 1)), text, lanes, width, own, length


def check_ring_short(sizes: ScheduleSizes) -> Iterator[Finding]:
    """A ring of rows has at most a stage for each tile."""
    for part in (p for p in sizes.parts if p.structure.part_rows):
        yield (
            np.greater(part.loop.stages, np.maximum(part.tiles, 1)),
            "{} stages of {} tiles",
            part.loop.stages,
            part.tiles,
        )


def check_rows_passed_on(sizes: ScheduleSizes) -> Iterator[Finding]:
    """All threads of the block hold rows that a later segment reads.

    The reader of an element may then write it. Rows are streamed only where sums can be rescaled, in parts of whole
    chunks of the later loops.
    """
    later = sizes.parts[-1].block_k
    for segment, part in zip(sizes.group.segments, sizes.parts, strict=True):
        if not part.structure.passes_rows and not any(
            o.extra and o.tensor in part.structure.shared for o in segment.outputs
        ):
            continue
        alone = np.less_equal(part.reduction_threads, 1) | np.not_equal(part.threads, sizes.threads)
        yield alone, "rows are passed on by {} of {} threads", part.threads, sizes.threads
        for chunk, trips in zip(part.block_k, part.trips, strict=True):
            parted = np.greater(trips, 1)
            if not (can_stream_rows(sizes.group) or is_register_chain([p.structure for p in sizes.parts])):
                yield parted, "rows come in parts whose sums cannot be scaled again"
            uneven = np.not_equal(chunk % (part.reduction_threads * part.row_vector), 0)
            yield uneven, "rows come in parts of {} elements, which lanes do not divide", chunk
            for other in later:
                broken_up = parted & np.not_equal(chunk % other, 0)
                yield broken_up, "rows come in parts that are no whole chunks of {}", later


def check_parts_whole(sizes: ScheduleSizes) -> Iterator[Finding]:
    """Streamed parts are tiles of the first segment.

    They are whole numbers of the later loops' chunks."""
    first, last = sizes.parts[0], sizes.parts[-1]
    if last.structure.parts < 0:
        return
    chunks = tuple(last.block_k[k] for k in last.structure.streamed_loops)
    uneven: Count = np.not_equal(first.block[last.structure.parts], last.part) | np.greater(last.reduction_threads, 1)
    for chunk in chunks:
        uneven = uneven | np.not_equal(last.part % chunk, 0)
    yield uneven & np.greater(last.part, 0), "parts of {} elements are no whole chunks of {}", last.part, chunks
