"""Decision record: algorithms, fusion groups, split reductions and shared launches.

Decisions refer to nodes, units and groups by position, and each position has the fingerprint of its computation. So a
graph whose tensors have other names or other weights gets the same kernels, and a graph that contains another one, or
that another version writes differently in places, gets those of the equal parts. Schedules are not part of the record:
each kernel's schedule is found by its computation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve, field, frozen

from ..ir import PassError
from .fingerprints import match_fingerprints, unit_fingerprints
from .fusion import Group, GroupBuilder, Programs, Unit, form_key
from .split import Division


class ForeignDecisionsError(PassError):
    """Decisions about another graph, or by a version that forms other units."""


@frozen
class GroupDecision:
    """Decision about one group, by the positions of its units.

    It has the units of each segment, the loop that they belong to, and the number of `parts` (split-K) of its
    reduction, or of aligned `copies` of factors. `leaves` numbers, in order, the tensors among those that its units
    write which it stores; it is None where it was not recorded.
    """

    segments: tuple[tuple[int, ...], ...]
    loop: int | None = None
    parts: int = 1
    leaves: tuple[int, ...] | None = None
    copies: int = 0

    @property
    def kernels(self) -> int:
        """Number of kernels that compute the group."""
        return 1 + (self.copies or int(self.parts > 1))


@frozen
class Replay:
    """Groups of a decision record that can be formed, by recorded position.

    `complete` is true where they are all groups of the graph.
    """

    groups: Mapping[int, Group]
    complete: bool


@frozen
class Decisions:
    """Decision record of a graph whose units have this `digest`.

    `algorithms` are positions of nodes and the algorithms that replaced them; `groups` come in the order in which they
    were formed; `launches` are the positions of groups that are launched together, in order of execution. `order` is
    true where tensors between kernels are stored with other dims innermost than in the graph. `nodes` and `units` are
    the fingerprints of the positions, empty in records of earlier versions. `branched`, which passes do not read, is
    true where the finished plan was faster with concurrent launches; None where that was not measured.
    """

    digest: str
    algorithms: tuple[tuple[int, str], ...]
    groups: tuple[GroupDecision, ...]
    launches: tuple[tuple[int, ...], ...]
    ordered: bool = False
    nodes: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    branched: bool | None = field(default=None, eq=False)

    def match_nodes(self, marks: Sequence[str]) -> Mapping[int, int]:
        """Return the current position of each recorded node.

        Without recorded fingerprints positions are unchanged.
        """
        return match_fingerprints(self.nodes, marks) if self.nodes else {n: n for n in range(len(marks))}

    def replay(self, builder: GroupBuilder) -> Replay:
        """Return the groups that can be replayed.

        Raises `ForeignDecisionsError` where there is none.
        """
        now, same = self._units_now(builder)
        found, taken = dict[int, Group](), set[tuple[str | None, str]]()
        for place, decision in enumerate(self.groups):
            group = _form_group(decision, builder, now, same)
            own = set() if group is None else {(group.repeat, unit) for unit in group.units}
            if group is not None and taken.isdisjoint(own):
                found[place] = group
                taken |= own
        torn = {self.groups[n].loop for n in range(len(self.groups)) if n not in found} - {None}
        kept = {n: group for n, group in found.items() if self.groups[n].loop not in torn}
        if not kept:
            raise ForeignDecisionsError("they were made about other units, or groups that are not legal")
        covered = {unit if group.repeat is None else group.repeat for group in kept.values() for unit in group.units}
        return Replay(kept, len(kept) == len(self.groups) and covered.issuperset(_required_units(builder)))

    def _units_now(self, builder: GroupBuilder) -> tuple[Mapping[int, int], bool]:
        """Return the current position of each recorded unit, and whether all units are equal."""
        count = len(builder.units)
        if units_digest(builder.views.programs) == self.digest:
            return {n: n for n in range(count)}, True
        if not self.units:
            raise ForeignDecisionsError("they were made about other units")
        return match_fingerprints(self.units, unit_fingerprints(builder.views.programs)), False

    def divisions(self, replay: Replay) -> dict[object, Division]:
        """Return the division of each replayed form's reduction."""
        decided = ((group, self.groups[place]) for place, group in replay.groups.items())
        return {form_key(group.form): Division(d.parts, d.copies > 0) for group, d in decided}

    def shared_launches(self, replay: Replay) -> Iterator[list[tuple[int, int]]]:
        """Yield replayed launches of several groups.

        Each member is the position of its group and the number of its kernel.
        """
        kernels = [(place, n) for place, decision in enumerate(self.groups) for n in range(decision.kernels)]
        for places in self.launches:
            members = [kernels[p] for p in places if p < len(kernels)]
            if len(places) > 1 and len(members) == len(places) and all(place in replay.groups for place, _ in members):
                yield members


def _form_group(decision: GroupDecision, builder: GroupBuilder, now: Mapping[int, int], same: bool) -> Group | None:
    """Return the recorded group; None where units are missing, or where others read tensors that it does not store."""
    units = list(builder.units)
    try:
        loop = None if decision.loop is None else units[now[decision.loop]]
        shop = builder if loop is None else builder.iteration_builder(loop)
        names = list(shop.units)
        where = now if loop is None else {n: n for n in range(len(names))}
        found = shop.form(tuple(tuple(names[where[place]] for place in segment) for segment in decision.segments))
    except (IndexError, KeyError, PassError):
        return None
    if not isinstance(found, Group):
        return None
    same_outputs = same or decision.leaves is None or decision.leaves == stored_tensors(found, shop.units)
    return evolve(found, repeat=loop) if same_outputs else None


def stored_tensors(group: Group, units: Mapping[str, Unit]) -> tuple[int, ...]:
    """Return the numbers of the units' tensors that a group stores."""
    written = [tensor for name in group.units for tensor in units[name].writes]
    return tuple(n for n, tensor in enumerate(written) if tensor in group.outputs)


def _required_units(builder: GroupBuilder) -> Iterator[str]:
    """Yield the units that need a kernel, and the loops."""
    for name, unit in builder.units.items():
        if unit.repeat is not None or (not unit.free and builder.is_used(name)):
            yield name


def units_digest(programs: Programs) -> str:
    """Return a digest of the units' operations and tensor types."""
    digest = hashlib.sha256()
    for unit in programs.every_unit:
        types = " ".join(str(programs.types[t]) for t in (*unit.reads, *unit.writes) if t in programs.types)
        digest.update(f"{unit.op} {len(unit.statements)} {unit.free} {types}\n".encode())
    return digest.hexdigest()
