"""Prediction of untuned `cuts` kernels from tuned ones.

Tuned kernels have no fixed tile, each layer has its own, so the models of `kernel_model.py` do not apply. A tuned
kernel reaches a share of the roofline that changes smoothly with the sizes: trees learn the logarithm of time over
roofline from the convolutions of nine networks at three batches, each with the fastest schedule of a search (strict
fp32, cold cache). Whole models are predicted by their plans (`own_plans.py`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from attrs import frozen

from ...ir import UsageError
from ..convolution import Convolutions, Floats
from ..dataset import Profile, known_tables, load_profile, read_table
from ..model_cache import cached_fit
from ..predictor import Prediction
from ..predictors import Trees, library, selection_features
from ..ranges import Ranges

#: Strict fp32 on this GPU: operations per microsecond, bytes per microsecond, and microseconds of a launch.
_FLOPS, _BYTES, _LAUNCH = 66.9e6, 4.72e6, 0.5
#: Trees of the forest.
_TREES = 60
#: The part of tuned layers that an interval should hold.
_COVERED_PART = 0.9


@frozen(eq=False)
class OwnKernels:
    """Model of the tuned convolutions of one machine.

    It has trees, and half the width of an interval.
    """

    trees: Trees
    ranges: Ranges
    width: float

    def convolutions(self, layers: Convolutions) -> tuple[Prediction, ...]:
        """Predict convolutions; depthwise and grouped ones are outside of the range."""
        us = _predict_times(self.trees, layers)
        found = []
        for time, (text, distance) in zip(us, self.ranges.outside(layers), strict=True):
            width = max(2 * self.width, float(np.log(2))) + distance if text else self.width
            low, high = float(time * np.exp(-width)), float(time * np.exp(width))
            found.append(Prediction(float(time), low, high, ("cuts",), 0, _COVERED_PART, (text,) if text else ()))
        return tuple(found)


def roofline(layers: Convolutions) -> Floats:
    """Return the least microseconds by the roofline, and a launch.

    They follow from operations and bytes moved once.
    """
    moved = 4.0 * (layers.m_in + layers.m_out)
    return np.asarray(np.maximum(layers.flops / _FLOPS, moved / _BYTES) + _LAUNCH)


def _fit_trees(layers: Convolutions, us: Floats) -> Trees:
    ensemble = library("sklearn.ensemble")
    trees = ensemble.ExtraTreesRegressor(_TREES, max_features=0.5, min_samples_leaf=2, random_state=0)
    return Trees.of_forest(trees.fit(selection_features(layers, {}), np.log(us / roofline(layers))))


def _predict_times(trees: Trees, layers: Convolutions) -> Floats:
    return np.asarray(roofline(layers) * np.exp(trees.means(selection_features(layers, {}))))


def unseen_own(layers: Convolutions, us: Floats, folds: int = 5) -> Floats:
    """Return predictions by trees that have not seen the layer.

    They have seen it at no batch.
    """
    groups = ["x".join(map(str, row[1:])) for row in layers.table]
    out = np.zeros(len(us))
    for train, test in library("sklearn.model_selection").GroupKFold(folds).split(us, groups=groups):
        out[test] = _predict_times(_fit_trees(layers[train], us[train]), layers[test])
    return out


def read_own(profile: Profile) -> tuple[Convolutions, Floats]:
    """Return the tuned convolutions of a machine and their microseconds.

    Raises `UsageError` where none were tuned.
    """
    name = f"{profile.name}-own"
    if name not in known_tables():
        raise UsageError(
            f"no kernels of cuts were tuned on '{profile.name}'", hint="--kernels library predicts the library's"
        )
    rows = read_table(name)
    shapes = [tuple(int(part) for part in row["shape"].split("x")) for row in rows]
    return Convolutions(shapes), np.array([float(row["us"]) for row in rows])


def fit_own_kernels(layers: Convolutions, us: Floats) -> OwnKernels:
    """Return the model of some tuned convolutions."""
    width = float(np.quantile(np.abs(np.log(unseen_own(layers, us) / us)), _COVERED_PART))
    return OwnKernels(_fit_trees(layers, us), Ranges.of(layers), width)


@cache
def own_kernels(name: str) -> OwnKernels:
    """Return the model of a machine's tuned `cuts` kernels."""
    profile = load_profile(name)

    def fit() -> dict[str, Any]:
        model = fit_own_kernels(*read_own(profile))
        return {"width": model.width, "ranges": model.ranges.bounds} | model.trees.arrays("")

    if f"{name}-own" not in known_tables():
        read_own(profile)
    found = cached_fit((profile.digest, "kernels of cuts"), fit)
    ranges = Ranges(tuple((size, least, most) for size, least, most in found["ranges"]))
    return OwnKernels(Trees.of_arrays(found, ""), ranges, found["width"])
