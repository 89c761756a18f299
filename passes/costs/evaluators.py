"""Evaluators: `Evaluate(P)` of the partition, the cost of a group's best kernel.

`Roofline` is the cheapest: every tensor moves once, every operation runs at peak. `BudgetedCost` asks `AnalyticCost`
within a time budget. Measured times replace both where a device is present.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from math import prod

from attrs import define, field, frozen

from ...ir import (
    MODEL_SHARE,
    Budget,
    FusedGroup,
    Reduction,
    Segment,
    Target,
    Var,
    expr_variables,
    factors,
    reads,
)
from ..fusion import UNKNOWN, box_extent, form_key, issue_slots
from .analytic_cost import AnalyticCost

#: Tile of the last segment along each axis, for the estimate of recomputation of an earlier segment.
RECOMPUTE_TILE = 16
#: Seconds of the cost model for the baseline plan of a graph, even beyond the budget: an incomplete plan is slower and
#: takes longer to build, as it has more kernels.
MIN_MODEL_SECONDS = 5.0


@frozen
class Roofline:
    """Seconds of a group with minimal memory traffic and peak arithmetic rates."""

    target: Target

    def cost(self, group: FusedGroup) -> float:
        """Return launch time plus the longer of memory and arithmetic time."""
        work = _operations(group.segments[-1])
        for segment in group.segments[:-1]:
            work += _operations(segment) * _recompute_factor(segment, group)
        return max(self.traffic(group), self.target.launch_time + work / self.target.PERF_peak)

    def traffic(self, group: FusedGroup) -> float:
        """Return launch time plus memory time, which matrix instructions do not shorten."""
        moved = sum(group.tensors[t].nbytes for t in (*group.inputs, *group.outputs))
        return self.target.launch_time + moved / self.target.BW_global


@define
class BudgetedCost:
    """Cost model within a time budget, evaluated once for equal groups.

    When its share of the budget is used up, a new group costs `UNKNOWN`. While it `ignores_budget`, for the baseline
    plan, it is evaluated until the whole budget is overdue, and for at least `MIN_MODEL_SECONDS`. `expired` is true
    once it was queried after its share.
    """

    evaluator: AnalyticCost
    budget: Budget
    expired: bool = False
    costs: dict[Hashable, float] = field(factory=dict)
    ignores_budget: bool = False
    _until: float | None = field(default=None, init=False)

    def cost(self, group: FusedGroup) -> float:
        """Return the seconds of a group."""
        key = form_key(group)
        if key not in self.costs:
            self.expired = self.expired or self.budget.over(MODEL_SHARE)
            if self.is_late() if self.ignores_budget else self.expired:
                return UNKNOWN
            self.costs[key] = self.evaluator.cost(group)
        return self.costs[key]

    def is_measured(self, group: FusedGroup) -> bool:
        """Return whether the model has evaluated a group."""
        return form_key(group) in self.costs

    def is_late(self) -> bool:
        """Return whether the model does not answer any more."""
        own = self.ignores_budget and self._until is not None and self.budget.elapsed <= self._until
        return self.budget.overdue() and (self.budget.stopped or not own)

    @contextmanager
    def without_budget(self) -> Iterator[None]:
        """Context manager that lifts the model's share until the budget is overdue.

        The first one lasts at least `MIN_MODEL_SECONDS`.
        """
        if self._until is None:
            self._until = self.budget.elapsed + MIN_MODEL_SECONDS
        before, self.ignores_budget = self.ignores_budget, True
        try:
            yield
        finally:
            self.ignores_budget = before


def _operations(segment: Segment) -> float:
    points = prod(a.extent for a in segment.axes)
    outputs = sum(issue_slots(o.body) * prod(v.extent for v in o.extra) for o in segment.outputs)
    return float(
        points * outputs
        + sum(_reduction_slots(r, points * prod(v.extent for v in r.reduce)) for r in segment.reductions)
    )


def _reduction_slots(reduction: Reduction, points: int) -> int:
    """Return a multiply and an add per point, and each factor once per element, as when it is staged."""
    parts = factors(reduction.body) if reduction.combine == "sum" else (reduction.body,)
    return len(parts) * points + sum(issue_slots(p) * prod(v.extent for v in expr_variables(p)) for p in parts)


def _recompute_factor(segment: Segment, group: FusedGroup) -> float:
    """Return how often an element of a shared tensor is computed, over all blocks of the last segment."""
    output = segment.outputs[-1]
    later = group.segments[group.segments.index(segment) + 1 :]
    last = next(s for s in later if output.tensor in s.tensors_read)
    read = next(r for body in last.expressions for r in reads(body) if r.tensor == output.tensor)
    tiles = {a: min(RECOMPUTE_TILE, a.extent) for a in last.axes}
    rows: dict[Var, int] = {v: v.extent for r in last.reductions for v in r.reduce}
    box = prod(box_extent(i, {**tiles, **rows}) for i in read.indices)
    blocks = prod(-(-a.extent // tiles[a]) for a in last.axes)
    return max(1.0, blocks * box / group.tensors[output.tensor].size)
