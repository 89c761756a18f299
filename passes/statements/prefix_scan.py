"""Prefix scans along rows that threads hold or walk, or by parts.

A declaration selects for each element of a prefix scan the terms that it combines, so that a row of n elements takes n
* n steps. A marked statement (`Statement.along`) takes n: where the elements of a row are neighbours in memory, lanes
hold it and compute all of its results together; other rows are walked, each by a thread. A row that is too long for
lanes, or one of too few for threads, is divided into parts of b elements each:

    y[i] = sum[j < n] (x[j] if i - j >= 0 else 0)
      ->   of[p] = sum[r < b] x[b*p + r]                                             total of each part
           before[p] = sum[q < n // b] (of[q] if p - q >= 1 else 0)                  a prefix scan again, of n / b
           within[p, i] = sum[r < b] (x[b*p + r] if i - r >= 0 else 0)               along the part
           y[i] = before[i // b] + within[i // b, i % b]

The order in which floats are added changes, and half types are kept in single precision between the statements.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt, prod

from attrs import evolve, frozen

from ...ir import (
    COMBINERS,
    SCAN_MODES,
    Call,
    Const,
    DType,
    Expr,
    Guard,
    Index,
    IndexLike,
    InRange,
    Program,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    expr_variables,
    indices,
    indirects,
    rebuild,
    substitute_expr,
    variables,
)
from ...ops.language import canonicalise, unused_name
from .def_use import DefUse
from .match import Match
from .patterns import anything, bounds, fn, number, reduction
from .rewriter import RewriteRule, rewrite_program

#: Least and most elements of rows that lanes hold, and the range of elements of parts of longer ones.
MIN_LANE_ROW, MAX_LANE_ROW, _PART_RANGE = 16, 8192, (256, 4096)
#: Rows from which on their number keeps a device busy that walks each; of fewer, parts make up so many.
MIN_WALKED_ROWS, _WALKED_PARTS = 8192, 32768
#: Elements of vectors of a warp.
WARP_VECTOR = 128
#: Most parts whose prefix each reading kernel computes itself.
_MAX_LOCAL_PREFIXES = 1024

SCAN = reduction(
    [name for name, combiner in COMBINERS.items() if not combiner.position],
    fn("select", bounds("counted"), anything("term"), number("other")),
)


def divide_scans(program: Program, invariant: bool = False) -> Program:
    """Return an equal program with running reductions marked or in parts.

    Where these must be `invariant`, they depend on the length of a row alone.
    """
    rule = RewriteRule(SCAN, _long_scan, lambda match, scan: _cut(scan, match.index, invariant))
    return rewrite_program(program, rule)


def _long_scan(match: Match) -> PrefixScan | None:
    """Return a running reduction over a row that threads hold or walk."""
    scan = match_scan(match.root)
    return scan if scan is not None and scan.axis.extent > MIN_LANE_ROW else None


def _cut(scan: PrefixScan, index: DefUse, invariant: bool) -> Iterator[Statement]:
    """Yield the statements of a running reduction, marked or in parts."""
    statement, size = scan.statement, _part_extent(scan, invariant)
    if size >= scan.axis.extent:
        yield evolve(statement, along=scan.axis)
        return
    kind = index.types[statement.target].dtype.accumulator
    parts = _Parts(evolve(scan, value=index.convert(scan.value, kind)), size, kind)
    of, before = (_add_tensor(parts, name, (Var("", parts.count),), index) for name in ("of", "before"))
    yield from _totals(parts, of, before, index, invariant)
    yield from map(canonicalise, _part_scan(parts, before, index))


def _totals(parts: _Parts, of: str, before: str, index: DefUse, invariant: bool) -> Iterator[Statement]:
    """Yield the total of each part, and the running reduction of the totals."""
    scan, statement = parts.scan, parts.scan.statement
    place, other = (Var(name, parts.count) for name in parts.fresh("p", "q"))
    whole = evolve(statement, target=of, axes=scan.axes(place), write=scan.places(place))
    yield evolve(whole, body=parts.element(as_index(place) * parts.size + parts.term), reduce=(parts.term,))
    counted = scan.counts(as_index(place), as_index(other), 1)
    body = Call("select", (counted, Read(of, scan.places(other)), parts.none))
    running = evolve(whole, target=before, body=body, reduce=(other,))
    again = match_scan(running) if parts.count > _MAX_LOCAL_PREFIXES else None
    yield from (running,) if again is None else _cut(again, index, invariant)


def _part_scan(parts: _Parts, before: str, index: DefUse) -> Iterator[Statement]:
    """Yield the running reduction along each part, and the result."""
    scan, statement = parts.scan, parts.scan.statement
    place, along = (Var(n, e) for n, e in zip(parts.fresh("p", "r"), (parts.count, parts.size), strict=True))
    within = _add_tensor(parts, "within", (place, along), index)
    axes = tuple(v for a in statement.axes for v in ((place, along) if a == scan.axis else (a,)))
    counted = scan.counts(as_index(along), as_index(parts.term), scan.skip)
    body = Call("select", (counted, parts.element(as_index(place) * parts.size + parts.term), parts.none))
    write = tuple(map(as_index, axes))
    yield evolve(statement, target=within, axes=axes, write=write, body=body, reduce=(parts.term,), along=along)
    axis = as_index(scan.axis)
    part, rest = axis // parts.size, axis % parts.size
    places = tuple(i for a in statement.axes for i in ((part, rest) if a == scan.axis else (as_index(a),)))
    yield _combine(parts, Read(before, scan.places(part)), Read(within, places), index)


def _combine(parts: _Parts, carried: Expr, within: Expr, index: DefUse) -> Statement:
    """Return the result: the totals of earlier parts, combined with the running reduction within the part."""
    statement = parts.scan.statement
    whole = Call(COMBINERS[str(statement.combine)].fn, (carried, within))
    value = index.convert(whole, index.types[statement.target].dtype)
    return evolve(statement, body=value, reduce=(), combine=None)


def _add_tensor(parts: _Parts, name: str, along: tuple[Var, ...], index: DefUse) -> str:
    """Add a tensor over the axes of a scan, with others along the row."""
    statement = parts.scan.statement
    axes = tuple(v for a in statement.axes for v in (along if a == parts.scan.axis else (a,)))
    return index.add_tensor(f"{statement.target}.{name}", TensorType(parts.kind, tuple(v.extent for v in axes)))


@frozen
class _Parts:
    """A running reduction in parts of `size` elements, computed in type `kind`."""

    scan: PrefixScan
    size: int
    kind: DType

    @property
    def count(self) -> int:
        """Number of parts; the last may be shorter."""
        return -(-self.scan.axis.extent // self.size)

    @property
    def term(self) -> Var:
        """The elements of a part."""
        return Var(self.scan.term.name, self.size)

    @property
    def none(self) -> Const:
        """Identity of the reduction."""
        return Const(COMBINERS[str(self.scan.statement.combine)].identity(self.kind), self.kind)

    def fresh(self, *names: str) -> list[str]:
        """Return names that no axis of the statement has."""
        taken = {v.name for v in (*self.scan.statement.axes, *self.scan.statement.reduce)}
        return [unused_name(name, taken) for name in names]

    def element(self, place: Index) -> Expr:
        """Return a term at a place.

        Beyond the end of the row nothing is read, and the identity is returned.
        """
        moved = substitute_expr(self.scan.value, {self.scan.term: place})
        inside = Guard(place, 0, self.scan.term.extent)
        if inside.always:
            return moved

        def leaf(node: Expr) -> Expr:
            return evolve(node, guards=(*node.guards, inside)) if isinstance(node, Read) else node

        return Call("select", (InRange((inside,)), rebuild(moved, leaf), self.none))


def _part_extent(scan: PrefixScan, invariant: bool) -> int:
    """Return the elements of a part of a row, all of them where it stays whole."""
    extent = scan.axis.extent
    if _is_row(scan):
        return extent if extent <= MAX_LANE_ROW else _row_part(extent)
    rows = prod(a.extent for a in scan.statement.axes) // extent
    if extent <= _PART_RANGE[0] or (rows >= MIN_WALKED_ROWS and not invariant):
        return extent
    if invariant:
        return _PART_RANGE[0]
    return max(MIN_LANE_ROW, -(-extent * rows // _WALKED_PARTS))


def _row_part(extent: int) -> int:
    """Return the elements of a part that lanes hold: about as many as there are parts, best whole vectors of a warp."""
    least, most = _PART_RANGE
    aim = min(most, max(least, 2 * isqrt(extent)))
    whole = [size for size in range(least, min(most, extent) + 1) if extent % size == 0]
    return min(whole, key=lambda size: (size % WARP_VECTOR > 0, abs(size - aim)), default=aim)


def _is_row(scan: PrefixScan) -> bool:
    """Return whether neighbours along the axis are neighbours in memory, in operands and result."""
    statement = scan.statement
    last = [(i.indices[-1], scan.term) for i in statement.reads if any(scan.term in variables(n) for n in i.indices)]
    return all(abs(index.coefficient(axis)) == 1 for index, axis in (*last, (statement.write[-1], scan.axis)))


@frozen
class PrefixScan:
    """A statement as a running reduction of `value` over `term`.

    Terms count that are at least `skip` places ahead of `axis` (or after it, where it runs `backwards`).
    """

    statement: Statement
    axis: Var
    term: Var
    value: Expr
    skip: int
    backwards: bool

    def axes(self, along: Var) -> tuple[Var, ...]:
        """Return the axes of the statement, with another one along the row."""
        return tuple(along if a == self.axis else a for a in self.statement.axes)

    def places(self, along: IndexLike) -> tuple[Index, ...]:
        """Return the place of an element in a tensor over the axes.

        It is given by its place along the row.
        """
        return tuple(as_index(along if a == self.axis else a) for a in self.statement.axes)

    def counts(self, place: Index, term: Index, skip: int) -> InRange:
        """Return the condition that a term counts for a place."""
        distance = term - place if self.backwards else place - term
        return InRange((Guard(distance, skip, max(distance.bounds()[1] + 1, skip + 1)),))

    @property
    def along(self) -> str:
        """Name in `SCAN_MODES` of the elements that count for one."""
        return next(name for name, kind in SCAN_MODES.items() if kind == (self.backwards, self.skip == 1))


def match_scan(statement: Statement) -> PrefixScan | None:
    """Return a statement as the running reduction that it is."""
    match = SCAN.match_statement(statement)
    if match is None or len(statement.reduce) != 1:
        return None
    other, guards, value = match.get("other", Const), match.get("counted", InRange).guards, match.expr("term")
    if len(guards) != 1 or other.value != COMBINERS[str(statement.combine)].identity(other.dtype):
        return None
    (guard,), (term,) = guards, statement.reduce
    factors = dict(guard.index.terms)
    axis = next((a for a in statement.axes if a in factors), None)
    if axis is None or axis.extent != term.extent or set(factors) != {axis, term}:
        return None
    skip, backwards = guard.low - guard.index.const, factors[axis] == -1
    right = {factors[axis], factors[term]} == {1, -1} and skip in (0, 1) and axis not in expr_variables(value)
    looked_up = any(term in variables(i) and indirects(i) for i in indices(value))
    bounded = guard.index.bounds()[1] < guard.high
    return PrefixScan(statement, axis, term, value, skip, backwards) if right and bounded and not looked_up else None
