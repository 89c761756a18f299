"""Savings of mask-block skipping, for all candidate schedules of a template.

Blocks process only the parts within the mask bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import frozen

from ...ir import FusedGroup, Target
from ..geometry import Count, Geometry, MaskBound, ceil_div, mask_bounds, tile_bounds, tile_chain

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
    last = geometry[-1]
    places = {dim: d for d, dim in enumerate(last.structure.dims)}
    bounds = [b for b in _bounds_of(group, geometry) if (b.row,) in places]
    if not bounds:
        return None
    parts, length = (
        (last.trips[0], last.block_k[0]) if len(geometry) == 2 else (geometry[1].trips[0], geometry[1].block_k[0])
    )
    (keys,) = (v.extent for v in group.segments[1].reductions[0].reduce)
    mean, longest = _taken_parts(bounds, last.block[places[(bounds[0].row,)]], length, parts)
    several, most = np.greater(parts, 1), longest / parts
    average = np.where(several, mean / parts, 1.0)
    share = grid / target.NUM_SM
    resident = np.minimum(target.blocks_per_sm, target.warps_per_sm // last.warps(target.warp_size))
    waves = share / np.maximum(1, resident)
    first, end = _reach(bounds, np.arange(bounds[0].row.extent), 1, keys)
    return MaskSavings(
        average,
        np.where(several, np.maximum(average * np.maximum(1.0, share), most) / np.ceil(share), 1.0),
        np.where(several, average * np.maximum(0.5, waves / (waves + 1.0)), 1.0),
        float(end.max() - first.min()) / keys,
    )


def _bounds_of(group: FusedGroup, geometry: Sequence[Geometry]) -> list[MaskBound]:
    """Return the mask bounds of rows, those that leave out elements: an end and a begin at most.

    Where threads hold the rows of a part in shared memory, blocks take all parts from the first one on.
    """
    if len(geometry) > 2:
        found = mask_bounds(group) if geometry[1].structure.streams else ()
        found = found if geometry[0].structure.mma else tuple(b for b in found if not b.begins)
    else:
        chain = tile_chain(group) if geometry[1].structure.mma else None
        found = () if chain is None else tile_bounds(group.segments, chain.column, chain.rows)
    kept: dict[bool, MaskBound] = {}
    if not found:
        return []
    (keys,) = (v.extent for v in group.segments[1].reductions[0].reduce)
    for bound in (b for b in found if not b.data.terms):  # others only the device knows
        first, end = _reach([bound], np.arange(bound.row.extent), 1, keys)
        if np.any(first > 0) or np.any(end < keys):
            kept.setdefault(bound.begins, bound)
    return [b for b in kept.values() if b.row == next(iter(kept.values())).row]


def _reach(bounds: Sequence[MaskBound], begins: Count, rows: Count, keys: int) -> tuple[Count, Count]:
    """Return the first element and the end of blocks of rows that begin at some rows."""
    first, end = np.zeros_like(begins), np.full_like(begins, keys)
    for bound in bounds:
        row = begins + (rows - 1) * ((bound.slope > 0) != bound.begins)
        if bound.begins:
            first = np.clip(-(-(bound.slope * row + bound.const) // bound.step), 0, keys - 1)
        else:
            end = np.clip((bound.slope * row + bound.const) // bound.step + 1, 0, keys)
    return first, end


def _taken_parts(bounds: Sequence[MaskBound], block: Count, length: Count, parts: Count) -> tuple[Count, Count]:
    """Return the parts that a block takes, on average over the blocks of a row's axis and at most."""
    sizes = np.broadcast_arrays(block, length, parts)
    kinds, which = np.unique(np.stack([np.ravel(s) for s in sizes]), axis=1, return_inverse=True)
    found = []
    for rows, size, most in kinds.T:
        first, end = _reach(bounds, np.arange(0, bounds[0].row.extent, rows), rows, int(most * size))
        taken = np.clip(ceil_div(end, size) - first // size, 0, most)
        found.append((taken.mean(), taken.max()))
    mean, longest = (np.reshape(np.array(each)[np.ravel(which)], sizes[0].shape) for each in zip(*found, strict=True))
    return mean, longest
