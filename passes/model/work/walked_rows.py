"""Work of walked rows: stalls, sums, exchanges between threads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....ir import Segment
from ...geometry import Count, Geometry, dims_of_sum, product, sums_row
from .totals import Totals

#: Instructions of a value that lanes exchange, and of one that passes through shared memory.
VALUE_EXCHANGED, VALUE_PASSED = 4.0, 2.0
#: Warps of an SM with which a walk issues half of the time: each element follows from the one before.
STALLING_WARPS = 6.4


def add_walk(totals: Totals, segment: Segment, geometry: Geometry, before: Mapping[str, Count]) -> None:
    """Count a walk's stalls, with the counts since `before`, and its sums."""
    every = totals.blocks * np.ceil(geometry.threads / totals.target.warp_size)
    totals.add("issue", totals.since("issue", before) * STALLING_WARPS * totals.target.NUM_SM / every)
    chunk, trips = geometry.block_k[geometry.structure.walked], geometry.trips[geometry.structure.walked]
    warp, threads = totals.target.warp_size, geometry.threads
    for output in segment.column_sums:
        totals.add("issue", product(geometry.thread) * chunk * trips * threads * 1.0)
        summed, lanes, warps = dims_of_sum(segment, output, geometry.structure.dims), 1.0, 1.0
        kept = product(n for d, n in enumerate(geometry.thread) if d not in summed)
        for d in summed:
            own = np.minimum(geometry.counts[d], np.maximum(1, warp // product(geometry.counts[d + 1 :])))
            lanes, warps = lanes * own, warps * (geometry.counts[d] // own)
        values = kept * (1.0 if sums_row(output) else chunk * trips * 1.0)
        exchanged, passed = values * (1.0 - 1.0 / lanes), np.where(np.greater(warps, 1), values / lanes, 0.0)
        totals.add("issue", (VALUE_EXCHANGED * exchanged + VALUE_PASSED * passed) * threads)
        totals.add("shuffles", exchanged * np.ceil(threads / warp))
        totals.add("barriers", np.where(np.greater(warps, 1), 2.0 * trips, 0.0))
        stored = values / lanes / warps * threads
        totals.add("stores", stored)
        totals.add("certain", stored / (totals.target.vector_bytes / totals.group.tensors[output.tensor].dtype.size))
        totals.add("stored", stored * totals.group.tensors[output.tensor].dtype.size)
