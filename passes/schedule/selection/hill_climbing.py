"""Hill climbing in large spaces, from a sample of a thinned space.

The search is deterministic: the sample is fixed, every round tries all values of one parameter at a time, ties go to
the earlier point. Points of a template are numbered in the order of their places, and none is scored twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from attrs import define, field

from ....ir import FusedGroup, Pruning, Target
from ...geometry import ScheduleParameter, ScheduleTemplate, distinct_values
from ..space import Space, make_space
from .enumerate import columns_of, evaluate, sample_possible_batches
from .known_scores import KnownScores, are_among
from .prune import is_pruned, score
from .varied_points import depth_parameter, varied_points

#: Points that are scored before refinement, divided among the templates.
SAMPLED_POINTS = 1 << 16
#: Points that are refined.
REFINED_POINTS = 32
#: Points of a template's sample that are remembered for further searches.
MAX_SEEDS = 64
#: Points of each template that are refined in any case, so that no template is judged by a poor sample.
TEMPLATE_LEADERS = 6
#: Most rounds of refinement; climbing stops as soon as the best points stay the same.
MAX_ROUNDS = 8
#: Templates of more points than this are numbered with integers of any length.
MAX_INT64_POINTS = 1 << 62

_Array: TypeAlias = "np.ndarray[Any, Any]"


class Point(NamedTuple):
    """A scored point: its template, and the position of each parameter's value."""

    score: float
    structure: int
    places: tuple[int, ...]


def best_points(
    group: FusedGroup, target: Target, pruning: Pruning, count: int, known: KnownScores | None = None
) -> tuple[Point, ...]:
    """Return the best legal points of a group's full space.

    They are those that a search finds, best first; none where sums have to be divided first. Earlier searches of equal
    groups share the scores that are `known`.
    """
    coarse = make_space(group, target, coarse=True)
    if not coarse.templates:
        return ()
    full = make_space(group, target)
    wide = {s.segments: k for k, s in enumerate(full.templates)}
    climb = _Climb(full, pruning, known or KnownScores())
    for position, scores, rows in _seeds(coarse, max(REFINED_POINTS, count), pruning, climb.earlier):
        structure = coarse.templates[position]
        place = wide[structure.segments]
        climb.add(place, scores, _embed(structure, full.templates[place], rows))
    most = len(climb.scores)
    for _ in range(MAX_ROUNDS):
        if not climb.refine(most):
            break
        most = max(REFINED_POINTS, count)
    return tuple(sorted(climb.points(climb.choose_varied(count))))


@define
class _Climb:
    """The legal points found so far: scores, templates, numbers, and which of them were `refined`. `known` are the
    scored numbers of each template, legal or not, in order.
    """

    space: Space
    pruning: Pruning
    earlier: KnownScores = field(factory=KnownScores)
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
            moves = moves[~are_among(moves, self.known[position])]
            score_points = partial(_score, self.space, structure, pruning=self.pruning)
            self.add(position, self.earlier.of(position, moves, score_points), moves)
        return bool(len(fresh))

    def _best(self, most: int) -> _Array:
        """Return the positions of the best points, best first; ties in the order of the space."""
        among = np.arange(len(self.scores))
        if len(among) > most:
            among = np.flatnonzero(self.scores <= np.partition(self.scores, most - 1)[most - 1])
        return among[np.lexsort((self.numbers[among], self.structures[among], self.scores[among]))][:most]

    def choose_varied(self, count: int) -> _Array:
        """Return the positions of varied good points, up to a pruned one."""
        order = self._best(len(self.scores))
        pruned = np.flatnonzero(is_pruned(self.scores[order[1:]]))
        order = order[: pruned[0] + 1] if len(pruned) else order
        numbers = self.numbers[order]

        def places(position: int, which: _Array) -> _Array:
            return _parameter_places(self.space.templates[position], numbers[which])

        templates = self.space.templates
        return order[varied_points(templates, self.scores[order], self.structures[order], places, count)]

    def points(self, which: _Array | None = None) -> Iterator[Point]:
        """Yield some points, or all."""
        chosen = np.arange(len(self.scores)) if which is None else which
        for position in sorted(set(self.structures[chosen].tolist())):
            here = chosen[self.structures[chosen] == position]
            rows = _parameter_places(self.space.templates[position], self.numbers[here]).tolist()
            for value, row in zip(self.scores[here].tolist(), rows, strict=True):
                yield Point(value, position, tuple(row))


def _seeds(space: Space, count: int, pruning: Pruning, known: KnownScores) -> Iterator[tuple[int, _Array, _Array]]:
    """Yield the best points of a sample, and the leaders of every template: position of the template, scores, and rows
    of places.
    """
    samples = known.sample(count, lambda most: [*_best_sampled(space, most, pruning)], MAX_SEEDS)
    found = [(position, *sample) for position, sample in enumerate(samples)]
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


def _best_sampled(space: Space, count: int, pruning: Pruning) -> Iterator[tuple[_Array, _Array]]:
    """Yield scores and numbers of the best points of each template's sample."""
    each = max(2048, min(16384, SAMPLED_POINTS // len(space.templates)))
    for batch in sample_possible_batches(space, each):
        values = score(batch, space, pruning)
        assert batch.points is not None, "samples name their points"
        first = _smallest(values, count)
        yield values[first], batch.points[first]


def _smallest(values: _Array, count: int) -> _Array:
    """Return the positions of the smallest finite values in order, the first of equal ones first."""
    few = np.flatnonzero(np.isfinite(values))
    if len(few) > count:
        few = few[values[few] <= np.partition(values[few], count - 1)[count - 1]]
    return few[np.argsort(values[few], kind="stable")][:count]


def _by_warps(structure: ScheduleTemplate, places: _Array) -> list[_Array]:
    """Return the points of each number of split-K warps; nothing where no point has several."""
    axis = depth_parameter(structure)
    return [] if axis is None else [places[:, axis] == value for value in range(structure.shape[axis])]


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
