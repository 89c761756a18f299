"""Roles of operations in networks, by their declarations instead of their names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Literal

from cuts.ir.errors import CutsError
from cuts.ir.segment import Reduction, is_contraction
from cuts.ops import Instance, OpDecl, Registry
from cuts.passes.fusion.cut_units import copy_source

from ..sweep.samples import Slot, draw, known_uses, slots

#: Effect of an operation on its operands: listed algorithms, products, sums over axes, moved elements, one element for
#: each, something else.
Role = Literal["algorithms", "contraction", "reduction", "movement", "pointwise", "other"]
#: Samples of an operation without a known use that are drawn before its role is "other".
TRIES = 4


def role_of(decl: OpDecl, instance: Instance) -> Role:
    """Return an operation's role, as one of its instances shows it."""
    if decl.algorithms:
        return "algorithms"
    statements = instance.program.statements
    sums = [s for s in statements if s.combine is not None]
    if any(is_contraction(Reduction(s.target, s.reduce, str(s.combine), s.body)) for s in sums):
        return "contraction"
    if sums:
        return "reduction"
    if statements and all(copy_source(s) is not None for s in statements):
        return "movement"
    largest = max((t.size for t in instance.program.tensors.values()), default=0)
    same = all(t.size == largest for t in instance.output_types)
    return "pointwise" if same and all(s.is_pointwise for s in statements) else "other"


@cache
def roles() -> Mapping[Role, tuple[str, ...]]:
    """Return the operations of the vocabulary by role."""
    registry, found = Registry.builtin(), dict[Role, list[str]]()
    for name, decl in registry.items():
        instance = _instance(registry, name)
        found.setdefault("other" if instance is None else role_of(decl, instance), []).append(name)
    return {role: tuple(names) for role, names in found.items()}


def _instance(registry: Registry, name: str) -> Instance | None:
    """Return an instance of an operation: a known use, or a drawn sample."""
    if uses := known_uses(name):
        return uses[0].instance
    own = [slot for slot in slots(registry) if slot.op == name][:TRIES]
    for number, slot in enumerate(own or [Slot(name, None)]):
        sample = draw(registry, slot, 0, number)
        if sample is not None:
            try:
                return sample.instance(registry)
            except CutsError:
                continue
    return None
