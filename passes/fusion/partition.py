"""Partition of a graph into groups: Algorithm 1 of DeepCuts on graphs with branches.

A partition is a set of groups whose quotient graph has no cycle (a merged set stays convex: no path leaves it and comes
back). Consecutive groups X -> Y are merged where the merge is legal and the partition gets faster. `algorithm_1` is the
paper's text: it keeps every partition that beats the one it was derived from, which is exponential where merges are
independent. The time of a partition is the sum of its groups', so merges in different places do not interact, and
`improve` follows one path through the same set R: always the merge that gains most. What is kept of the guarantee: the
result is a member of R, so never slower than the partition it started from, and no single merge improves it. What is
given up: partitions that only another order of merges reaches; graphs of few units get `algorithm_1` itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import count
from math import inf
from typing import Protocol

from attrs import evolve, field, frozen

from ...ir import FusedGroup, Mode
from .groups import Group, Workshop, form_key
from .hulls import convex, hulls, joined, leading_to
from .normalise import Illegal
from .siblings import kinship, sibling_pairs

#: Up to this many units, and partitions in R, Algorithm 1 runs as it is written.
EXACT_UNITS, EXACT_PARTITIONS = 10, 2000
#: Seconds that a tensor in memory counts for which there is no room.
STORED = 1.0


class GroupEvaluator(Protocol):
    """`Evaluate` of Algorithm 1 for one subset: what its best kernel takes."""

    def cost(self, group: FusedGroup) -> float:
        """Return seconds, infinity where no kernel exists."""
        ...


@frozen
class Remembered:
    """An evaluator that is asked once about equal groups."""

    evaluator: GroupEvaluator
    costs: dict[Hashable, float] = field(factory=dict)

    def cost(self, group: FusedGroup) -> float:
        """Return the seconds of a group."""
        key = form_key(group)
        if key not in self.costs:
            self.costs[key] = self.evaluator.cost(group)
        return self.costs[key]


@frozen
class Partitioner:
    """Merges groups of one graph; costs and merges are remembered. No merge is looked at once it is `over`.

    Groups that are `kept` are there from the beginning; none of them is merged with another one.
    Tensors that are `unwanted` in memory, as that is limited, cost whoever leaves one there more than any kernel takes.
    `least` says at once, and without much work, what a group takes at least; `foresee` is told of groups whose costs
    are asked for next, of none at the end.
    """

    workshop: Workshop
    evaluator: GroupEvaluator
    costs: dict[Hashable, float] = field(factory=dict)
    over: Callable[[], bool] = lambda: False
    least: Callable[[FusedGroup], float] | None = None
    foresee: Callable[[Sequence[FusedGroup]], object] = lambda groups: None
    kin: dict[Group, frozenset[Hashable]] = field(factory=dict)
    kept: Sequence[Group] = ()
    unwanted: frozenset[str] = frozenset()
    settled: frozenset[Group] = field(init=False)
    readers: dict[str, frozenset[str]] = field(init=False)
    sources: dict[str, frozenset[str]] = field(init=False)

    @settled.default
    def _settled(self) -> frozenset[Group]:
        """Return what is kept, to be found at once."""
        return frozenset(self.kept)

    @readers.default
    def _readers(self) -> dict[str, frozenset[str]]:
        """Map each unit that is no view to the units that read what it writes, directly or through views.

        Of a tensor that is written in pieces, what stands in front of a piece reads others.
        """
        shop = self.workshop
        producers = shop.views.programs.producers()
        found: dict[str, set[str]] = {u: set() for u in shop.units if not shop.is_view(u)}
        for name in found:
            for tensor in shop.units[name].reads:
                for producer in producers.get(shop.sources(tensor), ()):
                    if shop.order[producer.name] < shop.order[name]:
                        found[producer.name].add(name)
        return {name: frozenset(readers - {name}) for name, readers in found.items()}

    @sources.default
    def _sources(self) -> dict[str, frozenset[str]]:
        """Map each unit that is no view to the units that write what it reads."""
        found: dict[str, set[str]] = {name: set() for name in self.readers}
        for name, readers in self.readers.items():
            for reader in readers:
                found[reader].add(name)
        return {name: frozenset(sources) for name, sources in found.items()}

    def cost(self, group: Group) -> float:
        """Return the seconds of a group; equal groups are evaluated once."""
        key = form_key(group.form)
        if key not in self.costs:
            self.costs[key] = self.evaluator.cost(group.form)
        left = self.unwanted.intersection(group.tensors[t] for t in group.form.outputs) if self.unwanted else ()
        return self.costs[key] + STORED * len(left)

    def singletons(self) -> list[Group]:
        """Return the initial partition: what is kept, and a group per unit that needs a kernel; what nothing uses is
        left out.
        """
        shop, kept = self.workshop, [group for group in self.kept if group.repeat is None]
        taken = {unit for group in kept for unit in group.units}
        own = (u for u, unit in shop.units.items() if not unit.free and unit.repeat is None and u not in taken)
        return [*kept, *(shop.single(u) for u in own if shop.used(u))]

    def is_settled(self, first: Group, second: Group) -> bool:
        """Whether two groups are apart because that is known to be best."""
        return first in self.settled and second in self.settled

    # ---- the quotient graph

    def owners(self, groups: Iterable[Group]) -> dict[str, Group | str]:
        """Map every unit to its group; units that need no kernel stand for themselves."""
        owner: dict[str, Group | str] = {name: name for name in self.readers}
        owner.update({unit: g for g in groups for unit in g.units})
        return owner

    def successors(self, vertex: Group | str, owner: dict[str, Group | str]) -> set[Group | str]:
        """Return the groups that read what a group writes."""
        units = vertex.units if isinstance(vertex, Group) else (vertex,)
        return {owner[r] for u in units for r in self.readers[u]} - {vertex}

    def neighbours(
        self, group: Group, owner: dict[str, Group | str], siblings: bool = True
    ) -> list[tuple[Group, Group]]:
        """Return the pairs of groups that an edge connects, or that are `siblings`, and that a group is one of, in the
        graph's order.
        """
        before = {owner[s] for u in group.units for s in self.sources[u]} - {group}
        after = self.successors(group, owner)
        beside = set(self._siblings(group, owner)) - before - after if siblings and self.kinship(group) else set()
        pairs = [(v, group) for v in before if isinstance(v, Group)] + [
            (group, v) for v in after if isinstance(v, Group)
        ]
        order = self.workshop.order
        pairs += [(v, group) if order[v.units[0]] < order[group.units[0]] else (group, v) for v in beside]
        pairs = [pair for pair in pairs if not self.is_settled(*pair)]
        return sorted(pairs, key=lambda pair: (order[pair[0].units[0]], order[pair[1].units[0]]))

    def kinship(self, group: Group) -> frozenset[Hashable]:
        """Return what makes others siblings of a group."""
        if group not in self.kin:
            self.kin[group] = kinship(group)
        return self.kin[group]

    def _siblings(self, group: Group, owner: dict[str, Group | str]) -> Iterator[Group]:
        """Yield the siblings of a group."""
        kin = self.kinship(group)
        for other in dict.fromkeys(owner.values()):
            if isinstance(other, Group) and other != group and not kin.isdisjoint(self.kinship(other)):
                yield other

    def convex(self, first: Group, second: Group, owner: dict[str, Group | str]) -> bool:
        """Whether no path between two groups passes through a third; an edge may lead from `first` to `second`."""
        if not self._direct(first, second, owner):
            return False
        return second in self.successors(first, owner) or (
            first not in self.successors(second, owner) and self._direct(second, first, owner)
        )

    def _direct(self, first: Group, second: Group, owner: dict[str, Group | str]) -> bool:
        """Whether no path from `first` to `second` passes through a third group."""
        pending = list(self.successors(first, owner) - {second})
        seen = set(pending)
        while pending:
            following = self.successors(pending.pop(), owner)
            if second in following:
                return False
            pending.extend(following - seen)
            seen |= following
        return True

    def merge(self, first: Group, second: Group, owner: dict[str, Group | str]) -> Group | Illegal:
        """Return two consecutive groups as one."""
        merged = self.workshop.fuse(first, second)
        if isinstance(merged, Group) and not self.convex(first, second, owner):
            return Illegal("a path leaves the merged set and comes back")
        return merged

    def schedule(self, groups: Sequence[Group]) -> list[Group | str]:
        """Return the groups, and the units that are loops, in an order in which each comes behind what it reads; ties
        go to the graph's order.
        """
        result = self.sorted(groups)
        assert result is not None, "the partition has a cycle"
        return result

    def sorted(self, groups: Sequence[Group]) -> list[Group | str] | None:
        """Return them in that order, nothing where they wait for each other in a circle."""
        owner = self.owners(groups)
        vertices = dict.fromkeys(owner.values())
        place = {v: min(self.workshop.order[u] for u in (v.units if isinstance(v, Group) else (v,))) for v in vertices}
        following = {v: self.successors(v, owner) for v in vertices}
        waits = dict.fromkeys(vertices, 0)
        for v in vertices:
            for w in following[v]:
                waits[w] += 1
        ties = count()
        ready = [(place[v], next(ties), v) for v in vertices if not waits[v]]
        heapq.heapify(ready)
        result: list[Group | str] = []
        while ready:
            _, _, v = heapq.heappop(ready)
            if isinstance(v, Group) or self.workshop.units[v].repeat is not None:
                result.append(v)
            for w in following[v]:
                waits[w] -= 1
                if not waits[w]:
                    heapq.heappush(ready, (place[w], next(ties), w))
        return result if sum(isinstance(v, Group) for v in result) == len(groups) else None


def partition(partitioner: Partitioner, mode: Mode) -> list[Group]:
    """Return the groups of a graph in execution order.

    `no-fusion` keeps one kernel per unit, `fusion` merges wherever the register level allows, `mixed` where it is
    faster. The turn of a loop is a partition of its own.
    """
    groups = partitioner.singletons()
    if mode == "fusion":
        groups = fuse_all(partitioner, groups)
    elif mode == "mixed":
        groups = _fastest(partitioner, groups)
    return [g for vertex in partitioner.schedule(groups) for g in _in_place(partitioner, vertex, mode)]


def with_parts(groups: Sequence[Group], workshop: Workshop) -> list[FusedGroup]:
    """Return what the choice of groups rests on: each of them, and of those that were merged what they were made of."""
    merged = [g for g in groups if len(g.units) > 1 and g.repeat is None]
    parts = [workshop.single(u) for g in merged for u in g.units if not workshop.units[u].free]
    return [group.form for group in (*groups, *parts)]


def _in_place(partitioner: Partitioner, vertex: Group | str, mode: Mode) -> list[Group]:
    """Return a group, or those of one turn of a loop."""
    if isinstance(vertex, Group):
        return [vertex]
    if kept := [group for group in partitioner.kept if group.repeat == vertex]:
        return kept
    turn = Partitioner(
        partitioner.workshop.turn(vertex), partitioner.evaluator, over=partitioner.over, least=partitioner.least
    )
    return [evolve(group, repeat=vertex) for group in partition(turn, mode)]


def _fastest(partitioner: Partitioner, initial: Sequence[Group]) -> list[Group]:
    """Return the best partition of Algorithm 1's set where that is small, else the end of its greedy path."""
    few = len(initial) <= EXACT_UNITS and not partitioner.over()
    exact = algorithm_1(partitioner, initial) if few else None
    if exact is None:
        return improve(partitioner, initial)
    times = [(sum(partitioner.cost(g) for g in groups), len(groups)) for groups in exact]
    return list(exact[times.index(min(times))])


