"""Merges groups of one graph: costs, edges, reachability and possible merges."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from math import nan
from typing import Protocol

from attrs import field, frozen

from ....ir import FusedGroup, PassError, quote
from ..normalise import Illegal
from .group_builder import GroupBuilder
from .groups import Group, form_key
from .paths import Paths
from .sibling_fusion import sibling_keys

#: Seconds that a tensor costs for which memory has no room.
NO_ROOM_SECONDS = 1.0
#: Cost of a group whose evaluation did not finish in time. No comparison with it holds: it decides nothing.
UNKNOWN = nan


class GroupEvaluator(Protocol):
    """`Evaluate` of Algorithm 1: the time of a group's best kernel."""

    def cost(self, group: FusedGroup) -> float:
        """Return seconds, infinity without a kernel, `UNKNOWN` without an answer in time."""
        ...


@frozen
class CachedEvaluator:
    """Cached evaluator: asks once about equal groups."""

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
    """Merges groups of one graph.

    Costs and merges are cached. No merge is considered once it is `over`.

    Groups that are `kept` exist from the beginning; none of them is merged with another one. Tensors that are
    `unwanted` in memory, as that is limited, cost the groups that write them more than any kernel takes. `least`
    returns a cheap lower bound of a group's time; `announce` receives the groups whose costs are needed next, none at
    the end, and makes them `known`; `likely` receives groups that no queued merge contains.
    """

    builder: GroupBuilder
    evaluator: GroupEvaluator
    costs: dict[Hashable, float] = field(factory=dict)
    over: Callable[[], bool] = lambda: False
    least: Callable[[FusedGroup], float] | None = None
    announce: Callable[[Sequence[FusedGroup]], object] = lambda groups: None
    known: Callable[[FusedGroup], bool] | None = None
    likely: Callable[[Sequence[Group]], object] = lambda groups: None
    kin: dict[Group, frozenset[Hashable]] = field(factory=dict)
    kindred: dict[Hashable, list[Group]] = field(factory=dict)
    fixed_groups: Sequence[Group] = ()
    unwanted: frozenset[str] = frozenset()
    fixed: frozenset[Group] = field(init=False)
    readers: dict[str, frozenset[str]] = field(init=False)
    sources: dict[str, frozenset[str]] = field(init=False)

    @fixed.default
    def _fixed(self) -> frozenset[Group]:
        """Return the kept groups as a set."""
        return frozenset(self.fixed_groups)

    @readers.default
    def _readers(self) -> dict[str, frozenset[str]]:
        """Map each unit that is no view to its readers, directly or through views.

        Views ahead of a piece of a piecewise tensor read other tensors. Raises `PassError` where a unit reads the
        result of a later one: a rewrite has moved it.
        """
        shop = self.builder
        producers = shop.views.programs.producers()
        found: dict[str, set[str]] = {u: set() for u in shop.units if not shop.is_view(u)}
        for name in found:
            for tensor in shop.units[name].reads:
                makers = producers.get(tensor, ())
                if len(makers) == 1 and shop.order[makers[0].name] > shop.order[name]:
                    late = quote(makers[0].name)
                    raise PassError(f"unit {quote(name)} reads {quote(tensor)} before {late} writes it")
                for producer in producers.get(shop.sources(tensor), ()):
                    if shop.order[producer.name] < shop.order[name]:
                        found[producer.name].add(name)
        return {name: frozenset(readers - {name}) for name, readers in found.items()}

    @sources.default
    def _sources(self) -> dict[str, frozenset[str]]:
        """Map each unit that is no view to the units that write its operands."""
        found: dict[str, set[str]] = {name: set() for name in self.readers}
        for name, readers in self.readers.items():
            for reader in readers:
                found[reader].add(name)
        return {name: frozenset(sources) for name, sources in found.items()}

    def cost(self, group: Group) -> float:
        """Return the seconds of a group.

        Equal groups are evaluated once.
        """
        key = form_key(group.form)
        if key not in self.costs:
            self.costs[key] = self.evaluator.cost(group.form)
        left = self.unwanted.intersection(group.tensors[t] for t in group.form.outputs) if self.unwanted else ()
        return self.costs[key] + NO_ROOM_SECONDS * len(left)

    def has_cost(self, group: Group) -> bool:
        """Return whether the cost of a group was asked for."""
        return form_key(group.form) in self.costs

    def singletons(self) -> list[Group]:
        """Return the initial partition.

        It has the kept groups, and a group per unit that needs a kernel; unused units are left out.
        """
        shop, kept = self.builder, [group for group in self.fixed_groups if group.repeat is None]
        taken = {unit for group in kept for unit in group.units}
        own = (u for u, unit in shop.units.items() if not unit.free and unit.repeat is None and u not in taken)
        return [*kept, *(shop.single(u) for u in own if shop.is_used(u))]

    def are_fixed(self, first: Group, second: Group) -> bool:
        """Return whether a known optimum separates two groups."""
        return first in self.fixed and second in self.fixed

    # ---- the quotient graph

    def owners(self, groups: Iterable[Group]) -> Owners:
        """Map every unit to its group.

        Units that need no kernel stand for themselves.
        """
        return Owners({**{name: name for name in self.readers}, **{unit: g for g in groups for unit in g.units}})

    def successors(self, vertex: Group | str, owner: Owners) -> frozenset[Group | str]:
        """Return the groups that read results of a group."""
        known = owner.following.get(vertex)
        if known is None:
            units = vertex.units if isinstance(vertex, Group) else (vertex,)
            known = frozenset({owner[r] for u in units for r in self.readers[u]} - {vertex})
            owner.following[vertex] = known
        return known

    def neighbours(self, group: Group, owner: Owners, siblings: bool = True) -> list[tuple[Group, Group]]:
        """Return the pairs of groups that contain a group.

        An edge connects them, or they are `siblings`. They are in graph order.
        """
        before = {owner[s] for u in group.units for s in self.sources[u]} - {group}
        after = self.successors(group, owner)
        beside = set(self._siblings(group, owner)) - before - after if siblings and self.sibling_keys(group) else set()
        pairs = [(v, group) for v in before if isinstance(v, Group)] + [
            (group, v) for v in after if isinstance(v, Group)
        ]
        order = self.builder.order
        pairs += [(v, group) if order[v.units[0]] < order[group.units[0]] else (group, v) for v in beside]
        pairs = [pair for pair in pairs if not self.are_fixed(*pair)]
        return sorted(pairs, key=lambda pair: (order[pair[0].units[0]], order[pair[1].units[0]]))

    def sibling_keys(self, group: Group) -> frozenset[Hashable]:
        """Return the keys by which groups are siblings of a group."""
        if group not in self.kin:
            self.kin[group] = sibling_keys(group)
            for key in self.kin[group]:
                self.kindred.setdefault(key, []).append(group)
        return self.kin[group]

    def _siblings(self, group: Group, owner: Owners) -> Iterator[Group]:
        """Yield the siblings of a group among groups whose keys were asked for."""
        for key in self.sibling_keys(group):
            yield from (other for other in self.kindred[key] if other != group and owner.get(other.units[0]) == other)

    def convex(self, first: Group, second: Group, owner: Owners) -> bool:
        """Return whether no path between two groups passes through a third.

        An edge may lead from `first` to `second`.
        """
        if not self._direct(first, second, owner):
            return False
        return second in self.successors(first, owner) or (
            first not in self.successors(second, owner) and self._direct(second, first, owner)
        )

    def _direct(self, first: Group, second: Group, owner: Owners) -> bool:
        """Return whether no path from `first` to `second` passes through a third group."""
        return not self.paths(owner).lead_to(self.successors(first, owner) - {second}, (second,))

    def paths(self, owner: Owners) -> Paths[Group | str]:
        """Return the reachability of groups."""
        if owner.paths is None:
            owner.paths = Paths.of(owner, lambda vertex: self.successors(vertex, owner))
        return owner.paths

    def merge(self, first: Group, second: Group, owner: Owners) -> Group | Illegal:
        """Return two consecutive groups as one."""
        merged = self.builder.fuse(first, second)
        if isinstance(merged, Group) and not self.convex(first, second, owner):
            return Illegal("a path leaves the merged set and comes back")
        return merged

    def schedule(self, groups: Sequence[Group]) -> list[Group | str]:
        """Return groups and units that are loops in execution order.

        Ties go to the graph's order.
        """
        result = self.topological_order(groups)
        assert result is not None, "the partition has a cycle"
        return result

    def topological_order(self, groups: Sequence[Group]) -> list[Group | str] | None:
        """Return the groups in that order.

        Nothing where they wait for each other in a circle.
        """
        owner = self.owners(groups)
        vertices = dict.fromkeys(owner.values())
        place = {v: min(self.builder.order[u] for u in (v.units if isinstance(v, Group) else (v,))) for v in vertices}
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
            if isinstance(v, Group) or self.builder.units[v].repeat is not None:
                result.append(v)
            for w in following[v]:
                waits[w] -= 1
                if not waits[w]:
                    heapq.heappush(ready, (place[w], next(ties), w))
        return result if sum(isinstance(v, Group) for v in result) == len(groups) else None


# ---- owners and reachability


class Owners(dict[str, Group | str]):
    """The group of each unit.

    Units that need no kernel stand for themselves. `following` caches the successors of owners, `paths` the
    reachability.
    """

    def __init__(self, owners: Mapping[str, Group | str]) -> None:
        super().__init__(owners)
        self.following: dict[Group | str, frozenset[Group | str]] = {}
        self.paths: Paths[Group | str] | None = None

    def join(self, group: Group, sources: Mapping[str, frozenset[str]]) -> None:
        """Make a group the owner of its units.

        `sources` are the units that write the operands of each of them.
        """
        for before in {self[source] for unit in group.units for source in sources[unit]}:
            self.following.pop(before, None)
        if self.paths is not None:
            self.paths.join({self[unit] for unit in group.units}, group)
        self.update(dict.fromkeys(group.units, group))
        self.following.pop(group, None)

    def copy(self) -> Owners:
        """Return an independent copy."""
        made = Owners(self)
        made.following = dict(self.following)
        made.paths = self.paths and self.paths.copy()
        return made
