"""Sorts: comparisons of all pairs of a row become a sort.

A declaration defines a sorted row by comparisons: the rank of an element is the number of elements that precede it, and
the element of rank c is the one with this rank. That takes n * n steps, twice:

    near[i] = sum[j < n] (1 if before(x[j], x[i], j, i) else 0)
    first[c] = sum[j < n] (j if near[j] == c + low else 0)
      ->   order[c] = sum[j < n] (j if near[j] == c + low else 0)    along c
           first[c] = order[c]

A statement is marked (`Statement.along`) where `before` is one of the total orders of `SORT_ORDERS`. The pass decides
that by trying all cases: `before` may compare the two elements and their places, and nothing else. A kernel then holds
the row and sorts it, and `near` is not needed any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite, nan
from typing import Any

from attrs import evolve, frozen

from ...ir import (
    FUNCTIONS,
    MAX_RADIX_LANES,
    SORT_ORDERS,
    Call,
    Const,
    DType,
    Expr,
    Guard,
    Index,
    IndexValue,
    InRange,
    Program,
    Read,
    Statement,
    Target,
    TensorType,
    Var,
    as_index,
    expr_variables,
    indirects,
    radix_words,
    reads,
    selection_room,
    substitute_expr,
    variables,
)
from ...ops.language import unused_name
from .inline import FusionError, Inliner
from .match import Match
from .patterns import Either, element, fn, number, position, reduction
from .rewriter import RewriteRule, rewrite_program

#: Shortest row worth a sort, longest row that the lanes of a block hold, and longest one that every target sorts.
MIN_SORTED_ROW, MAX_SORTED_ROW, MAX_NETWORK_ROW = 16, 1 << 14, 1 << 13
#: Most bytes of an element that is sorted: with its place it is one number.
MAX_KEY_BYTES = 4
#: Functions whose results follow from which of two numbers is greater, and whether either is none.
_COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne", "isnan", "and", "or", "not", "select"))
_PAIRS = [(a, b) for a in (-1.0, -0.0, 0.0, 1.0, inf, -inf, nan) for b in (-1.0, -0.0, 0.0, 1.0, inf, -inf, nan)]

RANK = fn("eq", element("ranks"), Either((position("rank"), number("rank"))))
SELECTION = reduction("sum", fn("select", RANK, position("value"), number("other", 0)))


@frozen
class RowSort:
    """A statement as the order of a row.

    Element c of its result along `axis` is the place of element c + `low` of all values, which lie along `term`, in an
    order of `SORT_ORDERS`.
    """

    axis: Var
    term: Var
    value: Read
    along: str
    low: int = 0

    @property
    def combine(self) -> str:
        """The reduction that finds the first of all."""
        return "min" if SORT_ORDERS[self.along] else "max"


def longest_sorted_row(target: Target) -> int:
    """Return the longest row that a block sorts as a whole.

    Rows beyond those of a network lie in shared memory as a whole.
    """
    words = radix_words(MAX_SORTED_ROW // MAX_RADIX_LANES, MAX_RADIX_LANES)
    return MAX_SORTED_ROW if words * DType.U64.size <= target.MAX_shared else MAX_NETWORK_ROW


def mark_sorts(program: Program, longest: int = MAX_NETWORK_ROW) -> Program:
    """Return an equal program with statements marked that find elements by rank.

    Rows beyond the `longest` are not sorted.
    """
    return rewrite_program(program, RewriteRule(SELECTION, lambda match: _sorted_row(match, program, longest), _mark))


def _sorted_row(match: Match, program: Program, longest: int) -> _Selected | None:
    """Return the elements that a statement selects by their rank in a sorted row."""
    found = _match_selection(match.root)
    before = program.statements[: program.statements.index(match.root)]
    if found is None or (order := _order(found, before, program.tensors)) is None:
        return None
    ranks = order.low, order.low + (found.axis.extent if found.axis else 1)
    sorts = found.term.extent <= longest or selection_room(ranks, found.term.extent) > 0
    return found if sorts else None


def _mark(match: Match, found: _Selected) -> list[Statement]:
    """Return the order of the row, and the statement as its reader."""
    statement, index = match.root, match.index
    taken = {v.name for v in (*statement.axes, *statement.reduce)}
    along = found.axis or Var(unused_name("c", taken), 1)
    axes = (*(a for a in statement.axes if a != found.axis), along)
    places = tuple(map(as_index, axes))
    name = index.add_tensor(f"{statement.target}.order", TensorType(found.dtype, tuple(a.extent for a in axes)))
    condition = Call("eq", (found.ranks, IndexValue(found.place, index.types[found.ranks.tensor].dtype)))
    body = Call("select", (condition, IndexValue(as_index(found.term), found.dtype), Const(0, found.dtype)))
    order = evolve(statement, target=name, axes=axes, write=places, body=body, along=along)
    here = Read(name, places)
    return [order, evolve(statement, body=_place_value(found, here), reduce=(), combine=None)]


def match_sort(statement: Statement, before: Sequence[Statement], tensors: Mapping[str, TensorType]) -> RowSort | None:
    """Return a statement as the order of a row, if possible.

    The statements `before` define its operands.
    """
    found = _match_selection(statement)
    if found is None or statement.along is None or found.axis not in (None, statement.along):
        return None
    if found.value != as_index(found.term):
        return None
    order = _order(found, before, tensors)
    return order and evolve(order, axis=statement.along)


@frozen
class _Selected:
    """`sum over term of (value if ranks == place else 0)`; the place is an axis of the result and a constant."""

    place: Index
    term: Var
    ranks: Read
    value: Index
    dtype: DType

    @property
    def axis(self) -> Var | None:
        """The axis of the place."""
        return next((v for v in variables(self.place) if isinstance(v, Var)), None)


def _match_selection(statement: Statement) -> _Selected | None:
    match = SELECTION.match_statement(statement)
    if match is None or len(statement.reduce) != 1:
        return None
    ranks, rank, value = match.get("ranks", Read), match.expr("rank"), match.get("value", IndexValue)
    if indirects(value.index) or value.dtype not in (DType.I32, DType.I64):
        return None
    place = rank.index if isinstance(rank, IndexValue) else as_index(int(match.get("rank", Const).value))
    axes, used = variables(place), {v for i in (*ranks.indices, value.index) for v in variables(i)}
    steps = place - place.const
    if not (place.is_const or any(steps == as_index(a) for a in statement.axes)) or axes & used:
        return None
    low, high = place.bounds()
    if low < 0 or high >= statement.reduce[0].extent:
        return None
    return _Selected(place, statement.reduce[0], ranks, value.index, value.dtype)


def _order(found: _Selected, before: Sequence[Statement], tensors: Mapping[str, TensorType]) -> RowSort | None:
    """Return the order that ranks count by: the elements of the same row that precede each one."""
    counts = [s for s in before if s.target == found.ranks.tensor]
    if len(counts) != 1 or counts[0].combine != "sum" or len(counts[0].reduce) != 1:
        return None
    (count,) = counts
    (other,) = count.reduce
    if (
        not _writes_axes(count)
        or other.extent != found.term.extent
        or not MIN_SORTED_ROW < other.extent <= MAX_SORTED_ROW
    ):
        return None
    body = _inlined_body(count, before, tensors)
    if body is None:
        return None
    fresh = Var(f"{found.term.name}_other", other.extent)
    written = dict(zip(count.write, found.ranks.indices, strict=True))
    places = {axis: written[as_index(axis)] for axis in count.axes}
    body = substitute_expr(body, {**places, other: as_index(fresh)})
    return _comparison_order(body, found, fresh, tensors)


def _writes_axes(statement: Statement) -> bool:
    """Return whether the axes index each element, in order, ignoring dims of extent 1."""
    return [w for w in statement.write if not w.is_const] == [as_index(a) for a in statement.axes]


def _inlined_body(count: Statement, before: Sequence[Statement], tensors: Mapping[str, TensorType]) -> Expr | None:
    """Return a statement's body with the conditions of earlier pointwise statements inlined."""
    needed: list[Statement] = []
    wanted = {*count.tensors_read}
    for statement in reversed(before):
        condition = statement.is_pointwise and tensors[statement.target].dtype is DType.BOOL
        if condition and statement.target in wanted:
            needed.insert(0, statement)
            wanted |= {*statement.tensors_read}
    inliner = Inliner(tensors, frozenset())
    try:
        for statement in needed:
            inliner.define(statement)
        return inliner.inline(count.body)
    except FusionError:
        return None


