"""Work of column sums: tiles of rows, and their shared-memory ring."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....ir import Segment, expr_variables
from ...geometry import Count, Geometry, product, row_reads
from .totals import Totals

#: Counts of instructions in memory, which tiles share.
CODE = ("body", "functions")


def add_column_sums(totals: Totals, segment: Segment, geometry: Geometry, before: Mapping[str, Count]) -> None:
    """Repeat the counts from `before` on for each tile; add the sums."""
    tiles, row = geometry.tiles * 1.0, geometry.block_k[0]
    elements = product(geometry.block) * row * 1.0
    totals.add("issue", len(segment.column_sums) * elements)
    loads, ring = totals.since("global_loads", before), np.greater(geometry.loop.stages, 1)
    grown = {name: value - before[name] for name, value in totals.sums.items() if name not in CODE}
    totals.sums.update({name: before[name] + more * tiles for name, more in grown.items()})
    for read, moved in totals.traffic.items():
        if expr_variables(read).isdisjoint(segment.axes):  # a later tile finds it in L1
            totals.add("bytes", -moved * (tiles - 1.0))
            totals.add("again", moved * (tiles - 1.0))
    # Rows of a ring are copied ahead, and read from shared memory.
    totals.sums["rounds"] = before["rounds"] + tiles
    totals.sums["looped"] = before["looped"] + np.where(ring, 0.0, tiles)
    rows = sum(elements * totals.group.tensors[r.tensor].dtype.size for r in row_reads(segment)) * tiles
    totals.add("copies", np.where(ring, rows / totals.target.vector_bytes, 0.0))
    totals.add("shared_loads", np.where(ring, loads * tiles, 0.0))
    totals.add("wavefronts", np.where(ring, rows / totals.target.shared_bandwidth, 0.0))
    totals.add("barriers", np.where(ring, tiles, 0.0))
