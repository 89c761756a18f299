"""Partitions graphs with branches by Algorithm 1 of DeepCuts.

A partition is a set of groups whose quotient graph has no cycle (a merged set stays convex: no path leaves it and comes
back). Consecutive groups X -> Y are merged where the merge is legal and the partition gets faster. `algorithm_1` is the
paper's text: it keeps every partition that beats the one it was derived from, which is exponential where merges are
independent. The time of a partition is the sum of its groups', so merges in different places do not interact, and
`improve` follows one path through the same set R: always the merge that gains most. The result is a member of R that no
single merge improves, so never slower than its start; graphs of few units get `algorithm_1` itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf, isnan

from attrs import define, evolve, field

from ....ir import FusedGroup, Mode
from ..normalise import Illegal
from .convex_merge import candidate_starts, convex, convex_merge_candidates, merge_candidate
from .group_builder import GroupBuilder
from .groups import Group
from .partitioner import Owners, Partitioner
from .sibling_fusion import sibling_pairs

#: Rounds of asynchronous cost evaluation, each for the groups that a path needs next.
MAX_LOOKAHEAD_ROUNDS = 8
#: Fewest merges of a path after which its final groups are reported, and their share of the queued ones.
MIN_MERGES_PER_REPORT, REPORTED_SHARE = 24, 1 / 16
#: Most units, and partitions in R, for which Algorithm 1 runs in its exact form.
EXACT_UNITS, EXACT_PARTITIONS = 10, 2000


def partition(partitioner: Partitioner, mode: Mode) -> list[Group]:
    """Return the groups of a graph in execution order.

    `no-fusion` keeps one kernel per unit, `fusion` merges wherever the register level allows, `mixed` where it is
    faster. The iteration of a loop is a partition of its own.
    """
    groups = partitioner.singletons()
    if mode == "fusion":
        groups = fuse_all(partitioner, groups)
    elif mode == "mixed":
        invariant = partitioner.builder.policy.invariant
        groups = (
            _with_chains(partitioner, fuse_all(partitioner, groups)) if invariant else _fastest(partitioner, groups)
        )
    return [g for vertex in partitioner.schedule(groups) for g in _in_place(partitioner, vertex, mode)]


def with_parts(groups: Sequence[Group], builder: GroupBuilder) -> list[FusedGroup]:
    """Return groups with the groups that they were merged from.

    The choice of groups depends on the costs of all of these.
    """
    merged = [g for g in groups if len(g.units) > 1 and g.repeat is None]
    parts = [builder.single(u) for g in merged for u in g.units if not builder.units[u].free]
    return [group.form for group in (*groups, *parts)]


def _in_place(partitioner: Partitioner, vertex: Group | str, mode: Mode) -> list[Group]:
    """Return a group, or those of one iteration of a loop."""
    if isinstance(vertex, Group):
        return [vertex]
    if kept := [group for group in partitioner.fixed_groups if group.repeat == vertex]:
        return kept
    turn = Partitioner(
        partitioner.builder.iteration_builder(vertex),
        partitioner.evaluator,
        over=partitioner.over,
        least=partitioner.least,
    )
    return [evolve(group, repeat=vertex) for group in partition(turn, mode)]


def _fastest(partitioner: Partitioner, initial: Sequence[Group]) -> list[Group]:
    """Return the best partition of Algorithm 1's set where that is small, else the end of its greedy path."""
    few = len(initial) <= EXACT_UNITS and not partitioner.over()
    exact = algorithm_1(partitioner, initial) if few else None
    if exact is None:
        return improve(partitioner, initial)
    times = [(_seconds(partitioner, groups), len(groups)) for groups in exact]
    return list(exact[times.index(min(times))])


def _seconds(partitioner: Partitioner, groups: Iterable[Group]) -> float:
    """Return the seconds of all groups with known costs; no merge contains the others."""
    return sum(seconds for group in groups if not isnan(seconds := partitioner.cost(group)))


def algorithm_1(partitioner: Partitioner, initial: Sequence[Group]) -> list[frozenset[Group]] | None:
    """Return the paper's set R in order of discovery.

    None where it outgrows its limit.
    """
    found = {frozenset(initial): None}
    unmarked = [frozenset(initial)]
    while unmarked:
        current = unmarked.pop(0)
        owner = partitioner.owners(current)
        pairs = (*neighbours(partitioner, current, owner), *siblings(partitioner, current, owner))
        merges = ((pair, partitioner.merge(*pair, owner)) for pair in pairs)
        rows = (
            (candidate, merge_candidate(partitioner.builder, candidate))
            for candidate in _merge_candidates(partitioner, current, owner)
        )
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
    """Return the end of the best merges through Algorithm 1's set.

    Groups that an edge connects are merged first, then siblings and the merges that these enable, so that siblings
    never make a partition slower.
    """
    groups = _best_path(partitioner, initial, neighbours(partitioner, initial, partitioner.owners(initial)), False)
    return _best_path(partitioner, groups, siblings(partitioner, groups, partitioner.owners(groups)), True)


