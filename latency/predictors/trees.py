"""Decision trees as arrays, independent of the library that fitted them.

Nodes of all trees follow each other. A row goes left where its feature is at most the threshold. A leaf has itself as
both children, so that a walk of as many steps as the deepest tree is high ends in a leaf of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import fields, frozen

from ..convolution import Floats

#: Rows that are evaluated at once, so that the state of a walk fits a cache.
_ROWS = 64


@frozen(eq=False)
class Trees:
    """Trees over one set of features.

    `leaves` has a number for each node: a class, or a term of the sum over trees.
    """

    features: npt.NDArray[np.int16]
    thresholds: Floats
    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]
    leaves: Floats
    roots: npt.NDArray[np.int32]
    depth: int

    @classmethod
    def of_forest(cls, forest: Any, numbers: Sequence[int] | None = None) -> Trees:
        """Return the trees of scikit-learn's forest.

        A classifier's leaves have the most frequent class (`numbers` maps classes to numbers), a regressor's the mean.
        """
        grown = [each.tree_ for each in forest.estimators_]
        if numbers is None:
            leaves = [each.value[:, 0, 0] for each in grown]
        else:
            leaves = [np.asarray(numbers, float)[each.value[:, 0, :].argmax(axis=1)] for each in grown]
        nodes = [(each.feature, each.threshold, each.children_left, each.children_right) for each in grown]
        return cls._concatenate(nodes, leaves, max(int(each.max_depth) for each in grown))

    @classmethod
    def of_boosted(cls, boosted: Any) -> Trees:
        """Return the trees of scikit-learn's gradient boosting.

        The common base value is left out.
        """
        grown = [each[0] for each in boosted._predictors]
        nodes = []
        for each in grown:
            inner, found = each.nodes["is_leaf"] == 0, each.nodes
            ends = (np.where(inner, found[name].astype(np.int64), -1) for name in ("left", "right"))
            nodes.append((found["feature_idx"], found["num_threshold"], *ends))
        return cls._concatenate(
            nodes, [each.nodes["value"] for each in grown], max(each.get_max_depth() for each in grown)
        )

    @classmethod
    def _concatenate(cls, nodes: Sequence[tuple[Any, ...]], leaves: Sequence[Floats], depth: int) -> Trees:
        starts = np.concatenate([[0], np.cumsum([len(each) for each in leaves])])
        columns: list[list[Any]] = [[], [], [], []]
        for start, (feature, threshold, left, right) in zip(starts, nodes, strict=False):
            own, inner = np.arange(start, start + len(feature)), left >= 0
            columns[0].append(np.where(inner, feature, 0))
            columns[1].append(np.where(inner, threshold, 0.0))
            columns[2].append(np.where(inner, left + start, own))
            columns[3].append(np.where(inner, right + start, own))
        features, thresholds, left, right = (np.concatenate(each) for each in columns)
        return cls(
            features.astype(np.int16),
            thresholds.astype(float),
            left.astype(np.int32),
            right.astype(np.int32),
            np.concatenate(list(leaves)).astype(float),
            starts[:-1].astype(np.int32),
            depth,
        )

    def values(self, rows: npt.NDArray[np.floating[Any]]) -> Floats:
        """Return each tree's value for each row: [rows, trees]."""
        found = [self._walk(rows[at : at + _ROWS]) for at in range(0, len(rows), _ROWS)]
        return np.concatenate(found) if found else np.zeros((0, len(self.roots)))

    def _walk(self, rows: npt.NDArray[np.floating[Any]]) -> Floats:
        places = np.arange(len(rows))[:, None]
        nodes = np.broadcast_to(self.roots, (len(rows), len(self.roots)))
        for _ in range(self.depth):
            left = rows[places, self.features[nodes]] <= self.thresholds[nodes]
            nodes = np.where(left, self.left[nodes], self.right[nodes])
        return self.leaves[nodes]

    def shares(self, rows: Floats, classes: int) -> Floats:
        """Return the share of trees for each class, by row.

        Forests are grown on single precision.
        """
        said = self.values(rows.astype(np.float32)).astype(np.int64)
        places = np.arange(len(said))[:, None] * classes + said
        counts = np.bincount(places.ravel(), minlength=len(said) * classes).reshape(len(said), classes)
        return np.asarray(counts / len(self.roots))

    def means(self, rows: Floats) -> Floats:
        """Return the mean of a forest's values, by row."""
        return np.asarray(self.values(rows.astype(np.float32)).mean(axis=1))

    def arrays(self, prefix: str) -> dict[str, Any]:
        """Return the arrays of the trees, by names with a prefix."""
        return {f"{prefix}{each.name}": getattr(self, each.name) for each in fields(Trees)}

    @classmethod
    def of_arrays(cls, values: Mapping[str, Any], prefix: str) -> Trees:
        """Return the trees of some `arrays`."""
        return cls(**{each.name: values[f"{prefix}{each.name}"] for each in fields(Trees)})
