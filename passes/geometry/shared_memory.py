"""Shared memory of a block, for numbers or arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...ir import DType, FusedGroup, Segment
from .footprint import Count, ceil_div, product
from .row_sharing import cached_reads
from .scatter_bins import bin_count
from .segment_geometry import Geometry
from .shared_tensors import extents_of, shared_pitches, tensors_in_place
from .warp_split_k import may_split_k, partial_sum_bytes


def _box_bytes(group: FusedGroup, counts: Mapping[str, Count]) -> Count:
    """Return the bytes of shared boxes with so many elements."""
    sizes = (count * group.tensors[tensor].dtype.size for tensor, count in counts.items())
    return sum((ceil_div(size, 16) * 16 for size in sizes), start=0)


def most_staged(staged: Mapping[tuple[int, DType], Count]) -> Count:
    """Return the bytes of staged operands in reused buffers.

    `staged` has the bytes per segment and type; segments share one buffer per type.
    """
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
    places, sizes = tensors_in_place(group), {}
    for segment, part in zip(group.segments, geometry, strict=True):
        row: Count = 1
        for chunk, trips in zip(part.chunk, part.trips, strict=True):
            row = np.maximum(row, chunk if part.structure.passes_rows else chunk * trips)
        for tensor in part.structure.shared:
            sizes[tensor] = extents_of(segment, tensor, part.block, row)
    found: dict[str, tuple[tuple[Count, ...], Count]] = {}
    for tensor in (t for t in group.shared if t not in places):
        extents = list(sizes[tensor])
        together = [tensor, *(new for new, old in places.items() if old == tensor)]
        for other in together[1:]:
            extents = [np.maximum(a, b) for a, b in zip(extents, sizes[other], strict=True)]
        pitches, elements = shared_pitches(group, tensor, extents)
        found |= {each: (pitches, elements if each == tensor else 0) for each in together}
    return found


def held_bytes(group: FusedGroup, segment: Segment, geometry: Geometry) -> Count:
    """Return the shared-memory bytes of a segment besides tiles.

    They hold the scratch of a reduction across threads or of warps, the scales of streamed rows, the row cache, and the
    bins of a privatised scatter.
    """
    total: Count = 0
    if geometry.structure.lanes:
        widest = max((group.tensors[r.name].dtype.size for r in segment.reductions), default=0)
        scratch = geometry.threads * widest
        total = total + np.where(np.greater(geometry.lanes, 1), ceil_div(scratch, 16) * 16, 0)
    if geometry.structure.streams:
        scales = ceil_div(product(geometry.block) * group.tensors[segment.reductions[0].name].dtype.size, 16) * 16
        total = total + np.where(np.greater(geometry.trips[0], 1), scales, 0)
    if may_split_k(geometry):
        total = total + partial_sum_bytes(group, segment, geometry)
    if geometry.structure.scatter_dim >= 0:
        size = group.tensors[segment.outputs[0].tensor].dtype.size
        total = total + ceil_div(bin_count(segment, group, geometry.structure.dims, geometry.block) * size, 16) * 16
    if geometry.structure.caches_rows:
        for read in cached_reads(segment, (*group.shared, *group.constants)):
            size = group.tensors[read.tensor].dtype.size
            total = total + ceil_div(product(geometry.block) * geometry.spread.kept * size, 16) * 16
    return total


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