def _best_path(
    partitioner: Partitioner, initial: Sequence[Group], first_pairs: Iterable[tuple[Group, Group]], beside: bool
) -> list[Group]:
    """Return the end of the path of best merges that begins with some pairs; siblings on the way are merged, if
    `beside`.
    """
    path = _Path(partitioner, dict.fromkeys(initial), partitioner.owners(initial), beside)
    several = [*first_pairs, *_merge_candidates(partitioner, initial, path.owner)]
    partitioner.announce([group.form for members in several for group in members])
    path.consider(several)
    partitioner.announce(_candidate_groups(path))  # nearly all of them are compared
    if partitioner.known is not None:
        _look_ahead(path.copy(), partitioner.known)
    path.follow(report=partitioner.known is None)
    partitioner.announce(())
    return list(path.groups)


@define
class _Path:
    """A path of best merges: the groups so far, the owners of units, and a queue of merges. The queue orders a merge by
    an upper bound of its gain, until the gain is known. Most merges that are queued late lose one of their groups
    early, so their legality is decided only on demand, where the bound does not need it.
    """

    partitioner: Partitioner
    groups: dict[Group, None]
    owner: Owners
    beside: bool
    queue: list[tuple[float, int, bool, tuple[Group, ...], Group | None]] = field(factory=list)
    ties: int = 0

    def copy(self) -> _Path:
        """Return an independent copy of the path."""
        return evolve(self, groups=dict(self.groups), owner=self.owner.copy(), queue=list(self.queue))

    def consider(self, several: Iterable[tuple[Group, ...]], late: bool = False) -> None:
        """Queue merges that are legal, or may be, which is decided `late`."""
        for members in several:
            if self.partitioner.over():
                break
            self.ties += 1
            outline = _outline(self.partitioner, members) if late else None
            if outline is None:
                self._form(members, self.ties)
            else:
                self._queue(members, self.ties, None, _greatest_saving(self.partitioner, members, outline))

    def _form(self, members: tuple[Group, ...], tie: int) -> None:
        """Queue a merge if it is legal."""
        shop = self.partitioner.builder
        merged = shop.fuse(*members) if len(members) == 2 else merge_candidate(shop, members)
        if isinstance(merged, Group):
            self._queue(members, tie, merged, _greatest_saving(self.partitioner, members, merged.form, merged))

    def _queue(self, members: tuple[Group, ...], tie: int, merged: Group | None, most: float) -> None:
        heapq.heappush(self.queue, (-max(0.0, most), tie, False, members, merged))

    def follow(self, known: Callable[[FusedGroup], bool] = lambda form: True, report: bool = False) -> None:
        """Make merges, always the one that saves most, to the end.

        Those are left whose costs are not `known`. With `report`, groups that no queued merge contains are reported.
        """
        unknown, merges = [], 0
        while self.queue:
            place = _, tie, exact, members, merged = heapq.heappop(self.queue)
            if any(g not in self.groups for g in members) or not _convex(self.partitioner, members, self.owner):
                continue
            if merged is None:
                if not self.partitioner.over():
                    self._form(members, tie)
                continue
            if not exact:  # the gain is needed only now: most merges lose one of their groups early
                if not known(merged.form):
                    unknown.append(place)
                elif (gain := _gain(self.partitioner, members, merged)) > 0:
                    heapq.heappush(self.queue, (-gain, tie, True, members, merged))
                continue
            merges += 1
            self._merge(members, merged)
            if report and merges >= max(MIN_MERGES_PER_REPORT, REPORTED_SHARE * len(self.queue)):
                merges = 0
                self.report()
        self.queue = unknown
        if report:
            self.report()

    def report(self) -> None:
        """Report the groups that no queued merge contains."""
        pending = {group for *_, members, _ in self.queue for group in members}
        self.partitioner.likely([group for group in self.groups if group not in pending])

    def _merge(self, members: tuple[Group, ...], merged: Group) -> None:
        for group in members:
            del self.groups[group]
        self.groups[merged] = None
        self.owner.join(merged, self.partitioner.sources)
        self.consider(self.partitioner.neighbours(merged, self.owner, self.beside), late=True)
        self.consider(
            _merge_candidates(self.partitioner, candidate_starts(self.partitioner, merged, self.owner), self.owner),
            late=True,
        )


