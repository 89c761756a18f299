"""Learned order of candidates: calibrated cost model constants and corrective trees.

It needs no library, so that every worker can apply it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import evolve, frozen

from ...ir import CostCoefficients, Target
from ...passes.model import NUMBERS, SUMS, Features, estimate_time, lower_bound

Array = np.ndarray[Any, Any]


@frozen
class Tree:
    """Binary decision tree.

    Each node has a column, a limit, and the next node for values up to the limit and above it; leaves have no column,
    and a value.
    """

    columns: tuple[int, ...]
    limits: tuple[float, ...]
    below: tuple[int, ...]
    above: tuple[int, ...]
    values: tuple[float, ...]

    def values_of(self, rows: Array) -> Array:
        """Return the value of every row."""
        columns, limits = np.asarray(self.columns), np.asarray(self.limits)
        below, above, at = np.asarray(self.below), np.asarray(self.above), np.zeros(len(rows), int)
        while (going := columns[at] >= 0).any():
            here = at[going]
            small = rows[going, columns[here]] <= limits[here]
            at[going] = np.where(small, below[here], above[here])
        return np.asarray(self.values)[at]


@frozen
class LearnedOrder:
    """Cost model with calibrated constants, corrected in the logarithm by trees.

    The constants are the target's where `costs` is None. `recalled` are seconds by schedule that another machine
    measured of the same operation: similar candidates are corrected further (`transfer.py`).
    """

    costs: CostCoefficients | None = None
    trees: tuple[Tree, ...] = ()
    recalled: tuple[tuple[str, float], ...] = ()

    def seconds(self, features: Features, conflicts: Array, target: Target) -> Array:
        """Return the predicted seconds of candidates."""
        target = with_costs(target, self.costs)
        found = np.asarray(estimate_time(features, lower_bound(features, target), target, conflicts), np.float64)
        if not self.trees:
            return found
        rows = feature_columns(features, target, found)
        return np.asarray(found * np.exp(sum(tree.values_of(rows) for tree in self.trees)))


def with_costs(target: Target, costs: CostCoefficients | None) -> Target:
    """Return the target with other coefficients, unless these are None."""
    return target if costs is None else evolve(target, costs=costs)


def feature_columns(features: Features, target: Target, estimated: Array) -> Array:
    """Return the trees' columns, independent of the size of an operation.

    The trees may then apply to other operations. Work is relative to the work that defines the group, times are
    relative to the estimate.
    """
    size = np.shape(estimated)
    found, columns = lower_bound(features, target), []
    work = 1.0 + np.asarray(features.useful_flops, np.float64) + np.asarray(features.unique_bytes, np.float64)
    for name in NUMBERS:
        value = np.asarray(getattr(features, name), np.float64)
        if name in SUMS:
            columns.append(np.log((1.0 + value * features.grid) / work))
        elif name not in ("useful_flops", "unique_bytes", "outer"):
            columns.append(np.log1p(np.minimum(np.abs(value), 1e9)))
    times = (np.asarray(each, np.float64) for each in (*found.terms.values(), found.first, found.time))
    columns += [np.log(np.maximum(each, 1e-12) / estimated) for each in times]
    columns += [np.asarray(found.occupancy, np.float64), np.log(np.maximum(features.grid / target.NUM_SM, 1e-6))]
    return np.stack([np.broadcast_to(c, size) for c in columns], axis=1)
