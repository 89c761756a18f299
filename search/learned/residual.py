"""Residual model: small trees that correct the cost model (scikit-learn).

They are fitted by gradient boosting.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import evolve

from ...ir import Target, UsageError, install_command
from ...passes.model import estimate_time, lower_bound
from .correction import Tree, feature_columns
from .rank_fit import estimate, subtract_mean, weights_of
from .rank_points import RankPoints

#: Number of trees, their depth, and the learning rate: small, so that they apply to other operations.
NUM_TREES, TREE_DEPTH, LEARNING_RATE = 60, 3, 0.04
#: Share of the points that each tree sees, and the smallest number of points of a leaf.
SUBSAMPLE, MIN_LEAF_POINTS = 0.7, 50


def fit_trees(parts: Sequence[tuple[RankPoints, Target]]) -> tuple[Tree, ...]:
    """Return trees that correct the logarithm of the estimate.

    The error common to all points of an operation is ignored. Points with a short time or estimate weigh most. Raises
    `UsageError` where scikit-learn is missing.
    """
    try:
        from sklearn.ensemble import GradientBoostingRegressor
    except ImportError as error:
        raise UsageError("--learn needs scikit-learn", hint=install_command("learned")) from error
    rows, wanted, weights = [], [], []
    for points, target in parts:
        plain = estimate_time(points.features, lower_bound(points.features, target), target, points.conflicts)
        rows.append(feature_columns(points.features, target, np.asarray(plain)))
        wanted.append(subtract_mean(np.log(points.seconds / estimate(points, target)), points, 1.0))
        weight, total = weights_of(points)
        favoured, all_favoured = weights_of(evolve(points, seconds=np.asarray(plain)))
        weights.append(np.maximum(weight / total[points.case], favoured / all_favoured[points.case]))
    learner = GradientBoostingRegressor(
        n_estimators=NUM_TREES, max_depth=TREE_DEPTH, learning_rate=LEARNING_RATE, subsample=SUBSAMPLE,
        min_samples_leaf=MIN_LEAF_POINTS, max_features=0.5, random_state=0,
    )  # fmt: skip
    learner.fit(np.concatenate(rows), np.concatenate(wanted), np.concatenate(weights))
    return tuple(_tree(each.tree_) for each in learner.estimators_[:, 0])


def _tree(found: object) -> Tree:
    """Return a fitted tree as numbers."""
    columns = np.asarray(getattr(found, "feature"))  # noqa: B009  its type is not declared
    leaf = columns < 0
    names = ("threshold", "children_left", "children_right")
    limits, below, above = (np.asarray(getattr(found, name)) for name in names)
    values = LEARNING_RATE * np.asarray(getattr(found, "value")).reshape(-1)  # noqa: B009
    return Tree(
        tuple(np.where(leaf, -1, columns).tolist()), tuple(limits.tolist()), tuple(below.tolist()),
        tuple(above.tolist()), tuple(np.where(leaf, values, 0.0).tolist()),
    )  # fmt: skip
