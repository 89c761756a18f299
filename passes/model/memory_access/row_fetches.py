"""Divisions of fetches, or fetches of whole rows, as features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....ir import Read
from ...geometry import Count, Geometry, StagedTile, has_constant_strides, product, row_divisions
from .copies import walked_sizes


def uneven_fetch(
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
    box = divides_for_each(tile.shape.box[::-1], width, threads)
    uneven, stretch = (np.where(tile.halo, b, p) for b, p in zip(box, plain, strict=True))
    return uneven, stretch


def divides_for_each(sizes: Sequence[Count], width: Count, threads: Count) -> tuple[Count, Count]:
    """Return where a fetch of given extents divides per element.

    `sizes` has the smallest stride first; `width` elements move at once. The second result is the factor of trips where
    threads fetch whole rows instead.
    """
    several = [size for size in sizes if np.any(np.greater(size, 1))]
    if not several:
        return np.bool_(False), 1.0
    extents = [*several[:0:-1], np.maximum(1, several[0] // width)]
    even = has_constant_strides(extents, threads)
    taken: Count = 0
    for fits, _, elements in row_divisions(extents, threads):
        taken = np.where(fits, elements, taken)
    by_rows = np.greater(taken, 0) & np.greater(product(extents), threads)
    stretch = np.where(by_rows, threads / np.maximum(1, taken), 1.0)
    return np.logical_not(even | by_rows), np.where(even, 1.0, stretch)