def algorithm_1(partitioner: Partitioner, initial: Sequence[Group]) -> list[frozenset[Group]] | None:
    """Return the set R of the paper's Algorithm 1, in order of discovery; None where it outgrows its limit."""
    found = {frozenset(initial): None}
    unmarked = [frozenset(initial)]
    while unmarked:
        current = unmarked.pop(0)
        owner = partitioner.owners(current)
        pairs = (*neighbours(partitioner, current, owner), *siblings(partitioner, current, owner))
        merges = ((pair, partitioner.merge(*pair, owner)) for pair in pairs)
        rows = ((hull, joined(partitioner.workshop, hull)) for hull in _hulls(partitioner, current, owner))
        for members, merged in (*merges, *rows):
            if isinstance(merged, Illegal) or not _gain(partitioner, members, merged) > 0:
                continue
            if not _convex(partitioner, members, owner):
                continue
            following = current - {*members} | {merged}
            if following not in found:
                found[following] = None
                unmarked.append(following)
        if len(found) > EXACT_PARTITIONS:
            return None
    return list(found)


def improve(partitioner: Partitioner, initial: Sequence[Group]) -> list[Group]:
    """Return the end of the path of best merges through Algorithm 1's set R: of groups that an edge connects, then of
    siblings and what these lead to, so that having siblings never costs anything.
    """
    groups = _improved(partitioner, initial, neighbours(partitioner, initial, partitioner.owners(initial)), False)
    return _improved(partitioner, groups, siblings(partitioner, groups, partitioner.owners(groups)), True)


