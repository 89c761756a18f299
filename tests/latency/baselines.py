"""Baseline latency models.

They are linear in operations, a tree of linear models, boosted trees, and a line for each kernel.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from attrs import define, field, frozen
from cuts.latency.convolution import FIELDS, Convolutions, Floats
from cuts.latency.predictors.fitting import library, one_thread


class Baseline(Protocol):
    """Model fitted to convolutions and kernels that predicts microseconds."""

    name: str

    def fit(self, layers: Convolutions, choices: Any, us: Floats) -> Baseline:
        """Fit and return itself."""

    def predict(self, layers: Convolutions) -> Floats:
        """Return microseconds."""


def raw_features(layers: Convolutions) -> Floats:
    """Return plain sizes: configuration, product, elements and operations."""
    sizes = [layers.m, layers.n, layers.k, layers.m_in, layers.m_out, layers.flops]
    return np.concatenate([layers.table.astype(float), np.stack(sizes, axis=1).astype(float)], axis=1)


@define
class LinearInFlops:
    """Least-squares model `t = a * operations + b`.

    It is the first baseline of the paper.
    """

    name: str = "linear in operations"
    _model: Any = None

    def fit(self, layers: Convolutions, choices: Any, us: Floats) -> LinearInFlops:
        self._model = library("sklearn.linear_model").LinearRegression().fit(layers.flops[:, None], us)
        return self

    def predict(self, layers: Convolutions) -> Floats:
        return np.asarray(self._model.predict(layers.flops[:, None]))


@frozen(eq=False)
class _Leaf:
    coefficients: Floats


@frozen(eq=False)
class _Split:
    column: int
    at: float
    low: _Leaf | _Split
    high: _Leaf | _Split


@define
class FastDeepIoT:
    """Binary tree whose leaves are linear models.

    It is the second baseline of the paper, after FastDeepIoT (SenSys 2018). A node is split where two linear models
    have the least squared error together; it stays a leaf where its own mean error is below `enough` or a side would
    have fewer than `least` samples.
    """

    name: str = "FastDeepIoT: tree of linear models"
    least: int = 20
    enough: float = 0.05
    candidates: int = 6
    _root: _Leaf | _Split | None = None

    def fit(self, layers: Convolutions, choices: Any, us: Floats) -> FastDeepIoT:
        self._root = self._grow(_splits(layers), _leaf_columns(layers), us)
        return self

    def predict(self, layers: Convolutions) -> Floats:
        assert self._root is not None
        out = np.zeros(len(layers))
        self._fill(self._root, _splits(layers), _leaf_columns(layers), np.arange(len(layers)), out)
        return out

    def _grow(self, splits: Floats, columns: Floats, us: Floats) -> _Leaf | _Split:
        leaf = _Leaf(np.asarray(np.linalg.lstsq(columns, us, rcond=None)[0], np.float64))
        error = np.mean(np.abs(columns @ leaf.coefficients / us - 1))
        if error < self.enough or len(us) < 2 * self.least:
            return leaf
        options = [(self._loss(splits[:, c] <= at, columns, us), c, at) for c, at in self._thresholds(splits)]
        loss, column, at = min(options, default=(np.inf, 0, 0.0))
        if not np.isfinite(loss):
            return leaf
        low = splits[:, column] <= at
        sides = [self._grow(splits[side], columns[side], us[side]) for side in (low, ~low)]
        return _Split(column, at, *sides)

    def _thresholds(self, splits: Floats) -> list[tuple[int, float]]:
        found = []
        for column in range(splits.shape[1]):
            levels = np.unique(np.quantile(splits[:, column], np.linspace(0, 1, self.candidates + 2)[1:-1]))
            found += [(column, float(level)) for level in levels if level < splits[:, column].max()]
        return found

    def _loss(self, low: Any, columns: Floats, us: Floats) -> float:
        if min(low.sum(), (~low).sum()) < self.least:
            return float("inf")
        return sum(_residual(columns[side], us[side]) for side in (low, ~low))

    def _fill(self, node: _Leaf | _Split, splits: Floats, columns: Floats, rows: Any, out: Floats) -> None:
        if isinstance(node, _Leaf):
            out[rows] = np.maximum(columns[rows] @ node.coefficients, 0.5)  # no kernel is faster than its launch
            return
        low = splits[rows, node.column] <= node.at
        self._fill(node.low, splits, columns, rows[low], out)
        self._fill(node.high, splits, columns, rows[~low], out)


def _residual(columns: Floats, us: Floats) -> float:
    found = np.linalg.lstsq(columns, us, rcond=None)[0]
    return float(((columns @ found - us) ** 2).sum())


def _splits(layers: Convolutions) -> Floats:
    return layers.table[:, : FIELDS.index("pad_h")].astype(float)


def _leaf_columns(layers: Convolutions) -> Floats:
    """Return the regressors of a leaf: operations, elements in and out, one; scaled so that squares stay small."""
    values = [layers.flops * 1e-9, layers.m_in * 1e-6, layers.m_out * 1e-6, np.ones(len(layers))]
    return np.stack(values, axis=1)


@define
class BoostedTrees:
    """Gradient-boosted trees of the logarithm of time over sizes.

    They use the same samples.
    """

    name: str = "gradient-boosted trees"
    _model: Any = None

    def fit(self, layers: Convolutions, choices: Any, us: Floats) -> BoostedTrees:
        ensemble = library("sklearn.ensemble")
        model = ensemble.HistGradientBoostingRegressor(
            max_iter=400, learning_rate=0.06, max_leaf_nodes=31, random_state=0
        )
        with one_thread():
            self._model = model.fit(raw_features(layers), np.log(us))
        return self

    def predict(self, layers: Convolutions) -> Floats:
        with one_thread():
            return np.asarray(np.exp(self._model.predict(raw_features(layers))))


@define
class LinePerKernel:
    """Linear regression for each kernel on operations and elements.

    It follows Li et al., MICRO 2023; a forest predicts the kernel. Their work maps layers to kernels by a table of seen
    layers; for a layer not seen, the forest's guess is taken.
    """

    name: str = "linear regression per kernel"
    _models: dict[str, Floats] = field(factory=dict)
    _forest: Any = None

    def fit(self, layers: Convolutions, choices: Any, us: Floats) -> LinePerKernel:
        columns = _leaf_columns(layers)
        for choice in np.unique(choices):
            own = choices == choice
            self._models[str(choice)] = np.linalg.lstsq(columns[own], us[own], rcond=None)[0]
        ensemble = library("sklearn.ensemble")
        self._forest = ensemble.RandomForestClassifier(100, min_samples_leaf=1, random_state=0, n_jobs=1).fit(
            raw_features(layers), choices
        )
        return self

    def predict(self, layers: Convolutions) -> Floats:
        columns, out = _leaf_columns(layers), np.zeros(len(layers))
        chosen = self._forest.predict(raw_features(layers))
        for choice in np.unique(chosen):
            own = chosen == choice
            out[own] = columns[own] @ self._models[str(choice)]
        return np.maximum(out, 0.5)


def all_baselines() -> tuple[Baseline, ...]:
    """Return one of each baseline, not fitted."""
    return LinearInFlops(), FastDeepIoT(), BoostedTrees(), LinePerKernel()
