"""How the threads of a block share an expression: covers of its axes, width of accesses, cycles that a warp's loads
take.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

import numpy as np
from attrs import frozen

from ...ir import (
    WIDEST_BYTES,
    Expr,
    FusedGroup,
    Index,
    Read,
    Target,
    Var,
    as_index,
    expr_variables,
    linearise,
    reads,
    variables,
)
from ..lowering import LARGEST, ROW_STEPS, in_rows
from .footprint import Count, Cover, ceil_div, elements, is_scattered, least, product, scattered, segments_of
from .geometry import Geometry
from .tiles import StagedTile

#: What a memory line weighs that data names, beside those of a run: 33.5 million loads of random points, of which L1
#: held most, took 85 us on an H200, half a clock each.
APART = 4.0


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

    @property
    def rows(self) -> tuple[tuple[Var, ...], ...]:
        """The loops that it is inside of."""
        return self.thread.dims[self.parallel :]

    def repeats(self, used: frozenset[object]) -> Count:
        """How many trips compute something new that depends on the used variables."""
        loops = zip(self.rows, self.trips, strict=True)
        return product(t for dim, t in loops if used.intersection(dim))

    def distinct(self, read: Read, shape: Sequence[int]) -> Count:
        """How many different elements a thread reads in one trip: neighbours of a run share halos, runs far apart do
        not.
        """
        return least(elements(read, shape, self.run) * self._runs(read), elements(read, shape, self.block))

    def loads(self, read: Read, shape: Sequence[int]) -> Count:
        """How many elements a thread loads in one trip: each once, unless that is more than it holds; then each once in
        each turn of the outermost loop, or, where even that is too many, for each use.
        """
        once = self.distinct(read, shape)
        if len(self.trips) < 2:
            return once
        used, runs = frozenset[Var]().union(*(variables(i) for i in read.indices)), self._runs(read)
        turn = elements(read, shape, self.step)
        anew = np.where(np.greater(turn, LARGEST), self.run.dependent(used), turn * self.turns) * runs
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
    loops = tuple(geometry.structure.loops[k] for k in which)
    return _place(geometry, loops, tuple(geometry.chunk[k] for k in which), tuple(geometry.trips[k] for k in which))


def output_place(geometry: Geometry, row: tuple[Var, ...]) -> Place:
    """Return the place of an output along a row: that of the loop over it, else of a loop of its own, or of none."""
    if not row or row in geometry.structure.loops:
        return place_of(geometry, [geometry.structure.loops.index(row)] if row else [])
    length = prod(a.extent for a in row)
    step = geometry.lanes * geometry.row_vector
    chunk = least(ROW_STEPS, ceil_div(length, step)) * step
    return _place(geometry, (row,), (chunk,), (ceil_div(length, chunk),))


def _place(
    geometry: Geometry, loops: tuple[tuple[Var, ...], ...], chunk: tuple[Count, ...], trips: tuple[Count, ...]
) -> Place:
    per_lane = tuple(ceil_div(c, geometry.lanes) for c in chunk)
    turn = (1, *per_lane[1:]) if len(loops) > 1 else per_lane
    stepped = Cover(loops, turn, Cover.of(loops, turn).extents)
    padded = Cover(geometry.structure.dims, geometry.thread, geometry.thread_cover.extents)
    lane = Cover(loops, per_lane, Cover.of(loops, per_lane).extents)
    block = geometry.block_cover
    groups, run = geometry.once("runs", lambda: _runs(geometry))
    return Place(
        padded.joined(lane),
        run.joined(lane),
        groups,
        block.joined(Cover.of(loops, chunk)),
        block.joined(Cover.of(loops, [prod(a.extent for a in loop) for loop in loops])),
        trips,
        len(geometry.structure.dims),
        geometry.threads,
        run.joined(stepped),
        per_lane[0] if loops else 1,
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


def access_vector(read: Read, geometry: Geometry, widest: int, rows: tuple[tuple[Var, ...], ...] = ()) -> Count:
    """Return how many elements one access moves: the vector of the dim whose last axis runs along the innermost tensor
    dim, or of the lanes along one of `rows`.
    """
    axis, step = running_axis(read)
    if axis is None:
        return 1
    widest = gcd(widest, step)
    for dim, vector in zip(geometry.structure.dims, geometry.vector, strict=True):
        if axis == dim[-1]:
            return np.gcd(vector, widest)
    if geometry.structure.lanes and any(axis == loop[-1] for loop in (*geometry.structure.loops, *rows)):
        return np.gcd(geometry.row_vector, widest)
    return 1


def passed_vector(group: FusedGroup, read: Read, geometry: Geometry, widest: int) -> Count:
    """Return how many neighbours along a row that an earlier segment left a step of a reduction over it loads at
    once.
    """
    axis, _ = running_axis(read)
    if geometry.structure.lanes or not in_rows(group, read.tensor):
        return 1
    loops = zip(geometry.structure.loops, geometry.chunk, strict=True)
    return next((np.gcd(chunk, widest) for loop, chunk in loops if (axis,) == loop), 1)


def row_ways(geometry: Geometry, target: Target) -> Count:
    """Return how many lanes of one turn of an access meet in a bank where lanes read rows that an earlier segment left,
    an odd multiple of 16 bytes apart: as many rows as lie over one another, each as long as its lanes take of it.
    """
    if not target.banked:
        return 1
    turn = np.maximum(1, target.warp_size // np.maximum(1, geometry.row_vector))
    rows = np.maximum(1, turn // geometry.lanes)
    length = least(turn, geometry.lanes) * geometry.row_vector
    return np.maximum(least(rows, ceil_div(length, 4)), ceil_div(rows * 4, target.warp_size)) * 1.0


def tile_vector(expr: Expr, tile: StagedTile, geometry: Geometry) -> Count:
    """Return how many neighbours of a staged tile a thread loads at once: along the innermost tile dim, or, of a tile
    that is turned round, along the depth; of a box, along a tile dim that its innermost coordinate is.
    """
    used = expr_variables(expr)
    for dim, vector in zip(reversed(geometry.structure.dims), reversed(geometry.vector), strict=True):
        if used.intersection(dim) and any(a.extent > 1 for a in dim):
            aligned = np.equal(geometry.pad % np.maximum(vector, 1), 0)
            natural = np.where(aligned, vector, 1)
            box = box_vector(expr, tile, geometry) if np.any(tile.halo) else 1
            return np.where(tile.halo, box, np.where(tile.turned, depth_vector(expr, tile, geometry), natural))
    return 1


def box_vector(expr: Expr, tile: StagedTile, geometry: Geometry) -> Count:
    """Return how many neighbours of a box a thread loads at once: those of a tile dim that is the last index of what is
    read, or the first one, of a box that is turned round, alone.
    """
    indices = [i for i in _main(expr).indices if any(a.extent > 1 for a in variables(i))] or [Index()]
    first, last = (_vector_along(i, geometry) for i in (indices[0], indices[-1]))
    found = np.where(tile.turned, first, last)
    return np.where(np.equal(geometry.pad % np.maximum(found, 1), 0), found, 1)


def _vector_along(index: Index, geometry: Geometry) -> Count:
    """Return the vector of the tile dim that an index is, 1 where it is more than that or something else."""
    dims = zip(geometry.structure.dims, geometry.vector, strict=True)
    return next((vector for dim, vector in dims if index == as_index(dim[-1])), 1)


def _main(expr: Expr) -> Read:
    """Return the read of an operand that depends on most axes."""
    return max(reads(expr), key=lambda r: len(expr_variables(r)))


def carried_vector(expr: Expr, tile: StagedTile, geometry: Geometry) -> Count:
    """Return how many neighbours of a staged tile threads carry and store at once, 1 where they carry none."""
    if not np.any(tile.carried):
        return np.int64(1)
    used, whole = expr_variables(expr), WIDEST_BYTES // tile.size
    dims = zip(geometry.structure.dims, geometry.block, strict=True)
    inner = [block for dim, block in dims if used.intersection(dim) and any(a.extent > 1 for a in dim)]
    width = np.gcd(np.gcd(inner[-1] if inner else 1, geometry.pad), whole)
    return np.where(np.logical_and(tile.carried, np.logical_not(tile.halo)), width, 1)


def depth_vector(expr: Expr, tile: StagedTile, geometry: Geometry) -> Count:
    """Return how many neighbours along the depth of a tile that is turned round a thread loads at once."""
    whole = WIDEST_BYTES // tile.size
    depth = _innermost_chunk(expr, tile, geometry)
    return np.where(np.equal(depth % whole, 0) & np.equal(geometry.pad % whole, 0), whole, 1)


def held_deep(expr: Expr, tile: StagedTile, geometry: Geometry) -> Count:
    """Return how many elements of each row of a tile that is turned round a thread holds at once: vectors along the
    depth are used up by the innermost loop, or kept while the loops inside of theirs run.
    """
    steps = product([geometry.chunk[k] for k in _used_loops(expr, tile, geometry)])
    vector = depth_vector(expr, tile, geometry)
    return np.where(np.greater(vector, 1), vector * (steps // _innermost_chunk(expr, tile, geometry)), 1)


def _used_loops(expr: Expr, tile: StagedTile, geometry: Geometry) -> list[int]:
    """Return the loops of a tile's reduction that it has coordinates for."""
    used = expr_variables(expr)
    return [k for k in geometry.structure.reduces[tile.reduction] if used.intersection(geometry.structure.loops[k])]


