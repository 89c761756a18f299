"""Fusion groups: the best partition, modelled first, then measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import is_

from attrs import evolve

from ...ir import PARTITION_SHARE, FusedGroup, GraphError, quote, type_problem
from ..context import CompileContext
from ..costs import Questions, Workload
from ..decisions import Decisions, ForeignDecisionsError, Replay
from ..fusion import Group, combine_partitions, form_key, partition, with_parts
from ..place_tensors import place_programs
from ..results import Layouts, Partition
from ..split import Division, split_groups
from .choose_schedules import workloads_of


def form_groups(previous: Layouts, context: CompileContext) -> Partition:
    """Return the fusion groups: the best modelled, replaced by measured faster ones.

    While measuring changes the costs of groups, the partition is repeated.
    """
    layouts, mode, replay = previous, context.options.mode, None
    if context.record is not None:
        replay = _replay(layouts, context, context.record)
        if replay.complete:
            return _partition(layouts, _storable([*replay.groups.values()]), replay)
    kept = () if replay is None else tuple(replay.groups.values())
    found = best = baseline_partition(layouts, context, kept)
    baseline = layouts.statements.source.baseline
    if baseline is not None and context.overdue():
        # Without time for a complete partition, unfused kernels lose more than algorithms save.
        layouts = place_programs(baseline, context)
        found = best = baseline_partition(layouts, context, kept)
    if context.costs.times.expected and not context.budget.is_limited:  # every group that it evaluates is measured
        found = partition(context.partitioner(layouts, kept), mode)

    def questions() -> Questions:
        return [] if context.budget.over(PARTITION_SHARE) else deciding_kernels(layouts, context, found, kept)

    while mode == "mixed" and context.costs.measure(questions, PARTITION_SHARE):
        partitioner = context.partitioner(layouts, kept)
        found = partition(partitioner, mode)
        if context.budget.overdue():  # it was not brought to its end
            break
        best = combine_partitions(partitioner, best, found, context.is_faster)
    return _partition(layouts, _storable(best), replay)


def _storable(groups: Sequence[Group]) -> Sequence[Group]:
    """Return groups with results of fewer than 2^31 elements, which kernels can number.

    Raises:
        GraphError: A larger value has to be stored: no kernel both computes and uses it.
    """
    for group in groups:
        for tensor in group.form.outputs:
            if problem := type_problem(group.form.tensors[tensor]):
                hint = "use smaller sizes, or operations that one kernel computes"
                raise GraphError(f"value {quote(group.tensors[tensor])} has to be stored: {problem}", hint=hint)
    return groups


def _partition(layouts: Layouts, groups: Sequence[Group], replay: Replay | None) -> Partition:
    return Partition(layouts, groups, groups, layouts.views, replay)


def _replay(layouts: Layouts, context: CompileContext, record: Decisions) -> Replay:
    """Return the groups of a decision record that can be replayed, in a graph that can run."""
    kept = record.replay(layouts.builder)
    partitioner = context.partitioner(layouts, tuple(kept.groups.values()))
    if partitioner.topological_order(partitioner.singletons()) is None:
        raise ForeignDecisionsError("groups wait for each other in a circle")
    return kept


def baseline_partition(layouts: Layouts, context: CompileContext, kept: Sequence[Group] = ()) -> Sequence[Group]:
    """Return the best groups by the cost model, without measurements.

    Other processes build their kernels meanwhile. The groups that are `kept` stay.
    """

    def find() -> Sequence[Group]:
        reported = set[Group]()

        def likely(groups: Sequence[Group]) -> None:
            fresh = [g for g in groups if g not in reported and context.modelled.is_measured(g.form)]
            build_ahead(layouts, context, fresh)
            reported.update(groups)

        partitioner = evolve(context.partitioner(layouts, kept, context.model_costs), likely=likely)
        return partition(partitioner, context.options.mode)

    with context.modelled.without_budget():
        return context.once("partition", layouts, find)


def build_ahead(layouts: Layouts, context: CompileContext, groups: Sequence[Group]) -> None:
    """Build the kernels of groups in other processes, ahead of use."""

    def kernels() -> Iterable[Workload]:
        return workloads_of(_divide(_partition(layouts, groups, None), context.model_costs.division)).values()

    if groups:
        context.executor.prepare(kernels)


def deciding_kernels(
    layouts: Layouts, context: CompileContext, groups: Sequence[Group], kept: Sequence[Group] = ()
) -> list[list[FusedGroup]]:
    """Return the kernels that a partition depends on, for measurement.

    They are the kernels of the groups that are not `kept`, their other divisions, and the kernels of their parts.
    """
    groups, split = [group for group in groups if group not in kept], context.evaluator
    forms = [group.form for group in groups]
    parts = with_parts(groups, layouts.builder)[len(forms) :]
    for form in (*forms, *parts):
        split.cost(form)  # only queried groups are measured
    kernels = [kernel for form in forms for kernel in split.kernels(form)]
    return [
        kernels,
        [k for form in forms for k in split.contenders(form)],
        [k for p in parts for k in split.kernels(p)],
    ]


def split_long_reductions(previous: Partition, context: CompileContext) -> Partition:
    """Return the partition with split reductions where that is faster."""
    record, replay = context.record, previous.replay
    known = {} if record is None or replay is None else record.divisions(replay)
    division = context.evaluator.division if not context.options.plain else lambda form: Division()
    return _divide(previous, lambda form: known[form_key(form)] if form_key(form) in known else division(form))


def _divide(previous: Partition, division: Callable[[FusedGroup], Division]) -> Partition:
    groups, views = split_groups(previous.formed, previous.layouts.views, division)
    return previous if all(map(is_, groups, previous.groups)) else evolve(previous, groups=groups, views=views)
