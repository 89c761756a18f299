"""Substitution of variables in a phase, and of words in a load."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from ...ir import (
    Accumulate,
    FloorDiv,
    Index,
    IndexLike,
    Literal,
    Load,
    Phase,
    Root,
    Value,
    Var,
    as_index,
    own_indices,
    own_variables,
    primaries,
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


def words_along(load: Load, variable: Var) -> tuple[Load, Var] | None:
    """Return a load of packed integers over the words along a variable.

    None where it reads no words.
    """
    divisor = _divisor(load, variable) if load.dtype.is_int else 0
    if not divisor:
        return None
    word = _quotient(variable, divisor)
    return _move(load, variable, as_index(word) * divisor), word


def _divisor(load: Load, variable: Var) -> int:
    """Return d > 1 where a load depends on a variable only by its quotient by d, else 0."""
    every = [p for index in own_indices(load) for p in primaries(index)]
    for divisor in sorted({p.den for p in every if isinstance(p, FloorDiv)}, reverse=True):
        if divisor > 1 and variable.extent % divisor == 0:
            rest = Var("rest", divisor)
            place = as_index(_quotient(variable, divisor)) * divisor + rest
            if rest not in own_variables(_move(load, variable, place)):
                return divisor
    return 0


def _quotient(variable: Var, divisor: int) -> Var:
    return Var(f"{variable.name}q{divisor}", variable.extent // divisor)


def _move(load: Load, variable: Var, place: Index) -> Load:
    at = {variable: place}
    return evolve(load, address=substitute(load.address, at), guards=substitute_guards(load.guards, at))
