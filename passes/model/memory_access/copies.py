"""Copies from global memory to staged tiles: order, width and bank conflicts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ....ir import Expr, Read, Var, expr_variables
from ...geometry import (
    MIN_COPY_BYTES,
    Count,
    Geometry,
    SegmentTemplate,
    StagedTile,
    address_of,
    has_constant_strides,
    least,
    main_read,
)
from .access import copied_width, running_axis
from .tile_access import box_vector, innermost_chunk, register_staging_vector, used_loops

#: Lanes of a warp and banks of shared memory, and bytes of a bank.
LANES, BANK_BYTES = 32, 4


def copy_cost(
    expr: Expr, tile: StagedTile, shape: Sequence[int], geometry: Geometry, together: int, width: Count | None = None
) -> tuple[Count, Count]:
    """Return the instructions per copied element, and the store conflicts.

    One instruction moves `together` elements, or `width` where addresses are examined; `shape` is the tensor's. A
    vector moves where memory and tile run along the same axis. Elsewhere elements move one by one, or, with a single
    buffer, are loaded as vectors and stored one by one, or, with register staging, are loaded one by one and stored as
    vectors. A halo decodes its coordinates, unless it is a box whose rows match those of the tensor.
    """
    main = main_read(expr)
    used = expr_variables(expr)
    axis, _ = running_axis(main)
    dims = [d for d in geometry.structure.dims if used.intersection(d) and any(a.extent > 1 for a in d)]
    loops = used_loops(expr, tile, geometry)
    straight = bool(dims) and axis == dims[-1][-1]
    turned: Count = np.bool_(False)
    for k in reversed(loops):
        turned = np.where(np.greater(geometry.block_k[k], 1), axis == geometry.structure.loops[k][-1], turned)
    wide = np.where(tile.turned, turned, straight)
    deep = copied_width(main, shape, geometry, together)  # rows of an odd length begin anywhere
    most = together if width is None else width
    moved = np.where(tile.turned, np.gcd(deep if width is None else width, innermost_chunk(expr, tile, geometry)), most)
    single = 1.0 / together + 1.0 if axis is not None else 2.0
    separate = np.where(np.greater(geometry.loop.stages, 1), 1.0, single)
    along = np.logical_and(np.equal(tile.turned, 0), np.greater(box_vector(expr, tile, geometry), 1))
    box = np.where(along, 1.0 / most, 3.0)
    cost = np.where(tile.halo, box, np.where(wide, 1.0 / moved, separate))
    lanes = least(_lanes_deep(main, shape, loops, geometry), 32)
    bank_distance = np.where(
        np.equal(geometry.staging.pad, 0), 1, np.where(np.less(geometry.staging.pad, together), 32, 8)
    )
    ways = np.maximum(1.0, lanes / bank_distance)
    stored = register_staging_vector(expr, tile, geometry)
    carried = np.greater(stored, 1)
    cost = np.where(carried, 1.0 + 1.0 / stored, cost)
    # Stores of 16 bytes serve a quarter of a warp's lanes at once.
    ways = np.where(carried, np.where(np.equal(geometry.staging.pad, 0), least(lanes, 8), 1.0), ways)
    ways = np.where(np.logical_or(tile.halo, np.logical_or(wide, tile.turned)), 1.0, ways)
    narrow = tile.turned & np.logical_not(turned) & (tile.size < MIN_COPY_BYTES and bool(geometry.structure.mma))
    return cost, np.where(narrow & np.logical_not(carried), _transposed_ways(expr, tile, geometry), ways)


def _transposed_ways(expr: Expr, tile: StagedTile, geometry: Geometry) -> Count:
    """Return the bank conflicts of lanes that store neighbours in memory to different rows of a tile."""
    pitch = (innermost_chunk(expr, tile, geometry) + geometry.staging.pad) * tile.size // BANK_BYTES
    return np.gcd(pitch, LANES) * 1.0


def walked_sizes(read: Read, shape: Sequence[int], tile: StagedTile, geometry: Geometry) -> list[Count]:
    """Return the extents of a fetch over loops and tile dims.

    The smallest stride in memory comes first.
    """
    return [size for _, size, _ in _traversed_dims(read, shape, used_loops(tile.expr, tile, geometry), geometry)]


def walks_evenly(read: Read, shape: Sequence[int], tile: StagedTile, geometry: Geometry) -> Count:
    """Return whether one division serves all of a thread's copies.

    Memory then runs along a flattened loop, and the threads take whole chunks at a time, so that each copy of a trip
    has the same elements of it.
    """
    walked = _traversed_dims(read, shape, used_loops(tile.expr, tile, geometry), geometry)
    if not walked or not walked[0][2]:
        return np.bool_(False)
    _, chunk, _ = walked[0]
    return np.equal(geometry.threads % chunk, 0)


def steps_evenly(read: Read, shape: Sequence[int], tile: StagedTile, geometry: Geometry) -> Count:
    """Return whether a thread's fetched elements have constant strides.

    The tile is no box; all threads together take whole rows of it, or even parts of one.
    """
    sizes = [np.maximum(size, 1) for size in walked_sizes(read, shape, tile, geometry)]
    return has_constant_strides(sizes[::-1], geometry.threads)


def _lanes_deep(read: Read, shape: Sequence[int], loops: Sequence[int], geometry: Geometry) -> Count:
    """Return how many neighbours in memory a fetch takes along loops, before it takes a step along a tile dim."""
    found: Count = 1
    over: Count = np.bool_(False)
    for _, size, deep in _traversed_dims(read, shape, loops, geometry):
        found = np.where(over, found, found * size) if deep else found
        over = over if deep else np.logical_or(over, np.greater(size, 1))
    return found


def _traversed_dims(
    read: Read, shape: Sequence[int], loops: Sequence[int], geometry: Geometry
) -> list[tuple[tuple[Var, ...], Count, bool]]:
    """Return the loops and tile dims that a fetch iterates over, smallest stride first, with their extents, and whether
    each is a loop.
    """
    structure, sizes = geometry.structure, (geometry.block, geometry.block_k)
    dims = (structure.dims, structure.loops)
    order = _traversal(read, tuple(shape), structure, tuple(loops))
    return [(dims[deep][k], sizes[deep][k], deep) for deep, k in order]


@lru_cache(maxsize=1 << 14)
def _traversal(
    read: Read, shape: tuple[int, ...], structure: SegmentTemplate, loops: tuple[int, ...]
) -> tuple[tuple[bool, int], ...]:
    """Return the dims that a fetch iterates over, smallest stride first: whether each is a loop, and its position."""
    along = dict(address_of(read.indices, shape).terms)
    sides = [(structure.loops[k], True, k) for k in loops]
    sides += [(dim, False, d) for d, dim in enumerate(structure.dims)]
    steps = [(next((abs(along[a]) for a in reversed(dim) if a in along), 0), deep, k) for dim, deep, k in sides]
    return tuple((deep, k) for _, deep, k in sorted((s for s in steps if s[0]), key=lambda s: s[0]))
