"""Savings of mask-block skipping, for all candidate schedules of a template.

Blocks process only the parts within the mask bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import evolve, frozen

from ...ir import FusedGroup, Target
from ..geometry import Count, Geometry, MaskBound, ceil_div, mask_bound, tile_bounds, tile_chain

#: Sums that do not grow with the parts of a row.
CONSTANT_SUMS = frozenset({"stored", "stores", "body"})
#: Sums that a block's threads wait for one after another.
SEQUENTIAL_SUMS = frozenset({"chain", "barriers"})
#: Traffic of memories that all blocks share.
SHARED_MEMORY_SUMS = frozenset({"bytes", "streamed", "missed", "again", "columns", "rows", "transactions", "fetched"})


@frozen
class MaskSavings:
    """Share of all parts that blocks process.

    `average` is the mean, `fullest` that of the fullest SM, `waited` that of the longest sequence of its blocks;
    `seen` is the share of keys that any block processes.
    """

    average: Count
    fullest: Count
    waited: Count
    seen: float

    def share(self, name: str) -> Count:
        """Return the remaining share of a sum."""
        if name in CONSTANT_SUMS:
            return 1.0
        return self.waited if name in SEQUENTIAL_SUMS else self.average if name in SHARED_MEMORY_SUMS else self.fullest


def mask_savings(group: FusedGroup, geometry: Sequence[Geometry], grid: Count, target: Target) -> MaskSavings | None:
    """Return the savings of a mask, None where there are none.

    The bound takes blocks for equal: the fullest SM counts its even share of all parts, and at least those of the
    longest block.
    """
    edge, last = _mask_of(group, geometry), geometry[-1]
    place = next((d for d, dim in enumerate(last.structure.dims) if edge and dim == (edge.row,)), None)
    if place is None or edge is None or edge.data.terms:  # only the device knows the bound
        return None
    parts, length = (
        (last.trips[0], last.block_k[0]) if len(geometry) == 2 else (geometry[1].trips[0], geometry[1].block_k[0])
    )
    (keys,) = (v.extent for v in group.segments[1].reductions[0].reduce)
    longest = float(_ends(edge, edge.row.extent - 1 if edge.slope > 0 else 0))
    several, most = np.greater(parts, 1), np.minimum(parts, np.ceil(longest / length)) / parts
    average = np.where(several, _mean_parts(edge, last.block[place], length, parts) / parts, 1.0)
    share = grid / target.NUM_SM
    resident = np.minimum(target.blocks_per_sm, target.warps_per_sm // last.warps(target.warp_size))
    waves = share / np.maximum(1, resident)
    return MaskSavings(
        average,
        np.where(several, np.maximum(average * np.maximum(1.0, share), most) / np.ceil(share), 1.0),
        np.where(several, average * np.maximum(0.5, waves / (waves + 1.0)), 1.0),
        min(1.0, longest / keys),
    )


def _mask_of(group: FusedGroup, geometry: Sequence[Geometry]) -> MaskBound | None:
    """Return the mask bound of rows; rows that it begins are taken from their end."""
    if len(geometry) > 2:
        return mask_bound(group) if geometry[1].structure.streams else None
    chain = tile_chain(group) if geometry[1].structure.mma else None
    if chain is None:
        return None
    keys = group.segments[0].axes[chain.column].extent
    for edge in tile_bounds(group.segments, chain.column, chain.rows):
        mirrored = evolve(edge, slope=-edge.slope, const=edge.step * (keys - 1) - edge.const) if edge.begins else edge
        ends = _ends(mirrored, np.arange(edge.row.extent))
        if np.any(ends < keys):
            return mirrored
    return None


def _ends(edge: MaskBound, rows: Count) -> Count:
    """Return the mask bounds of some rows."""
    return np.maximum(0, (edge.slope * rows + edge.const) // edge.step + 1)


def _mean_parts(edge: MaskBound, block: Count, length: Count, parts: Count) -> Count:
    """Return the parts that a block processes, on average over the blocks of a row's axis."""
    sizes = np.broadcast_arrays(block, length, parts)
    kinds, which = np.unique(np.stack([np.ravel(s) for s in sizes]), axis=1, return_inverse=True)
    found = []
    for rows, size, most in kinds.T:
        begins = np.arange(0, edge.row.extent, rows)
        ends = _ends(edge, begins + (rows - 1) if edge.slope > 0 else begins)
        found.append(np.minimum(most, ceil_div(ends, size)).mean())
    return np.reshape(np.array(found)[np.ravel(which)], sizes[0].shape)
