"""Running sums, and other running reductions, by parts.

A declaration says of each element of a running sum which ones it adds up, so that a row of n elements takes n * n
steps. Cut into parts of b elements, what is before the own part is needed of each part as a whole only:

    y[i] = sum[j < n] (x[j] if i - j >= 0 else 0)
      ->   of[p] = sum[r < b] x[b*p + r]                                             what each part adds up to
           before[p] = sum[q < n // b] (of[q] if p - q >= 1 else 0)                  a running sum again, of n / b
           within[i] = sum[r < b] (x[i // b * b + r] if i % b - r >= 0 else 0)
           y[i] = before[i // b] + within[i]

The running sum of parts is cut in turn, as long as it is long. What is found is the form, whatever operation it came
from: a reduction over one axis whose terms count where they stand no later (or no earlier) than an axis of the result,
and are the same for all elements otherwise. The order in which floats are added up changes, and half types are kept in
single precision between the statements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import define, evolve, frozen

from ...ir import (
    COMBINERS,
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

#: Rows of up to this many elements stay whole; parts of longer ones have so many elements, more in rows beyond `_LONG`.
LONGEST, PART, _LONG, _LONG_PART = 64, 16, 4096, 32


def cut_scans(program: Program) -> Program:
    """Return a program that means the same, whose long running reductions are made of parts."""
    writer = _Writer(dict(program.tensors))
    statements = tuple(new for s in program.statements for new in writer.cut(s))
    return evolve(program, tensors=writer.tensors, statements=statements) if writer.found else program


@frozen
class _Scan:
    """A statement as a running reduction: of `value` over `term`, of which those count that stand at least `skip`
    places before `axis` (or behind it, where it runs `backwards`).
    """

    statement: Statement
    axis: Var
    term: Var
    value: Expr
    skip: int
    backwards: bool

    def axes(self, along: Var) -> tuple[Var, ...]:
        """Return the axes of the statement, with another one in the place of that along the row."""
        return tuple(along if a == self.axis else a for a in self.statement.axes)

    def places(self, along: IndexLike) -> tuple[Index, ...]:
        """Return where an element lies in a tensor over the axes, by its place along the row."""
        return tuple(as_index(along if a == self.axis else a) for a in self.statement.axes)

    @property
    def part(self) -> int:
        """How many elements a part has."""
        return PART if self.axis.extent <= _LONG else _LONG_PART

    @property
    def parts(self) -> int:
        """How many parts there are; the last may be shorter."""
        return -(-self.axis.extent // self.part)

    def counts(self, place: Index, term: Index, skip: int) -> InRange:
        """Return the condition that a term counts for a place."""
        distance = term - place if self.backwards else place - term
        return InRange((Guard(distance, skip, max(distance.bounds()[1] + 1, skip + 1)),))


@define
class _Writer:
    """Writes statements; `tensors` grows by what lies between them."""

    tensors: dict[str, TensorType]
    found: bool = False

    def cut(self, statement: Statement) -> Iterator[Statement]:
        """Yield what takes a statement's place."""
        scan = _scan_of(statement)
        if scan is None or scan.axis.extent <= LONGEST:
            yield statement
            return
        self.found = True
        kind = self.tensors[statement.target].dtype.accumulator
        none = Const(COMBINERS[str(statement.combine)].identity(kind), kind)
        scan = evolve(scan, value=_converted(scan.value, kind, self.tensors))
        of, before = (self._tensor(scan, name, kind, scan.parts) for name in ("of", "before"))
        element = Var(scan.term.name, scan.part)
        yield from self._before(scan, of, before, element, none)
        within = self._tensor(scan, "within", kind, scan.axis.extent)
        yield from map(canonicalise, self._result(scan, before, within, element, none))

    def _before(self, scan: _Scan, of: str, before: str, element: Var, none: Const) -> Iterator[Statement]:
        """Yield what each part adds up to, and the running reduction of that."""
        statement = scan.statement
        taken = {v.name for v in (*statement.axes, *statement.reduce)}
        place, other = (Var(unused_name(name, taken), scan.parts) for name in ("p", "q"))
        whole = evolve(statement, target=of, axes=scan.axes(place), write=scan.places(place))
        yield evolve(whole, body=_element(scan, as_index(place) * scan.part + element, none), reduce=(element,))
        counted = scan.counts(as_index(place), as_index(other), 1)
        body = Call("select", (counted, Read(of, scan.places(other)), none))
        yield from self.cut(evolve(whole, target=before, body=body, reduce=(other,)))

    def _result(self, scan: _Scan, before: str, within: str, element: Var, none: Const) -> Iterator[Statement]:
        """Yield the running reduction within each part, and the result."""
        statement, axis = scan.statement, as_index(scan.axis)
        start = axis // scan.part
        counted = scan.counts(axis % scan.part, as_index(element), scan.skip)
        body = Call("select", (counted, _element(scan, start * scan.part + element, none), none))
        places = scan.places(scan.axis)
        yield evolve(statement, target=within, write=places, body=body, reduce=(element,))
        carried = Read(before, scan.places(start))
        whole = Call(COMBINERS[str(statement.combine)].fn, (carried, Read(within, places)))
        kind = self.tensors[statement.target].dtype
        yield evolve(statement, body=_converted(whole, kind, self.tensors), reduce=(), combine=None)

    def _tensor(self, scan: _Scan, part: str, dtype: DType, extent: int) -> str:
        name = unused_name(f"{scan.statement.target}.{part}", self.tensors)
        self.tensors[name] = TensorType(dtype, tuple(v.extent for v in scan.axes(Var("", extent))))
        return name


def _converted(value: Expr, dtype: DType, tensors: Mapping[str, TensorType]) -> Expr:
    return value if dtype_of(value, tensors) is dtype else Cast(dtype, value)


def _element(scan: _Scan, place: Index, none: Const) -> Expr:
    """Return a term at a place within a part; beyond the end of the row nothing is read, and nothing counts."""
    moved = substitute_expr(scan.value, {scan.term: place})
    inside = Guard(place, 0, scan.term.extent)
    if inside.always:
        return moved

    def leaf(node: Expr) -> Expr:
        return evolve(node, guards=(*node.guards, inside)) if isinstance(node, Read) else node

    return Call("select", (InRange((inside,)), rebuild(moved, leaf), none))


def _scan_of(statement: Statement) -> _Scan | None:
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
    return _Scan(statement, axis, term, value, skip, backwards) if right and not looked_up else None
