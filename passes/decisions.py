"""What measured times decided about a graph, so that it can be decided alike at once: algorithms, groups, what is
split, and which groups share a launch.

Everything is said by position (of nodes, of units, of groups), so that a graph whose tensors have other names or other
weights gets the same kernels. Schedules are no part of it: each kernel's is known by what it computes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from ..ir import PassError
from .fusion import Group, Illegal, Programs, Workshop, form_key
from .split import Division


class ForeignDecisionsError(PassError):
    """Decisions were made about another graph, or by a version that forms other units."""


@frozen
class GroupDecision:
    """One group: the places of the units of each of its segments, of the loop that they belong to, and into how many
    parts, or slices, its reduction is divided.
    """

    segments: tuple[tuple[int, ...], ...]
    loop: int | None = None
    parts: int = 1
    slices: int = 1


@frozen
class Decisions:
    """What was decided about a graph whose units have this `digest`.

    `algorithms` are places of nodes and what took their place; `groups` come in the order in which they were formed,
    `launches` are the places of those that are launched together, in order of execution. `ordered` says whether tensors
    between kernels lie with other dims innermost than the graph has them, which was not so before there was a choice.
    """

    digest: str
    algorithms: tuple[tuple[int, str], ...]
    groups: tuple[GroupDecision, ...]
    launches: tuple[tuple[int, ...], ...]
    ordered: bool = False

    def algorithm_of(self) -> Mapping[int, str]:
        """Return which algorithm takes the place of a node, by the node's place."""
        return dict(self.algorithms)

    def form(self, workshop: Workshop) -> list[Group]:
        """Return the groups.

        Raises `ForeignDecisionsError` where the workshop has other units, or forms no such groups.
        """
        if digest_of(workshop.views.programs) != self.digest:
            raise ForeignDecisionsError("they were made about other units")
        return [_formed(decision, workshop) for decision in self.groups]

    def division_of(self, groups: Sequence[Group]) -> Mapping[object, Division]:
        """Return how the reduction of each form among the groups is divided."""
        return {form_key(g.form): Division(d.parts, d.slices) for g, d in zip(groups, self.groups, strict=True)}


def _formed(decision: GroupDecision, workshop: Workshop) -> Group:
    units = list(workshop.units)
    try:
        loop = None if decision.loop is None else units[decision.loop]
        shop = workshop if loop is None else workshop.turn(loop)
        names = list(shop.units)
        found = shop.form(tuple(tuple(names[place] for place in segment) for segment in decision.segments))
    except (IndexError, KeyError, AssertionError) as error:
        raise ForeignDecisionsError("they name units that there are none of") from error
    if isinstance(found, Illegal):
        raise ForeignDecisionsError(f"a group is not legal: {found.reason}")
    return evolve(found, repeat=loop)


def digest_of(programs: Programs) -> str:
    """Return a digest of what the places of units mean: the operation of each, and the types of what it touches."""
    digest = hashlib.sha256()
    for unit in programs.every_unit:
        types = " ".join(str(programs.types[t]) for t in (*unit.reads, *unit.writes) if t in programs.types)
        digest.update(f"{unit.op} {len(unit.statements)} {unit.free} {types}\n".encode())
    return digest.hexdigest()
