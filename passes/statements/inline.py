"""Inlining: a pointwise statement disappears into the statements that read its tensor.

A guarded read `guard ? t[f] : fill` of `t[i] = body(i)` becomes `select(InRange(guard), body(f), fill)` with the guard
on every read of the body, so that no element is touched out of range; the select is dropped where the body itself
yields the fill:

    sum x[h + r - 1] if 0 <= h + r - 1 < H else 0  with  x = relu(a * y)
        ->   sum relu(a' * y')    (a', y' guarded, fill 0)
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from attrs import evolve, frozen

from ...ir import (
    COMBINERS,
    FUNCTIONS,
    Call,
    Cast,
    Const,
    DType,
    Evaluation,
    Expr,
    Guard,
    Index,
    IndexValue,
    Indirect,
    InRange,
    Inverse,
    Primary,
    Read,
    Statement,
    TensorType,
    Values,
    Var,
    as_dtype,
    as_index,
    distinct,
    dtype_of,
    expr_indirects,
    indirects,
    map_indices,
    map_primaries,
    order_lookups_last,
    rebuild,
    solve,
    substitute_expr,
)

#: Larger bodies are not fused: a tree that doubles with every use would otherwise grow without bound.
MAX_NODES = 4000
#: An estimate of so many times that size is certain: known cases of inlined bodies may vanish.
CERTAIN_EXCESS = 4


class FusionError(Exception):
    """Error of normalisation: statements cannot share a kernel.

    The message is the reason, a sentence.
    """


def constant(value: float, dtype: DType) -> Const:
    """Return a literal of an element type."""
    return Const(float(value) if dtype.is_float else bool(value) if dtype is DType.BOOL else int(value), dtype)


def apply_guards(
    expr: Expr, guards: Sequence[Guard], fill: float, tensors: Mapping[str, TensorType], held: frozenset[str]
) -> Expr:
    """Return `guards ? expr : fill`, guarding every read below.

    `held` are values in registers, which need no guard.
    """
    live = tuple(g for g in guards if not g.always)
    if not live:
        return expr
    for candidate in dict.fromkeys((0.0, fill)):
        guarded = _guard_reads(expr, live, candidate, tensors, held)
        if _outside_value(guarded, held, tensors) == fill:
            return guarded
    guarded = _guard_reads(expr, live, 0.0, tensors, held)
    merged = _merge_select(guarded, live, fill)
    return merged or Call("select", (InRange(live), guarded, constant(fill, dtype_of(expr, tensors))))


def _guard_reads(
    expr: Expr, guards: tuple[Guard, ...], fill: float, tensors: Mapping[str, TensorType], held: frozenset[str]
) -> Expr:
    """Guard every read below; those without a value outside get `fill`, or 0 where it is no value of their type.

    Conditions that look up elements are guarded too.
    """
    if not guards:
        return expr

    def leaf(node: Expr) -> Expr:
        if not any(map(indirects, node.own_indices)) and not isinstance(node, Read):
            return node
        if isinstance(node, InRange):
            return InRange(order_lookups_last((*node.guards, *guards)))
        if isinstance(node, IndexValue):
            raise FusionError("a place that a tensor names is a value, which no guard keeps from being looked up")
        if not isinstance(node, Read) or node.tensor in held:
            return node
        own = node.fill if node.guards else fill if tensors[node.tensor].dtype.holds(fill) else 0.0
        return Read(node.tensor, node.indices, order_lookups_last((*node.guards, *guards)), own)

    return rebuild(expr, leaf)


def _outside_value(expr: Expr, held: frozenset[str], tensors: Mapping[str, TensorType]) -> float | int | bool | None:
    """Return the value of an expression where all its guards fail, None where that is not one number."""
    if not all(_is_known_outside(node, held) for node in distinct(expr)):
        return None
    value: float | int | bool = _Outside(tensors).value(expr).item()
    return None if math.isnan(value) else value


def _is_known_outside(node: Expr, held: frozenset[str]) -> bool:
    """Return whether a node has one value where all guards fail, if its operands have."""
    if isinstance(node, Read):
        return bool(node.guards) and node.tensor not in held
    return not isinstance(node, (IndexValue, InRange))


@frozen
class _Outside(Evaluation):
    """Evaluation where every guard of a read fails: reads yield their fill, in their tensor's type."""

    tensors: Mapping[str, TensorType]

    def read(self, read: Read) -> Values:
        """Return the fill."""
        return as_dtype(read.fill, self.dtype(self.tensors[read.tensor].dtype))

    def axis(self, var: Var) -> Values:
        """Return nothing: there are no places outside (`_is_known_outside`)."""
        raise AssertionError(f"{var.name} has no value outside")

    def element(self, tensor: str, indices: tuple[Index, ...], inside: Values | None = None) -> Values:
        """Return nothing: a read yields its fill."""
        raise AssertionError(f"no element of {tensor} is read outside")