def _comparison_order(body: Expr, found: _Selected, other: Var, tensors: Mapping[str, TensorType]) -> RowSort | None:
    """Return the order in which a body counts 1 for an element at `other` that precedes the one at the term."""
    if not isinstance(body, Call) or body.fn != "select" or not all(isinstance(a, Const) for a in body.args[1:]):
        return None
    condition, one, none = body.args
    assert isinstance(one, Const) and isinstance(none, Const), "checked above"
    both = reads(condition)
    own = next((r for r in both if found.term in expr_variables(r) and other not in expr_variables(r)), None)
    if (one.value, none.value) != (1, 0) or own is None or own.guards or own.tensor not in tensors:
        return None
    theirs = substitute_expr(own, {found.term: as_index(other)})
    assert isinstance(theirs, Read), "another element of the same tensor"
    if set(both) != {own, theirs} or tensors[own.tensor].dtype.size > MAX_KEY_BYTES or _looks_up(own):
        return None
    table = _Comparison(own, theirs, found.term, other)
    for name, rises in SORT_ORDERS.items():
        cases = _cases(other.extent, tensors[own.tensor].dtype)
        if all(table.value(condition, a, b, d) == _stands_before(b, a, d, rises) for a, b, d in cases):
            return RowSort(found.axis or found.term, found.term, own, name, found.place.const)
    return None


