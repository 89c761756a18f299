"""Calibration of the cost model's constants on measured candidates.

It is a least-squares fit of the logarithms by Gauss-Newton with damping. Every operation weighs the same, a candidate
by the square of its closeness to its operation's best; a ridge keeps each constant near its start.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from ...ir import CostCoefficients, Target
from ...passes.model import estimate_time, lower_bound
from .correction import with_costs
from .rank_points import Array, RankPoints

#: Weight of the ridge, ignored share of an operation's mean error, exponent of a candidate's weight.
RIDGE_WEIGHT, IGNORED_MEAN_SHARE, WEIGHT_EXPONENT = 0.01, 0.7, 2.0
#: Overhead of a measurement in latencies of DRAM: events before and after it, a flushed instruction cache.
OVERHEAD = 11.0


def estimate(points: RankPoints, target: Target) -> Array:
    """Return the estimated seconds of candidates."""
    order = estimate_time(points.features, lower_bound(points.features, target), target, points.conflicts)
    return np.asarray(order) + OVERHEAD * target.dram_latency


def weights_of(points: RankPoints) -> tuple[Array, Array]:
    """Return the weight of each candidate, and the total of each operation."""
    count = int(points.case.max()) + 1
    best = np.full(count, np.inf)
    np.minimum.at(best, points.case, points.seconds)
    weight = (best[points.case] / points.seconds) ** WEIGHT_EXPONENT
    return weight, np.maximum(np.bincount(points.case, weight, count), 1e-12)


def subtract_mean(wrong: Array, points: RankPoints, part: float) -> Array:
    """Return errors less a share of their operation's mean."""
    weight, total = weights_of(points)
    return np.asarray(wrong - part * (np.bincount(points.case, weight * wrong, len(total)) / total)[points.case])


def fit_constants(parts: Sequence[tuple[RankPoints, Target]], rounds: int = 12) -> CostCoefficients:
    """Return the constants that explain the candidates of all targets best.

    The fit starts from those of the first target.
    """
    first = np.log(np.asarray(attrs.astuple(parts[0][1].costs)))

    def errors(logs: Array) -> Array:
        costs, found = CostCoefficients(*np.exp(logs)), []
        for points, target in parts:
            weight, total = weights_of(points)
            wrong = subtract_mean(
                np.log(estimate(points, with_costs(target, costs)) / points.seconds), points, IGNORED_MEAN_SHARE
            )
            found.append(wrong * np.sqrt(weight / total[points.case]))
        return np.concatenate([*found, np.sqrt(RIDGE_WEIGHT) * (logs - first)])

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
    return CostCoefficients(*(float(v) for v in np.exp(logs)))
