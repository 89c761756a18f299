"""Deterministic scatters: updates whose order does not change the result.

Updates arrive at an element in any order on a device. For integers, and for `max` and `min`, that changes nothing. Sums
of floats round, so they are counted in integers (`counted_scatter`).

Where the pairs are few, or each element has few terms that could arrive at it (the others differ from it in a dim that
both run along), one kernel that compares each of them is faster, and fuses with readers of the tensor; so is every
product of floats computed, for which there are no such integers.

    scatter prod y[at[j], k] = u[j, k]    ->    y[v, k] = prod over j of (u[j, k] if at[j] == v else 1)

A scatter whose result only combines with another tensor begins with the elements of that.

    scatter sum t[at[j]] = u[j];  y[v] = x[v] + t[v]    ->    y[v] = x[v];  scatter sum y[at[j]] = u[j]
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import prod

from attrs import evolve

from ....ir import (
    COMBINERS,
    VALUE_COMBINERS,
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
    reads,
    variables,
)
from ....ops.language import unused_name
from ..def_use import is_plain
from ..match import Match
from ..patterns import Scattered
from ..rewriter import Edit, RewriteRule, rewrite_program
from .counted_scatter import COUNTED_SUM
from .scatter_rows import arriving_rows, element_of
from .sorted_scatter import sorted_sum

#: Most pairs of a term and an element that are compared.
MAX_COMPARED_PAIRS = 1 << 15
#: Most terms of an element that are compared: with counts, an element is read and written as
#: often before a term is looked at.
MAX_COMPARED_TERMS = 4


def make_scatters_deterministic(program: Program, ordered: Collection[str] = ()) -> Program:
    """Return an equal program with deterministic scatters.

    Scatters that ask for atomic operations keep them. Integers of `ordered` tensors never decrease.
    """
    if not any(s.combines_in_memory for s in program.statements):
        return program
    compared = RewriteRule(Scattered(VALUE_COMBINERS), _compared_type, _compare_terms)
    program = rewrite_program(rewrite_program(program, compared), sorted_sum(ordered))
    program = rewrite_program(program, COUNTED_SUM)
    return rewrite_program(rewrite_program(program, _in_any_order(atomic=True)), _START)


def make_scatters_atomic(program: Program, ordered: Collection[str] = ()) -> Program:
    """Return an equal program whose scatters combine floats in any order.

    Few terms are still compared, rows in order summed so, and long rows of narrow types sorted: atomic sums of these
    need wider tensors.
    """
    compared = RewriteRule(Scattered(VALUE_COMBINERS), _few_pairs, _compare_terms)
    program = rewrite_program(rewrite_program(program, compared), sorted_sum(ordered, narrow=True))
    return rewrite_program(rewrite_program(program, _in_any_order(atomic=None)), _START)


def _in_any_order(atomic: bool | None) -> RewriteRule[TensorType]:
    """Return the rule of scatters that combine floats in any order."""
    return RewriteRule(Scattered(("sum", "prod"), atomic), _float_type, _combine_in_any_order)


def _combine_in_any_order(match: Match, type_: TensorType) -> Iterator[Statement]:
    """Yield the statements of an atomic scatter.

    Narrow types are combined in their accumulator, which has arriving rows alone where these are few:

    scatter sum y[at[j], k] = u[j, k]   ->   atomic sum total[place[j], k] = f32(u[j, k]);  y[v, k] = total[slot[v], k]
    """
    root, index, wide = match.root, match.index, type_.dtype.accumulator
    if wide is type_.dtype:
        yield evolve(root, atomic=True)
        return
    rows = arriving_rows(root, index)
    yield from rows.numbering
    total = index.add_tensor(f"{root.target}.total", TensorType(wide, rows.shape))
    yield evolve(rows.statement, target=total, body=index.convert(root.body, wide), atomic=True)
    axes, place = element_of(type_)
    result = index.convert(rows.read(total, COMBINERS[str(root.into)].identity(wide)), type_.dtype)
    yield Statement(root.target, axes, place, result, span=root.span)


def _combined_later(match: Match) -> Statement | None:
    """Return the statement that combines each element of a scatter's result with another value, if nothing else reads
    that result.
    """
    scatter, index = match.root, match.index
    found = index.uses.get(scatter.target, [])
    if len(found) != 1 or not index.is_only_read_by(scatter.target, found):
        return None
    (reader,) = found
    alone = index.single_definition(reader.target) is reader and index.single_definition(scatter.target) is scatter
    same = index.types[reader.target] == index.types[scatter.target]
    plain = is_plain(reader) and not reader.reduce
    return reader if alone and same and plain and _start_of(scatter, reader) is not None else None


def _start_of(scatter: Statement, reader: Statement) -> Expr | None:
    """Return the value that a statement combines with the elements of a scatter's result."""
    body, element = reader.body, Read(scatter.target, reader.write)
    if not isinstance(body, Call) or body.fn != COMBINERS[str(scatter.into)].fn or body.args.count(element) != 1:
        return None
    (other,) = (a for a in body.args if a != element)
    return None if any(r.tensor == scatter.target for r in reads(other)) else other


def _start_elsewhere(match: Match, reader: Statement) -> Edit:
    """Return a scatter that begins with the values that its result is combined with."""
    scatter = match.root
    start = _start_of(scatter, reader)
    assert start is not None, "a value to begin with"
    return {scatter: (), reader: (evolve(reader, body=start), evolve(scatter, target=reader.target))}


_START = RewriteRule(Scattered(VALUE_COMBINERS, atomic=None), _combined_later, _start_elsewhere)


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