def _improved(
    partitioner: Partitioner, initial: Sequence[Group], first_pairs: Iterable[tuple[Group, Group]], beside: bool
) -> list[Group]:
    """Return the end of the path of best merges that begins with some pairs; with those of siblings on the way, if
    `beside`.
    """
    owner = partitioner.owners(initial)
    groups = dict.fromkeys(initial)
    ties = count()
    queue: list[tuple[float, int, bool, tuple[Group, ...], Group]] = []

    def consider(several: Iterable[tuple[Group, ...]]) -> None:
        for members, merged in _merges(partitioner, several):
            most = max(0.0, _most(partitioner, members, merged))
            heapq.heappush(queue, (-most, next(ties), False, members, merged))

    several = [*first_pairs, *_hulls(partitioner, groups, owner)]
    partitioner.foresee([group.form for members in several for group in members])
    consider(several)
    partitioner.foresee([merged.form for *_, merged in sorted(queue)])  # nearly all of them are looked at
    while queue:
        _, tie, exact, members, merged = heapq.heappop(queue)
        if any(g not in groups for g in members) or not _convex(partitioner, members, owner):
            continue
        if not exact:  # what it gains is looked at only now: of most merges, one of the groups is gone before
            if (gain := _gain(partitioner, members, merged)) > 0:
                heapq.heappush(queue, (-gain, tie, True, members, merged))
            continue
        for group in members:
            del groups[group]
        groups[merged] = None
        owner.update(dict.fromkeys(merged.units, merged))
        consider(partitioner.neighbours(merged, owner, beside))
        consider(_hulls(partitioner, leading_to(partitioner, merged, owner), owner))
    partitioner.foresee(())
    return list(groups)


