"""Fusion report: the cost of each possible merge of neighbouring groups.

For each group it has the neighbours that it could be merged with, the cost of the merged kernel, and the cost of the
two unfused. It reports known costs without a new search: a measured time, a modelled time, or the lower bound of the
memory traffic for merges that were rejected at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

from attrs import asdict, frozen

from ...ir import FusedGroup
from ..context import CompileContext
from ..fusion import Group, Illegal, Partitioner, form_key, neighbours
from ..results import Partition


@frozen
class GroupCost:
    """Seconds of a group and their source: "measured", "model", or "bound"."""

    seconds: float
    source: str


@frozen
class Merge:
    """Two adjacent groups, by their nodes, with costs fused and unfused.

    `why` is the reason where no kernel computes both.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    together: GroupCost | None
    apart: GroupCost
    why: str = ""


def fusion_report(partition: Partition, context: CompileContext) -> Mapping[tuple[str, ...], Mapping[str, object]]:
    """Return the fusion report as JSON values by each group's units.

    `merges` has the merges with its neighbours, and `parts` the cost of the units of a group of several as one kernel
    each. It is empty where groups are not chosen by time, or are replayed.
    """
    shop = partition.layouts.builder
    if context.record is not None or context.options.mode != "mixed" or context.budget.over():
        return {}
    groups = [group for group in partition.formed if group.repeat is None]
    found: dict[tuple[str, ...], dict[str, object]] = {}
    for group in groups:
        own = [shop.single(u) for u in group.units if not shop.units[u].free]
        parts = [_price(context, each.form) for each in own]
        found[group.units] = {"parts": asdict(reduce(_sum, parts)), "merges": []} if len(own) > 1 else {"merges": []}
    for first, second, merge in _merges(context, context.partitioner(partition.layouts), groups):
        for group in (first, second):
            found[group.units]["merges"].append(asdict(merge))  # type: ignore[attr-defined]
    return found


def _merges(
    context: CompileContext, partitioner: Partitioner, groups: Sequence[Group]
) -> Iterator[tuple[Group, Group, Merge]]:
    owner = partitioner.owners(groups)
    for first, second in neighbours(partitioner, groups, owner):
        merged = partitioner.merge(first, second, owner)
        unfused = _sum(_price(context, first.form), _price(context, second.form))
        names = _nodes(partitioner, first), _nodes(partitioner, second)
        if isinstance(merged, Illegal):
            yield first, second, Merge(*names, None, unfused, merged.reason)
        else:
            yield first, second, Merge(*names, _price(context, merged.form), unfused)


def _nodes(partitioner: Partitioner, group: Group) -> tuple[str, ...]:
    return tuple(dict.fromkeys(partitioner.builder.units[unit].node for unit in group.units))


def _price(context: CompileContext, form: FusedGroup) -> GroupCost:
    """Return the best known cost of a group."""
    times = context.costs.times
    if times.has(form):
        return GroupCost(context.evaluator.cost(form), "measured")
    modelled = context.modelled.costs.get(form_key(form))
    if modelled is not None:
        return GroupCost(times.scale * modelled, "model")
    return GroupCost(context.min_seconds(form), "bound")


def _sum(first: GroupCost, second: GroupCost) -> GroupCost:
    """Return two costs as one, from the less certain source."""
    sources = ("measured", "model", "bound")
    return GroupCost(first.seconds + second.seconds, max(first.source, second.source, key=sources.index))
