"""Finding the best points of a space too large to score whole: a fixed sample of a thinned space, then hill climbing in
the full one.

Everything is deterministic: the sample is fixed, every round tries all values of one parameter at a time, ties go to
the earlier point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ...ir import FusedGroup, Target
from ..model import Knob, SegmentStructure, Structure
from .enumerate import columns_of, evaluate, sampled
from .prune import score
from .space import Space, make_space

#: Points that are scored before refinement, divided among the structures.
SAMPLE = 1 << 16
#: Points that are refined.
SEEDS = 32
#: Points of each structure that are refined in any case, so that no structure is judged by a poor sample.
LEADERS = 6
#: Most rounds of refinement; climbing stops as soon as the best points stay the same.
ROUNDS = 8
#: Most points of one tile among those returned, where there are others.
PER_TILE = 3


class Point(NamedTuple):
    """A scored point: position of its structure within the space, and of each knob's value."""

    score: float
    structure: int
    places: tuple[int, ...]


def best_points(group: FusedGroup, target: Target, model: str, count: int) -> tuple[Point, ...]:
    """Return the best legal points of a group's full space that a search finds, best first."""
    coarse = make_space(group, target, coarse=True)
    full = make_space(group, target)
    wide = {(s.segments, s.index): k for k, s in enumerate(full.structures)}
    points = {_embed(coarse, full, wide, seed) for seed in _seeds(coarse, max(SEEDS, count), model)}
    tried: set[Point] = set()
    for _ in range(ROUNDS):
        best = sorted(points)[: max(SEEDS, count)] if tried else sorted(points)
        fresh = [p for p in best if p not in tried]
        if not fresh:
            break
        tried.update(fresh)
        points |= neighbours(full, fresh, model)
    return _varied(full, sorted(points), count)


def _varied(space: Space, ordered: Sequence[Point], count: int) -> tuple[Point, ...]:
    """Return the first points, a few of each tile, one of each tile and loop, some of each structure and thread tile,
    and of atoms some of each block, whose warps may lie in many ways; then others.
    """
    limits = (PER_TILE, 1, max(1, 3 * count // 4), max(2, count // 3), max(2, count // 4))
    seen: dict[tuple[object, ...], int] = {}
    chosen: list[Point] = []
    rest: list[Point] = []
    for point in ordered:
        knobs = list(zip(space.structures[point.structure].knobs, point.places, strict=True))
        tile = (point.structure, *(k.values[p][:2] for k, p in knobs if len(k.names) > 1))
        loop = tuple((k.names, p) for k, p in knobs if k.names[0].partition(".")[2][:1] in ("c", "s"))
        thread = tuple(k.values[p][1] for k, p in knobs if len(k.names) == 3)
        kinds = ((tile,), (tile, loop), (point.structure,), ("thread", thread), ("block", _block(space, point)))
        fits = all(seen.get(kind, 0) < limit for kind, limit in zip(kinds, limits, strict=True))
        if fits:
            seen.update({kind: seen.get(kind, 0) + 1 for kind in kinds})
        (chosen if fits else rest).append(point)
        if len(chosen) == count:
            break
    return tuple(sorted([*chosen, *rest[: count - len(chosen)]]))


def _block(space: Space, point: Point) -> tuple[object, ...]:
    """Return the extents of a block that atoms compute; of others all that a point is, so that none is like it."""
    structure = space.structures[point.structure]
    if not any(segment.atom for segment in structure.segments):
        return point.structure, point.places
    tiles = (k.values[p] for k, p in zip(structure.knobs, point.places, strict=True) if len(k.names) == 3)
    return tuple(threads * tile for threads, tile, _ in tiles)


def _seeds(space: Space, count: int, model: str) -> list[Point]:
    """Return the best points of a sample, and the leaders of every structure."""
    best: list[Point] = []
    each = max(2048, min(16384, SAMPLE // len(space.structures)))
    for position, batch in enumerate(sampled(space, each)):
        values = score(batch, space, model)
        assert batch.points is not None, "samples name their points"
        for k in np.argsort(values, kind="stable")[:count]:
            if np.isfinite(values[k]):
                places = np.unravel_index(int(batch.points[k]), batch.structure.shape) if batch.structure.knobs else ()
                best.append(Point(float(values[k]), position, tuple(int(p) for p in places)))
    best.sort()
    leaders = [p for s in range(len(space.structures)) for p in [q for q in best if q.structure == s][:LEADERS]]
    return sorted({*best[:count], *leaders})


def _embed(
    coarse: Space, full: Space, wide: Mapping[tuple[tuple[SegmentStructure, ...], str], int], point: Point
) -> Point:
    """Return the same point of the full space."""
    structure = coarse.structures[point.structure]
    position = wide[(structure.segments, structure.index)]
    knobs = zip(structure.knobs, full.structures[position].knobs, point.places, strict=True)
    return Point(point.score, position, tuple(k.values.index(c.values[p]) for c, k, p in knobs))


def neighbours(space: Space, points: Sequence[Point], model: str) -> set[Point]:
    """Return the points that differ in one parameter, scored; illegal ones are left out."""
    found: set[Point] = set()
    for position in sorted({p.structure for p in points}):
        structure = space.structures[position]
        moves = sorted({m for p in points if p.structure == position for m in _moves(structure, p.places)})
        if not moves:
            continue
        columns = columns_of(structure, np.asarray(moves, dtype=np.int64))
        values = score(evaluate(space, structure, columns, 0), space, model)
        found |= {Point(float(v), position, m) for v, m in zip(values, moves, strict=True) if np.isfinite(v)}
    return found


def _moves(structure: Structure, places: tuple[int, ...]) -> list[tuple[int, ...]]:
    found = []
    for axis, knob in enumerate(structure.knobs):
        found += [(*places[:axis], place, *places[axis + 1 :]) for place in _siblings(knob)[places[axis]]]
    return found


@lru_cache(maxsize=4096)
def _siblings(knob: Knob) -> tuple[tuple[int, ...], ...]:
    """Return for each value of a knob the positions of those that differ in one of its parameters.

    Threads and what each of them computes also change together, so that the block stays as it is. Runs of neighbours,
    whose vector is the whole thread tile, change both together, and may keep the block while they do.
    """
    table = np.asarray(knob.values, dtype=np.int64)
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
    return tuple(tuple(int(k) for k in np.flatnonzero(row)) for row in near)