def _merge_select(expr: Expr, guards: tuple[Guard, ...], fill: float) -> Expr | None:
    """Join the guards of `select(InRange(inner), body, fill)` with outer ones of the same fill."""
    if not (isinstance(expr, Call) and expr.fn == "select" and isinstance(expr.args[0], InRange)):
        return None
    condition, body, other = expr.args
    if not (isinstance(condition, InRange) and isinstance(other, Const) and float(other.value) == fill):
        return None
    return Call("select", (InRange(order_lookups_last((*condition.guards, *guards))), body, other))


def _invert(statement: Statement, indices: tuple[Index, ...]) -> Inverse:
    solution = solve(list(zip(statement.write, indices, strict=True)), statement.axes)
    if solution is None or solution.free:
        raise FusionError(f"the elements that {statement.target} is written at cannot be traced back to its axes")
    return solution


class Inliner:
    """Pointwise definitions of tensors, inlined where they are read, each element once.

        b = exp(a); c = b * b; inline(c + 1)   ->   exp(a) * exp(a) + 1, with one object for both exponentials

    A tensor that several statements write in pieces is defined by cases. Values of `rows`, which instances hold along
    a row, may be indices; copies of them too.
    """

    def __init__(
        self, tensors: Mapping[str, TensorType], held: frozenset[str], rows: Collection[str] = frozenset()
    ) -> None:
        self.tensors = tensors
        self.held = held
        self.rows = rows
        self._definitions: dict[str, list[Statement]] = {}
        self._sizes: dict[str, int] = {}  # of the least piece
        self._read: set[str] = set()
        self._inlined: dict[Read, Expr] = {}

    def define(self, statement: Statement) -> None:
        """Add a pointwise statement; statements come in order of definition."""
        statement = evolve(statement, body=self._inline_lookups(statement.body))
        size = node_count(statement.body, self._sizes)
        self._sizes[statement.target] = min(size, self._sizes.get(statement.target, size))
        if statement.target in self._read:  # a further piece: earlier reads are of those before
            self._definitions = {
                target: [evolve(piece, body=self.inline(piece.body)) for piece in pieces]
                for target, pieces in self._definitions.items()
            }
            self._read = set()
        if statement.target in self._definitions:
            self._inlined = {}
        self._read.update(statement.tensors_read)
        if statement.target in self._read:
            statement = evolve(statement, body=self.inline(statement.body))
        self._definitions.setdefault(statement.target, []).append(statement)

    def inline(self, expr: Expr) -> Expr:
        """Return the expression with every defined tensor replaced by its definition."""
        expr = self._inline_lookups(expr)
        if node_count(expr, self._sizes) > CERTAIN_EXCESS * MAX_NODES:  # known before it is made, which takes long
            raise FusionError(f"the fused expression would have more than {MAX_NODES} operations")
        result = rebuild(expr, self._leaf)
        if node_count(result) > MAX_NODES:
            raise FusionError(f"the fused expression would have more than {MAX_NODES} operations")
        return result

    def _inline_lookups(self, expr: Expr) -> Expr:
        """Return the expression with indices that look up no tensor defined here."""
        if self._lookups_within(expr_indirects(expr)):
            return map_indices(expr, self.inline_index)
        return expr

    def _lookups_within(self, places: Iterable[Indirect]) -> set[str]:
        return {i.tensor for i in places} & (self._definitions.keys() | self.held)

    def inline_index(self, index: Index) -> Index:
        """Return an index that looks up values of rows, not copies.

        Raises `FusionError` where it looks up other tensors that are defined here.
        """

        def change(primary: Primary, parts: tuple[Index, ...]) -> Index | None:
            if not isinstance(primary, Indirect) or primary.tensor not in computed:
                return None
            value = self._copy_source(Read(primary.tensor, parts))
            if value.tensor not in self.rows:
                raise FusionError(f"{primary.tensor} is used as an index, so it has to be in memory")
            return evolve(primary, tensor=value.tensor).with_parts(value.indices)

        computed = self._lookups_within(indirects(index)) - {*self.rows}
        return map_primaries(index, change) if computed else index

    def _copy_source(self, read: Read) -> Read:
        """Return the read that a read's value is a copy of, in a type that holds all of its integers."""
        pieces = self._definitions.get(read.tensor, ())
        if len(pieces) != 1 or (inverse := _invert(pieces[0], read.indices)).guards:
            return read
        value, dtype = substitute_expr(pieces[0].body, inverse.values), self.tensors[read.tensor].dtype
        value = value.arg if isinstance(value, Cast) else value
        if not isinstance(value, Read) or value.guards or not holds_integers(dtype, self.tensors[value.tensor].dtype):
            return read
        return self._copy_source(value)

    def _leaf(self, node: Expr) -> Expr:
        if not isinstance(node, Read) or node.tensor not in self._definitions:
            return node
        if node not in self._inlined:
            value = self._by_cases([(_invert(p, node.indices), p.body) for p in self._definitions[node.tensor]])
            self._inlined[node] = apply_guards(value, node.guards, node.fill, self.tensors, self.held)
        return self._inlined[node]

    def _by_cases(self, pieces: list[tuple[Inverse, Expr]]) -> Expr:
        """Return the value of the piece whose guards hold; the pieces together cover every element."""
        possible = [(s, body) for s, body in pieces if not any(g.never for g in s.guards)] or pieces[:1]
        certain = next((n for n, (s, _) in enumerate(possible) if not s.guards), len(possible) - 1)
        cases = [
            (s.guards, _guard_reads(self._inline_at(body, s.values), s.guards, 0.0, self.tensors, self.held))
            for s, body in possible[: certain + 1]
        ]
        return _binary_cases(cases) if _is_row(cases) else _case_chain(cases)

    def _inline_at(self, body: Expr, values: Mapping[Var, Index]) -> Expr:
        return rebuild(substitute_expr(body, values), self._leaf)


