"""Second thoughts: the partition is decided again with the times of the kernels that were chosen.

The partition rests on what groups were measured to take, or, where time was short, on what the model says. Once each
kernel has been tuned its time is known. A group that takes longer than the groups it was made of is then taken apart;
what ships is the partition whose times add up to least. Only groups that were measured take the place of others, which
were measured too; so where a budget ended early, most stand as they do without measurements.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from math import inf

from attrs import frozen

from ..ir import SECOND_SHARE, FusedGroup, Graph
from .assemble import kernel_key, turns
from .compilation import Compilation
from .fusion import Group, GroupEvaluator, Partitioner, Views, Workshop, form_key, partition, settle
from .schedule import Candidate
from .stages import choose_schedules, split_long_reductions
from .workload import Selector


@frozen
class _Decision:
    """A partition with its schedules, as a compilation holds it."""

    graph: Graph
    views: Views
    formed: Sequence[Group]
    groups: Sequence[Group]
    unique: Mapping[Hashable, Group]
    chosen: Mapping[Hashable, Candidate]

    @staticmethod
    def of(work: Compilation) -> _Decision:
        """Return what a compilation has decided."""
        return _Decision(work.graph, work.views, work.formed, work.groups, work.unique, work.chosen)

    def back(self, work: Compilation) -> None:
        """Let a compilation have decided this."""
        work.graph, work.views, work.formed = self.graph, self.views, self.formed
        work.groups, work.unique, work.chosen = self.groups, self.unique, self.chosen

    def seconds(self, scale: float) -> float:
        """Return the sum of measured times; where one is missing, of what the model says on that scale."""
        count = turns(self.views)
        return sum(_seconds(self.chosen[kernel_key(g, self.views)], scale) * count[g.repeat] for g in self.groups)


def reconsider(work: Compilation) -> Mapping[Hashable, Candidate]:
    """Leave the partition, and the schedules, whose measured times add up to least."""
    selector, placed, workshop = work.selector, work.placed, work.workshop
    if selector is None or placed is None or workshop is None or work.options.mode != "mixed":
        return work.chosen
    if work.settled or selector.budget.over(SECOND_SHARE):
        return work.chosen
    best = _Decision.of(work)
    for form, seconds in _measured(best):
        selector.tell(form, seconds)
    work.graph, work.views = placed
    partitioner = work.partitioner(workshop, _Timed.of(work.evaluator, selector, workshop, best.formed))
    found = partition(partitioner, "mixed")
    work.formed = work.groups = settle(partitioner, best.formed, found, work.faster)
    late = selector.budget.over(SECOND_SHARE)
    if late or _same(work.formed, best.formed):  # what is left of the time goes to the kernels that there are
        best.back(work)
        return work.chosen if late or selector.complete else choose_schedules(work, SECOND_SHARE)
    split_long_reductions(work)
    choose_schedules(work, SECOND_SHARE)
    if _Decision.of(work).seconds(selector.scale) < best.seconds(selector.scale):
        return work.chosen
    best.back(work)
    return choose_schedules(work, SECOND_SHARE)  # known by now, so little is searched; this is what reports are of


@frozen
class _Timed:
    """An evaluator that merges only groups that were measured, or that there are; what the model says of others was
    heard before.
    """

    evaluator: GroupEvaluator
    selector: Selector
    present: frozenset[Hashable]

    @staticmethod
    def of(evaluator: GroupEvaluator, selector: Selector, workshop: Workshop, formed: Sequence[Group]) -> _Timed:
        """Return the evaluator of a workshop's groups; its units by themselves need no measurement."""
        groups = (*Partitioner(workshop, evaluator).singletons(), *formed)
        return _Timed(evaluator, selector, frozenset(form_key(group.form) for group in groups))

    def cost(self, group: FusedGroup) -> float:
        """Return the seconds of a group, infinity for one of several units that was never measured."""
        known = self.selector.knows(group) or form_key(group) in self.present
        return self.evaluator.cost(group) if known else inf


def _measured(decision: _Decision) -> Iterator[tuple[FusedGroup, float]]:
    """Yield each group of a partition with what it was measured to take, with all that it was split into."""
    taken: dict[tuple[str, ...], float] = {}
    for group in decision.groups:
        seconds = _seconds(decision.chosen[kernel_key(group, decision.views)])
        taken[group.units] = taken.get(group.units, 0.0) + seconds
    for group in decision.formed:
        if taken.get(group.units, inf) < inf:
            yield group.form, taken[group.units]


def _seconds(candidate: Candidate, scale: float = inf) -> float:
    """Return what a candidate was measured to take, else what the model says on a scale."""
    found = candidate.measured.get("measured")
    return float(found) if isinstance(found, (int, float)) else scale * candidate.score


def _same(first: Sequence[Group], second: Sequence[Group]) -> bool:
    return [(g.units, form_key(g.form)) for g in first] == [(g.units, form_key(g.form)) for g in second]
