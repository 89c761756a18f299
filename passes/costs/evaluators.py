"""Evaluators: `Evaluate(P)` of the partition, the cost of a group's best kernel.

`Roofline` is the cheapest: every tensor moves once, every operation runs at peak. `AnalyticCost` takes the best of a
fixed sample of the group's schedule space under the cost model. Measured times replace both where a device is present.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product as cartesian
from math import inf, prod
from typing import Any

import numpy as np
from attrs import define, field, frozen

from ...ir import (
    MODEL_SHARE,
    Budget,
    FusedGroup,
    PassError,
    Reduction,
    Segment,
    Target,
    Var,
    expr_variables,
    factors,
    has_dependent_sizes,
    operands,
    reads,
)
from ..fusion import UNKNOWN, box_extent, form_key, issue_slots
from ..geometry import ScheduleParameter, ScheduleTemplate, SegmentTemplate
from ..model import estimate_time, lower_bound
from ..schedule import Batch, Space, choose, columns_at, evaluate, make_space, sample_batches, segment_templates

#: Tile of the last segment along each axis, for the estimate of recomputation of an earlier segment.
RECOMPUTE_TILE = 16
#: Schedule templates, and candidates of each, that groups over a known iteration space are evaluated with.
MAX_LEADING_STRUCTURES, LEADING_POINTS = 1, 8
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


@frozen(eq=False)
class Leader:
    """Best candidates of a schedule template.

    It has the template's position among those of its group, its parameters, and the numbers of the candidates.
    """

    position: int
    knobs: tuple[ScheduleParameter, ...]
    points: np.ndarray[Any, Any]


@frozen
class AnalyticCost:
    """Analytic cost of a group: its best sampled candidate schedule.

    At most `sample` candidates of each schedule template are compared, in the order of the cost model.

    Of groups that compute over the same iteration space, such as a convolution before and after its neighbours were
    fused into it, the first is searched; the others are evaluated with the candidates that are best there.
    """

    target: Target
    sample: int = 512
    leaders: dict[tuple[Any, ...], tuple[Leader, ...]] = field(factory=dict, eq=False, repr=False)

    def cost(self, group: FusedGroup) -> float:
        """Return the modelled time with its launch; infinity without a legal sample.

        Where the sizes of segments depend on one another a sample represents the space badly: few of its candidates are
        legal.
        """
        if has_dependent_sizes(group):
            return self._chosen_cost(group)
        segments = list(
            cartesian(*(_plain(segment_templates(group, k, self.target)) for k in range(len(group.segments))))
        )
        key = (tuple(tuple(map(_choices, each)) for each in segments), *iteration_spaces(group))
        best = inf
        if key in self.leaders:
            chosen = tuple(ScheduleTemplate(segments[k.position], "computed", k.knobs) for k in self.leaders[key])
            space = Space(group, self.target, chosen)
            for structure, leader in zip(chosen, self.leaders[key], strict=True):
                best = min(
                    best,
                    float(_seconds(evaluate(space, structure, columns_at(structure, leader.points), 0), space).min()),
                )
        if best == inf:
            best = self._search(make_space(group, self.target, True, segments), key)
        return best

    def _chosen_cost(self, group: FusedGroup) -> float:
        """Return the estimate of the candidate that is chosen without a device."""
        try:
            return choose(group, self.target)[0].score
        except PassError:
            return inf

    def _search(self, space: Space, key: tuple[Any, ...]) -> float:
        """Return the best of a sample, and store the best candidates of the best templates."""
        found: list[tuple[float, Leader]] = []
        for position, batch in enumerate(sample_batches(space, self.sample)):
            values = _seconds(batch, space)
            assert batch.points is not None, "samples name their points"
            first = np.argsort(values, kind="stable")[:LEADING_POINTS]
            if np.isfinite(values[first[0]]):
                found.append(
                    (float(values[first[0]]), Leader(position, batch.structure.parameters, batch.points[first]))
                )
        found.sort(key=lambda pair: pair[0])
        self.leaders[key] = tuple(leader for _, leader in found[:MAX_LEADING_STRUCTURES])
        return found[0][0] if found else inf


def _plain(structures: Sequence[SegmentTemplate]) -> list[SegmentTemplate]:
    """Return the schedule templates that stage all operands or none; others do not change costs at this level."""
    most = max((len(s) for structure in structures for s in structure.staged), default=0)
    return [s for s in structures if all(len(staged) in (0, most) for staged in s.staged)] or list(structures)


def _choices(structure: SegmentTemplate) -> tuple[Hashable, ...]:
    """Return the properties that decide which parameters a schedule template has."""
    sizes = (len(structure.dims), len(structure.loops), len(structure.patch), structure.staged, bool(structure.shared))
    return (
        *sizes,
        structure.reduction_threads,
        structure.mma,
        structure.caches_rows,
        structure.scatter_dim,
        structure.parts,
    )


def _seconds(batch: Batch, space: Space) -> np.ndarray[Any, Any]:
    """Return the modelled seconds of candidates, infinity where they are illegal, without bank conflicts."""
    estimate = batch.flat(estimate_time(batch.features, lower_bound(batch.features, space.target), space.target))
    return np.where(batch.legal, estimate, inf)


def iteration_spaces(group: FusedGroup) -> tuple[Any, ...]:
    """Return each segment's iteration space: axes, loops and output extras."""
    return tuple(map(_iteration_space, group.segments))


def _iteration_space(segment: Segment) -> tuple[Hashable, Hashable, Hashable]:
    """Return a segment's axes, and the axes that each operand of its reductions and each output depends on."""
    axes = segment.axes
    own = [r.name for r in segment.reductions]
    loops = []
    for reduction in segment.reductions:
        every = (*axes, *reduction.reduce)
        used = tuple(tuple(v in expr_variables(p) for v in every) for p in operands(reduction, own))
        loops.append((reduction.combine, reduction.along, tuple(v.extent for v in reduction.reduce), used))
    extras = tuple(tuple(v.extent for v in o.extra) for o in segment.outputs)
    return tuple(a.extent for a in axes), tuple(loops), extras


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
