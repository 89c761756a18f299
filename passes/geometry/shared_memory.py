"""Shared memory of a block, and division of a fetch among threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np

from ...ir import (
    SORT_ORDERS,
    WITH_PRODUCER,
    DType,
    FusedGroup,
    Reduction,
    Segment,
    dtype_of,
    radix_words,
    read_ranks,
    selection_words,
    sorts_by_radix,
)
from .block_sums import bin_count, row_reads
from .footprint import Count, ceil_div, product
from .matrix_instructions import reads_shared_matrices
from .partial_sums import kept_slots, may_split_k, partial_sum_bytes
from .row_sharing import cached_reads, is_register_chain
from .segment_geometry import Geometry
from .shared_tensors import exchange_extents, extents_of, place_together, tensors_in_place
from .staged_tiles import StagedTile
from .tile_chains import column_pitch, numbers_of_columns, tile_chain

#: Least bytes of an asynchronous copy.
MIN_COPY_BYTES = 4
#: Bytes of a line of the L1 cache.
LINE_BYTES = 128
#: Least share of busy threads for fetches of whole rows, where a division by all threads would need divisions.
MIN_BUSY_SHARE = 0.75


def shared_bytes(
    group: FusedGroup,
    geometry: Sequence[Geometry],
    tiles: Sequence[Sequence[StagedTile]],
    layouts: Mapping[str, tuple[tuple[Count, ...], Count]],
) -> Count:
    """Return the shared memory of a block.

    It holds tensors passed between segments, whose `layouts` are known, the staged `tiles` of each segment, and the
    other shared memory of segments. Streamed segments prefetch the next part's tiles while they use those of this one.
    """
    passed = (_aligned_size(n * group.tensors[tensor].dtype.size) for tensor, (_, n) in layouts.items())
    total: Count = sum(passed, start=0)
    chained = is_register_chain([part.structure for part in geometry])
    for segment, part in zip(group.segments, geometry, strict=True):
        total = total + _held_bytes(group, segment, part, chained)
    staged: dict[tuple[int, DType], Count] = {}
    for position, own in enumerate(tiles):
        for tile in own:
            key = position, dtype_of(tile.expr, group.tensors)
            staged[key] = staged.get(key, 0) + tile.bytes
    if len(geometry) == 2 and (chain := tile_chain(group) if chained else None) is not None:
        pitches = column_pitch(geometry[0].block[chain.column]) * geometry[0].loop.stages
        numbers = len(numbers_of_columns(group, chain)) * pitches * DType.F32.size
        total = total + np.where(np.greater(geometry[-1].loop.tma, 0), numbers, 0)
    _, turns = streamed_segment(geometry)
    return total + np.where(np.greater(turns, 1) | chained, sum(staged.values(), 0), _most_staged(staged))


def _aligned_size(nbytes: Count) -> Count:
    """Return the bytes of a buffer, which begins at a multiple of 16."""
    return ceil_div(nbytes, 16) * 16


def _most_staged(staged: Mapping[tuple[int, DType], Count]) -> Count:
    """Return the bytes of staged operands by segment and type, where segments share one buffer per type."""
    total: Count = 0
    for dtype in dict.fromkeys(dtype for _, dtype in staged):
        most: Count = 0
        for (_, other), nbytes in staged.items():
            most = np.maximum(most, nbytes) if other is dtype else most
        total = total + most
    return total


def shared_layouts(group: FusedGroup, geometry: Sequence[Geometry]) -> dict[str, tuple[tuple[Count, ...], Count]]:
    """Return the strides and sizes of tensors passed between segments.

    Both are in elements of shared memory (`lowering.shared_pitches`).
    """
    if is_register_chain([part.structure for part in geometry]):
        return {}
    places, sizes = tensors_in_place(group), {}
    for segment, part in zip(group.segments, geometry, strict=True):
        row: Count = 1
        for chunk, trips in zip(part.block_k, part.trips, strict=True):
            row = np.maximum(row, chunk if part.structure.passes_rows else chunk * trips)
        for tensor in part.structure.shared:
            if part.structure.exchanged:
                blocks = {dim[0]: n for dim, n in zip(part.structure.dims, part.block, strict=True)}
                sizes[tensor] = exchange_extents(group, tensor, blocks)
                continue
            sizes[tensor] = extents_of(segment, tensor, part.block, row)
    found: dict[str, tuple[tuple[Count, ...], Count]] = {}
    for tensor in (t for t in group.shared if t not in places):
        pitches, elements = place_together(group, tensor, sizes)
        found |= {each: (own, elements if each == tensor else 0) for each, own in pitches.items()}
    return found


def _held_bytes(group: FusedGroup, segment: Segment, geometry: Geometry, chained: bool) -> Count:
    """Return the shared-memory bytes of a segment besides tiles.

    They hold the scratch of a reduction across threads or of warps, the scales of streamed rows, the row cache, the
    mbarriers of bulk copies, and the bins of a privatised scatter.
    """
    sizes = {name: kind.dtype.size for name, kind in group.tensors.items()}
    rows = product(geometry.block)
    total: Count = 0
    if geometry.structure.reduction_threads:
        scratch: Count = geometry.threads * max((sizes[r.name] for r in segment.reductions), default=0)
        for number, reduction in enumerate(segment.reductions):
            if reduction.along in SORT_ORDERS:
                words = _sorted_words(segment, reduction, number, geometry)
                scratch = np.maximum(scratch, words * DType.U64.size)
        total = total + np.where(np.greater(geometry.reduction_threads, 1), _aligned_size(scratch), 0)
        peers = (geometry.spread.cluster * rows + 1) * len(segment.reductions) * DType.U64.size
        total = total + np.where(np.greater(geometry.spread.cluster, 1), _aligned_size(peers), 0)
    if geometry.structure.streams and not chained:
        scales = _aligned_size(rows * sizes[segment.reductions[0].name])
        total = total + np.where(np.greater(geometry.trips[0], 1), scales, 0)
    if may_split_k(geometry):
        total = total + partial_sum_bytes(group, segment, geometry)
    if reads_shared_matrices(geometry.structure.mma) and not (chained and geometry.structure.holds_results):
        rings = np.minimum(geometry.loop.tma, WITH_PRODUCER)  # of mbarriers
        # Those of a chain have one more, for the factors that all parts read.
        total = total + rings * _aligned_size((geometry.loop.stages + chained) * DType.U64.size)
    if geometry.structure.scatter_dim >= 0:
        bins = bin_count(segment, group, geometry.structure.dims, geometry.block)
        total = total + _aligned_size(bins * sizes[segment.outputs[0].tensor])
    if geometry.structure.part_rows:
        ring = np.where(np.greater(geometry.loop.stages, 1), geometry.loop.stages, 0) * rows * geometry.block_k[0]
        total = total + sum(_aligned_size(ring * sizes[read.tensor]) for read in row_reads(segment))
    if geometry.structure.kept[0]:
        kinds = [group.tensors[output.tensor].dtype.accumulator for output in segment.kept_sums]
        total = total + sum(_aligned_size(kept_slots(geometry) * rows * kind.size) for kind in kinds)
    if geometry.structure.caches_rows:
        for read in cached_reads(segment, (*group.shared, *group.constants)):
            total = total + _aligned_size(rows * geometry.spread.row_cache * sizes[read.tensor])
    return total


def _sorted_words(segment: Segment, reduction: Reduction, number: int, geometry: Geometry) -> Count:
    """Return the words of shared memory that a sort of rows takes."""
    selected = selection_words(read_ranks(segment, reduction), reduction.reduce[0].extent)
    selects = np.equal(geometry.reduction_threads, geometry.threads) & (selected > 0)
    count = geometry.block_k[geometry.structure.reduces[number][0]] // geometry.reduction_threads
    by_radix = np.where(sorts_by_radix(count, geometry.reduction_threads), radix_words(count, geometry.threads), 0)
    return np.where(selects, selected, by_radix)


def streamed_segment(geometry: Sequence[Geometry]) -> tuple[int, Count]:
    """Return the segment that streams rows, and the number of parts.

    It passes rows on, or reads a streamed tile; position 0 stands for none. The segments before it compute one part at
    a time.
    """
    last = geometry[-1]
    if last.structure.parts >= 0:
        row = max(last.extents(last.structure.streamed_loops))
        part = np.where(np.equal(last.part, 0), row, last.part)
        return len(geometry) - 1, ceil_div(row, part)
    found = next((n for n, part in enumerate(geometry) if part.structure.passes_rows), 0)
    return found, geometry[found].trips[0] if found else 1


# ---- division of a fetch, with the extents of a tile in the order of memory, the smallest stride last


def has_constant_strides(extents: Sequence[Count], threads: Count) -> Count:
    """Return whether a thread's elements of a tile have constant strides.

    All threads together take whole rows, or even parts of one.
    """
    left, even = threads, np.bool_(True)
    for size in reversed(extents):
        even = even & (np.equal(left % size, 0) | np.equal(size % left, 0))
        left = np.maximum(1, left // size)
    return even


def row_divisions(extents: Sequence[Count], threads: Count) -> Iterator[tuple[Count, Count, Count]]:
    """Yield the divisions of a tile into rows of its last dims.

    Each is whether threads may take such rows, how many at once, and the elements of these.
    """
    length: Count = 1
    for n in range(len(extents) - 1, 0, -1):
        length, size = length * extents[n], extents[n - 1]
        rows = np.maximum(1, threads // length)
        taken = rows * length
        fits = np.less_equal(taken, threads) & np.greater_equal(taken, MIN_BUSY_SHARE * threads)
        yield (fits if n == 1 else fits & (np.equal(rows % size, 0) | np.equal(size % rows, 0))), rows, taken


def whole_row_fetch(extents: Sequence[int], threads: int) -> tuple[int, int] | None:
    """Return the row coordinates of a fetch by whole rows.

    The second number is how many rows threads take at once. None where all elements of a thread have constant strides
    anyway, or where too many threads would idle.
    """
    if prod(extents) <= threads or has_constant_strides(extents, threads):
        return None
    fitting = [(n, int(rows)) for n, (fits, rows, _) in enumerate(row_divisions(extents, threads)) if fits]
    return (len(extents) - 1 - fitting[-1][0], fitting[-1][1]) if fitting else None


def line_fetch(extents: Sequence[int], threads: int, nbytes: int) -> int:
    """Return the lines of a row in a fetch of whole lines.

    One copy moves `nbytes`. 0 where threads would not take lines evenly.
    """
    *rows, length = extents
    together = LINE_BYTES // nbytes
    even = length % together == 0 and prod(extents) % threads == 0
    lines = length // together
    return lines if even and lines > 1 and has_constant_strides((lines, *rows, together), threads) else 0
