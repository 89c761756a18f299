"""How threads copy elements from memory to staged tiles: in what order, how many at once, and how that fills banks."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ...ir import Expr, Read, Var, expr_variables, linearise
from .access import copied_width, running_axis
from .footprint import Count, least
from .geometry import Geometry
from .tile_access import box_vector, carried_vector, innermost_chunk, main_read, used_loops
from .tiles import StagedTile


def copy_cost(
    expr: Expr, tile: StagedTile, shape: Sequence[int], geometry: Geometry, together: int, width: int | None = None
) -> tuple[Count, Count]:
    """Return the instructions that move one element of a staged tile, `together` of which are moved at once, or `width`
    where their addresses are looked at, and how many lanes' stores meet in a bank; `shape` is that of the tensor.

    A vector moves where memory and tile run along the same axis. Elsewhere elements move one by one, or, with a single
    buffer, come as vectors and are stored one by one, or, where threads carry them, come one by one and are stored as
    vectors. A halo decodes its coordinates, but where it is a box whose rows
    are as those of the tensor.
    """
    main = main_read(expr)
    used = expr_variables(expr)
    axis, _ = running_axis(main)
    dims = [d for d in geometry.structure.dims if used.intersection(d) and any(a.extent > 1 for a in d)]
    loops = used_loops(expr, tile, geometry)
    straight = bool(dims) and axis == dims[-1][-1]
    turned: Count = np.bool_(False)
    for k in reversed(loops):
        turned = np.where(np.greater(geometry.chunk[k], 1), axis == geometry.structure.loops[k][-1], turned)
    wide = np.where(tile.turned, turned, straight)
    deep = copied_width(main, shape, geometry, together)  # rows of an odd length begin anywhere
    moved = np.where(tile.turned, np.gcd(width or deep, innermost_chunk(expr, tile, geometry)), width or together)
    single = 1.0 / together + 1.0 if axis is not None else 2.0
    apart = np.where(np.greater(geometry.stages, 1), 1.0, single)
    along = np.logical_and(np.equal(tile.turned, 0), np.greater(box_vector(expr, tile, geometry), 1))
    box = np.where(along, 1.0 / (width or together), 3.0)
    cost = np.where(tile.halo, box, np.where(wide, 1.0 / moved, apart))
    lanes = least(_lanes_deep(main, shape, loops, geometry), 32)
    apart_in_banks = np.where(np.equal(geometry.pad, 0), 1, np.where(np.less(geometry.pad, together), 32, 8))
    ways = np.maximum(1.0, lanes / apart_in_banks)
    stored = carried_vector(expr, tile, geometry)
    carried = np.greater(stored, 1)
    cost = np.where(carried, 1.0 + 1.0 / stored, cost)
    # Of stores of 16 bytes the lanes of a quarter of a warp go together.
    ways = np.where(carried, np.where(np.equal(geometry.pad, 0), least(lanes, 8), 1.0), ways)
    return cost, np.where(np.logical_or(tile.halo, np.logical_or(wide, tile.turned)), 1.0, ways)


def walked_sizes(read: Read, shape: Sequence[int], tile: StagedTile, geometry: Geometry) -> list[Count]:
    """Return how much a fetch walks over of loops and tile dims, nearest in memory first."""
    return [size for _, size, _ in _walked(read, shape, used_loops(tile.expr, tile, geometry), geometry)]


def walks_evenly(read: Read, shape: Sequence[int], tile: StagedTile, geometry: Geometry) -> Count:
    """Return where a thread fetches the same elements of a flattened loop in each of its copies of a trip, so that one
    division serves them all: memory runs along that loop, and the threads take whole chunks at a time.
    """
    walked = _walked(read, shape, used_loops(tile.expr, tile, geometry), geometry)
    if not walked or not walked[0][2]:
        return np.bool_(False)
    _, chunk, _ = walked[0]
    return np.equal(geometry.threads % chunk, 0)


def steps_evenly(read: Read, shape: Sequence[int], tile: StagedTile, geometry: Geometry) -> Count:
    """Return where the elements that a thread fetches of a tile that is no box are constants apart: all threads
    together take whole rows of it, or even parts of one.
    """
    left: Count = geometry.threads
    even: Count = np.bool_(True)
    for _, size, _ in _walked(read, shape, used_loops(tile.expr, tile, geometry), geometry):
        whole, part = np.equal(left % np.maximum(size, 1), 0), np.equal(size % np.maximum(left, 1), 0)
        even = np.logical_and(even, np.logical_or(whole, part))
        left = np.where(whole, left // np.maximum(size, 1), 1)
    return even


def _lanes_deep(read: Read, shape: Sequence[int], loops: Sequence[int], geometry: Geometry) -> Count:
    """Return how many neighbours in memory of what a fetch walks over lie along loops, before it takes a step along a
    tile dim.
    """
    found: Count = 1
    over: Count = np.bool_(False)
    for _, size, deep in _walked(read, shape, loops, geometry):
        found = np.where(over, found, found * size) if deep else found
        over = over if deep else np.logical_or(over, np.greater(size, 1))
    return found


def _walked(
    read: Read, shape: Sequence[int], loops: Sequence[int], geometry: Geometry
) -> list[tuple[tuple[Var, ...], Count, bool]]:
    """Return the loops and tile dims that a fetch walks over, nearest in memory first, how much of each, and whether it
    is a loop.
    """
    address = linearise(read.indices, [prod(shape[d + 1 :]) for d in range(len(shape))])
    structure, along = geometry.structure, dict(address.terms)
    sides = [(structure.loops[k], geometry.chunk[k], True) for k in loops]
    sides += [(dim, block, False) for dim, block in zip(structure.dims, geometry.block, strict=True)]

    def distance(dim: Sequence[Var]) -> int:
        return next((abs(along[a]) for a in reversed(dim) if a in along), 0)

    return sorted((s for s in sides if distance(s[0])), key=lambda s: distance(s[0]))
