"""Substitution of variables throughout a phase."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from ...ir import (
    Accumulate,
    IndexLike,
    Literal,
    Phase,
    Root,
    Value,
    Var,
    substitute,
    substitute_guards,
    substitute_indices,
    substitute_node,
    with_operands,
)


def substitute_phase(phase: Phase, values: Mapping[Var, IndexLike]) -> Phase:
    """Replace variables everywhere in a phase, for another K block for example."""
    cache: dict[Value, Value] = {}

    def root(node: Root) -> Root:
        over = with_operands(node, lambda value: substitute_node(value, values, cache))
        moved = substitute_indices(over, values)
        assert not isinstance(moved, Literal), "a root is no test"
        return (
            evolve(moved, over=tuple(v for v in moved.over if v not in values))
            if isinstance(moved, Accumulate)
            else moved
        )

    shares = tuple(
        evolve(s, value=substitute(s.value, values), valid=substitute_guards(s.valid, values)) for s in phase.shares
    )
    return evolve(
        phase, roots=tuple(root(r) for r in phase.roots), shares=shares, when=substitute_guards(phase.when, values)
    )
