"""Global-memory accesses of a block: vector widths, memory lines, warp cycles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd, prod

import numpy as np

from ....ir import FloorDiv, FusedGroup, Read, Target, Var, as_index, variables
from ...geometry import (
    Count,
    Cover,
    Geometry,
    SegmentTemplate,
    address_of,
    ceil_div,
    elements,
    is_scattered,
    is_walked_by_rows,
    least,
    places_of,
    random_groups,
    reads_shared_matrices,
    segments_of,
    span,
)
from .evaluation_sites import EvaluationSite


@lru_cache(maxsize=1 << 14)
def running_axis(read: Read) -> tuple[Var | None, int]:
    """Return the contiguous axis of a read, and its alignment.

    The alignment divides the steps of all other axes. These may stand in the innermost index as well if they step over
    the whole of the contiguous axis: the parts of a split axis, digits of a number.
    """
    terms = read.indices[-1].terms if read.indices else ()
    axes = [primary for primary, factor in terms if factor == 1]
    if len(axes) != 1 or not isinstance(axis := axes[0], Var):
        return None, 1
    steps = [factor for primary, factor in terms if primary != axis]
    return (axis, gcd(*steps)) if all(abs(step) >= axis.extent for step in steps) else (None, 1)


def copied_width(read: Read, shape: Sequence[int], geometry: Geometry, most: int) -> int:
    """Return how many neighbours in memory one copy may move.

    It is `most` if addresses allow it: rows of an odd length begin anywhere. Axes of one dim that are nested in memory
    count as one row.
    """
    return _copied_width(read, tuple(shape), geometry.structure, most)


@lru_cache(maxsize=1 << 14)
def _copied_width(read: Read, shape: tuple[int, ...], structure: SegmentTemplate, most: int) -> int:
    axis, _ = running_axis(read)
    if axis is None:
        return 1
    address = address_of(read.indices, shape)
    steps = {primary: factor for primary, factor in address.terms if primary != axis}
    row = axis.extent
    for outer in reversed(next((dim for dim in (*structure.dims, *structure.loops) if axis == dim[-1]), ())[:-1]):
        if steps.get(outer) != row:
            break
        row *= outer.extent
        del steps[outer]
    return gcd(most, row, address.const, *steps.values())


def access_vector(
    read: Read, shape: Sequence[int], geometry: Geometry, widest: int, rows: tuple[tuple[Var, ...], ...] = ()
) -> Count:
    """Return how many elements one access moves.

    It is the vector of the dim whose last axis runs along the innermost tensor dim, or of the reduction threads along
    one of `rows`. Where rows begin anywhere, elements move one by one, and so do results of warpgroups where rows begin
    between two vectors. (The calibration for results of other matrix instructions ignores that.)
    """
    axis, step = running_axis(read)
    if axis is None:
        return 1
    mma, aligned = bool(geometry.structure.mma), copied_width(read, shape, geometry, widest)
    widest = gcd(widest, step) if mma else aligned
    for dim, vector in zip(geometry.structure.dims, geometry.vector, strict=True):
        if axis == dim[-1]:
            found = np.gcd(vector, widest)
            return np.where(aligned % found, 1, found) if reads_shared_matrices(geometry.structure.mma) else found
    if geometry.structure.reduction_threads and any(axis == loop[-1] for loop in (*geometry.structure.loops, *rows)):
        return np.gcd(geometry.row_vector, widest)
    return 1


def packed_vector(read: Read, shape: Sequence[int], geometry: Geometry, widest: int) -> Count:
    """Return how many packed words one access moves.

    A word has several neighbours of a vector.
    The words are read at quotients of the innermost axis of a dim or a loop, or do not depend on its innermost axes.
    """
    loops = geometry.structure.loops if geometry.structure.reduction_threads else ()
    lines = [
        *zip(geometry.structure.dims, geometry.vector, strict=True),
        *((loop, geometry.row_vector) for loop in loops),
    ]
    terms = read.indices[-1].terms if read.indices else ()
    running = [primary for primary, factor in terms if factor == 1]
    if len(running) != 1 or not terms:
        return 1
    (place,) = running
    for line, vector in lines:
        if isinstance(place, FloorDiv) and len(terms) == 1 and place.num == as_index(line[-1]):
            count, most = place.den, gcd(widest, shape[-1])
        elif place in line[:-1] and places_of(read.indices).isdisjoint(inner := line[line.index(place) + 1 :]):
            count, most = prod(v.extent for v in inner), copied_width(read, shape, geometry, widest)
        else:
            continue
        return np.gcd(np.maximum(1, vector // count), most)
    return 1


def shared_row_vector(group: FusedGroup, read: Read, geometry: Geometry, widest: int) -> Count:
    """Return the vector width of loads along a row in shared memory.

    An earlier segment left the row, and a reduction runs over it.
    """
    axis, _ = running_axis(read)
    if geometry.structure.reduction_threads or not is_walked_by_rows(group, read.tensor):
        return 1
    loops = zip(geometry.structure.loops, geometry.block_k, strict=True)
    return next((np.gcd(chunk, widest) for loop, chunk in loops if (axis,) == loop), 1)


def row_conflicts(geometry: Geometry, target: Target) -> Count:
    """Return the bank conflicts of reduction threads that read shared rows.

    Rows lie an odd multiple of 16 bytes from each other; one access reads as many rows as there are groups of reduction
    threads in it, each over the length that its threads take.
    """
    if not target.banked:
        return 1
    turn = np.maximum(1, target.warp_size // np.maximum(1, geometry.row_vector))
    rows = np.maximum(1, turn // geometry.reduction_threads)
    length = least(turn, geometry.reduction_threads) * geometry.row_vector
    return np.maximum(least(rows, ceil_div(length, 4)), ceil_div(rows * 4, target.warp_size)) * 1.0


def decoding_cost(read: Read, geometry: Geometry) -> float:
    """Return the additional instructions of a direct load.

    They compare its guards and divide flattened indices.
    """
    used = places_of(read.indices)
    flat = any(
        len(d) > 1 and len(used.intersection(d)) > 1 for d in (*geometry.structure.loops, *geometry.structure.dims)
    )
    return 2.0 * len(read.guards) + 4.0 * flat


def has_division(read: Read, geometry: Geometry) -> Count:
    """Return 1 where an address takes divisions.

    It does where a flattened loop has more than one axis that the read's indices distinguish. With matrix instructions,
    threads divide only if the innermost axis is no multiple of a K block: else all others are constant within it. (The
    calibration for divisions elsewhere ignores that.)
    """
    used = places_of(read.indices)
    several = float(any(sum(a.extent > 1 and a in used for a in loop) > 1 for loop in geometry.structure.loops))
    if not geometry.structure.mma or not several:
        return several
    inner = [next(a.extent for a in reversed(loop) if a.extent > 1) for loop in geometry.structure.loops]
    return np.logical_or.reduce([extent % chunk != 0 for extent, chunk in zip(inner, geometry.block_k, strict=True)])


def wavefronts(target: Target, used: frozenset[object], instructions: Count, width: Count, geometry: Geometry) -> Count:
    """Return the least cycles of loads by all warps.

    Lanes that read one address share it.
    """
    distinct = geometry.once(("lanes of", used), lambda: _distinct_lanes(target, used, geometry))
    per_warp = np.maximum(1.0, distinct * width / target.shared_bandwidth)
    return instructions * per_warp * geometry.warps(target.warp_size)


def _distinct_lanes(target: Target, used: frozenset[object], geometry: Geometry) -> Count:
    """Return how many lanes of a warp differ in the used variables."""
    distinct: Count = 1.0
    if geometry.structure.reduction_threads:
        loops = frozenset(axis for loop in geometry.structure.loops for axis in loop)
        distinct = geometry.reduction_lanes(target.warp_size) * 1.0 if used & loops else 1.0
    for dim, along in zip(geometry.structure.dims, geometry.lanes_along(target.warp_size), strict=True):
        if used.intersection(dim):
            distinct = distinct * along
    return distinct


def warp_lines(
    read: Read, shape: Sequence[int], unit: int, place: EvaluationSite, geometry: Geometry, lanes: int, weight: float
) -> Count:
    """Return the memory lines of `unit` elements per warp access.

    Neighbours of a thread's vector count as one run. At data-dependent addresses, an access moves one line for each
    lane, and lines have a weight.
    """
    loops = tuple(dict.fromkeys((*geometry.structure.loops, *place.rows)))
    row = variables(read.indices[-1]) if read.indices else frozenset()
    dims = zip(geometry.structure.dims, geometry.vector, strict=True)
    vector = [v if geometry.structure.mma or dim[-1] in row else 1 for dim, v in dims]
    cover = geometry.once(
        ("warp", lanes, loops, row), lambda: _warp_cover(geometry, lanes, loops, vector, geometry.row_vector)
    )
    found = segments_of(read, shape, cover, unit)
    if geometry.structure.exchanged and not is_scattered(read):  # interleaved components are neighbours, but no run
        return least(found, span(address_of(read.indices, tuple(shape)), cover.extents) // unit + 1)
    if not is_scattered(read):
        return found
    single = (1,) * len(geometry.vector)
    cover = geometry.once(("lanes", lanes, loops), lambda: _warp_cover(geometry, lanes, loops, single, 1))
    return np.maximum(found, weight * random_groups(read, shape, cover, unit))


def _warp_cover(
    geometry: Geometry, warp_size: int, loops: Sequence[tuple[Var, ...]], vector: Sequence[Count], row_vector: Count
) -> Cover:
    """Return the cover of one access of a warp, whose lanes may lie along any of some loops."""
    along = geometry.lanes_along(warp_size)
    cover = geometry.cover([a * v for a, v in zip(along, vector, strict=True)])
    if not geometry.structure.reduction_threads:
        return cover
    row = geometry.reduction_lanes(warp_size) * row_vector
    return cover.join(Cover.of(loops, [row] * len(loops)))


def unmoved_elements(read: Read, shape: Sequence[int], unit: int, geometry: Geometry, target: Target) -> Count:
    """Return the elements of touched sectors that a warp does not move.

    Sectors have `unit` elements.
    """
    axis, _ = running_axis(read)
    dims = zip(geometry.structure.dims, geometry.lanes_along(target.warp_size), geometry.vector, strict=True)
    cover = geometry.cover([along * (vector if axis == dim[-1] else 1) for dim, along, vector in dims])
    return np.maximum(0.0, segments_of(read, shape, cover, unit) * float(unit) - elements(read, shape, cover))
