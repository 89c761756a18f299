"""Prediction of whole models with untuned `cuts` kernels.

It begins with the plan that the compiler makes without measurements. The compiler knows its fusion, its algorithms, and
the limit of each launch. The errors of its estimates are learned from launches of plans that were tuned and timed:
trees on the estimate, the bound and the shares of their terms, for launches whose inputs were just written. Between
launches is a gap, which is fitted on the networks of `networks.GAP_NETWORKS` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import frozen

from ...ir import CompiledGraph, UsageError, launches
from ..convolution import Floats
from ..dataset import GAP_NETWORKS, Profile, known_tables, load_profile, read_table
from ..model_cache import cached_fit
from ..models import LayerPrediction, ModelPrediction
from ..operations import ModelLayer
from ..predictor import Prediction
from ..predictors import Trees, library

#: Terms of the compiler's estimate, as its reports name them.
TERMS = ("math", "issue", "shared", "l2", "dram", "latency", "first")
#: Trees of the forest, and launches in a leaf at least.
_TREES, _LEAF = 60, 5
#: The part of launches that an interval should hold.
_COVERED_PART = 0.9


@frozen
class PlannedLaunch:
    """Launch of a plan with its nodes, operations, estimate and bound.

    Estimate, bound and the terms of the estimate are in microseconds.
    """

    name: str
    op: str
    estimate: float
    bound: float
    terms: Mapping[str, float]

    @property
    def features(self) -> list[float]:
        """Features for the trees."""
        shares = [self.terms.get(name, 0.0) / self.estimate for name in TERMS]
        return [float(np.log(self.estimate)), float(np.log(self.estimate / self.bound)), *shares]


@frozen(eq=False)
class TimedPlan:
    """Tuned and timed plan.

    It has the network and batch, its launches, microseconds of each repeated alone, and those of the whole.
    """

    network: str
    batch: int
    launches: tuple[PlannedLaunch, ...]
    us: Floats
    whole: float


@frozen(eq=False)
class OwnPlans:
    """Model of the timed plans of one machine.

    It has trees for the logarithm of time over estimate, microseconds between launches, and half the width of an
    interval as a logarithm.
    """

    trees: Trees
    gap: float
    width: float

    def times(self, planned: Sequence[PlannedLaunch]) -> Floats:
        """Return microseconds of each launch, its inputs just written."""
        rows = np.array([each.features for each in planned])
        return np.array([each.estimate for each in planned]) * np.exp(self.trees.means(rows))

    def predict(self, planned: Sequence[PlannedLaunch]) -> ModelPrediction:
        """Predict a plan."""
        times = self.times(planned) if planned else np.zeros(0)
        found = []
        for each, us in zip(planned, times.tolist(), strict=True):
            one = Prediction(
                us, us * float(np.exp(-self.width)), us * float(np.exp(self.width)), ("cuts",), 0, _COVERED_PART
            )
            found.append(LayerPrediction(ModelLayer(each.name, each.op, ()), one))
        whole = float(times.sum()) + self.gap * len(planned)
        # errors of launches are taken as common by half: the interval of the whole is half as wide
        low, high = whole * float(np.exp(-self.width / 2)), whole * float(np.exp(self.width / 2))
        return ModelPrediction(whole, low, high, len(planned), tuple(found))


def planned_launches(compiled: CompiledGraph) -> list[PlannedLaunch]:
    """Return the launches of a compiled graph in order."""
    found = []
    for step, _ in launches(len(compiled.steps), compiled.loops):
        group: Mapping[str, Any] = compiled.groups[step]
        terms = {name: 1e6 * seconds for name, seconds in group["terms"].items()}
        names = ", ".join(str(node).rpartition(".")[0] or str(node) for node in group["nodes"])
        op = ", ".join(group["ops"])
        found.append(PlannedLaunch(names, op, 1e6 * group["estimate"], 1e6 * group["bound"], terms))
    return found


def read_plans(profile: Profile) -> tuple[TimedPlan, ...]:
    """Return the timed plans of a machine.

    Raises `UsageError` where there are none.
    """
    name = f"{profile.name}-plans"
    if name not in known_tables():
        raise UsageError(
            f"no plans of cuts were timed on '{profile.name}'", hint="--kernels library predicts the library's"
        )
    return tuple(_plans(read_table(name)))


def _plans(rows: Sequence[Mapping[str, str]]) -> Iterator[TimedPlan]:
    known: list[PlannedLaunch] = []
    us: list[float] = []
    for row in rows:
        if row["launch"] != "whole":
            terms = {name: float(row[name]) for name in TERMS}
            known.append(PlannedLaunch("", row["launch"], float(row["estimate"]), float(row["bound"]), terms))
            us.append(float(row["us"]))
            continue
        yield TimedPlan(row["network"], int(row["batch"]), tuple(known), np.array(us), float(row["us"]))
        known, us = [], []


def fit_own_plans(plans: Sequence[TimedPlan], without: str = "") -> OwnPlans:
    """Return the model of some plans, without those of one network.

    The gap is that of `GAP_NETWORKS` in any case.
    """
    rest = [each for each in plans if each.network != without]
    unseen = [(found, plan.us) for plan, found in unseen_plans(rest)]
    errors = [np.log(each.prediction.us / us)
              for found, times in unseen for each, us in zip(found.layers, times, strict=True)]  # fmt: skip
    return OwnPlans(_fit_trees(rest), gap_between(plans), float(np.quantile(np.abs(errors), _COVERED_PART)))


def gap_between(plans: Sequence[TimedPlan]) -> float:
    """Return the microseconds that a launch adds to a whole plan.

    It is fitted by least squares of relative errors, on the networks of `GAP_NETWORKS`.
    """
    known = [each for each in plans if each.network in GAP_NETWORKS]
    left = np.array([1.0 - each.us.sum() / each.whole for each in known])
    counts = np.array([len(each.launches) / each.whole for each in known])
    return max(0.0, float(left @ counts / (counts @ counts))) if known else 0.0


def unseen_plans(plans: Sequence[TimedPlan]) -> Iterator[tuple[TimedPlan, ModelPrediction]]:
    """Yield each plan with its prediction from plans of other networks."""
    gap = gap_between(plans)
    for network in dict.fromkeys(each.network for each in plans):
        others = OwnPlans(_fit_trees([each for each in plans if each.network != network]), gap, 0.0)
        yield from ((each, others.predict(each.launches)) for each in plans if each.network == network)


def _fit_trees(plans: Sequence[TimedPlan]) -> Trees:
    ensemble = library("sklearn.ensemble")
    trees = ensemble.ExtraTreesRegressor(_TREES, max_features=0.6, min_samples_leaf=_LEAF, random_state=0)
    us = np.concatenate([each.us for each in plans])
    rows: npt.NDArray[Any] = np.array([one.features for each in plans for one in each.launches])
    estimates = np.array([one.estimate for each in plans for one in each.launches])
    return Trees.of_forest(trees.fit(rows, np.log(us / estimates), sample_weight=np.sqrt(us)))


@cache
def own_plans(name: str) -> OwnPlans:
    """Return the model of a machine's tuned `cuts` plans."""
    profile = load_profile(name)
    if f"{name}-plans" not in known_tables():
        read_plans(profile)

    def fit() -> dict[str, Any]:
        model = fit_own_plans(read_plans(profile))
        return {"gap": model.gap, "width": model.width} | model.trees.arrays("")

    found = cached_fit((profile.digest, "plans of cuts"), fit)
    return OwnPlans(Trees.of_arrays(found, ""), found["gap"], found["width"])