def _innermost_chunk(expr: Expr, tile: StagedTile, geometry: Geometry) -> Count:
    """Return the extent of the innermost coordinate of a tile that is turned round: the first loop's of several
    elements.
    """
    found: Count = 1
    for k in reversed(_used_loops(expr, tile, geometry)):
        found = np.where(np.greater(geometry.chunk[k], 1), geometry.chunk[k], found)
    return found


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


def walks_evenly(read: Read, shape: Sequence[int], tile: StagedTile, geometry: Geometry) -> Count:
    """Return where a thread fetches the same elements of a flattened loop in each of its copies of a trip, so that one
    division serves them all: memory runs along that loop, and the threads take whole chunks at a time.
    """
    walked = _walked(read, shape, _used_loops(tile.expr, tile, geometry), geometry)
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
    for _, size, _ in _walked(read, shape, _used_loops(tile.expr, tile, geometry), geometry):
        whole, part = np.equal(left % np.maximum(size, 1), 0), np.equal(size % np.maximum(left, 1), 0)
        even = np.logical_and(even, np.logical_or(whole, part))
        left = np.where(whole, left // np.maximum(size, 1), 1)
    return even


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
    expr: Expr, tile: StagedTile, shape: Sequence[int], geometry: Geometry, together: int, width: int | None = None
) -> tuple[Count, Count]:
    """Return the instructions that move one element of a staged tile, `together` of which are moved at once, or `width`
    where their addresses are looked at, and how many lanes' stores meet in a bank; `shape` is that of the tensor.

    A vector moves where memory and tile run along the same axis. Elsewhere elements move one by one, or, with a single
    buffer, come as vectors and are stored one by one, or, where threads carry them, come one by one and are stored as
    vectors. A halo decodes its coordinates, but where it is a box whose rows
    are as those of the tensor.
    """
    main = _main(expr)
    used = expr_variables(expr)
    axis, _ = running_axis(main)
    dims = [d for d in geometry.structure.dims if used.intersection(d) and any(a.extent > 1 for a in d)]
    loops = _used_loops(expr, tile, geometry)
    straight = bool(dims) and axis == dims[-1][-1]
    turned: Count = np.bool_(False)
    for k in reversed(loops):
        turned = np.where(np.greater(geometry.chunk[k], 1), axis == geometry.structure.loops[k][-1], turned)
    wide = np.where(tile.turned, turned, straight)
    deep = copied_width(main, shape, geometry, together)  # rows of an odd length begin anywhere
    moved = np.where(tile.turned, np.gcd(width or deep, _innermost_chunk(expr, tile, geometry)), width or together)
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


