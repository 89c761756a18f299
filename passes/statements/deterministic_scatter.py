"""Deterministic scatters: updates whose order does not change the result.

Updates arrive at an element in any order on a device. For integers, and for `max` and `min`, that changes nothing. Sums
of floats round, so they are counted in integers (`counted_scatter`).

Where the pairs are few, or each element has few terms that could arrive at it (the others differ from it in a dim that
both run along), one kernel that compares each of them is faster, and fuses with readers of the tensor; so is every
product of floats computed, for which there are no such integers.

    scatter prod y[at[j], k] = u[j, k]    ->    y[v, k] = prod over j of (u[j, k] if at[j] == v else 1)
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from attrs import evolve

from ...ir import (
    COMBINERS,
    ONE_ARRIVAL,
    Call,
    Const,
    Expr,
    Guard,
    Indirect,
    InRange,
    Program,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    indirects,
    variables,
)
from ...ops.language import unused_name
from .counted_scatter import COUNTED_SUM
from .match import Match
from .patterns import Scattered
from .rewriter import RewriteRule, rewrite_program

#: Most pairs of a term and an element that are compared.
MAX_COMPARED_PAIRS = 1 << 15
#: Most terms of an element that are compared: with counts, an element is read and written as
#: often before a term is looked at.
MAX_COMPARED_TERMS = 4


def make_scatters_deterministic(program: Program) -> Program:
    """Return an equal program with deterministic scatters.

    Scatters that ask for atomic operations stay.
    """
    if not any(s.into and not s.atomic for s in program.statements):
        return program
    compared = RewriteRule(Scattered(COMBINERS.keys() - {ONE_ARRIVAL}), _compared_type, _compare_terms)
    return rewrite_program(rewrite_program(program, compared), COUNTED_SUM)


def make_scatters_atomic(program: Program) -> Program:
    """Return an equal program whose scatters combine floats in any order.

    Few terms are still compared.
    """
    compared = RewriteRule(Scattered(COMBINERS.keys() - {ONE_ARRIVAL}), _few_pairs, _compare_terms)
    rest = RewriteRule(Scattered(("sum", "prod")), _float_type, lambda match, _: [evolve(match.root, atomic=True)])
    return rewrite_program(rewrite_program(program, compared), rest)


def _float_type(match: Match) -> TensorType | None:
    type_ = match.index.types[match.root.target]
    return type_ if type_.dtype.is_float else None


def _compared_type(match: Match) -> TensorType | None:
    """Return the type of a tensor whose terms are compared: few are, or no integers count them."""
    type_ = _float_type(match)
    return type_ if type_ and match.root.into == "prod" else _few_pairs(match)


def _few_pairs(match: Match) -> TensorType | None:
    """Return the type of a tensor where few terms may meet, overall or at each element."""
    statement, type_ = match.root, match.index.types[match.root.target]
    own = _matched_dims(statement, type_)
    others = prod(extent for number, extent in enumerate(type_.shape) if number not in own)
    terms = prod(a.extent for a in statement.axes)
    at_each = terms // prod(axis.extent for axis in own.values()) if statement.step is None else terms
    few = terms * others <= MAX_COMPARED_PAIRS or at_each <= MAX_COMPARED_TERMS
    return type_ if few else None


def _matched_dims(statement: Statement, type_: TensorType) -> dict[int, Var]:
    """Return the dims along which a term arrives at elements of its own place, each with its axis, for any integers
    along the others.
    """
    found: dict[Var, int] = {}
    for number, (index, extent) in enumerate(zip(statement.write, type_.shape, strict=True)):
        for axis in statement.axes:
            if index == as_index(axis) and axis.extent == extent > 1:
                found.setdefault(axis, number)
    return {number: axis for axis, number in found.items()}


def _only_index(place: Indirect, tensors: Mapping[str, TensorType]) -> Expr:
    """Return the condition that an element of an integer tensor is an index of an axis of one element.

    No guard expresses it: the algebra of indices simplifies a variable with one value.
    """
    dtype = tensors[place.tensor].dtype
    read = Read(place.tensor, place.indices)
    first: Expr = Call("eq", (read, Const(0, dtype)))
    if not place.wraps or dtype.element.kind != "signed":
        return first
    return Call("or", (first, Call("eq", (read, Const(-1, dtype)))))


def _compare_terms(match: Match, type_: TensorType) -> list[Statement]:
    """Return the statement in which every element searches for its terms."""
    statement, tensors = match.root, match.index.types
    own, combiner = _matched_dims(statement, type_), COMBINERS[str(statement.into)]
    taken = {a.name for a in statement.axes}
    places = [as_index(own.get(n) or Var(unused_name(f"p{n}", taken), extent)) for n, extent in enumerate(type_.shape)]
    guards = [
        Guard(index - place, 0, 1)
        for number, (index, place) in enumerate(zip(statement.write, places, strict=True))
        if number not in own
    ]
    asked = tuple(dict.fromkeys(g for g in guards if not g.always))
    conditions: list[Expr] = [InRange(asked)] if asked else []
    conditions += [_only_index(i, tensors) for g in guards if g.always for i in indirects(g.index)]
    body = statement.body
    for condition in reversed(conditions):
        body = Call("select", (condition, body, Const(combiner.identity(type_.dtype), type_.dtype)))
    axes = tuple(v for place in places for v in variables(place))
    reduce = tuple(a for a in statement.axes if a not in own.values() and a.extent > 1)
    combine = combiner.name if reduce else None
    return [Statement(statement.target, axes, tuple(places), body, reduce, combine, span=statement.span)]
