"""Differences of two plans, by kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import frozen

from ...compile import CompiledPlan
from ..output import AnyPlan, console

#: Facts of a group that are compared where its kernel differs, with the text of each.
_FACTS: Mapping[str, Callable[[Any], str]] = {
    "level": str, "parameters": console.parameters_text, "bound": console.seconds, "measured": console.seconds,
}  # fmt: skip


@frozen
class GroupFacts:
    """Group of a plan: nodes, kernel, launch geometry and schedule."""

    nodes: tuple[str, ...]
    kernel: str
    source: str
    facts: Mapping[str, str]


@frozen
class GroupDifference:
    """Group that two plans have, or one of them.

    `changes` has the texts of each differing fact, of the left and the right plan. It is empty for equal kernels.
    """

    nodes: tuple[str, ...]
    left: str = ""
    right: str = ""
    changes: Mapping[str, tuple[str, str]] = {}

    @property
    def verdict(self) -> str:
        """One word: equal, changed, left or right.

        The last two are for a group that only this plan has."""
        if not (self.left and self.right):
            return "left" if self.left else "right"
        return "changed" if self.changes else "equal"


def plan_facts(plan: AnyPlan) -> dict[str, Any]:
    """Return the figures of a whole plan."""
    parts = [part.plan for part in plan.parts]
    return {
        "name": plan.name,
        "target": plan.target.name,
        "cuts": parts[0].cuts if parts else "",
        "groups": sum(len(part.steps) for part in parts),
        "kernels": sum(part.distinct_kernels for part in parts),
        "launches": sum(part.launch_count for part in parts),
        "arena_bytes": sum(part.arena for part in parts),
        "weight_bytes": sum(array.nbytes for part in parts for array in part.constants.values()),
        "precision": ", ".join(dict.fromkeys(part.model.precision for part in parts if part.model)),
        "inputs": {name: str(type_) for name, type_ in plan.inputs.items()},
    }


def plan_difference(left: AnyPlan, right: AnyPlan) -> list[GroupDifference]:
    """Return the groups of both plans.

    Those of the left one come in order, then those that only the right one has. Groups with the same nodes are paired,
    in order where there are several.
    """
    waiting: dict[tuple[str, ...], list[GroupFacts]] = {}
    for group in _groups(right):
        waiting.setdefault(group.nodes, []).append(group)
    found = []
    for group in _groups(left):
        others = waiting.get(group.nodes, [])
        found.append(_difference(group, others.pop(0)) if others else GroupDifference(group.nodes, group.kernel))
    found += [GroupDifference(g.nodes, "", g.kernel) for groups in waiting.values() for g in groups]
    return found


def _difference(left: GroupFacts, right: GroupFacts) -> GroupDifference:
    same = left.source == right.source and left.facts["grid / block"] == right.facts["grid / block"]
    names = () if same else dict.fromkeys((*left.facts, *right.facts))
    facts = {name: (left.facts.get(name, "-"), right.facts.get(name, "-")) for name in names}
    changes = {name: pair for name, pair in facts.items() if pair[0] != pair[1]}
    if not same and not changes:
        changes = {"source": (left.kernel, right.kernel)}
    return GroupDifference(left.nodes, left.kernel, right.kernel, changes)


def _groups(plan: AnyPlan) -> Iterator[GroupFacts]:
    for part in plan.parts:
        yield from _groups_of_part(part)


def _groups_of_part(part: CompiledPlan) -> Iterator[GroupFacts]:
    """Yield the groups of a compiled plan; one without a record has the names of its kernel's arguments."""
    for number, step in enumerate(part.plan.steps):
        kernel = part.kernels[step.kernel]
        record = part.plan.groups[number] if number < len(part.plan.groups) else {}
        members = record.get("nodes")
        nodes = tuple(map(str, members)) if isinstance(members, (list, tuple)) and members else step.tensors
        facts = {name: text(record[name]) for name, text in _FACTS.items() if name in record}
        facts["grid / block"] = f"{'x'.join(map(str, kernel.grid))} / {'x'.join(map(str, kernel.block))}"
        facts["shared bytes"] = str(kernel.shared_bytes + kernel.dynamic_shared)
        yield GroupFacts(nodes, kernel.name, kernel.source.replace(kernel.name, ""), facts)