def _merges(partitioner: Partitioner, several: Iterable[tuple[Group, ...]]) -> list[tuple[tuple[Group, ...], Group]]:
    """Return the pairs and hulls of groups that one kernel can compute, and that kernel's group, as far as there is
    time.
    """
    shop, found = partitioner.workshop, []
    for members in several:
        if partitioner.over():
            break
        merged = shop.fuse(*members) if len(members) == 2 else joined(shop, members)
        if isinstance(merged, Group):
            found.append((members, merged))
    return found


def _hulls(
    partitioner: Partitioner, groups: Iterable[Group], owner: dict[str, Group | str]
) -> Iterator[tuple[Group, ...]]:
    """Yield hulls that begin with some groups, in the graph's order; none where the policy is against them."""
    if partitioner.workshop.policy.shared and partitioner.workshop.policy.chains:
        order = partitioner.workshop.order
        yield from hulls(partitioner, sorted(groups, key=lambda g: order[g.units[0]]), owner)


def fuse_all(partitioner: Partitioner, initial: Sequence[Group]) -> list[Group]:
    """Return the groups after every merge that the register level allows and a kernel exists for: epilogues first, then
    prologues.
    """
    groups = dict.fromkeys(initial)
    owner = partitioner.owners(initial)
    for epilogues_only in (True, False):
        changed = True
        while changed:
            changed = False
            for first, second in neighbours(partitioner, groups, owner):
                if (
                    first not in groups
                    or second not in groups
                    or (epilogues_only and second.form.segments[0].reductions)
                ):
                    continue
                merged = partitioner.merge(first, second, owner)
                if isinstance(merged, Group) and merged.level != "shared" and partitioner.cost(merged) < inf:
                    del groups[first], groups[second]
                    groups[merged] = None
                    owner.update(dict.fromkeys(merged.units, merged))
                    changed = True
    return list(groups)


def neighbours(
    partitioner: Partitioner, groups: Iterable[Group], owner: dict[str, Group | str]
) -> Iterator[tuple[Group, Group]]:
    """Yield the pairs of groups that an edge connects, in the graph's order."""
    ordered = sorted(groups, key=lambda g: partitioner.workshop.order[g.units[0]])
    for group in ordered:
        found = [s for s in partitioner.successors(group, owner) if isinstance(s, Group)]
        for reader in sorted(found, key=lambda g: partitioner.workshop.order[g.units[0]]):
            if not partitioner.is_settled(group, reader):
                yield group, reader


def siblings(
    partitioner: Partitioner, groups: Iterable[Group], owner: dict[str, Group | str]
) -> Iterator[tuple[Group, Group]]:
    """Yield the pairs of siblings that no edge connects, in the graph's order."""
    ordered = sorted(groups, key=lambda g: partitioner.workshop.order[g.units[0]])
    after = {group: partitioner.successors(group, owner) for group in ordered}
    for first, second in sibling_pairs(ordered, {group: partitioner.kinship(group) for group in ordered}):
        apart = second not in after[first] and first not in after[second]
        if apart and not partitioner.is_settled(first, second):
            yield first, second


def _convex(partitioner: Partitioner, members: tuple[Group, ...], owner: dict[str, Group | str]) -> bool:
    """Whether no path leaves a pair or a hull and comes back."""
    if len(members) == 2:
        return partitioner.convex(*members, owner)
    return convex(partitioner, {*members}, owner)


def _most(partitioner: Partitioner, members: Sequence[Group], merged: Group) -> float:
    """Return the seconds that a merge saves at most."""
    if partitioner.least is None:
        return _gain(partitioner, members, merged)
    return sum(map(partitioner.cost, members)) - partitioner.least(merged.form)


def _gain(partitioner: Partitioner, members: Sequence[Group], merged: Group) -> float:
    """Return the seconds that a merge saves; a group that no kernel computes is worth nothing."""
    after = partitioner.cost(merged)
    return -inf if after == inf else sum(map(partitioner.cost, members)) - after
