"""Partition refinement: repeats the partition with the times of the chosen kernels.

The partition depends on measured times of groups or, where time is short, on the cost model. Once each kernel is tuned
its time is known. A group that takes longer than its parts is split again; the partition with the least sum of times
ships. Only measured groups replace others, which are measured too; so where a budget ends early, most groups stay as
they are without measurements.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from math import inf

from attrs import frozen

from ...ir import REFINEMENT_SHARE, FusedGroup
from ..context import CompileContext
from ..costs import MeasuredTimes
from ..fusion import (
    Group,
    GroupBuilder,
    GroupEvaluator,
    Partitioner,
    combine_partitions,
    form_key,
    loop_iterations,
    partition,
)
from ..results import Partition, ScheduledPartition, kernel_key
from ..schedule import Candidate
from .choose_schedules import choose_schedules
from .form_groups import split_long_reductions


def refine_partition(previous: ScheduledPartition, context: CompileContext) -> ScheduledPartition:
    """Return the partition and schedules with the least total measured time."""
    times, before = context.costs.times, previous.partition
    layouts, replay = before.layouts, before.replay
    if not times.expected or context.options.mode != "mixed":
        return previous
    if (replay is not None and replay.complete) or context.budget.over(REFINEMENT_SHARE):
        return previous
    for form, seconds in _measured_groups(previous):
        times.note(form, seconds)
    kept = () if replay is None else tuple(replay.groups.values())
    costs = _Timed.of(context.evaluator, times, layouts.builder, before.formed)
    partitioner = context.partitioner(layouts, kept, costs)
    found = partition(partitioner, "mixed")
    formed = combine_partitions(partitioner, before.formed, found, context.is_faster)
    late = context.budget.over(REFINEMENT_SHARE)
    if late or _are_equal(formed, before.formed):  # the remaining time goes to the present kernels
        return previous if late or times.complete() else choose_schedules(before, context, REFINEMENT_SHARE)
    changed = split_long_reductions(Partition(layouts, formed, formed, layouts.views, replay), context)
    refined = choose_schedules(changed, context, REFINEMENT_SHARE)
    if _total_seconds(refined, times.scale) < _total_seconds(previous, times.scale):
        return refined
    # Known by now, so little is searched; reports show this one.
    return choose_schedules(before, context, REFINEMENT_SHARE)


def _total_seconds(scheduled: ScheduledPartition, scale: float) -> float:
    """Return the total measured time, with scaled modelled times for missing ones."""
    partition, chosen = scheduled.partition, scheduled.chosen
    count = loop_iterations(partition.views)
    return sum(_seconds(chosen[kernel_key(g, partition.views)], scale) * count[g.repeat] for g in partition.groups)


@frozen
class _Timed:
    """Evaluator that merges only measured or present groups; others were considered earlier."""

    evaluator: GroupEvaluator
    times: MeasuredTimes
    present: frozenset[Hashable]

    @staticmethod
    def of(evaluator: GroupEvaluator, times: MeasuredTimes, builder: GroupBuilder, formed: Sequence[Group]) -> _Timed:
        """Return the evaluator of groups; single units need no measurement."""
        groups = (*Partitioner(builder, evaluator).singletons(), *formed)
        return _Timed(evaluator, times, frozenset(form_key(group.form) for group in groups))

    def cost(self, group: FusedGroup) -> float:
        """Return a group's seconds; infinity for unmeasured groups of several units."""
        known = self.times.has(group) or form_key(group) in self.present
        return self.evaluator.cost(group) if known else inf


def _measured_groups(scheduled: ScheduledPartition) -> Iterator[tuple[FusedGroup, float]]:
    """Yield each group of a partition with the measured time of all its kernels."""
    partition, taken = scheduled.partition, dict[tuple[str, ...], float]()
    for group in partition.groups:
        seconds = _seconds(scheduled.chosen[kernel_key(group, partition.views)])
        taken[group.units] = taken.get(group.units, 0.0) + seconds
    for group in partition.formed:
        if taken.get(group.units, inf) < inf:
            yield group.form, taken[group.units]


def _seconds(candidate: Candidate, scale: float = inf) -> float:
    """Return the measured time of a candidate, else its scaled modelled time."""
    found = candidate.measured.get("measured")
    return float(found) if isinstance(found, (int, float)) else scale * candidate.score


def _are_equal(first: Sequence[Group], second: Sequence[Group]) -> bool:
    return [(g.units, form_key(g.form)) for g in first] == [(g.units, form_key(g.form)) for g in second]
