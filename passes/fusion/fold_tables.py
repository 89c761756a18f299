"""Folding of constant tables: transforms with known matrices become scalar expressions.

Examples are Winograd, DFT and fixed filters. Two steps work on the index level, so that every later stage counts and
schedules the remaining computation:

* `unroll_tables` turns a sum over axes that index a table into a sum of terms. The statement becomes pointwise and
fuses like any other. * `fold_tables` takes the remaining axes that index tables out of a segment's parallel axes: one
thread computes all their values, as outputs of their own whose bodies share subexpressions. Products with 0, 1 and -1
disappear. An axis that only decides through a digit (`h % 2`, `k // 64`) keeps its other digits parallel.

    v[a, p] = sum[i < 4] B[a, i] * x[2*p + i]
        ->   v[0, p] = x[2*p] - x[2*p + 2]; v[1, p] = x[2*p + 1] + x[2*p + 2]; ...

A table that is too large for this, or that a loop or another thread's coordinate indexes, stays an array that kernels
read.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from math import lcm, prod
from typing import TypeAlias, TypeVar

from attrs import define, evolve, field, frozen

from ...ir import (
    Call,
    Cast,
    Const,
    DType,
    Expr,
    FloorDiv,
    FusedGroup,
    Guard,
    Index,
    IndexLike,
    InRange,
    Mod,
    Output,
    Program,
    Read,
    Segment,
    Statement,
    TensorType,
    Var,
    as_index,
    expr_variables,
    linearise,
    loaded_values,
    reads,
    substitute,
    substitute_expr,
    substitute_guards,
    variables,
)
from ...ops import Folder, LinearCombiner
from ..statements import constant, node_count

T = TypeVar("T")
#: The items of a mapping from names, which unlike it can be a key.
Pairs: TypeAlias = tuple[tuple[str, T], ...]

#: Most terms that a sum is unrolled to, and most outputs that one becomes; past that compile time grows and registers
#: spill.
MAX_TERMS, MAX_OUTPUTS = 64, 128
#: Most values that a thread loads: it holds all of them at a time.
MAX_LOADS = 128
#: Largest expression that unrolling may make.
MAX_SIZE = 1500
#: Most segments whose foldings are cached.
MAX_CACHED_SEGMENTS = 512
#: A segment with its group's tensors, constants and shared tensors; and the folded segment.
Unfolded: TypeAlias = tuple[Segment, Pairs[TensorType], Pairs[tuple[float, ...]], tuple[str, ...]]
Folding: TypeAlias = tuple[Unfolded, Segment]


# ---- statements


def unroll_tables(program: Program) -> Program:
    """Return the program with sums over axes of constant tables unrolled."""
    if not program.constants:
        return program
    return evolve(program, statements=tuple(_unroll_statement(s, program) for s in program.statements))


def _unroll_statement(statement: Statement, program: Program) -> Statement:
    if statement.combine != "sum":
        return statement
    used = {
        v for read in statement.reads if read.tensor in program.constants for i in read.indices for v in variables(i)
    }
    axes = [v for v in statement.reduce if v in used]
    terms = prod(v.extent for v in axes)
    if not 0 < terms <= MAX_TERMS or not axes or terms * node_count(statement.body) > MAX_SIZE:
        return statement
    points = product(*(range(v.extent) for v in axes))
    bodies = [substitute_expr(statement.body, dict(zip(axes, point, strict=True))) for point in points]
    total = bodies[0]
    for body in bodies[1:]:
        total = Call("add", (total, body))
    rest = tuple(v for v in statement.reduce if v not in axes)
    return evolve(statement, body=total, reduce=rest, combine="sum" if rest else None)


# ---- segments


def fold_tables(group: FusedGroup) -> FusedGroup:
    """Return an equal group with tables folded into it where possible."""
    if not group.constants:
        return group
    tensors, constants = tuple(group.tensors.items()), tuple(group.constants.items())
    segments = tuple(_FOLDINGS.of((s, tensors, constants, group.shared)) for s in group.segments)
    read = {t for s in segments for t in s.tensors_read}
    kept = {t: type_ for t, type_ in tensors if t in read or t not in group.constants}
    return evolve(group, segments=segments, tensors=kept, constants={t: table for t, table in constants if t in read})


@define
class _Foldings:
    """Cache of the latest foldings: one unit is normalised many times, alone and with every neighbour. Listeners
    receive new ones.
    """

    known: dict[Unfolded, Segment] = field(factory=dict)
    listeners: list[list[Folding]] = field(factory=list)

    def of(self, unfolded: Unfolded) -> Segment:
        """Return a segment with its tables folded into it where possible."""
        if (found := self.known.get(unfolded)) is None:
            found = _fold_segment(*unfolded)
            self.keep(unfolded, found)
            for noted in self.listeners:
                noted.append((unfolded, found))
        return found

    def keep(self, unfolded: Unfolded, folded: Segment) -> None:
        """Store a folding of this process or another."""
        if len(self.known) >= MAX_CACHED_SEGMENTS:
            self.known.clear()
        self.known[unfolded] = folded


_FOLDINGS = _Foldings()


@contextmanager
def collect_foldings() -> Iterator[Sequence[Folding]]:
    """Collect the new foldings of a block, for other processes."""
    noted: list[Folding] = []
    _FOLDINGS.listeners.append(noted)
    try:
        yield noted
    finally:
        _FOLDINGS.listeners = [each for each in _FOLDINGS.listeners if each is not noted]


def store_foldings(foldings: Iterable[Folding]) -> None:
    """Store foldings of another process."""
    for unfolded, folded in foldings:
        _FOLDINGS.keep(unfolded, folded)


def _fold_segment(
    segment: Segment,
    tensors: Pairs[TensorType],
    constants: Pairs[tuple[float, ...]],
    shared: tuple[str, ...],
) -> Segment:
    """Expand a pointwise segment over the digits of axes that index its tables; the other digits stay axes."""
    group = FusedGroup((segment,), dict(tensors), (), (), shared, dict(constants))
    if segment.reductions or any(o.extra or o.tensor in group.shared for o in segment.outputs):
        return segment
    periods = _periods(segment, group)
    if periods is None:
        return segment
    quotients = {a: Var(f"{a.name}q", d.count_above(a)) for a, d in periods.items()}
    rests = {a: Var(f"{a.name}r", d.step) for a, d in periods.items()}
    places: list[tuple[Output, dict[Var, IndexLike], tuple[Guard, ...]]] = []
    for point in product(*(range(d.count) for d in periods.values())):
        values: dict[Var, IndexLike] = {
            a: (as_index(quotients[a]) * d.count + value) * d.step + as_index(rests[a])
            for (a, d), value in zip(periods.items(), point, strict=True)
        }
        inside = tuple(g for a, i in values.items() if not (g := Guard(as_index(i), 0, a.extent)).always)
        if not any(g.index.is_const for g in inside):
            places += [(o, values, inside) for o in segment.outputs]
    expander = _Expander(group)
    bodies = [expander.value(o.body, values, inside) for o, values, inside in places]
    if any(r.tensor in group.constants for body in bodies for r in reads(body)):
        return segment
    if len({value for body in bodies for value in loaded_values(body)}) > MAX_LOADS:
        return segment
    folded = LinearCombiner(group.tensors, Folder(group.tensors)).combine(bodies)
    outputs = tuple(_output(*place, body) for place, body in zip(places, folded, strict=True))
    axes = tuple(v for a in segment.axes for v in ((quotients[a], rests[a]) if a in periods else (a,)))
    return Segment(tuple(a for a in axes if a.extent > 1) or axes[:1], (), outputs)


def _output(output: Output, values: Mapping[Var, IndexLike], inside: tuple[Guard, ...], body: Expr) -> Output:
    write = tuple(substitute(w, values) for w in output.write)
    guards = tuple(dict.fromkeys((*substitute_guards(output.guards, values), *inside)))
    return evolve(output, write=write, body=body, guards=guards)


@frozen
class _Expander:
    """Expressions at points of the axes that index tables: elements of tables are numbers, decided cases are chosen.

    Reads get the guards of the element that is computed, so that none is out of range. Subexpressions that do not
    depend on all of a point are made once for all points that agree.
    """

    group: FusedGroup
    axes: dict[Expr, frozenset[Var]] = field(factory=dict)
    made: dict[Hashable, Expr] = field(factory=dict)

    def value(self, expr: Expr, values: Mapping[Var, IndexLike], inside: tuple[Guard, ...]) -> Expr:
        """Return an expression with axes replaced by values."""
        key = (expr, inside, tuple((a, values[a]) for a in values if a in self._axes(expr)))
        if key not in self.made:
            self.made[key] = self._value(expr, values, inside)
        return self.made[key]

    def _axes(self, expr: Expr) -> frozenset[Var]:
        if expr not in self.axes:
            parts = expr.children
            self.axes[expr] = frozenset().union(*(self._axes(e) for e in parts)) if parts else expr_variables(expr)
        return self.axes[expr]

    def _value(self, expr: Expr, values: Mapping[Var, IndexLike], inside: tuple[Guard, ...]) -> Expr:
        if isinstance(expr, Call):
            args = tuple(self.value(a, values, inside) for a in expr.args)
            if expr.fn == "select" and isinstance(args[0], Const):
                return args[1] if args[0].value else args[2]
            return Call(expr.fn, args)
        if isinstance(expr, Cast):
            return Cast(expr.dtype, self.value(expr.arg, values, inside))
        leaf = substitute_expr(expr, values)
        if isinstance(leaf, InRange) and any(g.never for g in leaf.guards):
            return Const(False, DType.BOOL)
        return _element(leaf, inside, self.group) if isinstance(leaf, Read) else leaf


def _element(read: Read, inside: tuple[Guard, ...], group: FusedGroup) -> Expr:
    type_ = group.tensors[read.tensor]
    if any(g.never for g in read.guards):
        return constant(read.fill, type_.dtype)
    if read.tensor in group.constants and all(i.is_const for i in read.indices) and not read.guards:
        return constant(group.constants[read.tensor][linearise(read.indices, type_.strides).const], type_.dtype)
    if not inside or all(Guard(i, 0, extent).always for i, extent in zip(read.indices, type_.shape, strict=True)):
        return read
    return evolve(read, guards=tuple(dict.fromkeys((*read.guards, *inside))))


@frozen
class _Digit:
    """Digit `v // step % count` of an axis v."""

    step: int
    count: int

    def count_above(self, axis: Var) -> int:
        """Return the number of values of the digits above it."""
        return -(-axis.extent // (self.step * self.count))


def _periods(segment: Segment, group: FusedGroup) -> dict[Var, _Digit] | None:
    """Return the digit of each axis of a table that a thread computes, None where these are too many values."""
    found: dict[Var, set[_Digit]] = {}
    for output in segment.outputs:
        for read in reads(output.body):
            if read.tensor in group.constants:
                for axis, digit in (pair for i in read.own_indices for pair in _index_digits(i)):
                    found.setdefault(axis, set()).add(digit)
    periods = {axis: _common_digit(axis, digits) for axis, digits in found.items()}
    if (
        not set(found) <= set(segment.axes)
        or prod(d.count for d in periods.values()) * len(segment.outputs) > MAX_OUTPUTS
    ):
        return None
    return periods


def _common_digit(axis: Var, digits: set[_Digit]) -> _Digit:
    """Return a digit of an axis that decides about others."""
    steps = {d.step for d in digits}
    step = steps.pop() if len(steps) == 1 else 1
    return _Digit(step, min(-(-axis.extent // step), lcm(*(d.step * d.count // step for d in digits))))


def _index_digits(index: Index) -> Iterator[tuple[Var, _Digit]]:
    """Yield the variables of an index with the digit that it depends on."""
    for primary, _ in index.terms:
        inner = primary.num.terms[0][0] if isinstance(primary, Mod) and len(primary.num.terms) == 1 else primary
        if isinstance(primary, Mod) and isinstance(inner, Var):
            yield inner, _Digit(1, primary.den)
        elif isinstance(primary, Mod) and isinstance(inner, FloorDiv) and len(variables(inner.num)) == 1:
            (var,) = variables(inner.num)
            yield (
                var,
                _Digit(inner.den, primary.den) if _lone_variable(inner.num) else _Digit(1, inner.den * primary.den),
            )
        elif isinstance(primary, FloorDiv) and (alone := _lone_variable(primary.num)) is not None:
            yield alone, _Digit(primary.den, -(-alone.extent // primary.den))
        else:
            yield from ((v, _Digit(1, v.extent)) for v in variables(Index(0, ((primary, 1),))))


def _lone_variable(index: Index) -> Var | None:
    """Return the variable that an index is, None for any other index."""
    var = index.terms[0][0] if len(index.terms) == 1 else None
    return var if isinstance(var, Var) and index == as_index(var) else None
