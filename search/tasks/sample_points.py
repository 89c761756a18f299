"""Sampling of a space: all legal candidates, or random ones.

The sample depends on the space and a seed only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from attrs import frozen

from ...ir import Pruning
from ...passes.schedule import Candidate, Point, Space, candidate_of, is_pruned, make_space, sample_batches, score
from .pruning_certificate import MAX_EXACT_POINTS
from .tuning_task import TuningTask

#: Largest number of points of a structure that are examined for the few that a rule keeps.
MAX_EXAMINED_POINTS = 1 << 14


@frozen
class SampledCandidates:
    """Sample of a space of `points`.

    `legal` is the number of legal points (an estimate unless `exact`); `whole` says that the sample has all of them.
    """

    candidates: tuple[Candidate, ...]
    points: int
    legal: int
    exact: bool
    whole: bool


@frozen(eq=False)
class _Legal:
    """Legal points of one structure: numbers within it and scores.

    Each represents `weight` points of the structure.
    """

    structure: int
    numbers: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]
    weight: float


def draw(problem: TuningTask, pruning: Pruning, count: int, seed: int) -> SampledCandidates:
    """Return `count` legal candidates, or all where there are no more.

    In a space that is small enough to be examined whole, every legal point is equally likely; in a larger one, those of
    every structure are: where one structure has nearly all points, the others are sampled too.
    """
    space = make_space(problem.form, problem.target)
    exact = space.size <= MAX_EXACT_POINTS
    found = list(_legal(space, space.size if exact else _share(space, count, pruning), pruning))
    points = _pick(space, found, count, seed)
    legal = round(sum(part.weight * part.numbers.size for part in found))
    return SampledCandidates(
        tuple(candidate_of(space, p) for p in points), space.size, legal, exact, exact and len(points) == legal
    )


def random_points(space: Space, count: int, pruning: Pruning, seed: int) -> list[Point]:
    """Return legal points in random order, equally many of each structure."""
    return _pick(space, list(_legal(space, _share(space, count, pruning), pruning)), count, seed)


def _share(space: Space, count: int, pruning: Pruning) -> int:
    """Return the number of points of each structure to examine, so that enough of them are legal and kept."""
    share = 8 * count // max(1, len(space.templates)) + 64
    return share if not pruning.ranks else max(share, min(MAX_EXAMINED_POINTS, round(100 * share / pruning.top)))


def _legal(space: Space, most: int, pruning: Pruning) -> Iterator[_Legal]:
    for position, batch in enumerate(sample_batches(space, most)):
        values = score(batch, space, pruning)
        assert batch.points is not None, "samples name their points"
        fine = np.flatnonzero(np.isfinite(values) & ~is_pruned(values))
        yield _Legal(position, batch.points[fine], values[fine], batch.structure.size / max(1, batch.points.size))


def _pick(space: Space, found: list[_Legal], count: int, seed: int) -> list[Point]:
    """Return some of the legal points in a random order."""
    if not found:
        return []
    structures = np.concatenate([np.full(part.numbers.size, part.structure) for part in found])
    numbers, scores = (np.concatenate([getattr(part, name) for part in found]) for name in ("numbers", "scores"))
    points = []
    for k in np.random.default_rng(seed).permutation(structures.size)[:count]:
        shape = space.templates[structures[k]].shape
        places = np.unravel_index(int(numbers[k]), shape) if shape else ()
        points.append(Point(float(scores[k]), int(structures[k]), tuple(int(p) for p in places)))
    return points
