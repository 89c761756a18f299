"""Choosing parameters of a group without a device: the best points by a model, found in a coarse space and refined around."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from functools import lru_cache
from typing import Any

import numpy as np
from attrs import frozen

from ..ir.schedule import Schedule
from ..ir.segment import FusedGroup
from ..ir.target import Target
from .bound import bound, longest, rank
from .enumerate import Batch, columns_of, evaluate, sampled, schedule_of
from .space import Knob, SegmentStructure, Space, Structure, make_space

#: Points that are scored of each structure before refinement.
SAMPLE = 8192
#: Points of the coarse space that are refined.
SEEDS = 16
#: Rounds of refinement; each tries every other value of every parameter of every seed.
ROUNDS = 3


@frozen
class Candidate:
    """A chosen point: its schedule, the lower bound of its time in seconds, what limits it, and its counts by name.

    `score` is the model's order (smaller is better): seconds for `bound`, one minus the PUL for `paper`.
    """

    schedule: Schedule
    bound: float
    limit: str
    features: dict[str, float]
    score: float


@frozen(order=True)
class _Point:
    score: float
    structure: int
    places: tuple[int, ...]


def choose(group: FusedGroup, target: Target, model: str = "bound", count: int = 1) -> list[Candidate]:
    """Return the best `count` legal points of a group, best first; ties are broken by position in the space."""
    coarse = make_space(group, target, coarse=True)
    full = make_space(group, target)
    seeds = _best_of(coarse, max(SEEDS, count), model)
    wide = {(s.segments, s.index): k for k, s in enumerate(full.structures)}
    points = {_embed(coarse, full, wide, seed) for seed in seeds}
    for _ in range(ROUNDS):
        best = sorted(points)[: max(SEEDS, count)]
        points |= _neighbours(full, best, model)
    chosen = sorted(points)[:count]
    return [_candidate(full, point) for point in chosen]


def score(batch: Batch, target: Target, model: str) -> np.ndarray[Any, Any]:
    """Return the model's score of every point of a batch, infinite where it is illegal."""
    found = bound(batch.features, target)
    values = batch.flat(rank(batch.features, found, target)).astype(np.float64)
    return np.where(batch.legal, values, np.inf)


def _best_of(space: Space, count: int, model: str) -> list[_Point]:
    best: list[_Point] = []
    for position, batch in enumerate(sampled(space, SAMPLE)):
        values = score(batch, space.target, model)
        assert batch.points is not None, "samples name their points"
        for k in np.argsort(values, kind="stable")[:count]:
            if np.isfinite(values[k]):
                places = np.unravel_index(int(batch.points[k]), batch.structure.shape) if batch.structure.knobs else ()
                best.append(_Point(float(values[k]), position, tuple(int(p) for p in places)))
    return sorted(best)[:count]


def _embed(coarse: Space, full: Space, wide: Mapping[tuple[tuple[SegmentStructure, ...], str], int], point: _Point) -> _Point:
    """Return the same point of the full space."""
    structure = coarse.structures[point.structure]
    position = wide[(structure.segments, structure.index)]
    knobs = zip(structure.knobs, full.structures[position].knobs, point.places, strict=True)
    return _Point(point.score, position, tuple(k.values.index(c.values[p]) for c, k, p in knobs))


def _neighbours(space: Space, points: Sequence[_Point], model: str) -> set[_Point]:
    """Return the points that differ in one parameter, scored; illegal ones are left out."""
    found: set[_Point] = set()
    for position in sorted({p.structure for p in points}):
        structure = space.structures[position]
        moves = sorted({m for p in points if p.structure == position for m in _moves(structure, p.places)})
        if not moves:
            continue
        table = np.asarray(moves, dtype=np.int64)
        columns = columns_of(structure, table)
        values = score(evaluate(space, structure, columns, 0), space.target, model)
        found |= {_Point(float(v), position, m) for v, m in zip(values, moves, strict=True) if np.isfinite(v)}
    return found


def _moves(structure: Structure, places: tuple[int, ...]) -> list[tuple[int, ...]]:
    found = []
    for axis, knob in enumerate(structure.knobs):
        found += [(*places[:axis], place, *places[axis + 1 :]) for place in _siblings(knob)[places[axis]]]
    return found


@lru_cache(maxsize=4096)
def _siblings(knob: Knob) -> tuple[tuple[int, ...], ...]:
    """Return for each value of a knob the positions of those that differ in one of its parameters."""
    table = np.asarray(knob.values, dtype=np.int64)
    near = (table[:, None, :] != table[None, :, :]).sum(axis=2) == 1
    return tuple(tuple(int(k) for k in np.flatnonzero(row)) for row in near)


def _candidate(space: Space, point: _Point) -> Candidate:
    structure = space.structures[point.structure]
    columns = columns_of(structure, np.asarray([point.places], dtype=np.int64)) if structure.knobs else {}
    values = {name: int(column[0]) for name, column in columns.items()}
    batch = evaluate(space, structure, columns, 0)
    found = bound(batch.features, space.target)
    limit = max(found.terms, key=lambda name: float(np.max(found.terms[name])))
    names = [n for n in dir(batch.features) if not n.startswith("_")]
    numbers = {n: float(np.max(getattr(batch.features, n))) for n in names}
    numbers["occupancy"] = float(np.max(found.occupancy))
    numbers.update({f"time_{n}": float(np.max(t)) for n, t in found.terms.items()})
    time = space.target.launch_time + float(np.max(longest(found.terms)))
    return Candidate(schedule_of(space.group, structure, values), time, limit, numbers, point.score)
