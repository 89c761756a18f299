"""What a compilation decided, by position: what a later one of the same graph is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import inf

from .compilation import Compilation
from .decisions import Decisions, GroupDecision, digest_of
from .fusion import Workshop


def decided(work: Compilation) -> Decisions:
    """Return what a compilation has decided; what it was told to decide, where it was told."""
    if work.told is not None:
        return work.told
    assert work.workshop is not None, "groups were formed"
    places = {node.name: n for n, node in enumerate(work.considered)}
    algorithms = tuple((places[name], algorithm) for name, algorithm in work.replaced.items())
    return Decisions(
        digest_of(work.workshop.views.programs), algorithms, tuple(_groups(work, work.workshop)), tuple(work.places)
    )


def apart(work: Compilation) -> float:
    """Return the seconds of all units by themselves; infinity where nobody asked what they take, where that is what was
    decided, and where there are loops, whose turns are partitions of their own.
    """
    shop = work.workshop
    if work.told is not None or shop is None or any(unit.repeat is not None for unit in shop.units.values()):
        return inf
    alone = work.partitioner(shop).singletons()
    if len(alone) == len(work.launches):
        return inf
    return sum(work.evaluator.cost(group.form) for group in alone)


def _groups(work: Compilation, workshop: Workshop) -> Iterator[GroupDecision]:
    """Yield the groups as they were formed, with the parts that their reductions were split into."""
    halves = Counter(group.units for group in work.groups)
    places = {name: n for n, name in enumerate(workshop.units)}
    for group in work.formed:
        own = places if group.repeat is None else {n: k for k, n in enumerate(workshop.turn(group.repeat).units)}
        segments = tuple(tuple(own[unit] for unit in part) for part in group.parts)
        parts = work.evaluator.most_useful(group.form) if halves[group.units] > 1 else 1
        yield GroupDecision(segments, None if group.repeat is None else places[group.repeat], parts)