def _looks_up(read: Read) -> bool:
    return any(indirects(i) for i in read.indices)


def _cases(extent: int, kind: DType) -> Iterator[tuple[float, float, int]]:
    """Yield the cases of two elements of a type and of the distance between them; an interval of distances that holds
    the ends and neighbours of a range represents all of it.
    """
    pairs = [pair for pair in _PAIRS if kind.element.nan or all(map(isfinite, pair))]
    for distance in (1 - extent, -1, 0, 1, extent - 1):
        yield from ((a, b, distance) for a, b in pairs if distance or _is_same_number(a, b))


def _is_same_number(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


def _stands_before(other: float, own: float, distance: int, rises: bool) -> bool:
    """Return whether another element precedes one: NaN is greatest, of equals the first comes first."""
    left, right = ((number != number, 0.0 if number != number else number) for number in (other, own))
    if left == right:
        return distance < 0
    return (left < right) == rises


@frozen
class _Comparison:
    """A condition on two elements of a row, evaluated for numbers; None where it depends on more."""

    own: Read
    theirs: Read
    term: Var
    other: Var

    def value(self, expr: Expr, own: float, theirs: float, distance: int) -> Any:
        if isinstance(expr, Read):
            return own if expr == self.own else theirs
        if isinstance(expr, Const):
            return expr.value
        if isinstance(expr, InRange):
            inside = [self._inside(guard, distance) for guard in expr.guards]
            return None if None in inside else all(inside)
        if not isinstance(expr, Call) or expr.fn not in _COMPARISONS:
            return None
        operands = [self.value(a, own, theirs, distance) for a in expr.args]
        return None if None in operands else FUNCTIONS[expr.fn].numpy(*operands)

    def _inside(self, guard: Guard, distance: int) -> bool | None:
        """Return whether a guard on the distance holds; None where it is on something else."""
        factors = dict(guard.index.terms)
        if set(factors) != {self.term, self.other} or factors[self.term] + factors[self.other] != 0:
            return None
        if abs(factors[self.term]) != 1:
            return None
        return guard.low <= guard.index.const + factors[self.other] * distance < guard.high


def _place_value(found: _Selected, place: Read) -> Expr:
    """Return the value of a place that is found in an order."""
    factor = found.value.coefficient(found.term)
    rest = found.value - as_index(found.term) * factor
    value: Expr = place if factor == 1 else Call("mul", (place, Const(factor, found.dtype)))
    return value if rest == Index() else Call("add", (value, IndexValue(rest, found.dtype)))
