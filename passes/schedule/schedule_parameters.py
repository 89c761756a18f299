"""Schedule parameters of a template: tiles, vectors, K blocks, threads, stages, layouts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

from ...ir import (
    Segment,
    Target,
)
from ..geometry import (
    ScheduleParameter,
    SegmentTemplate,
    axis_classes,
    powers,
    reads_shared_matrices,
)
from .box_products import box_mma_parameters, check_boxes_filled
from .bulk_copy_parameters import check_bulk_copies_fit
from .fixed_order import check_order_invariant
from .mma_parameters import mma_parameters, warpgroup_parameters
from .register_chains import check_chain_held
from .row_parameters import (
    check_clusters,
    check_kept_sums,
    check_lanes_fill_warps,
    check_parts_whole,
    check_ring_short,
    check_rows_kept,
    check_rows_passed_on,
    check_rows_walked,
    check_rows_whole,
    check_sums_whole,
    lane_parameter,
    part_parameter,
    row_cache_parameter,
)
from .rules import Rule
from .staging_parameters import (
    check_cached_copies,
    check_carried_tiles,
    check_chunks_fit,
    check_fragment_sets,
    chunk_parameters,
    staging_parameters,
)
from .tile_chains import check_tile_chain_held
from .tile_parameters import (
    MAX_WHOLE_AXIS,
    check_threads_fit,
    check_tiles_divide,
    check_tiles_fit,
    check_warps_divide,
    tile_parameters,
)

#: Thread tiles, threads and K blocks along each dim in the thinned space of a kernel with several products.
THINNED_TILES, THINNED_THREADS, THINNED_CHUNKS = (4, 8), (4, 8, 16, 32), (8, 16, 32)
#: Reduction threads of such kernels.
THINNED_LANES = (2, 4, 8, 16, 32)


def segment_parameters(
    segment: Segment, structure: SegmentTemplate, prefix: str, target: Target, coarse: bool, widest: int
) -> Iterator[ScheduleParameter]:
    """Yield the schedule parameters of one segment.

    Names begin with `prefix`; `widest` are the elements of its longest vector.
    """
    if reads_shared_matrices(structure.mma):
        yield from warpgroup_parameters(segment, structure, prefix, target, coarse, widest)
        return
    if structure.boxed:
        yield from box_mma_parameters(segment, structure, prefix, target, coarse)
        return
    if structure.mma:
        yield from mma_parameters(segment, structure, prefix, target, coarse, widest)
        return
    if structure.passes_rows:
        yield lane_parameter(segment, structure, prefix, target, widest)
        if structure.streams:
            yield part_parameter(structure, prefix, coarse)
        return
    yield from tile_parameters(segment, structure, prefix, target, coarse, widest)
    yield from chunk_parameters(segment, structure, prefix, coarse)
    if structure.parts >= 0:
        yield part_parameter(structure, prefix, coarse)
    if structure.reduction_threads:
        yield lane_parameter(segment, structure, prefix, target, widest)
    if structure.part_rows:
        yield ScheduleParameter.of(f"{prefix}stages", (1, 2, 3, 4, 6, 8))
    if structure.clusters:
        yield ScheduleParameter.of(f"{prefix}cluster", powers(2, target.cluster_blocks))
    if structure.caches_rows:
        yield row_cache_parameter(prefix, coarse or structure.clusters)
    if structure.patch and target.lockstep and (not structure.shared or len(structure.dims) > len(structure.patch)):
        yield ScheduleParameter.of(f"{prefix}warp", (0, 8) if coarse else (0, 4, 8, 16))
    if structure.stages_any:
        yield from staging_parameters(segment, structure, prefix, target, coarse, widest)


def fit_parameters(
    segment: Segment, structure: SegmentTemplate, knobs: Iterable[ScheduleParameter]
) -> Iterator[ScheduleParameter]:
    """Yield the parameters of one of several products.

    No block has two elements of a dim that indexes both factors.
    """
    kinds = dict(zip(segment.axes, axis_classes(segment), strict=True))
    for knob in knobs:
        dim = structure.dims[int(knob.names[0].partition(".")[2][1:])] if len(knob.names) == 3 else ()
        batch = bool(dim) and all(len(kinds[a]) > 1 for a in dim)
        yield ScheduleParameter(knob.names, ((1, 1, 1),)) if batch else knob


def thin_parameters(
    segment: Segment, structure: SegmentTemplate, knobs: Iterable[ScheduleParameter]
) -> Iterator[ScheduleParameter]:
    """Yield parameters restricted to values that suit register tiles.

    Other values remain where no such value exists. The segments of a fusion group have so many common candidates that
    an unrestricted sample would hold few that suit each.
    """
    if structure.passes_rows:
        for knob in knobs:
            widest = max(v[-1] for v in knob.values)
            pairs = tuple(v for v in knob.values if len(v) == 2 and v[0] in THINNED_LANES and v[1] == widest)
            yield ScheduleParameter(knob.names, pairs or knob.values)
        return
    if not structure.stages_any or structure.boxed:
        yield from knobs
        return
    kinds = dict(zip(segment.axes, axis_classes(segment), strict=True))
    for knob in knobs:
        kept: tuple[tuple[int, ...], ...] = knob.values
        name = knob.names[0].partition(".")[2]
        if len(knob.names) == 3:
            dim = structure.dims[int(name[1:])]
            wide = all(len(kinds[a]) < 2 for a in dim) and prod(a.extent for a in dim) > MAX_WHOLE_AXIS
            tiles = [
                v
                for v in kept
                if (v[1] in THINNED_TILES and (v[0] == 1 or v[0] in THINNED_THREADS) if wide else v[:2] == (1, 1))
            ]
            longest = max((v[2] for v in tiles), default=1)
            kept = tuple(v for v in tiles if v[2] in (1, longest)) or kept
        elif name[0] == "c":
            kept = tuple(v for v in kept if v[0] in THINNED_CHUNKS) or kept
        elif name == "stages":
            kept = tuple(v for v in kept if v[0] > 1) or kept
        yield ScheduleParameter(knob.names, kept)


def launch_parameters(
    structures: Sequence[SegmentTemplate], target: Target, coarse: bool
) -> tuple[ScheduleParameter, ...]:
    """Return the launch parameters of a kernel with a staged product.

    They are the raster of the grid, and the resident blocks.
    """
    last = structures[-1]
    if any(s.boxed for s in structures):
        return ScheduleParameter.of("raster", (1,)), ScheduleParameter.of("min_blocks", (0,))
    if not target.lockstep or not any((s.patch or s.mma) and s.stages_any for s in structures):
        return ()
    raster = (1,) if coarse or len(last.dims) < 2 else (1, 4, 8, 16)
    # A bound on registers makes the compiler spill in the epilogue of a warpgroup's sums.
    blocks = (0,) if coarse or any(reads_shared_matrices(s.mma) for s in structures) else (0, 1, 2, 3, 4)
    return ScheduleParameter.of("raster", raster), ScheduleParameter.of("min_blocks", blocks)


#: Rules about sizes.
SIZE_RULES: tuple[Rule, ...] = (
    check_tiles_divide,
    check_tiles_fit,
    check_warps_divide,
    check_chunks_fit,
    check_fragment_sets,
    check_cached_copies,
    check_carried_tiles,
    check_bulk_copies_fit,
    check_rows_kept,
    check_rows_whole,
    check_rows_walked,
    check_sums_whole,
    check_clusters,
    check_lanes_fill_warps,
    check_ring_short,
    check_kept_sums,
    check_rows_passed_on,
    check_parts_whole,
    check_chain_held,
    check_tile_chain_held,
    check_boxes_filled,
    check_threads_fit,
    check_order_invariant,
)
