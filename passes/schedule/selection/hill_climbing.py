"""Hill climbing in large spaces, from a sample of a thinned space.

The search is deterministic: the sample is fixed, every round tries all values of one parameter at a time, ties go to
the earlier point. Points of a template are numbered in the order of their places, and none is scored twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import inf, prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from attrs import define, field, frozen

from ....ir import FusedGroup, Pruning, Target
from ...geometry import ScheduleParameter, ScheduleTemplate, distinct_values
from ..space import Space, make_space
from .enumerate import columns_of, evaluate, sample_possible_batches
from .prune import is_pruned, score

#: Points that are scored before refinement, divided among the templates.
SAMPLED_POINTS = 1 << 16
#: Points that are refined.
REFINED_POINTS = 32
#: Points of each template that are refined in any case, so that no template is judged by a poor sample.
TEMPLATE_LEADERS = 6
#: Most rounds of refinement; climbing stops as soon as the best points stay the same.
MAX_ROUNDS = 8
#: Most points of one tile among the results, where there are others.
MAX_PER_TILE = 3
#: Greatest ratio to the best score of a point that adds variety.
MAX_VARIETY_RATIO = 1.5
#: Templates of more points than this are numbered with integers of any length.
MAX_INT64_POINTS = 1 << 62
#: Points that are extracted from arrays at once.
EXTRACTED_POINTS = 256

_Array: TypeAlias = "np.ndarray[Any, Any]"


class Point(NamedTuple):
    """A scored point: its template, and the position of each parameter's value."""

    score: float
    structure: int
    places: tuple[int, ...]


def best_points(group: FusedGroup, target: Target, pruning: Pruning, count: int) -> tuple[Point, ...]:
    """Return the best legal points of a group's full space.

    They are those that a search finds, best first; none where sums have to be divided first.
    """
    coarse = make_space(group, target, coarse=True)
    if not coarse.templates:
        return ()
    full = make_space(group, target)
    wide = {s.segments: k for k, s in enumerate(full.templates)}
    climb = _Climb(full, pruning)
    for position, scores, rows in _seeds(coarse, max(REFINED_POINTS, count), pruning):
        structure = coarse.templates[position]
        place = wide[structure.segments]
        climb.add(place, scores, _embed(structure, full.templates[place], rows))
    most = len(climb.scores)
    for _ in range(MAX_ROUNDS):
        if not climb.refine(most):
            break
        most = max(REFINED_POINTS, count)
    return _select_varied(full, kept_points(climb.points()), count)


def kept_points(points: Iterable[Point]) -> Iterator[Point]:
    """Yield points, best first, up to a pruned one; at least one."""
    for number, point in enumerate(points):
        if number and is_pruned(point.score):
            return
        yield point


@define
class _Climb:
    """The legal points found so far: scores, templates, numbers, and which of them were `refined`. `known` are the
    scored numbers of each template, legal or not, in order.
    """

    space: Space
    pruning: Pruning
    scores: _Array = field(factory=lambda: np.zeros(0))
    structures: _Array = field(factory=lambda: np.zeros(0, dtype=np.int64))
    numbers: _Array = field(factory=lambda: np.zeros(0, dtype=np.int64))
    refined: _Array = field(factory=lambda: np.zeros(0, dtype=bool))
    known: dict[int, _Array] = field(factory=dict)

    def add(self, position: int, scores: _Array, numbers: _Array) -> None:
        """Add scored points of a template, with infinity where not legal."""
        legal = np.isfinite(scores)
        before = self.known.get(position, numbers[:0])
        self.known[position] = np.sort(np.concatenate([before, numbers]), kind="stable")  # two sorted runs
        self.scores = np.concatenate([self.scores, scores[legal]])
        self.structures = np.concatenate([self.structures, np.full(int(legal.sum()), position)])
        self.numbers = np.concatenate([self.numbers, numbers[legal]])
        self.refined = np.concatenate([self.refined, np.zeros(int(legal.sum()), dtype=bool)])

    def refine(self, most: int) -> bool:
        """Score the neighbours of the best points.

        Returns false where all of them were scored already.
        """
        best = self._best(most)
        fresh = best[~self.refined[best]]
        self.refined[fresh] = True
        structures, numbers = self.structures[fresh], self.numbers[fresh]
        for position in sorted(set(structures.tolist())):
            structure = self.space.templates[position]
            moves = _moves(structure, numbers[structures == position])
            moves = moves[~_are_among(moves, self.known[position])]
            self.add(position, _score(self.space, structure, moves, self.pruning), moves)
        return bool(len(fresh))

    def _best(self, most: int) -> _Array:
        """Return the positions of the best points, best first; ties in the order of the space."""
        among = np.arange(len(self.scores))
        if len(among) > most:
            among = np.flatnonzero(self.scores <= np.partition(self.scores, most - 1)[most - 1])
        return among[np.lexsort((self.numbers[among], self.structures[among], self.scores[among]))][:most]

    def points(self) -> Iterator[Point]:
        """Yield all points, best first."""
        order = self._best(len(self.scores))
        for start in range(0, len(order), EXTRACTED_POINTS):
            yield from self._some(order[start : start + EXTRACTED_POINTS])

    def _some(self, which: _Array) -> Iterator[Point]:
        structures = self.structures[which]
        places: dict[int, tuple[int, ...]] = {}
        for position in sorted(set(structures.tolist())):
            here = np.flatnonzero(structures == position)
            rows = _parameter_places(self.space.templates[position], self.numbers[which[here]]).tolist()
            places.update(zip(here.tolist(), map(tuple, rows), strict=True))
        for k, (value, position) in enumerate(zip(self.scores[which].tolist(), structures.tolist(), strict=True)):
            yield Point(value, position, places[k])


