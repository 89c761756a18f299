"""Convex merge candidates: a contraction, row operations and a second contraction.

They are worth a kernel together though no two of them are. Each merge of two leaves in memory the operands of the
third, so that a path of merges that each gain never reaches them. A partition therefore considers, besides pairs,
convex sets: a contraction, another one that its results lead to through statements over rows, and all groups between
them.

    product -> maximum and sum -> weights, product   =>   one group of three segments
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from ..legality import multiplies as tiled
from ..normalise import Illegal
from .chain_statements import widens
from .group_builder import GroupBuilder
from .groups import Group
from .partitioner import Owners
from .paths import Paths

#: Most groups between two contractions: rows, their weights, and elementwise results of either.
MAX_GROUPS_BETWEEN = 4


class Edges(Protocol):
    """Protocol of the edges between groups that a partition knows."""

    @property
    def builder(self) -> GroupBuilder:
        """The builder of groups."""
        ...

    @property
    def sources(self) -> Mapping[str, frozenset[str]]:
        """The units that write the operands of a unit."""
        ...

    def successors(self, vertex: Group | str, owner: Owners) -> frozenset[Group | str]:
        """Return the groups that read results of a group."""
        ...

    def paths(self, owner: Owners) -> Paths[Group | str]:
        """Return the reachability of groups."""
        ...


def convex_merge_candidates(edges: Edges, groups: Iterable[Group], owner: Owners) -> Iterator[tuple[Group, ...]]:
    """Yield the candidates that begin with some groups, in graph order."""
    order = edges.builder.order
    for first in groups:
        if not multiplies(first):
            continue
        between, ends = _following_groups(edges, first, owner)
        reached = {g: _reachable_groups(edges, g, between, owner) for g in between} if ends else {}
        for last in sorted(ends, key=lambda g: order[g.units[0]]):
            inside = [g for g in between if last in reached[g]]
            # Tensors in shared memory have no other readers; sums of rows may be in memory for others.
            closed = (g for g in (first, *inside) if g is first or not g.form.segments[0].reductions)
            if inside and all(edges.successors(g, owner) <= {*inside, last} for g in closed):
                yield (first, *sorted(inside, key=lambda g: order[g.units[0]]), last)


def candidate_starts(edges: Edges, group: Group, owner: Owners) -> list[Group]:
    """Return a group and the groups whose candidates may contain it."""
    found, level = {group: None}, [group]
    for _ in range(MAX_GROUPS_BETWEEN + 1):
        before = [owner[s] for g in level for u in g.units for s in edges.sources[u]]
        level = [g for g in dict.fromkeys(before) if isinstance(g, Group) and g not in found]
        found.update(dict.fromkeys(level))
        level = [g for g in level if not multiplies(g)]
    return [g for g in found if multiplies(g)]


def merge_candidate(builder: GroupBuilder, candidate: tuple[Group, ...]) -> Group | Illegal:
    """Return a candidate as one group of three segments."""
    first, last = candidate[0], candidate[-1]
    if any(len(g.parts) > 1 or g.repeat is not None for g in candidate):
        return Illegal("a kernel has at most three segments")
    made = {t for g in candidate[:-1] for u in g.units for t in builder.units[u].writes}
    products = [u for u in last.units if not builder.is_view(u) and multiplies(builder.single(u))]
    if len(products) != 1:
        return Illegal("the last group is no single product")
    early = _leading_units(builder, last, products[0], made)
    rows = (*(u for g in candidate[1:-1] for u in g.units), *early)
    parts = first.units, rows, tuple(u for u in last.units if u not in early)
    return builder.form(tuple(tuple(sorted(part, key=lambda u: builder.order[u])) for part in parts))


def multiplies(group: Group) -> bool:
    """Return whether a group is one segment computed by register tiles."""
    form = group.form
    if "tiled" not in form.memo:
        form.memo["tiled"] = len(form.segments) == 1 and tiled(form.segments[0])
    return bool(form.memo["tiled"])


def _leading_units(builder: GroupBuilder, group: Group, product: str, made: set[str]) -> tuple[str, ...]:
    """Return the units of a group that its contraction reads and that read tensors in `made`."""
    early: list[str] = []
    known = set(made)
    for name in sorted(group.units, key=lambda u: builder.order[u]):
        if name == product:
            break
        unit = builder.units[name]
        if any(builder.sources(t) in known for t in unit.reads):
            early.append(name)
            known.update(unit.writes)
    used, units = {t for name in early for t in builder.units[name].reads}, builder.units
    return tuple(n for n in early if not (_widens(builder, n) and used.isdisjoint(units[n].writes)))


def _widens(builder: GroupBuilder, name: str) -> bool:
    """Return whether a unit only converts floats to wider ones, so that narrow ones pass to the contraction."""
    statements = builder.units[name].statements
    return len(statements) == 1 and widens(statements[0], builder.types)


def _following_groups(edges: Edges, first: Group, owner: Owners) -> tuple[dict[Group, None], dict[Group, None]]:
    """Return the groups without contractions that a group leads to through others of them, and the contractions that
    follow.
    """
    between: dict[Group, None] = {}
    ends: dict[Group, None] = {}
    level: list[Group] = [first]
    for _ in range(MAX_GROUPS_BETWEEN):
        following = [g for each in level for g in edges.successors(each, owner) if isinstance(g, Group)]
        fresh = [g for g in dict.fromkeys(following) if g not in between]
        ends.update(dict.fromkeys(g for g in fresh if multiplies(g)))
        level = [g for g in fresh if not multiplies(g)]
        between.update(dict.fromkeys(level))
        if len(between) > MAX_GROUPS_BETWEEN:
            break
    return between, ends


def _reachable_groups(edges: Edges, group: Group, among: Iterable[Group], owner: Owners) -> set[Group | str]:
    """Return the groups that read results of one, directly or through others of `among`."""
    inside, found, pending = {*among}, set[Group | str](), [group]
    while pending:
        for vertex in edges.successors(pending.pop(), owner) - found:
            found.add(vertex)
            if vertex in inside and isinstance(vertex, Group):
                pending.append(vertex)
    return found


def convex(edges: Edges, members: set[Group], owner: Owners) -> bool:
    """Return whether no path leaves some groups and comes back."""
    return not edges.paths(owner).lead_to({v for g in members for v in edges.successors(g, owner) - members}, members)
