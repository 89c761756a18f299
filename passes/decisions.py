"""What measured times decided about a graph, so that it can be decided alike at once: algorithms, groups, what is
split, and which groups share a launch.

It is said by place (of nodes, of units, of groups), and each place by what is computed there: so a graph whose tensors
have other names or other weights gets the same kernels, and one of which a part is another, or which another version
writes otherwise in places, gets those of all the rest. Schedules are no part of it: each kernel's is known by what it
computes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve, field, frozen

from ..ir import PassError
from .fusion import Group, Programs, Unit, Workshop, form_key
from .split import Division
from .structure import corresponding, unit_marks


class ForeignDecisionsError(PassError):
    """Decisions were made about another graph, or by a version that forms other units."""


@frozen
class GroupDecision:
    """One group: the places of the units of each of its segments, of the loop that they belong to, and into how many
    parts, or slices, its reduction is divided. It `leaves` some of the tensors that its units write, which are numbered
    in order; nobody noted which where that is None.
    """

    segments: tuple[tuple[int, ...], ...]
    loop: int | None = None
    parts: int = 1
    slices: int = 1
    leaves: tuple[int, ...] | None = None

    @property
    def kernels(self) -> int:
        """How many kernels compute it."""
        return 2 if self.parts > 1 else 1


@frozen
class Upheld:
    """What still holds of decisions: the groups that can be formed, by their places among those that were decided, and
    whether they are all that there is.
    """

    groups: Mapping[int, Group]
    whole: bool


@frozen
class Decisions:
    """What was decided about a graph whose units have this `digest`.

    `algorithms` are places of nodes and what took their place; `groups` come in the order in which they were formed,
    `launches` are the places of those that are launched together, in order of execution. `ordered` says whether tensors
    between kernels lie with other dims innermost than the graph has them, which was not so before there was a choice.
    `nodes` and `units` are the marks of what places stand for; earlier versions noted none. `branched`, which passes do
    not ask for, says whether the finished plan was faster with its launches in branches; nothing where no clock
    compared.
    """

    digest: str
    algorithms: tuple[tuple[int, str], ...]
    groups: tuple[GroupDecision, ...]
    launches: tuple[tuple[int, ...], ...]
    ordered: bool = False
    nodes: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    branched: bool | None = field(default=None, eq=False)

    def nodes_now(self, marks: Sequence[str]) -> Mapping[int, int]:
        """Return by its place before where a node is now; where none were noted, all are where they were."""
        return corresponding(self.nodes, marks) if self.nodes else {n: n for n in range(len(marks))}

    def keep(self, workshop: Workshop) -> Upheld:
        """Return the groups that hold.

        Raises `ForeignDecisionsError` where none does.
        """
        now, same = self._units_now(workshop)
        found, taken = dict[int, Group](), set[tuple[str | None, str]]()
        for place, decision in enumerate(self.groups):
            group = _formed(decision, workshop, now, same)
            own = set() if group is None else {(group.repeat, unit) for unit in group.units}
            if group is not None and taken.isdisjoint(own):
                found[place] = group
                taken |= own
        torn = {self.groups[n].loop for n in range(len(self.groups)) if n not in found} - {None}
        kept = {n: group for n, group in found.items() if self.groups[n].loop not in torn}
        if not kept:
            raise ForeignDecisionsError("they were made about other units, or groups that are not legal")
        covered = {unit if group.repeat is None else group.repeat for group in kept.values() for unit in group.units}
        return Upheld(kept, len(kept) == len(self.groups) and covered.issuperset(_wanted(workshop)))

    def _units_now(self, workshop: Workshop) -> tuple[Mapping[int, int], bool]:
        """Return by its place before where a unit is now, and whether that is so of all of them."""
        count = len(workshop.units)
        if digest_of(workshop.views.programs) == self.digest:
            return {n: n for n in range(count)}, True
        if not self.units:
            raise ForeignDecisionsError("they were made about other units")
        return corresponding(self.units, unit_marks(workshop.views.programs)), False

    def division_of(self, kept: Upheld) -> dict[object, Division]:
        """Return how the reduction of each form among the groups is divided."""
        decided = ((group, self.groups[place]) for place, group in kept.groups.items())
        return {form_key(group.form): Division(d.parts, d.slices) for group, d in decided}

    def shared(self, kept: Upheld) -> Iterator[list[tuple[int, int]]]:
        """Yield the launches of several groups that are all kept: for each the place of the group, and which of its
        kernels it is.
        """
        kernels = [(place, n) for place, decision in enumerate(self.groups) for n in range(decision.kernels)]
        for places in self.launches:
            members = [kernels[p] for p in places if p < len(kernels)]
            if len(places) > 1 and len(members) == len(places) and all(place in kept.groups for place, _ in members):
                yield members


def _formed(decision: GroupDecision, workshop: Workshop, now: Mapping[int, int], same: bool) -> Group | None:
    """Return the group that was decided on, nothing where some of its units are gone, or where others need what it
    does not leave.
    """
    units = list(workshop.units)
    try:
        loop = None if decision.loop is None else units[now[decision.loop]]
        shop = workshop if loop is None else workshop.turn(loop)
        names = list(shop.units)
        where = now if loop is None else {n: n for n in range(len(names))}
        found = shop.form(tuple(tuple(names[where[place]] for place in segment) for segment in decision.segments))
    except (IndexError, KeyError, PassError):
        return None
    if not isinstance(found, Group):
        return None
    alike = same or decision.leaves is None or decision.leaves == leaves(found, shop.units)
    return evolve(found, repeat=loop) if alike else None


def leaves(group: Group, units: Mapping[str, Unit]) -> tuple[int, ...]:
    """Return which of the tensors that a group's units write it leaves, by their numbers."""
    written = [tensor for name in group.units for tensor in units[name].writes]
    return tuple(n for n, tensor in enumerate(written) if tensor in group.outputs)


def _wanted(workshop: Workshop) -> Iterator[str]:
    """Yield the units that need a kernel, and the loops."""
    for name, unit in workshop.units.items():
        if unit.repeat is not None or (not unit.free and workshop.used(name)):
            yield name


def digest_of(programs: Programs) -> str:
    """Return a digest of what the places of units mean: the operation of each, and the types of what it touches."""
    digest = hashlib.sha256()
    for unit in programs.every_unit:
        types = " ".join(str(programs.types[t]) for t in (*unit.reads, *unit.writes) if t in programs.types)
        digest.update(f"{unit.op} {len(unit.statements)} {unit.free} {types}\n".encode())
    return digest.hexdigest()