def _select_varied(space: Space, ordered: Iterable[Point], count: int) -> tuple[Point, ...]:
    """Return the first points under limits of variety, then others. The limits hold per tile, per tile and loop, per
    template, per thread tile, per block of matrix instructions, whose warps may lie in many ways, and per number of
    split-K warps.
    """
    limits = (MAX_PER_TILE, 1, max(1, 3 * count // 4), max(2, count // 3), max(2, count // 5), max(1, 3 * count // 4))
    seen: dict[tuple[object, ...], int] = {}
    chosen: list[Point] = []
    rest: list[Point] = []
    common: dict[int, _CommonKeys] = {}
    far = inf
    for point in ordered:
        if len(chosen) + len(rest) >= count and point.score > far:
            break
        keys = common.get(point.structure)
        if keys is None:
            keys = common[point.structure] = _CommonKeys.of(space.templates[point.structure])
        if not chosen and not rest and keys.depth is not None:
            far = MAX_VARIETY_RATIO * point.score  # similar points add less variety, but are better
        kinds = keys.of_point(point)
        fits = all(seen.get(kind, 0) < limit for kind, limit in zip(kinds, limits, strict=True))
        if fits:
            seen.update({kind: seen.get(kind, 0) + 1 for kind in kinds})
        (chosen if fits else rest).append(point)
        if len(chosen) == count:
            break
    return tuple(sorted([*chosen, *rest[: count - len(chosen)]]))


@frozen
class _CommonKeys:
    """Positions of a template's parameters that make points similar.

    They are the joint parameters, those of loops, those of tile dims, and the warps of a warp split-K, where there may
    be several.
    """

    values: tuple[tuple[tuple[int, ...], ...], ...]
    joint: tuple[int, ...]
    loops: tuple[int, ...]
    tiles: tuple[int, ...]
    depth: int | None
    mma: bool

    @staticmethod
    def of(structure: ScheduleTemplate) -> _CommonKeys:
        """Return the positions of a template's parameters."""
        names = list(enumerate(p.names for p in structure.parameters))
        return _CommonKeys(
            tuple(p.values for p in structure.parameters),
            tuple(n for n, each in names if len(each) > 1),
            tuple(n for n, each in names if each[0].partition(".")[2][:1] in ("c", "l", "s")),
            tuple(n for n, each in names if len(each) == 3),
            _depth_knob(structure),
            any(segment.mma for segment in structure.segments),
        )

    def of_point(self, point: Point) -> tuple[tuple[object, ...], ...]:
        """Return the keys that a point shares with similar points.

        They have the order of the limits.
        """
        position, places, values = point.structure, point.places, self.values
        alone = position, places
        warps = alone if self.depth is None else ("warps", *values[self.depth][places[self.depth]])
        tile = (position, warps, *(values[n][places[n]][:2] for n in self.joint))
        tiles = [values[n][places[n]] for n in self.tiles]
        block = tuple(threads * each for threads, each, _ in tiles) if self.mma else alone
        thread = tuple(each for _, each, _ in tiles)
        return (
            (tile,),
            (tile, tuple(places[n] for n in self.loops)),
            (position,),
            ("thread", thread),
            ("block", block),
            warps,
        )


def _seeds(space: Space, count: int, pruning: Pruning) -> Iterator[tuple[int, _Array, _Array]]:
    """Yield the best points of a sample, and the leaders of every template: position of the template, scores, and rows
    of places.
    """
    each = max(2048, min(16384, SAMPLED_POINTS // len(space.templates)))
    found: list[tuple[int, _Array, _Array]] = []
    for position, batch in enumerate(sample_possible_batches(space, each)):
        values = score(batch, space, pruning)
        assert batch.points is not None, "samples name their points"
        first = _smallest(values, count)
        found.append((position, values[first], batch.points[first]))
    scores, positions = (
        np.concatenate(parts)
        for parts in (
            [scores for _, scores, _ in found],
            [np.full(len(scores), position) for position, scores, _ in found],
        )
    )
    best = np.zeros(len(scores), dtype=bool)
    best[np.lexsort((positions, scores))[:count]] = True
    for position, scores, points in found:
        kept = best[positions == position]
        kept[:TEMPLATE_LEADERS] = True
        structure = space.templates[position]
        places = _parameter_places(structure, points)
        for same in _by_warps(structure, places):
            kept[np.flatnonzero(same)[:TEMPLATE_LEADERS]] = True
        yield position, scores[kept], places[kept]


def _smallest(values: _Array, count: int) -> _Array:
    """Return the positions of the smallest finite values in order, the first of equal ones first."""
    few = np.flatnonzero(np.isfinite(values))
    if len(few) > count:
        few = few[values[few] <= np.partition(values[few], count - 1)[count - 1]]
    return few[np.argsort(values[few], kind="stable")][:count]


def _are_among(numbers: _Array, known: _Array) -> _Array:
    """Return which numbers are among `known` ones, in order."""
    place = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
    return np.asarray(known[place] == numbers)


def _by_warps(structure: ScheduleTemplate, places: _Array) -> list[_Array]:
    """Return the points of each number of split-K warps; nothing where no point has several."""
    axis = _depth_knob(structure)
    return [] if axis is None else [places[:, axis] == value for value in range(structure.shape[axis])]


def _depth_knob(structure: ScheduleTemplate) -> int | None:
    """Return the parameter of the warps of a warp split-K; None where there is none."""
    if not any(segment.mma for segment in structure.segments):
        return None
    found = (
        n for n, k in enumerate(structure.parameters) if k.names[0].endswith(".reduction_threads") and len(k.values) > 1
    )
    return next(found, None)


def _embed(coarse: ScheduleTemplate, full: ScheduleTemplate, rows: _Array) -> _Array:
    """Return the numbers of points in the full space that have some places in the thinned one."""
    found = np.zeros_like(rows)
    for axis, (thin, knob) in enumerate(zip(coarse.parameters, full.parameters, strict=True)):
        where = {value: place for place, value in enumerate(knob.values)}
        found[:, axis] = np.asarray([where[value] for value in thin.values])[rows[:, axis]]
    return np.asarray(found @ _weights(full))


def _weights(structure: ScheduleTemplate) -> _Array:
    """Return the stride of a point's number along each parameter."""
    shape = structure.shape
    kind = np.int64 if structure.size <= MAX_INT64_POINTS else object
    return np.asarray([prod(shape[axis + 1 :]) for axis in range(len(shape))], dtype=kind)


def _parameter_places(structure: ScheduleTemplate, numbers: _Array) -> _Array:
    """Return the places of each parameter, a row per point."""
    weights, shape = _weights(structure), structure.shape
    places = numbers[:, None] // weights % np.asarray(shape, dtype=weights.dtype)
    return np.asarray(places, dtype=np.int64)


def _score(space: Space, structure: ScheduleTemplate, numbers: _Array, pruning: Pruning) -> _Array:
    """Return the scores of points, infinity where they are not legal."""
    if not len(numbers):
        return np.zeros(0)
    batch = evaluate(space, structure, columns_of(structure, _parameter_places(structure, numbers)), 0)
    return np.broadcast_to(score(batch, space, pruning), numbers.shape)


def neighbours(space: Space, points: Sequence[Point], pruning: Pruning) -> set[Point]:
    """Return scored legal points that differ in one parameter."""
    climb = _Climb(space, pruning)
    for position in sorted({p.structure for p in points}):
        structure = space.templates[position]
        rows = np.asarray([p.places for p in points if p.structure == position], dtype=np.int64)
        moves = _moves(structure, rows @ _weights(structure))
        climb.add(position, _score(space, structure, moves, pruning), moves)
    return {point for point in climb.points() if not is_pruned(point.score)}


def _moves(structure: ScheduleTemplate, numbers: _Array) -> _Array:
    """Return the numbers of the points that differ in one parameter from those given, in order."""
    rows, found = _parameter_places(structure, numbers), [numbers[:0]]
    for axis, (knob, weight) in enumerate(zip(structure.parameters, _weights(structure), strict=True)):
        point, place = np.nonzero(_siblings(knob)[rows[:, axis]])
        steps = (place - rows[point, axis]).astype(numbers.dtype)  # of any length where numbers are
        found.append(numbers[point] + steps * weight)
    return distinct_values(np.concatenate(found))


@lru_cache(maxsize=4096)
def _siblings(knob: ScheduleParameter) -> _Array:
    """Return for each two values of a joint parameter whether they differ in one component.

    Threads and their tile also change together, so that the block stays as it is. Runs of neighbours, whose vector is
    the whole thread tile, change both together, and may keep the block while they do.
    """
    table = knob.table.T
    near = (table[:, None, :] != table[None, :, :]).sum(axis=2) == 1
    if table.shape[1] == 3:
        threads, tile, vector = table.T
        block = threads * tile
        near |= (
            np.equal(block[:, None], block[None, :])
            & np.equal(vector[:, None], vector[None, :])
            & ~np.eye(len(table), dtype=bool)
        )
        run = np.equal(tile, vector) & np.greater(tile, 1)
        near |= run[:, None] & np.not_equal(table[:, None, 1], table[None, :, 1]) & run[None, :]
        near |= run[None, :] & np.equal(table[:, None, 0], table[None, :, 0]) & ~np.eye(len(table), dtype=bool)
    return np.asarray(near)
