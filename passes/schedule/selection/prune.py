"""Pruning of a space: scores by a model, and proofs of slowness."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from attrs import frozen

from ....ir import BOUND_PRUNING, FusedGroup, ObjectCache, Pruning, PruningRule, Schedule, Target
from ...geometry import geometry_of
from ...model import Features, conflict_factor, estimate_time, features_of, lower_bound, printed_pul, pul
from ..space import Space, make_space
from .enumerate import Batch, batches, sample_batches

#: A space of more points than this is represented by a fixed sample.
MAX_ENUMERATED_POINTS = 20_000_000
#: Points of each template in such a sample.
SAMPLED_POINTS = 1 << 17
#: Points of each template from which the top share of a space is found.
RANKED_SAMPLE_POINTS = 1 << 12
#: Least score of a pruned point, in seconds: no kernel takes as long.
PRUNED_SECONDS = 1e6
#: Least performance upper limits in the top share of live groups' spaces.
_LEAST_LIMITS: ObjectCache[dict[tuple[Target, Pruning], float]] = ObjectCache()


@frozen
class Pruned:
    """The remaining points of a space, best first.

    `points` are their numbers within the space, `scores` their scores (smaller is better). `considered` counts all
    examined points, `legal` the legal ones, `discarded` those that the rule discards.
    """

    points: np.ndarray[Any, Any]
    scores: np.ndarray[Any, Any]
    considered: int
    legal: int
    discarded: int = 0


def _estimate(batch: Batch, space: Space) -> np.ndarray[Any, Any]:
    found = lower_bound(batch.features, space.target)
    conflicts = conflict_factor(space.group, batch.sizes, space.target) if space.target.banked else 1.0
    return batch.flat(estimate_time(batch.features, found, space.target, conflicts)).astype(np.float64)


def estimate_schedule(group: FusedGroup, schedule: Schedule, features: Features, target: Target) -> float:
    """Return the estimated seconds of a schedule with some features."""
    conflicts = conflict_factor(group, geometry_of(group, schedule), target) if target.banked else 1.0
    return float(estimate_time(features, lower_bound(features, target), target, conflicts))


def pul_values(batch: Batch, space: Space, printed: bool = False) -> np.ndarray[Any, Any]:
    """Return the performance upper limit of every point of a batch.

    It is a share of peak, by the formulae as `printed`, or with corrections.
    """
    conflicts = conflict_factor(space.group, batch.sizes, space.target)
    if printed:
        found = printed_pul(space.group, batch.sizes, batch.features, space.target, conflicts)
    else:
        found = pul(batch.features, space.target, conflicts)
    return batch.flat(found).astype(np.float64)


def schedule_puls(group: FusedGroup, schedule: Schedule, target: Target) -> dict[PruningRule, float]:
    """Return a schedule's PUL by each rule, as shares of peak."""
    sizes, features = geometry_of(group, schedule), features_of(group, schedule, target)
    conflicts = conflict_factor(group, sizes, target)
    printed = printed_pul(group, sizes, features, target, conflicts)
    return {"pul": float(pul(features, target, conflicts)), "pul-printed": float(printed)}


def score(batch: Batch, space: Space, pruning: Pruning = BOUND_PRUNING) -> np.ndarray[Any, Any]:
    """Return the score of every point of a batch: estimated seconds.

    It is infinite where the point is not legal. Pruned points follow all others, those of the greatest performance
    upper limit first, so that hill climbing can begin at them (`is_pruned`).
    """
    seconds = _estimate(batch, space)
    if pruning.ranks:
        values = pul_values(batch, space, pruning.rule == "pul-printed")
        least = least_pul(space.group, space.target, pruning)
        seconds = np.where(values >= least, seconds, PRUNED_SECONDS * (2.0 - values))
    return np.where(batch.legal, seconds, np.inf)


def is_pruned(scores: Any) -> Any:
    """Return whether scores are those of legal points that a rule discards."""
    return np.logical_and(np.greater_equal(scores, PRUNED_SECONDS), np.isfinite(scores))


def least_pul(group: FusedGroup, target: Target, pruning: Pruning) -> float:
    """Return the least PUL in the top share of a space.

    The share is one of all legal points. Templates with many points are sampled, each point with the weight of those
    that it stands for.
    """
    known = _LEAST_LIMITS.find(group, dict)
    if (target, pruning) not in known:
        known[target, pruning] = _find_least(make_space(group, target), pruning)
    return known[target, pruning]


def _find_least(space: Space, pruning: Pruning) -> float:
    values, weights = [np.zeros(0)], [np.zeros(0)]
    for batch in sample_batches(space, RANKED_SAMPLE_POINTS):
        legal = batch.legal
        values.append(pul_values(batch, space, pruning.rule == "pul-printed")[legal])
        weights.append(np.full(int(legal.sum()), max(1.0, batch.structure.size / max(1, legal.size))))
    every, weight = np.concatenate(values), np.concatenate(weights)
    if not every.size:
        return 0.0
    order = np.argsort(-every, kind="stable")
    reached = np.cumsum(weight[order]) >= pruning.top / 100.0 * weight.sum() * (1.0 - 1e-12)
    return float(every[order[int(np.argmax(reached))]])


def prune(space: Space, pruning: Pruning = BOUND_PRUNING, most: int | None = None, best: float = np.inf) -> Pruned:
    """Return the points of a whole space to measure, best first.

    With `bound` every point is kept whose lower bound is not above `best`, the least time measured so far in seconds:
    the discarded points are slower, with proof. The other rules keep the points that `Pruning` describes. At
    most `most` are returned.
    """
    numbers: list[np.ndarray[Any, Any]] = []
    scores: list[np.ndarray[Any, Any]] = []
    considered = legal = discarded = 0
    for batch in _all_or_sample(space):
        values = score(batch, space, pruning)
        fine = np.isfinite(values)
        considered += values.size
        legal += int(fine.sum())
        hopeless = is_pruned(values)
        if pruning == BOUND_PRUNING and np.isfinite(best):
            hopeless = np.logical_and(fine, proven_slower(batch, space.target, best))
        discarded += int(hopeless.sum())
        fine = np.logical_and(fine, np.logical_not(hopeless))
        numbers.append(_numbers(batch)[fine])
        scores.append(values[fine])
    every = np.concatenate(scores) if scores else np.zeros(0)
    order = np.argsort(every, kind="stable")[:most]
    return Pruned(np.concatenate(numbers)[order], every[order], considered, legal, discarded)


def proven_slower(batch: Batch, target: Target, best: float) -> np.ndarray[Any, Any]:
    """Return the points that cannot beat a measured time.

    Their lower bound is above it.
    """
    return np.asarray(batch.flat(lower_bound(batch.features, target).time) > best)


def _numbers(batch: Batch) -> np.ndarray[Any, Any]:
    if batch.points is not None:
        return batch.points + batch.start
    return np.arange(batch.start, batch.start + batch.size)


def _all_or_sample(space: Space) -> Iterator[Batch] | Iterable[Batch]:
    if space.size <= MAX_ENUMERATED_POINTS:
        return batches(space)
    return sample_batches(space, SAMPLED_POINTS)
