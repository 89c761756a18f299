"""Substitution of variables throughout a phase."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from ...ir import (
    Accumulate,
    IndexLike,
    MmaAccumulate,
    Phase,
    RegisterWrite,
    Root,
    Store,
    Value,
    Var,
    substitute,
    substitute_guards,
    substitute_node,
)


def substitute_phase(phase: Phase, values: Mapping[Var, IndexLike]) -> Phase:
    """Replace variables everywhere in a phase, for another K block for example."""
    cache: dict[Value, Value] = {}

    def root(node: Root) -> Root:
        if isinstance(node, Store):
            value = substitute_node(node.value, values, cache)
            return evolve(
                node,
                address=substitute(node.address, values),
                value=value,
                guards=substitute_guards(node.guards, values),
            )
        if isinstance(node, RegisterWrite):
            at = tuple(substitute(i, values) for i in node.at)
            return evolve(node, at=at, value=substitute_node(node.value, values, cache))
        if isinstance(node, MmaAccumulate):
            a, b = substitute_node(node.a, values, cache), substitute_node(node.b, values, cache)
            return evolve(node, at=tuple(substitute(i, values) for i in node.at), a=a, b=b)
        if isinstance(node, Accumulate):
            at, over = tuple(substitute(i, values) for i in node.at), tuple(v for v in node.over if v not in values)
            return evolve(node, at=at, value=substitute_node(node.value, values, cache), over=over)
        return node

    shares = tuple(
        evolve(s, value=substitute(s.value, values), valid=substitute_guards(s.valid, values)) for s in phase.shares
    )
    return evolve(
        phase, roots=tuple(root(r) for r in phase.roots), shares=shares, when=substitute_guards(phase.when, values)
    )
