"""How the threads of a block share an expression: covers of its axes, width of accesses, cycles that a warp's loads
take.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

import numpy as np
from attrs import frozen

from ...ir import Expr, Read, Target, Var, expr_variables, linearise, reads, variables
from ..lowering import LARGEST
from .footprint import Count, Cover, ceil_div, elements, least, product, segments_of
from .geometry import Geometry
from .tiles import StagedTile


@frozen
class Place:
    """Where an expression is evaluated: the parts of one trip that a thread and a block go through, and the trips of
    each loop.

    A thread's elements along a dim are `groups` runs of neighbours (`TileDim` says where they lie): `thread` counts all
    of them, `run` covers one run, `step` what of it one turn of the outermost loop's `turns` in a trip reads. `whole`
    covers all trips of a block.
    """

    thread: Cover
    run: Cover
    groups: tuple[Count, ...]
    block: Cover
    whole: Cover
    trips: tuple[Count, ...]
    parallel: int
    threads: Count
    step: Cover
    turns: Count

    def repeats(self, used: frozenset[object]) -> Count:
        """How many trips compute something new that depends on the used variables."""
        loops = zip(self.thread.dims[self.parallel :], self.trips, strict=True)
        return product(t for dim, t in loops if used.intersection(dim))

    def distinct(self, read: Read, shape: Sequence[int]) -> Count:
        """How many different elements a thread reads in one trip: neighbours of a run share halos, runs far apart do
        not.
        """
        return least(elements(read, shape, self.run) * self._runs(read), elements(read, shape, self.block))

    def loads(self, read: Read, shape: Sequence[int]) -> Count:
        """How many elements a thread loads in one trip: each once, unless that is more than it holds; then it loads
        anew in each turn of the outermost loop.
        """
        once = self.distinct(read, shape)
        if len(self.trips) < 2:
            return once
        anew = elements(read, shape, self.step) * self._runs(read) * self.turns
        return np.where(np.greater(once, LARGEST), np.maximum(once, anew), once)

    def _runs(self, read: Read) -> Count:
        used = frozenset[object]().union(*(variables(i) for i in read.indices))
        return product(g for dim, g in zip(self.thread.dims, self.groups, strict=False) if used.intersection(dim))

    @property
    def all_trips(self) -> Count:
        """Trips of all loops."""
        return product(self.trips)


def _runs(geometry: Geometry) -> tuple[tuple[Count, ...], Cover]:
    """Return how many runs of neighbours a thread has along each dim, and the cover of one."""
    sizes = zip(geometry.counts, geometry.thread, geometry.vector, strict=True)
    runs = [np.where(np.equal(count, 1), thread, vector) for count, thread, vector in sizes]
    groups = tuple(thread // run for thread, run in zip(geometry.thread, runs, strict=True))
    return groups, geometry.cover(runs)


def place_of(geometry: Geometry, which: Sequence[int]) -> Place:
    """Return the place inside the given loops of a segment."""
    chunk = [geometry.chunk[k] for k in which]
    per_lane = [ceil_div(c, geometry.lanes) for c in chunk]
    turn = [1, *per_lane[1:]] if len(which) > 1 else per_lane
    stepped = Cover(
        tuple(geometry.structure.loops[k] for k in which), tuple(turn), geometry.loop_cover(which, turn).extents
    )
    padded = Cover(geometry.structure.dims, geometry.thread, geometry.thread_cover.extents)
    lane = Cover(
        tuple(geometry.structure.loops[k] for k in which), tuple(per_lane), geometry.loop_cover(which, per_lane).extents
    )
    block = geometry.block_cover
    groups, run = geometry.once("runs", lambda: _runs(geometry))
    return Place(
        padded.joined(lane),
        run.joined(lane),
        groups,
        block.joined(geometry.loop_cover(which, chunk)),
        block.joined(geometry.loop_cover(which, geometry.extents(which))),
        tuple(geometry.trips[k] for k in which),
        len(geometry.structure.dims),
        geometry.threads,
        run.joined(stepped),
        per_lane[0] if which else 1,
    )


def running_axis(read: Read) -> tuple[Var | None, int]:
    """Return the axis along which a read moves from element to element in memory, and a number that all others step by
    multiples of.

    Others may be in the innermost index as well if they step over the whole of that axis: the parts of a split axis,
    digits of a number.
    """
    terms = read.indices[-1].terms if read.indices else ()
    axes = [primary for primary, factor in terms if factor == 1]
    if len(axes) != 1 or not isinstance(axis := axes[0], Var):
        return None, 1
    steps = [factor for primary, factor in terms if primary != axis]
    return (axis, gcd(*steps)) if all(abs(step) >= axis.extent for step in steps) else (None, 1)


def access_vector(read: Read, geometry: Geometry, widest: int) -> Count:
    """Return how many elements one access moves: the vector of the dim whose last axis runs along the innermost tensor
    dim.
    """
    axis, step = running_axis(read)
    if axis is None:
        return 1
    widest = gcd(widest, step)
    for dim, vector in zip(geometry.structure.dims, geometry.vector, strict=True):
        if axis == dim[-1]:
            return np.gcd(vector, widest)
    if geometry.structure.lanes and any(axis == loop[-1] for loop in geometry.structure.loops):
        return np.gcd(geometry.row_vector, widest)
    return 1


def tile_vector(expr: Expr, tile: StagedTile, geometry: Geometry) -> Count:
    """Return how many neighbours of a staged tile a thread loads at once: along the innermost tile dim, where the tile
    is no halo.
    """
    used = expr_variables(expr)
    for dim, vector in zip(reversed(geometry.structure.dims), reversed(geometry.vector), strict=True):
        if used.intersection(dim) and any(a.extent > 1 for a in dim):
            aligned = np.equal(geometry.pad % np.maximum(vector, 1), 0)
            return np.where(np.logical_or(tile.halo, tile.turned), 1, np.where(aligned, vector, 1))
    return 1


def copied_width(read: Read, shape: Sequence[int], geometry: Geometry, most: int) -> int:
    """Return how many neighbours in memory one copy of a read may move, `most` if addresses allow it: rows of an odd
    length begin anywhere. Axes of one dim that lie one within the other are one row.
    """
    axis, _ = running_axis(read)
    if axis is None:
        return 1
    address = linearise(read.indices, [prod(shape[d + 1 :]) for d in range(len(shape))])
    steps = {primary: factor for primary, factor in address.terms if primary != axis}
    dims = (*geometry.structure.dims, *geometry.structure.loops)
    row = axis.extent
    for outer in reversed(next((dim for dim in dims if axis == dim[-1]), ())[:-1]):
        if steps.get(outer) != row:
            break
        row *= outer.extent
        del steps[outer]
    return gcd(most, row, address.const, *steps.values())


def copy_cost(
    expr: Expr, tile: StagedTile, geometry: Geometry, together: int, width: int | None = None
) -> tuple[Count, Count]:
    """Return the instructions that move one element of a staged tile, `together` of which are moved at once, or `width`
    where their addresses are looked at, and how many lanes' stores meet in a bank.

    A vector moves where memory and tile run along the same axis.

    Elsewhere elements move one by one, or, with a single buffer, come as vectors and are stored one by one. A halo
    decodes its coordinates.
    """
    main = max(reads(expr), key=lambda r: len(expr_variables(r)))
    used = expr_variables(expr)
    axis, _ = running_axis(main)
    dims = [d for d in geometry.structure.dims if used.intersection(d) and any(a.extent > 1 for a in d)]
    loops = [geometry.structure.loops[k] for k in geometry.structure.reduces[tile.reduction]]
    loops = [d for d in loops if used.intersection(d)]
    straight = bool(dims) and axis == dims[-1][-1]
    turned = bool(loops) and axis == loops[0][-1]
    along = np.where(tile.turned, turned, straight)
    single = 1.0 / together + 1.0 if axis is not None else 2.0
    apart = np.where(np.greater(geometry.stages, 1), 1.0, single)
    cost = np.where(tile.halo, 3.0, np.where(along, 1.0 / (width or together), apart))
    depth = geometry.chunk[geometry.structure.reduces[tile.reduction][0]] if loops else 1
    ways = np.maximum(
        1.0, least(depth, 32) / np.where(np.equal(geometry.pad, 0), 1, np.where(np.less(geometry.pad, together), 32, 8))
    )
    return cost, np.where(np.logical_or(tile.halo, np.logical_or(along, not turned)), 1.0, ways)


def decoding_cost(read: Read, geometry: Geometry) -> float:
    """Return the instructions that a direct load takes besides itself: comparisons of its guards, division of flattened
    indices.
    """
    used = frozenset[object]().union(*(variables(i) for i in read.indices))
    flat = any(
        len(d) > 1 and len(used.intersection(d)) > 1 for d in (*geometry.structure.loops, *geometry.structure.dims)
    )
    return 2.0 * len(read.guards) + 4.0 * flat


def divides(read: Read, geometry: Geometry) -> Count:
    """Return 1 where an address takes divisions: a flattened loop has more than one axis that the read's indices tell
    apart.

    Where atoms multiply, threads divide only if a chunk is no part of the innermost axis: else all others stand still
    in it. (What the estimate takes for divisions elsewhere is fitted without that.)
    """
    used = frozenset[object]().union(*(variables(i) for i in read.indices))
    several = float(any(sum(a.extent > 1 and a in used for a in loop) > 1 for loop in geometry.structure.loops))
    if not geometry.structure.atom or not several:
        return several
    inner = [next(a.extent for a in reversed(loop) if a.extent > 1) for loop in geometry.structure.loops]
    return np.logical_or.reduce([extent % chunk != 0 for extent, chunk in zip(inner, geometry.chunk, strict=True)])


def wavefronts(target: Target, used: frozenset[object], instructions: Count, width: Count, geometry: Geometry) -> Count:
    """Return the least cycles that loads of all warps take: lanes that read one address share it."""
    distinct = geometry.once(("lanes of", used), lambda: _lanes_apart(target, used, geometry))
    per_warp = np.maximum(1.0, distinct * width / target.shared_bandwidth)
    return instructions * per_warp * geometry.warps(target.warp_size)


def _lanes_apart(target: Target, used: frozenset[object], geometry: Geometry) -> Count:
    """Return how many lanes of a warp differ in the used variables."""
    distinct: Count = 1.0
    if geometry.structure.lanes:
        loops = frozenset(axis for loop in geometry.structure.loops for axis in loop)
        distinct = least(target.warp_size, geometry.lanes) * 1.0 if used & loops else 1.0
    for dim, along in zip(geometry.structure.dims, geometry.lanes_along(target.warp_size), strict=True):
        if used.intersection(dim):
            distinct = distinct * along
    return distinct


def warp_lines(read: Read, shape: Sequence[int], unit: int, geometry: Geometry, target: Target) -> Count:
    """Return how many memory lines of `unit` elements one access of a warp touches; neighbours of a thread's vector
    count as one run.
    """
    cover = geometry.once(("warp", target.warp_size), lambda: _warp_cover(geometry, target.warp_size))
    return segments_of(read, shape, cover, unit)


def _warp_cover(geometry: Geometry, warp_size: int) -> Cover:
    """Return the cover of one access of a warp."""
    along = geometry.lanes_along(warp_size)
    cover = geometry.cover([a * v for a, v in zip(along, geometry.vector, strict=True)])
    if not geometry.structure.lanes:
        return cover
    row = least(warp_size, geometry.lanes) * geometry.row_vector
    loops = range(len(geometry.structure.loops))
    return cover.joined(geometry.loop_cover(loops, [row] * len(loops)))


def unmoved(read: Read, shape: Sequence[int], unit: int, geometry: Geometry, target: Target) -> Count:
    """Return how many elements one access of a warp does not move of the sectors of `unit` elements that it touches."""
    axis, _ = running_axis(read)
    dims = zip(geometry.structure.dims, geometry.lanes_along(target.warp_size), geometry.vector, strict=True)
    cover = geometry.cover([along * (vector if axis == dim[-1] else 1) for dim, along, vector in dims])
    return np.maximum(0.0, segments_of(read, shape, cover, unit) * float(unit) - elements(read, shape, cover))
