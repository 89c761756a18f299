"""Optimal partition of a graph, by dynamic programming over its cuts.

A *cut* is a set of units that is closed under producers. Groups that run one after another lead from the empty cut to
the whole graph; the time of a partition is the sum of its groups', so the fastest partition is a shortest path between
these cuts. Chains have as many cuts as units, graphs with branches more; a limit ends the search where there are too
many.

The groups of a path are those that grow unit by unit along edges through legal groups, convex merges of chains, and
given ones: with the groups of a greedy path the result is never slower than that path.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from math import inf, isnan

from .convex_merge import convex, convex_merge_candidates, merge_candidate
from .groups import Group
from .partitioner import Partitioner

#: Most groups and cuts of a search.
MAX_GROUPS, MAX_CUTS = 1200, 6000


def optimal_partition(
    partitioner: Partitioner, initial: Sequence[Group], given: Iterable[Group] = ()
) -> list[Group] | None:
    """Return the fastest partition into growing groups and `given` ones.

    `initial` is the partition into single units. None where groups or cuts outgrow their limits.
    """
    family = _growing_groups(partitioner, initial, given)
    if family is None:
        return None
    owner = partitioner.owners(initial)
    vertices = list(dict.fromkeys(owner.values()))
    bits = {vertex: 1 << number for number, vertex in enumerate(vertices)}
    sources = dict.fromkeys(vertices, 0)
    for vertex in vertices:
        for reader in partitioner.successors(vertex, owner):
            sources[reader] |= bits[vertex]
    free = [(bits[v], sources[v]) for v in vertices if not isinstance(v, Group)]
    steps = []
    for group in family:
        members = {owner[unit] for unit in group.units}
        inside = sum(bits[member] for member in members)
        needed = 0
        for member in members:
            needed |= sources[member]
        steps.append((inside, needed & ~inside, partitioner.cost(group), group))
    return _shortest_path(sum(bits.values()), steps, free)


def _shortest_path(
    whole: int, steps: Sequence[tuple[int, int, float, Group]], free: Sequence[tuple[int, int]]
) -> list[Group] | None:
    """Return the groups of the shortest path between the empty cut and the `whole` graph.

    A step has its units, those that it needs before, its seconds and its group; `free` units take no time.
    """
    ties = count()
    start = _advance(0, free)
    best: dict[int, float] = {start: 0.0}
    before: dict[int, tuple[int, Group]] = {}
    queue = [(0.0, next(ties), start)]
    done = set[int]()
    while queue:
        seconds, _, cut = heapq.heappop(queue)
        if cut == whole:
            return _path(cut, start, before)
        if cut in done:
            continue
        done.add(cut)
        if len(done) > MAX_CUTS:
            return None
        for inside, needed, cost, group in steps:
            if inside & cut or needed & ~cut:
                continue
            following = _advance(cut | inside, free)
            if seconds + cost < best.get(following, inf):
                best[following], before[following] = seconds + cost, (cut, group)
                heapq.heappush(queue, (seconds + cost, next(ties), following))
    return None


def _advance(cut: int, free: Sequence[tuple[int, int]]) -> int:
    """Return a cut with all free units whose producers it has."""
    changed = True
    while changed:
        changed = False
        for inside, needed in free:
            if not inside & cut and not needed & ~cut:
                cut, changed = cut | inside, True
    return cut


def _path(cut: int, start: int, before: Mapping[int, tuple[int, Group]]) -> list[Group]:
    found: list[Group] = []
    while cut != start:
        cut, group = before[cut]
        found.append(group)
    return found[::-1]


def _growing_groups(partitioner: Partitioner, initial: Sequence[Group], given: Iterable[Group]) -> list[Group] | None:
    """Return legal groups, the fastest of each set of units."""
    owner, builder = partitioner.owners(initial), partitioner.builder
    adjacent: dict[Group, dict[Group, bool]] = {group: {} for group in initial}
    for group in initial:
        for reader in partitioner.successors(group, owner):
            if isinstance(reader, Group):
                adjacent[group][reader] = True
                adjacent[reader].setdefault(group, False)
    chains = [merge_candidate(builder, c) for c in _chains(partitioner, initial)]
    found: dict[frozenset[str], Group] = {}
    waiting = [*initial, *given, *(chain for chain in chains if isinstance(chain, Group))]
    while waiting:
        group = waiting.pop(0)
        units = frozenset(group.units)
        known, seconds = found.get(units), partitioner.cost(group)
        if isnan(seconds) or (seconds == inf and len(units) > 1):
            continue
        if known is not None and seconds >= partitioner.cost(known):
            continue
        found[units] = group
        if len(found) > MAX_GROUPS:
            return None
        members = dict.fromkeys(m for unit in group.units if isinstance(m := owner[unit], Group))
        beside = {other: after for member in members for other, after in adjacent.get(member, {}).items()}
        for other, after in beside.items():
            if other in members or partitioner.are_fixed(group, other):
                continue
            if not convex(partitioner, {*members, other}, owner):  # a later merge would hide results of the path
                continue
            merged = builder.fuse(group, other) if after else builder.fuse(other, group)
            if isinstance(merged, Group):
                waiting.append(merged)
    return list(found.values())


def _chains(partitioner: Partitioner, initial: Sequence[Group]) -> Iterable[tuple[Group, ...]]:
    policy = partitioner.builder.policy
    if not (policy.shared and policy.chains):
        return ()
    order = partitioner.builder.order
    ordered = sorted(initial, key=lambda g: order[g.units[0]])
    return convex_merge_candidates(partitioner, ordered, partitioner.owners(initial))
