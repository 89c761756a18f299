"""Pruning of a space: scores by a model, and proofs of slowness."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from attrs import frozen

from ....ir import Target, UsageError
from ...model import conflict_factor, estimate_time, lower_bound, pul
from ..space import Space
from .enumerate import Batch, batches, sample_batches

#: A space of more points than this is represented by a fixed sample.
MAX_ENUMERATED_POINTS = 20_000_000
#: Points of each template in such a sample.
SAMPLED_POINTS = 1 << 17


@frozen
class Pruned:
    """The remaining points of a space, best first.

    `points` are their numbers within the space, `scores` their scores (smaller is better). `considered` counts all
    examined points, `legal` the legal ones, `discarded` those proven slower than the measured best.
    """

    points: np.ndarray[Any, Any]
    scores: np.ndarray[Any, Any]
    considered: int
    legal: int
    discarded: int = 0


def _by_bound(batch: Batch, space: Space) -> np.ndarray[Any, Any]:
    found = lower_bound(batch.features, space.target)
    conflicts = conflict_factor(space.group, batch.sizes, space.target) if space.target.banked else 1.0
    return batch.flat(estimate_time(batch.features, found, space.target, conflicts)).astype(np.float64)


def _by_paper(batch: Batch, space: Space) -> np.ndarray[Any, Any]:
    conflicts = conflict_factor(space.group, batch.sizes, space.target)
    return 1.0 - batch.flat(pul(batch.features, space.target, conflicts)).astype(np.float64)


#: Scores by name of the model; smaller is better.
MODELS: dict[str, Callable[[Batch, Space], np.ndarray[Any, Any]]] = {"bound": _by_bound, "paper": _by_paper}


def score(batch: Batch, space: Space, model: str) -> np.ndarray[Any, Any]:
    """Return a model's score of every point of a batch.

    It is infinite where the point is not legal.

    Raises `UsageError` where no model has that name.
    """
    if model not in MODELS:
        raise UsageError(f"unknown performance model '{model}'", hint=f"models are: {', '.join(MODELS)}")
    return np.where(batch.legal, MODELS[model](batch, space), np.inf)


def prune(
    space: Space, model: str = "bound", top: float = 1.0, most: int | None = None, best: float = np.inf
) -> Pruned:
    """Return the points of a space to measure, best first.

    `paper` keeps the best `top` percent of the legal points by PUL (section 4.3; the paper takes 1). `bound` keeps
    every point whose lower bound is not above `best`, the least time measured so far in seconds: the discarded points
    are slower, with proof. Either keeps at most `most`.
    """
    numbers: list[np.ndarray[Any, Any]] = []
    scores: list[np.ndarray[Any, Any]] = []
    considered = legal = discarded = 0
    for batch in _all_or_sample(space):
        values = score(batch, space, model)
        fine = np.isfinite(values)
        considered += values.size
        legal += int(fine.sum())
        if model == "bound" and np.isfinite(best):
            hopeless = np.logical_and(fine, proven_slower(batch, space.target, best))
            discarded += int(hopeless.sum())
            fine = np.logical_and(fine, np.logical_not(hopeless))
        numbers.append(_numbers(batch)[fine])
        scores.append(values[fine])
    every = np.concatenate(scores) if scores else np.zeros(0)
    keep = every.size if model == "bound" else max(1, int(np.ceil(legal * top / 100.0)))
    order = np.argsort(every, kind="stable")[: keep if most is None else min(keep, most)]
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
