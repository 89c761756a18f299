"""Schedule parameters of tile dims: threads, thread tiles, vectors; their rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from ...ir import Segment, Target, Var, reads, variables
from ..geometry import ScheduleParameter, SegmentTemplate, axis_classes, is_matrix_like, least_block, next_power, powers
from .rules import Finding, ScheduleSizes, axes_text

#: Most neighbours along a window that one thread computes.
MAX_WINDOW_RUN = 14
#: Most tiles per block in a privatised scatter.
MAX_TILES_PER_BLOCK = 256
#: Most rows that a thread adds to its column sums at once.
MAX_ROWS_AT_ONCE = 4
#: Longest odd axis of a product that one thread may compute whole.
MAX_WHOLE_AXIS = 7
#: Most threads along an owned axis of an exchange.
MAX_OWNED_THREADS = 64
#: Least threads along a whole axis of an exchange where a thread has more than four of its elements.
MIN_WHOLE_THREADS = 16
#: Odd factors of thread counts where windows are summed.
ODD_FACTORS = (3, 9)
#: Results of a product that fill a block of their own.
MIN_BLOCK_RESULTS = 4096


def tile_parameters(
    segment: Segment, structure: SegmentTemplate, prefix: str, target: Target, coarse: bool, widest: int
) -> Iterator[ScheduleParameter]:
    """Yield the parameters of tile dims.

    Threads, thread tile and vector of each, and the tiles per block of a privatised scatter."""
    finer = widest // (target.vector_bytes // 4)
    matrix = bool(segment.reductions) and is_matrix_like(segment)
    windows = target.lockstep and not matrix and any(_slides(axis, segment) for axis in segment.axes)
    batch = _batch_dims(segment, structure) if matrix and coarse and target.lockstep else frozenset()
    for d, axes in enumerate(structure.dims):
        if d in batch:
            yield ScheduleParameter((f"{prefix}t{d}", f"{prefix}e{d}", f"{prefix}v{d}"), ((1, 1, 1),))
            continue
        extent = prod(a.extent for a in axes)
        if structure.exchanged:
            yield ScheduleParameter((f"{prefix}t{d}", f"{prefix}e{d}", f"{prefix}v{d}"),
                                    _exchange_tiles(d, extent, structure, target))  # fmt: skip
            continue
        alone = structure.shared or structure.part_rows or (structure.clusters and not structure.over_columns)
        counts = (1,) if alone else _thread_counts(extent, len(structure.dims), structure, target, coarse)
        if windows and not alone:
            counts = tuple(sorted({*counts, *_odd_counts(extent, target)}))
        tiles = _thread_tiles(extent, structure, matrix, target, coarse, finer)
        if structure.part_rows or structure.clusters:
            most = min(structure.part_rows, MAX_ROWS_AT_ONCE) if structure.part_rows else 1
            tiles = tuple(e for e in tiles if e <= most)
        vectors = _vectors(d, structure, segment, widest, coarse) if extent > 1 else (1,)
        least = next_power(extent) if d in structure.summed else 1
        counts = tuple(t for t in counts if t == next_power(t)) if structure.summed else counts
        triples = [
            (t, e, v)
            for t in counts for e in tiles for v in vectors
            if e % v == 0 and least <= t * e <= next_power(extent)
        ]  # fmt: skip
        if (
            not matrix
            and not structure.stages_any
            and not structure.reduction_threads
            and len(axes) == 1
            and _slides(axes[0], segment)
        ):
            triples += _runs(extent, counts, tiles, triples, target, coarse)
        yield ScheduleParameter((f"{prefix}t{d}", f"{prefix}e{d}", f"{prefix}v{d}"), tuple(triples))
    if structure.scatter_dim >= 0:
        most = min(next_power(prod(a.extent for a in structure.dims[structure.scatter_dim])), MAX_TILES_PER_BLOCK)
        yield ScheduleParameter.of(f"{prefix}tiles", powers(1, most)[:: 2 if coarse else 1])


def _exchange_tiles(
    d: int, extent: int, structure: SegmentTemplate, target: Target
) -> tuple[tuple[int, int, int], ...]:
    """Return the threads, thread tiles and vectors of a dim of an exchange: all of a whole dim, a tile of others."""
    if d in structure.exchanged:
        most = next(e for e in range(1, extent + 1) if extent % e == 0 and extent // e <= target.MAX_thread)
        sizes = (most, 2 * most, 4 * most, *((8 * most,) if extent >= 8 * MIN_WHOLE_THREADS * most else ()))
        return tuple((extent // e, e, 1) for e in sizes if extent % e == 0)
    counts = (1,) if structure.shared else powers(1, min(next_power(extent), MAX_OWNED_THREADS))
    return tuple((t, 1, 1) for t in counts)


def _batch_dims(segment: Segment, structure: SegmentTemplate) -> frozenset[int]:
    """Return the dims that index both factors of a product, where each of its results fills a block: a block gains
    nothing from two of them.
    """
    kinds = dict(zip(segment.axes, axis_classes(segment), strict=True))
    if prod(a.extent for a, kind in kinds.items() if len(kind) == 1) < MIN_BLOCK_RESULTS:
        return frozenset()
    return frozenset(d for d, dim in enumerate(structure.dims) if all(len(kinds[a]) > 1 for a in dim))


def _thread_counts(extent: int, rank: int, structure: SegmentTemplate, target: Target, coarse: bool) -> tuple[int, ...]:
    """Return powers of two, and counts that cover a small extent exactly (7 threads for 7 pixels)."""
    top = min(next_power(extent), target.MAX_thread)
    found = set(powers(1, top))
    if rank >= 3 and not structure.reduction_threads:
        found = set(powers(1, min(top, 64)))
    if not coarse and rank > 1:
        found |= {-(-extent // e) for e in (1, 2, 4) if 1 < -(-extent // e) <= 32}
    if coarse and len(found) > 4 and rank >= 3:
        found &= {1, 4, 8, 16, 32}
    return tuple(sorted(found))


def _odd_counts(extent: int, target: Target) -> Iterator[int]:
    """Yield thread counts with an odd factor that divide an extent, such as 96 channels of a depthwise convolution."""
    for factor in ODD_FACTORS:
        yield from (n * factor for n in powers(1, target.MAX_thread // factor) if extent % (n * factor) == 0)


def _thread_tiles(
    extent: int, structure: SegmentTemplate, matrix: bool, target: Target, coarse: bool, finer: int
) -> tuple[int, ...]:
    """Return powers of two; where a thread does little with an element, `finer` elements count as one. In a product,
    one thread may also have all of a short odd axis, such as the taps of a filter.
    """
    top = 8 if matrix else (4 if structure.loops else 8) * finer
    if matrix and (not target.lockstep or (not coarse and len(structure.dims) <= 3)):
        top = 16
    whole = (extent,) if matrix and target.lockstep and 1 < extent <= MAX_WHOLE_AXIS and extent % 2 else ()
    return tuple(sorted({*powers(1, min(next_power(extent), top)), *whole}))


def _slides(axis: Var, segment: Segment) -> bool:
    """Return whether a window moves along an axis, so that neighbours read some of the same elements."""
    found = [i for r in segment.reductions for read in reads(r.body) for i in read.indices if axis in variables(i)]
    return any(len(variables(i)) > 1 for i in found)


def _runs(
    extent: int,
    counts: Sequence[int],
    tiles: Sequence[int],
    known: Sequence[tuple[int, ...]],
    target: Target,
    coarse: bool,
) -> list[tuple[int, int, int]]:
    """Return runs of neighbours for one thread along a window: powers of two, and lengths that divide the extent."""
    lengths = {*tiles, *(e for e in range(3, MAX_WINDOW_RUN + 1) if target.lockstep and extent % e == 0)}
    found = []
    for e in sorted(lengths - {1}):
        exact = () if coarse and e in tiles else (-(-extent // e),)
        threads = sorted({*counts, *(t for t in exact if t <= target.MAX_thread)})
        found += [(t, e, e) for t in threads if t * e <= next_power(extent) and (t, e, e) not in known]
    return found


def _vectors(d: int, structure: SegmentTemplate, segment: Segment, widest: int, coarse: bool) -> tuple[int, ...]:
    """Return vector widths: neighbouring elements only help along a dim that is innermost in some tensor. Values of a
    direct scatter go one by one, and neighbours then belong to neighbouring threads, or several at once.
    """
    if structure.scatter_dim < 0 and any(output.into for output in segment.outputs):
        return powers(1, structure.additions if d == len(structure.dims) - 1 else 1)
    last = structure.dims[d][-1]
    bodies = segment.expressions
    inner = any(r.indices and last in variables(r.indices[-1]) for b in bodies for r in reads(b))
    inner = inner or any(o.write and last in variables(o.write[-1]) for o in segment.outputs) or structure.stages_any
    if not inner:
        return (1,)
    return (1, widest) if coarse else powers(1, widest)


def check_tiles_divide(sizes: ScheduleSizes) -> Iterator[Finding]:
    """Block, thread tile and vector are nested multiples."""
    for part in sizes.parts:
        for dim, block, thread, vector in zip(part.structure.dims, part.block, part.thread, part.vector, strict=True):
            text = "dim {}: block {} must be a multiple of thread {}, and that of vector {}"
            yield (
                np.not_equal(block % thread, 0) | np.not_equal(thread % vector, 0),
                text,
                axes_text(dim),
                block,
                thread,
                vector,
            )


def check_tiles_fit(sizes: ScheduleSizes) -> Iterator[Finding]:
    """No block is larger than its dim takes.

    Readers determine those of tensors in shared memory."""
    for part in sizes.parts:
        parts = part.structure
        for d, dim in enumerate(parts.dims if not parts.shared else ()):
            extent = prod(a.extent for a in dim)
            limit = max(next_power(extent), least_block(parts.mma, parts.rows, parts.columns, d))
            taken = part.block[d] * part.tiles if d == parts.scatter_dim else part.block[d]
            yield (
                taken > limit,
                "dim {}: block {} exceeds its extent {} needlessly",
                axes_text(dim),
                part.block[d],
                extent,
            )


def check_warps_divide(sizes: ScheduleSizes) -> Iterator[Finding]:
    """A warp layout divides the threads of each dim."""
    for part in sizes.parts:
        for count, along in zip(part.counts, part.warp, strict=False):
            uneven = np.not_equal(count % np.maximum(along, 1), 0)
            yield uneven, "the warp map {} does not divide the threads of each dim", part.warp


def check_threads_fit(sizes: ScheduleSizes) -> Iterator[Finding]:
    """A block has no more threads than the machine allows."""
    most = sizes.target.MAX_thread
    yield sizes.threads > most, "{} threads in a block, at most {}", sizes.threads, most
