"""Evaluation sites of expressions, and the elements that a thread reads there."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import ceil, prod
from typing import Any

import numpy as np
from attrs import evolve, field, frozen

from ....ir import FloorDiv, Index, Mod, Read, Reduction, Segment, TensorType, Var, primaries
from ...geometry import (
    Count,
    Cover,
    Geometry,
    ceil_div,
    data_end,
    elements,
    least,
    places_of,
    product,
)
from ...lowering import ROW_STEPS, max_window_elements

#: Most loads of a thread in one trip of a loop that is unrolled whole.
UNROLLED_LOADS = 192


@frozen
class EvaluationSite:
    """Evaluation site of an expression.

    It has the parts of one trip that a thread and a block go through, the trips of each loop, and their chunks. A
    thread's elements along a dim are `groups` runs of neighbours (in the order of `TileDim`): `thread` counts all of
    them, `run` covers one run, `step` its part in one iteration of the outermost loop, which has `tiles` iterations in
    a trip. `whole` covers all trips of a block.
    """

    thread: Cover
    run: Cover
    groups: tuple[Count, ...]
    block: Cover
    whole: Cover
    trips: tuple[Count, ...]
    chunks: tuple[Count, ...]
    parallel: int
    threads: Count
    step: Cover
    tiles: Count
    known: dict[Hashable, Any] = field(factory=dict, init=False, eq=False, repr=False)

    def _memoise(self, key: Hashable, make: Callable[[], Count]) -> Count:
        """Return the memoised count of a key that many reads have in common."""
        if key not in self.known:
            self.known[key] = make()
        return self.known[key]

    @property
    def rows(self) -> tuple[tuple[Var, ...], ...]:
        """Enclosing loops."""
        return self.thread.dims[self.parallel :]

    def repeats(self, used: frozenset[object]) -> Count:
        """Return the trips with new values of the used variables."""
        return self._memoise(used, lambda: self._repeats(used))

    def evaluations(self, used: frozenset[Var]) -> Count:
        """Return how often a thread computes a value of used variables."""
        return self._memoise(("computed", used), lambda: self.thread.dependent(used) * self.repeats(used))

    def _repeats(self, used: frozenset[object]) -> Count:
        loops = zip(self.rows, self.trips, strict=True)
        return product(t for dim, t in loops if not used.isdisjoint(dim))

    def distinct(self, read: Read, shape: Sequence[int]) -> Count:
        """Return the distinct elements that a thread reads in one trip.

        Neighbours of a run share halos, distant runs do not.
        """
        return self._memoise(("distinct", read.indices, tuple(shape)), lambda: self._distinct(read, shape))

    def _distinct(self, read: Read, shape: Sequence[int]) -> Count:
        return least(elements(read, shape, self.run) * self._runs(read), elements(read, shape, self.block))

    def loads(self, read: Read, type_: TensorType) -> Count:
        """Return the elements that a thread loads in one trip.

        It loads each once, unless that exceeds its registers; then each once in each iteration of the outermost of
        several loops, or, if that is too many as well, for each use. It loads for each use, too, where a loop's last
        trip is cut, and where quotients of neighbours differ among threads.
        """
        most = max_window_elements(type_.dtype)
        return self._memoise(("loads", read.indices, type_.steps, most), lambda: self._loads(read, type_.steps, most))

    def _loads(self, read: Read, shape: Sequence[int], most: int) -> Count:
        once = self.distinct(read, shape)
        if not self.trips or (len(self.trips) == 1 and len(self.rows[0]) > 1):
            return once
        used, runs = places_of(read.indices), self._runs(read)
        uses, many = self.run.dependent(used) * runs, np.greater(once, most)
        if len(self.trips) == 1:  # a compiler merges equal loads of loops that it unrolls
            each, many = uses, many & np.greater(uses, UNROLLED_LOADS)
        else:
            turn = elements(read, shape, self.step)
            each = np.where(np.greater(turn, most), uses, turn * self.tiles * runs)
        alone = _varies_by_thread(read.indices, self.run)
        for loop, trips, chunk in zip(self.rows, self.trips, self.chunks, strict=True):
            if not used.isdisjoint(loop):
                alone = alone | np.greater(trips * chunk, prod(v.extent for v in loop))
        return np.where(alone, uses, np.where(many, np.maximum(once, each), once))

    def _runs(self, read: Read) -> Count:
        used = places_of(read.indices)
        return product(g for dim, g in zip(self.thread.dims, self.groups, strict=False) if not used.isdisjoint(dim))

    @property
    def all_trips(self) -> Count:
        """Trips of all loops."""
        return product(self.trips)


def _varies_by_thread(indices: Sequence[Index], cover: Cover) -> Count:
    """Return where quotients of a thread's neighbours differ by thread.

    Those by 7 of four neighbours each do: no thread's first one is a multiple of 7.
    """
    found: Count = False
    for primary in (p for index in indices for p in primaries(index) if isinstance(p, FloorDiv | Mod)):
        for variable, factor in primary.num.terms:
            if isinstance(variable, Var) and variable.extent > 1:
                run = cover.extents.get(variable, 1)
                step = np.maximum(1, abs(factor) * run)
                whole = np.equal(step % primary.den, 0)
                part = np.equal(primary.den % step, 0) & np.equal(primary.num.const % step, 0)
                found = found | (np.greater(run, 1) & np.less(run, variable.extent) & ~(whole | part))
    return found


def evaluation_site(geometry: Geometry, which: Sequence[int]) -> EvaluationSite:
    """Return the evaluation site inside some loops of a segment."""
    return geometry.once(("place", tuple(which)), lambda: _place_of(geometry, which))


def ended_site(
    place: EvaluationSite, segment: Segment, reduction: Reduction, geometry: Geometry, tensors: Mapping[str, TensorType]
) -> EvaluationSite:
    """Return the site of a loop that data end, with average trips.

    A loop without staged operands ends for each thread that has one element of the axes on which the end depends.
    """
    ends = data_end(reduction, segment.axes, tensors)
    structure = geometry.structure
    if ends is None or len(place.trips) != 1 or structure.stages_any or structure.mma:
        return place
    dims = zip(structure.dims, geometry.thread, strict=True)
    alone = product(np.equal(thread, 1) for dim, thread in dims if not ends.axes.isdisjoint(dim))
    (chunk,), (trips,), loops = place.chunks, place.trips, place.rows
    extent = prod(a.extent for a in loops[0])
    terms = min(ends.terms, extent)
    whole = geometry.block_cover.join(Cover.of(loops, [np.where(alone, terms if terms < 1 else ceil(terms), extent)]))
    return evolve(place, whole=whole, trips=(np.where(alone, least(terms, np.ceil(terms / chunk)), trips),))


def _place_of(geometry: Geometry, which: Sequence[int]) -> EvaluationSite:
    loops = tuple(geometry.structure.loops[k] for k in which)
    return _evaluation_site(
        geometry, loops, tuple(geometry.block_k[k] for k in which), tuple(geometry.trips[k] for k in which)
    )


def output_site(geometry: Geometry, row: tuple[Var, ...]) -> EvaluationSite:
    """Return the evaluation site of an output along a row.

    It is that of the loop over the row, else of a loop of its own, or of none.
    """
    if not row or row in geometry.structure.loops:
        return evaluation_site(geometry, [geometry.structure.loops.index(row)] if row else [])
    length = prod(a.extent for a in row)
    step = geometry.reduction_threads * geometry.row_vector
    chunk = least(ROW_STEPS, ceil_div(length, step)) * step
    return _evaluation_site(geometry, (row,), (chunk,), (ceil_div(length, chunk),))


def _evaluation_site(
    geometry: Geometry, loops: tuple[tuple[Var, ...], ...], chunk: tuple[Count, ...], trips: tuple[Count, ...]
) -> EvaluationSite:
    per_lane = tuple(ceil_div(c, geometry.reduction_threads) for c in chunk)
    turn = (1, *per_lane[1:]) if len(loops) > 1 else per_lane
    stepped = Cover(loops, turn, Cover.of(loops, turn).extents)
    padded = Cover(geometry.structure.dims, geometry.thread, geometry.thread_cover.extents)
    lane = Cover(loops, per_lane, Cover.of(loops, per_lane).extents)
    block = geometry.block_cover
    groups, run = geometry.once("runs", lambda: _runs(geometry))
    return EvaluationSite(
        padded.join(lane),
        run.join(lane),
        groups,
        block.join(Cover.of(loops, chunk)),
        block.join(Cover.of(loops, [prod(a.extent for a in loop) for loop in loops])),
        trips,
        chunk,
        len(geometry.structure.dims),
        geometry.threads,
        run.join(stepped),
        per_lane[0] if loops else 1,
    )


def _runs(geometry: Geometry) -> tuple[tuple[Count, ...], Cover]:
    """Return the runs of neighbours of a thread along each dim, and the cover of one."""
    sizes = zip(geometry.counts, geometry.thread, geometry.vector, strict=True)
    runs = [np.where(np.equal(count, 1), thread, vector) for count, thread, vector in sizes]
    groups = tuple(thread // run for thread, run in zip(geometry.thread, runs, strict=True))
    return groups, geometry.cover(runs)
