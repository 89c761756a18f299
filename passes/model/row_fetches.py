"""Divisions of fetches, or fetches of whole rows, as arrays (`lowering/fetch.py`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir import Read, Segment
from ..geometry import MIN_BUSY_SHARE, Count, Geometry, StagedTile, walked_box
from .copies import walked_sizes


def uneven_fetch(
    segment: Segment,
    main: Read,
    shape: Sequence[int],
    tile: StagedTile,
    geometry: Geometry,
    width: int,
    threads: Count,
) -> tuple[Count, Count]:
    """Return where a fetch divides per element, and its slowdown.

    The slowdown is the factor of trips where threads fetch whole rows.
    """
    plain = divides_for_each(walked_sizes(main, shape, tile, geometry), width, threads)
    if not np.any(tile.halo):
        return plain
    sizes = walked_box(tile.expr, segment, segment.reductions[tile.reduction], geometry, tile.reduction)
    box = divides_for_each(sizes, width, threads)
    uneven, stretch = (np.where(tile.halo, b, p) for b, p in zip(box, plain, strict=True))
    return uneven, stretch


def divides_for_each(
    sizes: Sequence[Count], width: Count, threads: Count, busy: float = MIN_BUSY_SHARE
) -> tuple[Count, Count]:
    """Return where a fetch of given extents divides per element.

    `sizes` has the smallest stride first; `width` elements move at once. The second result is the factor of trips where
    threads fetch whole rows instead (`lowering.fetch.whole_row_fetch`).
    """
    several = [size for size in sizes if np.any(np.greater(size, 1))]
    if not several:
        return np.bool_(False), 1.0
    vectors = [np.maximum(1, several[0] // width), *several[1:]]
    left: Count = threads
    even: Count = np.bool_(True)
    stretch: Count = np.inf
    length: Count = 1
    for n, size in enumerate(vectors):
        even = even & (np.equal(left % size, 0) | np.equal(size % left, 0))
        left = np.maximum(1, left // size)
        rows = np.maximum(1, threads // length)
        taken = rows * length
        most = np.less_equal(taken, threads) & np.greater_equal(taken, busy * threads) & (n > 0)
        if n + 1 < len(vectors):
            most = most & (np.equal(rows % size, 0) | np.equal(size % rows, 0))
        stretch = np.where(most, threads / np.maximum(1, taken), stretch)
        length = length * size
    by_rows = np.isfinite(stretch) & np.greater(length, threads)
    return np.logical_not(even | by_rows), np.where(even, 1.0, np.where(by_rows, stretch, 1.0))
