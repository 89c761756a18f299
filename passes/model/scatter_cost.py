"""Cost of scatters, direct or privatised in shared memory."""

from __future__ import annotations

import numpy as np
from attrs import frozen

from ...ir import FusedGroup, Segment, Target, variables
from ..geometry import Count, Geometry, added_neighbours, bin_count, index_axes, least, product, scatter_bins

#: Bytes of a word: the words of an element are combined one after another.
WORD = 4
#: Instructions of a thread for each bin that it clears and flushes to global memory.
BIN_INSTRUCTIONS = 8.0


@frozen
class ScatterCost:
    """Cost of a block's atomic operations.

    `sectors` are those of memory; a privatised scatter also has cycles of shared memory, and bins that are cleared and
    flushed, with their bytes.
    """

    sectors: Count
    wavefronts: Count = 0
    bins: Count = 0
    nbytes: Count = 0


def scatter_cost(segment: Segment, group: FusedGroup, geometry: Geometry, target: Target) -> ScatterCost:
    """Return the cost of a block's atomic operations."""
    (output,) = segment.outputs
    size = group.tensors[output.tensor].dtype.size
    sector = max(1.0, target.sector_bytes / size)
    crowded = max(1.0, target.bounds.parallel_sectors * sector / group.tensors[output.tensor].size)
    if geometry.structure.scatter_dim < 0:
        together = least(geometry.vector[-1], added_neighbours(segment, group) if target.vector_additions else 1)
        sectors = product(geometry.block) / _values_per_sector(segment, group, geometry, sector, target)
        return ScatterCost(sectors / together * crowded)
    bins = bin_count(segment, group, geometry.structure.dims, geometry.block) * 1.0
    values, words = product(geometry.block) * geometry.tiles, size / WORD
    met = (_bank_conflicts(segment, group, geometry, words, target) * values + 2.0 * bins) * words / target.warp_size
    return ScatterCost(bins / sector * crowded, met, bins, bins * size)


def _bank_conflicts(segment: Segment, group: FusedGroup, geometry: Geometry, words: float, target: Target) -> Count:
    """Return the expected bank conflicts of a warp's values: where neighbours have adjacent bins, their rows lie at as
    many places as such rows share all banks; else each value does.
    """
    meeting = scatter_bins(segment, group, geometry.structure.dims)
    last = max((n for n, (kind, _) in enumerate(meeting.parts) if kind == "dim"), default=-1)
    inner = [n for _, n in meeting.parts[last + 1 :]]
    row = product([geometry.block[n] for n in inner]) * words
    beside = product([geometry.lanes_along(target.warp_size)[n] for n in inner])
    rows = np.maximum(1.0, target.warp_size / beside)
    places = np.maximum(1.0, target.warp_size / row)
    # The fullest of so many places where rows fall at random.
    return rows / places + np.sqrt(2.0 * rows / places * np.log(places))


def _values_per_sector(segment: Segment, group: FusedGroup, geometry: Geometry, sector: float, target: Target) -> Count:
    """Return the values of a warp per sector: neighbours along an axis that is the last index."""
    (output,) = segment.outputs
    last = geometry.structure.dims[-1][-1]
    if not output.write or last not in index_axes(segment, group) or last not in variables(output.write[-1]):
        return 1.0
    beside = geometry.lanes_along(target.warp_size)[-1] * geometry.vector[-1]
    return np.clip(least(beside, last.extent), 1.0, sector)
