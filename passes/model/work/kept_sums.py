"""Work of sums that keep axes of rows: terms, lanes, partial sums."""

from __future__ import annotations

import numpy as np

from ....ir import Segment
from ...geometry import Geometry, kept_lanes, kept_slots, product
from .totals import Totals

#: Issue slots for each partial sum: its store, address and condition, its load and addition.
PARTIAL_ISSUE = 8.0


def add_kept_sums(totals: Totals, segment: Segment, geometry: Geometry) -> None:
    """Count the kept sums of a block's rows."""
    (length, inner), rows, warp = geometry.structure.kept, product(geometry.block) * 1.0, totals.target.warp_size
    own = geometry.trips[0] * geometry.block_k[0] / geometry.spread.cluster
    steps, count = np.log2(kept_lanes(geometry)[0]), len(segment.kept_sums)
    added = geometry.reduction_threads * geometry.row_vector if inner > 1 else own / np.maximum(1, geometry.row_vector)
    partial = rows * kept_slots(geometry)
    totals.add("issue", count * (rows * own + 2.0 * steps * added * rows + PARTIAL_ISSUE * partial))
    totals.add("shuffles", count * steps * added * rows / warp)
    totals.add("wavefronts", 2.0 * count * partial / warp)
    totals.add("barriers", 1.0)
    words = sum(totals.group.tensors[output.tensor].dtype.size for output in segment.kept_sums)
    totals.add("stored", words * rows * own / length * inner)
