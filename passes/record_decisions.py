"""Decision record of a compilation, for replay on an equal graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import inf

from ..ir import FusedGroup
from .compilation import Compilation
from .decisions import Decisions, GroupDecision, stored_tensors, units_digest
from .fingerprints import node_fingerprints, unit_fingerprints
from .fusion import GroupBuilder, form_key


def record_decisions(work: Compilation) -> Decisions:
    """Return a compilation's decisions; the recorded ones where all were replayed."""
    if work.recorded is not None and work.is_replayed:
        return work.recorded
    assert work.builder is not None and work.considered is not None, "groups were formed"
    places = {node.name: n for n, node in enumerate(work.considered.nodes)}
    algorithms = tuple((places[name], algorithm) for name, algorithm in work.replaced.items())
    programs = work.builder.views.programs
    groups, launches = tuple(_groups(work, work.builder)), tuple(work.places)
    marks = node_fingerprints(work.considered, work.instances), unit_fingerprints(programs)
    return Decisions(units_digest(programs), algorithms, groups, launches, bool(programs.orders), *marks)


def unfused_seconds(work: Compilation) -> float:
    """Return the total seconds of all units as one kernel each.

    It is infinite where it is not needed: where decisions are replayed, where no time is left, where there are loops,
    whose iterations are partitions of their own, and where nothing is fused.
    """
    shop = work.builder
    if work.recorded is not None or shop is None or work.budget.over():
        return inf
    if any(unit.repeat is not None for unit in shop.units.values()):
        return inf
    alone = work.partitioner(shop).singletons()
    if len(alone) == len(work.launches):
        return inf
    return sum(work.evaluator.cost(group.form) for group in alone)


def _groups(work: Compilation, builder: GroupBuilder) -> Iterator[GroupDecision]:
    """Yield the groups as they were formed, with the division of their reductions."""
    kernels: defaultdict[tuple[str, ...], list[FusedGroup]] = defaultdict(list)
    for group in work.groups:
        kernels[group.units].append(group.form)
    places = {name: n for n, name in enumerate(builder.units)}
    divisions = {} if work.recorded is None or work.replay is None else work.recorded.divisions(work.replay)
    for group in work.formed:
        shop = builder if group.repeat is None else builder.iteration_builder(group.repeat)
        own = places if group.repeat is None else {name: n for n, name in enumerate(shop.units)}
        segments = tuple(tuple(own[unit] for unit in part) for part in group.parts)
        loop = None if group.repeat is None else places[group.repeat]
        known = divisions.get(form_key(group.form))
        most = known.parts if known is not None else work.evaluator.best_part_count(group.form)
        parts = most if len(kernels[group.units]) > 1 else 1
        slices = _slices(group.form, kernels[group.units])
        yield GroupDecision(segments, loop, parts, slices, stored_tensors(group, shop.units))


def _slices(formed: FusedGroup, kernels: Sequence[FusedGroup]) -> int:
    """Return the number of slices of a group; the slices lie in its last additional shared tensor."""
    found = next((form for form in kernels if len(form.shared) > len(formed.shared)), None)
    return 1 if found is None else found.tensors[found.shared[-1]].shape[0]
