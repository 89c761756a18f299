"""Schedules: the fastest candidate of each distinct kernel by the cost model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping

from ...ir import SCHEDULES_SHARE, PassError, Pruning, Target, convert_error
from ..context import CompileContext
from ..costs import Workload
from ..fusion import Group, loop_iterations
from ..results import Partition, ScheduledPartition, kernel_key
from ..schedule import Candidate, choose


def choose_schedules(
    previous: Partition, context: CompileContext, share: float = SCHEDULES_SHARE
) -> ScheduledPartition:
    """Return the schedule of each distinct kernel.

    It is the fastest by measurement, within a share of the budget, or the best by the cost model. Kernels that add to
    memory, which a second run changes, are not measured.
    """
    pruning = context.options.pruning
    chosen = context.costs.schedule(workloads_of(previous), share)
    found = {key: chosen.get(key) or _best(group, context.target, pruning) for key, group in previous.unique.items()}
    improve = context.modelled.evaluator.improve
    return ScheduledPartition(
        previous,
        {key: c if c.measured or pruning.ranks else improve(previous.unique[key].form, c) for key, c in found.items()},
    )


def _best(group: Group, target: Target, pruning: Pruning) -> Candidate:
    try:
        return choose(group.form, target, pruning)[0]
    except PassError as error:
        raise convert_error(error, PassError, f"nodes {', '.join(group.units)}: ") from error


def workloads_of(partition: Partition) -> Mapping[Hashable, Workload]:
    """Return the distinct measurable kernels of groups, with their launch counts."""
    views, uses = partition.views, Counter[Hashable]()
    repeats = loop_iterations(views)
    for group in partition.groups:
        uses[kernel_key(group, views)] += repeats[group.repeat]
    units = {u.name: u.node for u in views.programs.every_unit}
    return {
        key: Workload(g.form, g.storages(views), tuple(dict.fromkeys(units[u] for u in g.units)), uses[key])
        for key, g in partition.unique.items()
        if not g.form.adds_to_memory
    }
