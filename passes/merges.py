"""What the cut of a graph rests on: for each group the neighbours that it could be one kernel with, what that would
take, and what the two take apart.

Only what is known is told, nothing is searched again: a measured time, what the model said when it was asked, or, for
merges that were given up at once, what memory traffic takes at least.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

from attrs import asdict, frozen

from ..ir import FusedGroup
from .compilation import Compilation
from .fusion import Group, Illegal, Partitioner, form_key, neighbours


@frozen
class Price:
    """Seconds of a group, and where they are from: "measured", "model", or "bound", which are the least."""

    seconds: float
    source: str


@frozen
class Merge:
    """Two groups, by the nodes of each, that an edge connects: what they take as one kernel, and what apart, or why no
    kernel computes both.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    together: Price | None
    apart: Price
    why: str = ""


def weighed(work: Compilation) -> Mapping[tuple[str, ...], Mapping[str, object]]:
    """Return what was weighed, as JSON values, by the units of each group of the partition: `merges` with its
    neighbours, and of a group of several units what they would take by themselves, as `parts`.

    There is nothing where groups were not chosen by time, or had been before.
    """
    shop = work.workshop
    if shop is None or work.told is not None or work.options.mode != "mixed" or work.budget.over():
        return {}
    groups = [group for group in work.formed if group.repeat is None]
    found: dict[tuple[str, ...], dict[str, object]] = {}
    for group in groups:
        own = [shop.single(u) for u in group.units if not shop.units[u].free]
        parts = [_price(work, each.form) for each in own]
        found[group.units] = {"parts": asdict(reduce(_sum, parts)), "merges": []} if len(own) > 1 else {"merges": []}
    for first, second, merge in _merges(work, work.partitioner(shop), groups):
        for group in (first, second):
            found[group.units]["merges"].append(asdict(merge))  # type: ignore[attr-defined]
    return found


def _merges(
    work: Compilation, partitioner: Partitioner, groups: Sequence[Group]
) -> Iterator[tuple[Group, Group, Merge]]:
    owner = partitioner.owners(groups)
    for first, second in neighbours(partitioner, groups, owner):
        merged = partitioner.merge(first, second, owner)
        apart = _sum(_price(work, first.form), _price(work, second.form))
        names = _nodes(work, first), _nodes(work, second)
        if isinstance(merged, Illegal):
            yield first, second, Merge(*names, None, apart, merged.reason)
        else:
            yield first, second, Merge(*names, _price(work, merged.form), apart)


def _nodes(work: Compilation, group: Group) -> tuple[str, ...]:
    units = {u.name: u.node for u in work.views.programs.every_unit}
    return tuple(dict.fromkeys(units[u] for u in group.units))


def _price(work: Compilation, form: FusedGroup) -> Price:
    """Return what is known of a group's time."""
    if work.selector is not None and work.selector.knows(form):
        return Price(work.evaluator.cost(form), "measured")
    scale = 1.0 if work.selector is None else work.selector.scale
    modelled = work.modelled.costs.get(form_key(form))
    if modelled is not None:
        return Price(scale * modelled, "model")
    return Price(work.least(form), "bound")


def _sum(first: Price, second: Price) -> Price:
    """Return two prices as one, which is as certain as the less certain of them."""
    sources = ("measured", "model", "bound")
    return Price(first.seconds + second.seconds, max(first.source, second.source, key=sources.index))
