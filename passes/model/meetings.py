"""What it costs to combine values in memory, at once or where they met in shared memory before."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from attrs import frozen

from ...ir import FusedGroup, Segment, Target, Var, variables
from ..lowering import meeting_of, own_axes
from .footprint import Count, least, product
from .geometry import Geometry

#: Sectors of memory that all parts of the L2 cache combine values in side by side: values that arrive at fewer wait for
#: one another.
APART = 4096.0
#: Words of an element that are combined one after another.
WORD = 4
#: Instructions of a thread for each bin that it clears, and whose value it combines in memory.
VISITED = 8.0


def turned_dim(segment: Segment, group: FusedGroup, dims: Sequence[Sequence[Var]]) -> int:
    """Return the position of the dim along which blocks take tiles in turns: the longest of which nothing names an
    element by itself, -1 where there is none.
    """
    own = own_axes(segment, group)
    free = [d for d, axes in enumerate(dims) if not own & {*axes}]
    return max(free, key=lambda d: prod(a.extent for a in dims[d]), default=-1)


def bins_needed(segment: Segment, group: FusedGroup, geometry: Geometry) -> Count:
    """Return in how many elements the values of a block meet."""
    meeting = meeting_of(segment, group, geometry.structure.dims)
    sizes = [geometry.block[n] if kind == "tile" else meeting.shape[n] for kind, n in meeting.parts]
    return product(sizes) * 1.0


@frozen
class Combining:
    """What a block's atomic operations take: sectors of memory; where values meet, cycles of shared memory too, and the
    bins that are cleared, and whose values are combined in memory, with their bytes.
    """

    sectors: Count
    wavefronts: Count = 0
    bins: Count = 0
    nbytes: Count = 0


def combining(segment: Segment, group: FusedGroup, geometry: Geometry, target: Target) -> Combining:
    """Return what a block's atomic operations take."""
    (output,) = segment.outputs
    size = group.tensors[output.tensor].dtype.size
    sector = max(1.0, target.sector_bytes / size)
    crowded = max(1.0, APART * sector / group.tensors[output.tensor].size)
    if geometry.structure.meets < 0:
        return Combining(product(geometry.block) / _together(segment, group, geometry, sector, target) * crowded)
    bins = bins_needed(segment, group, geometry)
    values, words = product(geometry.block) * geometry.turns, size / WORD
    met = (_together_in_bins(segment, group, geometry, words, target) * values + 2.0 * bins) * words / target.warp_size
    return Combining(bins / sector * crowded, met, bins, bins * size)


def _together_in_bins(segment: Segment, group: FusedGroup, geometry: Geometry, words: float, target: Target) -> Count:
    """Return how many of a warp's values wait for one bank of shared memory, about: where neighbours have bins of their
    own beside each other, their rows lie at as many places as such rows share all banks; else each value does.
    """
    meeting = meeting_of(segment, group, geometry.structure.dims)
    last = max((n for n, (kind, _) in enumerate(meeting.parts) if kind == "dim"), default=-1)
    inner = [n for _, n in meeting.parts[last + 1 :]]
    row = product([geometry.block[n] for n in inner]) * words
    beside = product([geometry.lanes_along(target.warp_size)[n] for n in inner])
    rows = np.maximum(1.0, target.warp_size / beside)
    places = np.maximum(1.0, target.warp_size / row)
    # The fullest of so many places where rows fall at random.
    return rows / places + np.sqrt(2.0 * rows / places * np.log(places))


def _together(segment: Segment, group: FusedGroup, geometry: Geometry, sector: float, target: Target) -> Count:
    """Return how many values of a warp arrive in one sector: neighbours along an axis that names the last dim."""
    (output,) = segment.outputs
    last = geometry.structure.dims[-1][-1]
    if not output.write or last not in own_axes(segment, group) or last not in variables(output.write[-1]):
        return 1.0
    return np.clip(least(geometry.lanes_along(target.warp_size)[-1], last.extent), 1.0, sector)
