"""Vector loads of threads from staged tiles."""

from __future__ import annotations

import numpy as np

from ....ir import WIDEST_BYTES, Expr, Index, as_index, expr_variables, variables
from ...geometry import Count, Geometry, StagedTile, main_read, product


def tile_vector(expr: Expr, tile: StagedTile, geometry: Geometry) -> Count:
    """Return the width of a thread's loads from a staged tile.

    The vector runs along the innermost tile dim, or, in a transposed tile, along the depth; in a box, along a tile dim
    that equals its innermost coordinate.
    """
    used = expr_variables(expr)
    for dim, vector in zip(reversed(geometry.structure.dims), reversed(geometry.vector), strict=True):
        if used.intersection(dim) and any(a.extent > 1 for a in dim):
            aligned = np.equal(geometry.staging.pad % np.maximum(vector, 1), 0)
            natural = np.where(aligned, vector, 1)
            box = box_vector(expr, tile, geometry) if np.any(tile.halo) else 1
            return np.where(tile.halo, box, np.where(tile.turned, depth_vector(expr, tile, geometry), natural))
    return 1


def box_vector(expr: Expr, tile: StagedTile, geometry: Geometry) -> Count:
    """Return the width of a thread's loads from a box.

    The vector runs along a tile dim that equals the last index of the read, or the first one in a transposed box.
    """
    indices = [i for i in main_read(expr).indices if any(a.extent > 1 for a in variables(i))] or [Index()]
    first, last = (_vector_along(i, geometry) for i in (indices[0], indices[-1]))
    found = np.where(tile.turned, first, last)
    return np.where(np.equal(geometry.staging.pad % np.maximum(found, 1), 0), found, 1)


def _vector_along(index: Index, geometry: Geometry) -> Count:
    """Return the vector of the tile dim that equals an index, 1 for other indices."""
    dims = zip(geometry.structure.dims, geometry.vector, strict=True)
    return next((vector for dim, vector in dims if index == as_index(dim[-1])), 1)


def register_staging_vector(expr: Expr, tile: StagedTile, geometry: Geometry) -> Count:
    """Return the width of register staging's stores, 1 without it."""
    if not np.any(tile.register_staged):
        return np.int64(1)
    used, whole = expr_variables(expr), WIDEST_BYTES // tile.size
    dims = zip(geometry.structure.dims, geometry.block, strict=True)
    inner = [block for dim, block in dims if used.intersection(dim) and any(a.extent > 1 for a in dim)]
    width = np.gcd(np.gcd(inner[-1] if inner else 1, geometry.staging.pad), whole)
    return np.where(np.logical_and(tile.register_staged, np.logical_not(tile.halo)), width, 1)


def depth_vector(expr: Expr, tile: StagedTile, geometry: Geometry) -> Count:
    """Return the width of loads along the depth of transposed tiles."""
    whole = WIDEST_BYTES // tile.size
    depth = innermost_chunk(expr, tile, geometry)
    return np.where(np.equal(depth % whole, 0) & np.equal(geometry.staging.pad % whole, 0), whole, 1)


def held_deep(expr: Expr, tile: StagedTile, geometry: Geometry) -> Count:
    """Return the elements per row that a thread holds of transposed tiles.

    Vectors along the depth are used up by the innermost loop, or kept while the loops inside of theirs run.
    """
    steps = product([geometry.block_k[k] for k in used_loops(expr, tile, geometry)])
    vector = depth_vector(expr, tile, geometry)
    return np.where(np.greater(vector, 1), vector * (steps // innermost_chunk(expr, tile, geometry)), 1)


def used_loops(expr: Expr, tile: StagedTile, geometry: Geometry) -> list[int]:
    """Return the loops of a tile's reduction that are its coordinates."""
    used = expr_variables(expr)
    return [k for k in geometry.structure.reduces[tile.reduction] if used.intersection(geometry.structure.loops[k])]


def innermost_chunk(expr: Expr, tile: StagedTile, geometry: Geometry) -> Count:
    """Return the extent of a transposed tile's innermost coordinate.

    It is that of the innermost loop with several elements.
    """
    found: Count = 1
    for k in reversed(used_loops(expr, tile, geometry)):
        found = np.where(np.greater(geometry.block_k[k], 1), geometry.block_k[k], found)
    return found
