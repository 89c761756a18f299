"""Warp split-K in arrays: shared memory of partial sums, and resulting sizes."""

from __future__ import annotations

import numpy as np
from attrs import evolve

from ...ir import FusedGroup, Segment, Target
from ..lowering import contiguous_side, partial_sum_elements, result_shares, result_vector
from .footprint import Count, ceil_div
from .geometry import Geometry


def may_split_k(geometry: Geometry) -> bool:
    """Return whether any candidate schedule uses warp split-K."""
    return bool(geometry.structure.atom) and bool(np.any(np.greater(geometry.lanes, 1)))


def partial_sum_bytes(group: FusedGroup, segment: Segment, geometry: Geometry) -> Count:
    """Return the shared-memory bytes of the warps' partial sums."""
    fast, slow, rows = _sides(segment, geometry)
    places = partial_sum_elements(geometry.block[fast], geometry.block[slow], rows, geometry.lanes)
    size = group.tensors[segment.reductions[0].name].dtype.size
    return np.where(np.greater(geometry.lanes, 1), ceil_div(places * size, 16) * 16, 0)


def result_geometry(group: FusedGroup, segment: Segment, geometry: Geometry, target: Target) -> Geometry:
    """Return the sizes after the exchange of sums.

    Each thread has a share of its former results, and there are no reduction threads.
    """
    if not may_split_k(geometry):
        return geometry
    fast, slow, _ = _sides(segment, geometry)
    widest = target.vector_bytes // min(group.tensors[o.tensor].dtype.size for o in segment.outputs)
    shares = result_shares(geometry.thread[fast], geometry.thread[slow], geometry.lanes)
    thread, vector, counts = list(geometry.thread), list(geometry.vector), list(geometry.counts)
    for d, share in zip((fast, slow), shares, strict=True):
        thread[d] = geometry.thread[d] // share
        counts[d] = geometry.counts[d] * share
        longest = result_vector(thread[d], widest if d == fast else 1)
        vector[d] = np.where(np.greater(geometry.lanes, 1), longest, geometry.vector[d])
    return evolve(geometry, thread=tuple(thread), vector=tuple(vector), counts=tuple(counts), lanes=1)


def _sides(segment: Segment, geometry: Geometry) -> tuple[int, int, bool]:
    """Return the dim along which results lie in memory, the other one, and whether the first is that of rows."""
    structure = geometry.structure
    fast = contiguous_side(segment, structure.dims, structure.rows, structure.columns)
    return fast, structure.rows + structure.columns - fast, fast == structure.rows
