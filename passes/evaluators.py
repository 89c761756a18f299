"""Evaluators: what the best kernel of a group takes, as the partition's `Evaluate` asks.

`Roofline` is the cheapest: every tensor moves once, every operation runs at peak. `Modelled` takes the best of a fixed sample of the
group's parameter space under the `bound` model. Measured time takes their place where there is a device.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod

import numpy as np
from attrs import define, frozen

from ..ir.expr import expr_variables, reads
from ..ir.index import Var
from ..ir.segment import FusedGroup, Reduction, Segment, factors
from ..ir.target import Target
from .enumerate import sampled
from .legality import box_extent, issue_slots
from .prune import score
from .space import make_space

#: The tile of the last segment along each axis that the recomputation of an earlier one is estimated with.
TILE = 16


@frozen
class Roofline:
    """Seconds of a group on a target if every tensor moved once and every operation ran at peak."""

    target: Target

    def cost(self, group: FusedGroup) -> float:
        """Return launch time plus the longer of memory and arithmetic time."""
        moved = sum(group.tensors[t].nbytes for t in (*group.inputs, *group.outputs))
        work = _operations(group.segments[-1])
        for segment in group.segments[:-1]:
            work += _operations(segment) * _recomputed(segment, group)
        return self.target.launch_time + max(moved / self.target.BW_global, work / self.target.PERF_peak)


@frozen
class Modelled:
    """Seconds of the best of at most `sample` points per structure of a group's space, by the `bound` model's order."""

    target: Target
    sample: int = 512

    def cost(self, group: FusedGroup) -> float:
        """Return the modelled time, launch included, infinity where no sampled point is legal."""
        best = inf
        space = make_space(group, self.target, coarse=True)
        for batch in sampled(space, self.sample):
            values = score(batch, space, "bound")
            best = min(best, float(np.min(values, initial=inf)))
        return best


@define
class Limited:
    """An evaluator with a deadline: behind it, the roofline answers. `clock` tells the time, `expired` whether the deadline was met."""

    evaluator: Modelled
    deadline: float
    clock: Callable[[], float]
    expired: bool = False

    def cost(self, group: FusedGroup) -> float:
        """Return the seconds of a group."""
        self.expired = self.expired or self.clock() > self.deadline
        return Roofline(self.evaluator.target).cost(group) if self.expired else self.evaluator.cost(group)


def _operations(segment: Segment) -> float:
    points = prod(a.extent for a in segment.axes)
    outputs = sum(issue_slots(o.body) * prod(v.extent for v in o.extra) for o in segment.outputs)
    return float(points * outputs + sum(_accumulated(r, points * prod(v.extent for v in r.reduce)) for r in segment.reductions))


def _accumulated(reduction: Reduction, points: int) -> int:
    """Return a multiply and an add per point; a factor is computed once per element of what it depends on, as when it is staged."""
    parts = factors(reduction.body) if reduction.combine == "sum" else (reduction.body,)
    return len(parts) * points + sum(issue_slots(p) * prod(v.extent for v in expr_variables(p)) for p in parts)


def _recomputed(segment: Segment, group: FusedGroup) -> float:
    """Return how often an element of a shared tensor is computed, over all blocks of the last segment."""
    (output,) = segment.outputs
    last = group.segments[-1]
    read = next(r for body in last.expressions for r in reads(body) if r.tensor == output.tensor)
    tiles = {a: min(TILE, a.extent) for a in last.axes}
    rows: dict[Var, int] = {v: v.extent for r in last.reductions for v in r.reduce}
    box = prod(box_extent(i, {**tiles, **rows}) for i in read.indices)
    blocks = prod(-(-a.extent // tiles[a]) for a in last.axes)
    return max(1.0, blocks * box / group.tensors[output.tensor].size)
