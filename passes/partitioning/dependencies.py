"""Dependencies of fusion groups, and levels: lengths of longest paths."""

from __future__ import annotations

from collections.abc import Sequence

from ..fusion import Group, Views


def dependencies(groups: Sequence[Group], views: Views) -> list[frozenset[int]]:
    """Return the positions of the earlier groups that each group depends on.

    It reads their results, or updates them in memory. Each group of a loop reads and writes the tensors of the whole
    loop.
    """
    units = {unit.name: unit for unit in views.programs.units}
    makers: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        for tensor in group.outputs if group.repeat is None else units[group.repeat].writes:
            makers.setdefault(tensor, []).append(place)
    producers = views.programs.producers()
    found = []
    for place, group in enumerate(groups):
        pending = list(group.inputs if group.repeat is None else units[group.repeat].reads)
        pending += group.outputs if group.form.adds_to_memory else ()
        seen, needed = set(pending), set[int]()
        while pending:
            tensor = pending.pop()
            needed.update(maker for maker in makers.get(tensor, ()) if maker < place)
            passed = [t for unit in producers.get(tensor, ()) if unit.free for t in unit.reads if t not in seen]
            seen.update(passed)
            pending += passed
        found.append(frozenset(needed))
    return found


def levels(needs: Sequence[frozenset[int]], groups: Sequence[Group]) -> list[int | None]:
    """Return the longest path to each group; the last level without readers.

    Values that depend on nothing, such as zeros, have the level before their first reader: they live for less time.
    Groups of loops have no level.
    """
    found: list[int] = []
    for waits in needs:
        found.append(1 + max((found[n] for n in waits), default=-1))
    read, last = {n for waits in needs for n in waits}, max(found, default=0)
    own = [level if place in read else last for place, level in enumerate(found)]
    before: dict[int, int] = {}
    for place, waits in enumerate(needs):
        before |= {n: min(before.get(n, last), own[place] - 1) for n in waits if not groups[n].inputs}
    own = [before.get(place, level) for place, level in enumerate(own)]
    return [None if group.repeat is not None else level for level, group in zip(own, groups, strict=True)]


def connected_models(groups: Sequence[Group], needs: Sequence[frozenset[int]], views: Views) -> list[int]:
    """Return a number for each group, equal where values connect them.

    Constants connect no groups.
    """
    number = list(range(len(groups)))
    readers: dict[str, int] = {}
    for place, group in enumerate(groups):
        buffers = {views.storage(tensor).buffer for tensor in group.inputs} - views.programs.graph.constants.keys()
        others = {*needs[place], *(readers.setdefault(buffer, place) for buffer in buffers), place}
        same = {number[other] for other in others}
        number = [min(same) if each in same else each for each in number]
    return number