_Case = tuple[tuple[Guard, ...], Expr]


def _case_chain(cases: Sequence[_Case]) -> Expr:
    """Return the value of the first case whose guards hold, else of the last."""
    value = cases[-1][1]
    for guards, here in reversed(cases[:-1]):
        value = Call("select", (InRange(guards), here, value))
    return value


def _is_row(cases: Sequence[_Case]) -> bool:
    """Return whether cases are neighbouring ranges of one index, as the parts of a concatenation are."""
    single = [_normalise_guard(guards[0]) for guards, _ in cases if len(guards) == 1]
    if len(single) < len(cases):
        return False
    return all(a.index == b.index and a.high == b.low for a, b in pairwise(single))


def _normalise_guard(guard: Guard) -> Guard:
    """Return a guard whose index has no constant."""
    shift = guard.index.const
    return Guard(guard.index - shift, guard.low - shift, guard.high - shift)


def _binary_cases(cases: Sequence[_Case]) -> Expr:
    """Return the value of the case whose range contains an index, by binary search: a chain would be too deep."""
    if len(cases) == 1:
        return cases[0][1]
    middle = len(cases) // 2
    first, last = _normalise_guard(cases[0][0][0]), _normalise_guard(cases[middle - 1][0][0])
    here = InRange((Guard(first.index, first.low, last.high),))
    return Call("select", (here, _binary_cases(cases[:middle]), _binary_cases(cases[middle:])))


def node_count(expr: Expr, defined: Mapping[str, int] = MappingProxyType({})) -> int:
    """Return the number of nodes of an expression, shared parts counted once.

    Reads of `defined` tensors have the sizes of these.
    """
    return sum(defined.get(node.tensor, 1) if isinstance(node, Read) else 1 for node in distinct(expr))


def split_argument_reduction(
    statement: Statement, value: str, tensors: Mapping[str, TensorType]
) -> tuple[Statement, Statement]:
    """Rewrite an argmax (argmin) as a max (min) and a least position.

    The extremum is called `value`. A position that is never attained does not occur: the largest is the sentinel. Where
    the extremum is NaN, a NaN attains it.
    """
    dtype = tensors[statement.target].dtype
    flat, step = Index(0), 1
    for axis in reversed(statement.reduce):
        flat, step = flat + axis * step, step * axis.extent
    place = tuple(as_index(a) for a in statement.axes)
    best = evolve(statement, target=value, write=place, combine=COMBINERS[str(statement.combine)].fn)
    attained: Expr = Call("eq", (statement.body, Read(value, place)))
    if tensors[value].dtype.element.nan:
        attained = Call("or", (attained, Call("isnan", (statement.body,))))
    body = Call("select", (attained, IndexValue(flat, dtype), Const(step - 1, dtype)))
    return best, evolve(statement, body=body, combine="min")


def issue_slots(*bodies: Expr) -> int:
    """Return the issue slots of the scalar operations of expressions.

    Shared parts are counted once.
    """
    found: dict[Expr, int] = {}

    def visit(node: Expr) -> None:
        if node in found:
            return
        found[node] = FUNCTIONS[node.fn].issue if isinstance(node, Call) else 1 if isinstance(node, Cast) else 0
        for child in node.children:
            visit(child)

    for body in bodies:
        visit(body)
    return sum(found.values())


def holds_integers(wide: DType, narrow: DType) -> bool:
    """Return whether a type has the integers of another one."""
    limits, own = wide.element, narrow.element
    return wide.is_int and narrow.is_int and limits.lowest <= own.lowest and own.highest <= limits.highest
