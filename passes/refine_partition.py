"""Partition refinement: repeats the partition with the times of the chosen kernels.

The partition depends on measured times of groups or, where time is short, on the cost model. Once each kernel is tuned
its time is known. A group that takes longer than its parts is split again; the partition with the least sum of times
ships. Only measured groups replace others, which are measured too; so where a budget ends early, most groups stay as
they are without measurements.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from math import inf

from attrs import frozen

from ..ir import REFINEMENT_SHARE, FusedGroup, Graph
from .assemble import kernel_key, loop_iterations
from .compilation import Compilation
from .fusion import Group, GroupBuilder, GroupEvaluator, Partitioner, Views, combine_partitions, form_key, partition
from .schedule import Candidate
from .stages import choose_schedules, split_long_reductions
from .tuner_interface import Selector


@frozen
class _Decision:
    """Partition with its schedules, as a compilation holds it."""

    graph: Graph
    views: Views
    formed: Sequence[Group]
    groups: Sequence[Group]
    unique: Mapping[Hashable, Group]
    chosen: Mapping[Hashable, Candidate]

    @staticmethod
    def of(work: Compilation) -> _Decision:
        """Return the current partition of a compilation."""
        return _Decision(work.graph, work.views, work.formed, work.groups, work.unique, work.chosen)

    def restore(self, work: Compilation) -> None:
        """Restore this partition in a compilation."""
        work.graph, work.views, work.formed = self.graph, self.views, self.formed
        work.groups, work.unique, work.chosen = self.groups, self.unique, self.chosen

    def seconds(self, scale: float) -> float:
        """Return the total measured time, with scaled modelled times for missing ones."""
        count = loop_iterations(self.views)
        return sum(_seconds(self.chosen[kernel_key(g, self.views)], scale) * count[g.repeat] for g in self.groups)


def refine_partition(work: Compilation) -> Mapping[Hashable, Candidate]:
    """Set the partition and schedules with the least total measured time."""
    selector, placed, builder = work.selector, work.placed, work.builder
    if selector is None or placed is None or builder is None or work.options.mode != "mixed":
        return work.chosen
    if work.is_replayed or selector.budget.over(REFINEMENT_SHARE):
        return work.chosen
    best = _Decision.of(work)
    for form, seconds in _measured_groups(best):
        selector.note_time(form, seconds)
    work.graph, work.views = placed
    partitioner = work.partitioner(builder, _Timed.of(work.evaluator, selector, builder, best.formed))
    found = partition(partitioner, "mixed")
    work.formed = work.groups = combine_partitions(partitioner, best.formed, found, work.is_faster)
    late = selector.budget.over(REFINEMENT_SHARE)
    if late or _same(work.formed, best.formed):  # the remaining time goes to the present kernels
        best.restore(work)
        return work.chosen if late or selector.complete else choose_schedules(work, REFINEMENT_SHARE)
    split_long_reductions(work)
    choose_schedules(work, REFINEMENT_SHARE)
    if _Decision.of(work).seconds(selector.scale) < best.seconds(selector.scale):
        return work.chosen
    best.restore(work)
    return choose_schedules(work, REFINEMENT_SHARE)  # known by now, so little is searched; reports show this one


@frozen
class _Timed:
    """Evaluator that merges only measured or present groups; others were considered earlier."""

    evaluator: GroupEvaluator
    selector: Selector
    present: frozenset[Hashable]

    @staticmethod
    def of(evaluator: GroupEvaluator, selector: Selector, builder: GroupBuilder, formed: Sequence[Group]) -> _Timed:
        """Return the evaluator of groups; single units need no measurement."""
        groups = (*Partitioner(builder, evaluator).singletons(), *formed)
        return _Timed(evaluator, selector, frozenset(form_key(group.form) for group in groups))

    def cost(self, group: FusedGroup) -> float:
        """Return a group's seconds; infinity for unmeasured groups of several units."""
        known = self.selector.is_measured(group) or form_key(group) in self.present
        return self.evaluator.cost(group) if known else inf


def _measured_groups(decision: _Decision) -> Iterator[tuple[FusedGroup, float]]:
    """Yield each group of a partition with the measured time of all its kernels."""
    taken: dict[tuple[str, ...], float] = {}
    for group in decision.groups:
        seconds = _seconds(decision.chosen[kernel_key(group, decision.views)])
        taken[group.units] = taken.get(group.units, 0.0) + seconds
    for group in decision.formed:
        if taken.get(group.units, inf) < inf:
            yield group.form, taken[group.units]


def _seconds(candidate: Candidate, scale: float = inf) -> float:
    """Return the measured time of a candidate, else its scaled modelled time."""
    found = candidate.measured.get("measured")
    return float(found) if isinstance(found, (int, float)) else scale * candidate.score


def _same(first: Sequence[Group], second: Sequence[Group]) -> bool:
    return [(g.units, form_key(g.form)) for g in first] == [(g.units, form_key(g.form)) for g in second]
