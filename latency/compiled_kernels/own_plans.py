"""Prediction of whole models with tuned `cuts` kernels.

The plan is the one that the compiler makes without a measurement: from the tuning database and its packs, else by the
cost model. So its fusion, its algorithms and its schedules are known, and with them the estimate of each launch. A
tuned plan takes a share of the sum of its estimates, since launches overlap and find their inputs in the L2 cache;
launches of a loop, which wait for each other, have a share of their own. Both are medians over networks that were tuned
and timed, one for a batch of 1, whose launches are short and wait for memory, one for larger ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from statistics import median
from typing import Any, Protocol

import numpy as np
from attrs import frozen

from ...ir import UsageError, launches
from ..dataset import Profile, known_tables, load_profile, read_table
from ..models import LayerPrediction, ModelPrediction
from ..operations import ModelLayer
from ..predictor import Prediction

#: The part of networks that an interval should hold.
_COVERED_PART = 0.9


class LaunchedGroups(Protocol):
    """Compiled graph or plan: steps, records of groups, loops."""

    @property
    def steps(self) -> Sequence[Any]:
        """Launches in order."""

    @property
    def groups(self) -> Sequence[Mapping[str, Any]]:
        """Records of the steps."""

    @property
    def loops(self) -> Sequence[Any]:
        """Loops over steps."""


@frozen
class PlannedLaunch:
    """Launch of a plan: nodes, operations, and estimated microseconds.

    One that is `looped` belongs to a loop.
    """

    name: str
    op: str
    estimate: float
    looped: bool = False


@frozen
class TimedPlan:
    """Tuned and timed plan of a network.

    It has the microseconds of the whole, and the estimates of launches outside and inside of loops.
    """

    network: str
    batch: int
    straight: float
    looped: float
    us: float


@frozen
class Shares:
    """Shares of estimates that launches outside and inside of loops take."""

    straight: float
    looped: float


@frozen
class OwnPlans:
    """Model of the tuned plans of one machine.

    It has the shares of a batch of 1 and of larger ones, and half the width of an interval as a logarithm.
    """

    single: Shares
    several: Shares
    width: float

    def shares(self, batch: int) -> Shares:
        """Return the shares of a batch."""
        return self.single if batch == 1 else self.several

    def predict(self, planned: Sequence[PlannedLaunch], batch: int) -> ModelPrediction:
        """Predict a plan."""
        low, high = (float(np.exp(sign * self.width)) for sign in (-1, 1))
        found, whole, shares = [], 0.0, self.shares(batch)
        for each in planned:
            us = each.estimate * (shares.looped if each.looped else shares.straight)
            one = Prediction(us, us * low, us * high, ("cuts",), 0, _COVERED_PART)
            found.append(LayerPrediction(ModelLayer(each.name, each.op, ()), one))
            whole += us
        return ModelPrediction(whole, whole * low, whole * high, len(planned), tuple(found))

    def microseconds(self, plan: TimedPlan) -> float:
        """Return the predicted microseconds of a timed plan."""
        shares = self.shares(plan.batch)
        return plan.straight * shares.straight + plan.looped * shares.looped


def planned_launches(plan: LaunchedGroups) -> list[PlannedLaunch]:
    """Return the launches of a plan in order."""
    looped = {step for loop in plan.loops for step in range(loop.first, loop.last)}
    found = []
    for step, _ in launches(len(plan.steps), plan.loops):
        group = plan.groups[step]
        names = ", ".join(str(node).rpartition(".")[0] or str(node) for node in group["nodes"])
        found.append(PlannedLaunch(names, ", ".join(group["ops"]), 1e6 * group["estimate"], step in looped))
    return found


def summarise(network: str, batch: int, planned: Sequence[PlannedLaunch], us: float) -> TimedPlan:
    """Return a timed plan of launches."""
    straight, looped = (sum(each.estimate for each in planned if each.looped == kind) for kind in (False, True))
    return TimedPlan(network, batch, straight, looped, us)


def read_plans(profile: Profile) -> tuple[TimedPlan, ...]:
    """Return the timed plans of a machine.

    Raises `UsageError` where there are none.
    """
    name = f"{profile.name}-plans"
    if name not in known_tables():
        raise UsageError(
            f"no plans of cuts were timed on '{profile.name}'", hint="--kernels library predicts the library's"
        )
    rows = read_table(name)
    values = ((float(row["straight"]), float(row["looped"]), float(row["us"])) for row in rows)
    return tuple(TimedPlan(row["network"], int(row["batch"]), *found) for row, found in zip(rows, values, strict=True))


def fit_own_plans(plans: Sequence[TimedPlan], without: str = "") -> OwnPlans:
    """Return the model of some plans, without those of one network."""
    rest = [each for each in plans if each.network != without]
    errors = [abs(np.log(us / plan.us)) for plan, us in unseen_plans(rest)]
    return _fit_shares(rest, float(np.quantile(errors, _COVERED_PART)))


def unseen_plans(plans: Sequence[TimedPlan]) -> Iterator[tuple[TimedPlan, float]]:
    """Yield each plan with the microseconds that plans of other networks predict."""
    for plan in plans:
        others = [each for each in plans if each.network != plan.network]
        yield plan, _fit_shares(others or plans).microseconds(plan)


def _fit_shares(plans: Sequence[TimedPlan], width: float = 0.0) -> OwnPlans:
    """Return the shares by batch; without plans of a kind, all plans decide."""
    kinds = ([each for each in plans if (each.batch == 1) == alone] or plans for alone in (True, False))
    single, several = map(_shares, kinds)
    return OwnPlans(single, several, width)


def _shares(plans: Sequence[TimedPlan]) -> Shares:
    """Return the medians of shares; each network counts once."""
    share = _median_of_networks([(each.network, each.us / each.straight) for each in plans if not each.looped]) or 1.0
    loops = [(each.network, (each.us - share * each.straight) / each.looped) for each in plans if each.looped]
    return Shares(share, _median_of_networks(loops) or share)


def _median_of_networks(values: Sequence[tuple[str, float]]) -> float | None:
    networks = {network: [value for other, value in values if other == network] for network, _ in values}
    return median(map(median, networks.values())) if networks else None


@cache
def own_plans(name: str) -> OwnPlans:
    """Return the model of a machine's tuned `cuts` plans."""
    return fit_own_plans(read_plans(load_profile(name)))
