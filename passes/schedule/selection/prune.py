"""Pruning of a space: scores by a model, and proofs of slowness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....ir import Target, UsageError
from ...model import conflict_factor, estimate_time, lower_bound, pul
from ..space import Space
from .enumerate import Batch


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


def proven_slower(batch: Batch, target: Target, best: float) -> np.ndarray[Any, Any]:
    """Return the points that cannot beat a measured time.

    Their lower bound is above it.
    """
    return np.asarray(batch.flat(lower_bound(batch.features, target).time) > best)
