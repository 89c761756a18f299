"""Prefix scans along rows that lanes hold, or by parts.

A declaration selects for each element of a prefix scan the terms that it combines, so that a row of n elements takes n
* n steps. Where the elements of a row are neighbours in memory, lanes hold it and compute all of its results together:
such a statement is marked (`Statement.along`). A longer row is divided into parts of b elements each, and lanes hold as
many parts as possible:

    y[i] = sum[j < n] (x[j] if i - j >= 0 else 0)
      ->   of[p] = sum[r < b] x[b*p + r]                                             total of each part
           before[p] = sum[q < n // b] (of[q] if p - q >= 1 else 0)                  a prefix scan again, of n / b
           within[p, i] = sum[r < b] (x[b*p + r] if i - r >= 0 else 0)               along the part
           y[i] = before[i // b] + within[i // b, i % b]

Elsewhere parts are short, and each element combines its own part. The order in which floats are added changes, and half
types are kept in single precision between the statements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isqrt

from attrs import define, evolve, frozen

from ...ir import (
    COMBINERS,
    SCAN_MODES,
    Call,
    Cast,
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
    dtype_of,
    expr_variables,
    indices,
    indirects,
    rebuild,
    substitute_expr,
    variables,
)
from ...ops.language import canonicalise, unused_name

#: Longest row that stays whole, and elements of a part of longer ones, more for rows beyond the third number.
MAX_WHOLE_ROW, PART_ELEMENTS, _LONG_ROW_ELEMENTS, _LONG_ROW_PART = 64, 16, 4096, 32
#: Least and most elements of rows that lanes hold, and the range of elements of parts of longer ones.
MIN_LANE_ROW, MAX_LANE_ROW, _PART_RANGE = 16, 8192, (256, 4096)
#: Most parts whose prefix each reading kernel computes itself.
_MAX_LOCAL_PREFIXES = 1024


def divide_scans(program: Program) -> Program:
    """Return an equal program with running reductions marked or in parts."""
    writer = _ScanRewriter(dict(program.tensors))
    statements = tuple(new for s in program.statements for new in writer.cut(s))
    return evolve(program, tensors=writer.tensors, statements=statements) if writer.found else program


@define
class _ScanRewriter:
    """Rewrites statements; `tensors` grows by the intermediate ones."""

    tensors: dict[str, TensorType]
    found: bool = False

    def cut(self, statement: Statement) -> Iterator[Statement]:
        """Yield the replacement of a statement."""
        scan = match_scan(statement)
        held = scan is not None and scan.axis.extent > MIN_LANE_ROW and _is_row(scan)
        if scan is None or (scan.axis.extent <= MAX_WHOLE_ROW and not held):
            yield statement
            return
        self.found = True
        if held and scan.axis.extent <= MAX_LANE_ROW:
            yield evolve(statement, along=scan.axis)
            return
        kind = self.tensors[statement.target].dtype.accumulator
        scan = evolve(scan, value=_convert(scan.value, kind, self.tensors))
        parts = _Parts(scan, _row_part(scan.axis.extent) if held else _part(scan.axis.extent), kind)
        of, before = (self._tensor(scan, name, kind, (Var("", parts.count),)) for name in ("of", "before"))
        yield from self._before(parts, of, before)
        yield from map(canonicalise, self._lane_scan(parts, before) if held else self._result(parts, before))

    def _before(self, parts: _Parts, of: str, before: str) -> Iterator[Statement]:
        """Yield the total of each part, and the running reduction of the totals."""
        scan, statement = parts.scan, parts.scan.statement
        place, other = (Var(name, parts.count) for name in parts.fresh("p", "q"))
        whole = evolve(statement, target=of, axes=scan.axes(place), write=scan.places(place))
        yield evolve(whole, body=parts.element(as_index(place) * parts.size + parts.term), reduce=(parts.term,))
        counted = scan.counts(as_index(place), as_index(other), 1)
        body = Call("select", (counted, Read(of, scan.places(other)), parts.none))
        running = evolve(whole, target=before, body=body, reduce=(other,))
        yield from (running,) if parts.count <= _MAX_LOCAL_PREFIXES else self.cut(running)

    def _lane_scan(self, parts: _Parts, before: str) -> Iterator[Statement]:
        """Yield the running reduction along each part, and the result."""
        scan, statement = parts.scan, parts.scan.statement
        place, along = (Var(n, e) for n, e in zip(parts.fresh("p", "r"), (parts.count, parts.size), strict=True))
        within = self._tensor(scan, "within", parts.kind, (place, along))
        axes = tuple(v for a in statement.axes for v in ((place, along) if a == scan.axis else (a,)))
        counted = scan.counts(as_index(along), as_index(parts.term), scan.skip)
        body = Call("select", (counted, parts.element(as_index(place) * parts.size + parts.term), parts.none))
        write = tuple(map(as_index, axes))
        yield evolve(statement, target=within, axes=axes, write=write, body=body, reduce=(parts.term,), along=along)
        axis = as_index(scan.axis)
        part, rest = axis // parts.size, axis % parts.size
        places = tuple(i for a in statement.axes for i in ((part, rest) if a == scan.axis else (as_index(a),)))
        yield self._combine(parts, Read(before, scan.places(part)), Read(within, places))

    def _result(self, parts: _Parts, before: str) -> Iterator[Statement]:
        """Yield the running reduction within each part, each element for itself, and the result."""
        scan, statement, axis = parts.scan, parts.scan.statement, as_index(parts.scan.axis)
        within = self._tensor(scan, "within", parts.kind, (Var("", scan.axis.extent),))
        start = axis // parts.size
        counted = scan.counts(axis % parts.size, as_index(parts.term), scan.skip)
        body = Call("select", (counted, parts.element(start * parts.size + parts.term), parts.none))
        places = scan.places(scan.axis)
        yield evolve(statement, target=within, write=places, body=body, reduce=(parts.term,))
        yield self._combine(parts, Read(before, scan.places(start)), Read(within, places))

    def _combine(self, parts: _Parts, carried: Expr, within: Expr) -> Statement:
        """Return the result: the totals of earlier parts, combined with the running reduction within the part."""
        statement = parts.scan.statement
        whole = Call(COMBINERS[str(statement.combine)].fn, (carried, within))
        kind = self.tensors[statement.target].dtype
        return evolve(statement, body=_convert(whole, kind, self.tensors), reduce=(), combine=None)

    def _tensor(self, scan: PrefixScan, part: str, dtype: DType, along: tuple[Var, ...]) -> str:
        name = unused_name(f"{scan.statement.target}.{part}", self.tensors)
        axes = tuple(v for a in scan.statement.axes for v in (along if a == scan.axis else (a,)))
        self.tensors[name] = TensorType(dtype, tuple(v.extent for v in axes))
        return name


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


def _part(extent: int) -> int:
    """Return the elements of a part whose elements combine it separately."""
    return PART_ELEMENTS if extent <= _LONG_ROW_ELEMENTS else _LONG_ROW_PART


def _row_part(extent: int) -> int:
    """Return the elements of a part that lanes hold: parts without remainder, about as many as a part has elements."""
    least, most = _PART_RANGE
    aim = min(most, max(least, 2 * isqrt(extent)))
    whole = [size for size in range(least, min(most, extent) + 1) if extent % size == 0]
    return min(whole, key=lambda size: abs(size - aim), default=aim)


def _is_row(scan: PrefixScan) -> bool:
    """Return whether neighbours along the axis are neighbours in memory, in operands and result."""
    statement = scan.statement
    last = [(i.indices[-1], scan.term) for i in statement.reads if any(scan.term in variables(n) for n in i.indices)]
    return all(abs(index.coefficient(axis)) == 1 for index, axis in (*last, (statement.write[-1], scan.axis)))


def _convert(value: Expr, dtype: DType, tensors: Mapping[str, TensorType]) -> Expr:
    return value if dtype_of(value, tensors) is dtype else Cast(dtype, value)


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
    body = statement.body
    combiner = COMBINERS.get(str(statement.combine))
    if combiner is None or combiner.position or statement.step is not None or statement.into is not None:
        return None
    if len(statement.reduce) != 1 or not isinstance(body, Call) or body.fn != "select":
        return None
    condition, value, other = body.args
    if not isinstance(condition, InRange) or len(condition.guards) != 1 or not isinstance(other, Const):
        return None
    (guard,), (term,) = condition.guards, statement.reduce
    if other.value != combiner.identity(other.dtype) or guard.index.bounds()[1] >= guard.high:
        return None
    factors = dict(guard.index.terms)
    axis = next((a for a in statement.axes if a in factors), None)
    if axis is None or axis.extent != term.extent or set(factors) != {axis, term}:
        return None
    skip, backwards = guard.low - guard.index.const, factors[axis] == -1
    right = {factors[axis], factors[term]} == {1, -1} and skip in (0, 1) and axis not in expr_variables(value)
    looked_up = any(term in variables(i) and indirects(i) for i in indices(value))
    return PrefixScan(statement, axis, term, value, skip, backwards) if right and not looked_up else None
