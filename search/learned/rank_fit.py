"""Fitting the constants of the estimate that orders points to measured ones.

Least squares of the logarithms, Gauss-Newton with damping: every operation weighs the same, a point by the square of
how close it is to its operation's best; a ridge holds each constant to what it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from ...ir import Target
from ...passes.model import FITTED, RankConstants, bound, rank
from .rank_points import Array, RankPoints

#: Weight of the ridge; part of an operation's mean error that does not count; power of a point's weight.
RIDGE, FORGIVEN, POWER = 0.01, 0.7, 2.0
#: What a measurement adds to a kernel, in latencies of DRAM: events before and after it, a flushed cache of
#: instructions.
OVERHEAD = 11.0


def estimate(costs: RankConstants, points: RankPoints, target: Target) -> Array:
    """Return the estimated seconds of points."""
    order = rank(points.features, bound(points.features, target), target, points.conflicts, costs)
    return np.asarray(order) + OVERHEAD * target.dram_latency


def weights_of(points: RankPoints) -> tuple[Array, Array]:
    """Return what each point weighs, and what all of its operation do."""
    count = int(points.case.max()) + 1
    best = np.full(count, np.inf)
    np.minimum.at(best, points.case, points.seconds)
    weight = (best[points.case] / points.seconds) ** POWER
    return weight, np.maximum(np.bincount(points.case, weight, count), 1e-12)


def centred(wrong: Array, points: RankPoints, part: float) -> Array:
    """Return errors less a part of their operation's mean: what is common to all its points changes no order."""
    weight, total = weights_of(points)
    return np.asarray(wrong - part * (np.bincount(points.case, weight * wrong, len(total)) / total)[points.case])


def fit_constants(
    parts: Sequence[tuple[RankPoints, Target]], start: RankConstants = FITTED, rounds: int = 12
) -> RankConstants:
    """Return the constants that explain the points of all targets best."""
    first = np.log(np.asarray(attrs.astuple(start)))

    def errors(logs: Array) -> Array:
        costs, found = RankConstants(*np.exp(logs)), []
        for points, target in parts:
            weight, total = weights_of(points)
            wrong = centred(np.log(estimate(costs, points, target) / points.seconds), points, FORGIVEN)
            found.append(wrong * np.sqrt(weight / total[points.case]))
        return np.concatenate([*found, np.sqrt(RIDGE) * (logs - first)])

    logs, damping = first, 1e-2
    now = errors(logs)
    for _ in range(rounds):
        slopes = np.stack([(errors(logs + 1e-3 * unit) - now) / 1e-3 for unit in np.eye(len(first))], axis=1)
        step = -np.linalg.solve(slopes.T @ slopes + damping * np.eye(len(first)), slopes.T @ now)
        after = errors(logs + np.clip(step, -1.0, 1.0))
        if after @ after < now @ now:
            logs, now, damping = logs + np.clip(step, -1.0, 1.0), after, damping / 3
        else:
            damping *= 8
    return RankConstants(*(float(v) for v in np.exp(logs)))
