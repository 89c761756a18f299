"""Decision record of a compilation, for replay on an equal graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import inf

from ..ir import FusedGroup
from .context import CompileContext
from .decisions import Decisions, GroupDecision, stored_tensors, units_digest
from .fingerprints import node_fingerprints, unit_fingerprints
from .fusion import form_key
from .results import Launches, Partition


def record_decisions(launches: Launches, context: CompileContext) -> Decisions:
    """Return a compilation's decisions; the recorded ones where all were replayed."""
    partition = launches.scheduled.partition
    if context.record is not None and partition.replay is not None and partition.replay.complete:
        return context.record
    source, builder = partition.layouts.statements.source, partition.layouts.builder
    places = {node.name: n for n, node in enumerate(source.considered.nodes)}
    algorithms = tuple((places[name], algorithm) for name, algorithm in source.replaced.items())
    programs = builder.views.programs
    marks = node_fingerprints(source.considered, context.instances), unit_fingerprints(programs)
    groups = tuple(_groups(partition, context))
    return Decisions(units_digest(programs), algorithms, groups, tuple(launches.places), bool(programs.orders), *marks)


def unfused_seconds(launches: Launches, context: CompileContext) -> float:
    """Return the total seconds of all units as one kernel each.

    It is infinite where it is not needed: where decisions are replayed, where no time is left, where there are loops,
    whose iterations are partitions of their own, and where nothing is fused.
    """
    layouts = launches.scheduled.partition.layouts
    if context.record is not None or context.budget.over():
        return inf
    if any(unit.repeat is not None for unit in layouts.builder.units.values()):
        return inf
    alone = context.partitioner(layouts).singletons()
    if len(alone) == len(launches.launches):
        return inf
    return sum(context.evaluator.cost(group.form) for group in alone)


def _groups(partition: Partition, context: CompileContext) -> Iterator[GroupDecision]:
    """Yield the groups as they were formed, with the division of their reductions."""
    builder, replay = partition.layouts.builder, partition.replay
    kernels: defaultdict[tuple[str, ...], list[FusedGroup]] = defaultdict(list)
    for group in partition.groups:
        kernels[group.units].append(group.form)
    places = {name: n for n, name in enumerate(builder.units)}
    divisions = {} if context.record is None or replay is None else context.record.divisions(replay)
    for group in partition.formed:
        shop = builder if group.repeat is None else builder.iteration_builder(group.repeat)
        own = places if group.repeat is None else {name: n for n, name in enumerate(shop.units)}
        segments = tuple(tuple(own[unit] for unit in part) for part in group.parts)
        loop = None if group.repeat is None else places[group.repeat]
        known = divisions.get(form_key(group.form))
        most = known.parts if known is not None else context.evaluator.best_part_count(group.form)
        several = kernels[group.units] if len(kernels[group.units]) > 1 else []
        copies = len(several) - 1 if several and not several[0].segments[-1].reductions else 0
        parts = most if several and not copies else 1
        yield GroupDecision(segments, loop, parts, stored_tensors(group, shop.units), copies)