def _look_ahead(path: _Path, known: Callable[[FusedGroup], bool]) -> None:
    """Announce the groups that a path will need: follow it while costs are known, announce all groups that it then
    needs, and repeat. Merges in different places do not interact, so that few of these groups are unnecessary.
    """
    for _ in range(MAX_LOOKAHEAD_ROUNDS):
        path.follow(known)
        path.report()
        if not path.queue or path.partitioner.over():
            return
        path.partitioner.announce(_candidate_groups(path))
        heapq.heapify(path.queue)


def _candidate_groups(path: _Path) -> list[FusedGroup]:
    """Return the groups of queued merges, those first that may save most."""
    return [merged.form for *_, merged in sorted(path.queue) if merged is not None]


def _outline(partitioner: Partitioner, members: tuple[Group, ...]) -> FusedGroup | None:
    """Return the least reads and writes of a merge, where they bound its gain. The costs of its groups are asked for
    first, as the model may judge groups by those that it was asked about first.
    """
    if partitioner.least is None or not all(map(partitioner.has_cost, members)):
        return None
    return partitioner.builder.outline(members)


def _merge_candidates(partitioner: Partitioner, groups: Iterable[Group], owner: Owners) -> Iterator[tuple[Group, ...]]:
    """Yield convex merge candidates that begin with some groups, in graph order; or none by the policy."""
    if partitioner.builder.policy.shared and partitioner.builder.policy.chains:
        order = partitioner.builder.order
        yield from convex_merge_candidates(partitioner, sorted(groups, key=lambda g: order[g.units[0]]), owner)


def fuse_all(partitioner: Partitioner, initial: Sequence[Group]) -> list[Group]:
    """Return the groups after every merge that the register level allows.

    A kernel has to exist for each. Epilogues are merged first, then prologues.
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
                if isinstance(merged, Group) and merged.level != "shared" and partitioner.cost(merged) != inf:
                    del groups[first], groups[second]
                    groups[merged] = None
                    owner.join(merged, partitioner.sources)
                    changed = True
    return list(groups)


def _with_chains(partitioner: Partitioner, initial: Sequence[Group]) -> list[Group]:
    """Return the groups after every legal convex merge that has a kernel, in graph order: no time decides about it."""
    groups, changed = dict.fromkeys(initial), True
    while changed:
        changed, owner = False, partitioner.owners(groups)
        for members in _merge_candidates(partitioner, groups, owner):
            merged = merge_candidate(partitioner.builder, members)
            legal = isinstance(merged, Group) and _convex(partitioner, members, owner)
            if isinstance(merged, Group) and legal and partitioner.cost(merged) != inf:
                groups = {g: None for g in groups if g not in members} | {merged: None}
                changed = True
                break
    return list(groups)


def neighbours(partitioner: Partitioner, groups: Iterable[Group], owner: Owners) -> Iterator[tuple[Group, Group]]:
    """Yield the pairs of groups that an edge connects, in graph order."""
    ordered = sorted(groups, key=lambda g: partitioner.builder.order[g.units[0]])
    for group in ordered:
        found = [s for s in partitioner.successors(group, owner) if isinstance(s, Group)]
        for reader in sorted(found, key=lambda g: partitioner.builder.order[g.units[0]]):
            if not partitioner.are_fixed(group, reader):
                yield group, reader


def siblings(partitioner: Partitioner, groups: Iterable[Group], owner: Owners) -> Iterator[tuple[Group, Group]]:
    """Yield the pairs of siblings that no edge connects, in graph order."""
    ordered = sorted(groups, key=lambda g: partitioner.builder.order[g.units[0]])
    after = {group: partitioner.successors(group, owner) for group in ordered}
    for first, second in sibling_pairs(ordered, {group: partitioner.sibling_keys(group) for group in ordered}):
        separate = second not in after[first] and first not in after[second]
        if separate and not partitioner.are_fixed(first, second):
            yield first, second


def _convex(partitioner: Partitioner, members: tuple[Group, ...], owner: Owners) -> bool:
    """Return whether no path leaves a pair or a candidate and comes back."""
    if len(members) == 2:
        return partitioner.convex(*members, owner)
    return convex(partitioner, {*members}, owner)


def _greatest_saving(
    partitioner: Partitioner, members: Sequence[Group], form: FusedGroup, merged: Group | None = None
) -> float:
    """Return the seconds that a merge saves at most, by the reads and writes of its form."""
    if partitioner.least is None:
        assert merged is not None, "without a bound it is asked what the group takes"
        return _gain(partitioner, members, merged)
    return sum(map(partitioner.cost, members)) - partitioner.least(form)


def _gain(partitioner: Partitioner, members: Sequence[Group], merged: Group) -> float:
    """Return the seconds that a merge saves. A group without a kernel is worth nothing, and a group of unknown cost
    gains nothing comparable: the result is not more than anything.
    """
    after = partitioner.cost(merged)
    return -inf if after == inf else sum(map(partitioner.cost, members)) - after