def warp_lines(read: Read, shape: Sequence[int], unit: int, place: Place, geometry: Geometry, target: Target) -> Count:
    """Return how many memory lines of `unit` elements one access of a warp touches; neighbours of a thread's vector
    count as one run. Where data says where each element lies, an access moves one for each lane, and lines weigh more.
    """
    loops = tuple(dict.fromkeys((*geometry.structure.loops, *place.rows)))
    lanes = target.warp_size
    cover = geometry.once(("warp", lanes, loops), lambda: _warp_cover(geometry, lanes, loops, geometry.vector))
    found = segments_of(read, shape, cover, unit)
    if not is_scattered(read):
        return found
    single = (1,) * len(geometry.vector)
    cover = geometry.once(("lanes", lanes, loops), lambda: _warp_cover(geometry, lanes, loops, single))
    return np.maximum(found, APART * scattered(read, shape, cover, unit))


def _warp_cover(geometry: Geometry, warp_size: int, loops: Sequence[tuple[Var, ...]], vector: Sequence[Count]) -> Cover:
    """Return the cover of one access of a warp, whose lanes may lie along any of some loops."""
    along = geometry.lanes_along(warp_size)
    cover = geometry.cover([a * v for a, v in zip(along, vector, strict=True)])
    if not geometry.structure.lanes:
        return cover
    row = least(warp_size, geometry.lanes) * (geometry.row_vector if vector is geometry.vector else 1)
    return cover.joined(Cover.of(loops, [row] * len(loops)))


def unmoved(read: Read, shape: Sequence[int], unit: int, geometry: Geometry, target: Target) -> Count:
    """Return how many elements one access of a warp does not move of the sectors of `unit` elements that it touches."""
    axis, _ = running_axis(read)
    dims = zip(geometry.structure.dims, geometry.lanes_along(target.warp_size), geometry.vector, strict=True)
    cover = geometry.cover([along * (vector if axis == dim[-1] else 1) for dim, along, vector in dims])
    return np.maximum(0.0, segments_of(read, shape, cover, unit) * float(unit) - elements(read, shape, cover))
