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

from collections.abc import Iterator

from attrs import define, evolve, frozen

from ...ir import (
    COMBINERS,
    Call,
    Cast,
    Const,
    Expr,
    Guard,
    Index,
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

    @property
    def own(self) -> tuple[Var, ...]:
        """The axes that all rows have."""
        return tuple(a for a in self.statement.axes if a != self.axis)

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
        combiner = COMBINERS[str(statement.combine)]
        none = Const(combiner.identity(kind), kind)
        value = scan.value if dtype_of(scan.value, self.tensors) is kind else Cast(kind, scan.value)
        rows = tuple(map(as_index, scan.own))
        shape = (*(a.extent for a in scan.own), scan.parts)
        of, before = (TensorType(kind, shape) for _ in range(2))
        of_name, before_name = (
            self._tensor(f"{statement.target}.of", of),
            self._tensor(f"{statement.target}.before", before),
        )

        taken = {v.name for v in (*statement.axes, *statement.reduce)}
        place = Var(unused_name("p", taken), scan.parts)
        other = Var(unused_name("q", taken), scan.parts)
        element = Var(scan.term.name, scan.part)
        yield Statement(
            of_name,
            (*scan.own, place),
            (*rows, as_index(place)),
            _element(value, scan, as_index(place) * scan.part + element, none),
            (element,),
            statement.combine,
            span=statement.span,
        )
        counted = scan.counts(as_index(place), as_index(other), 1)
        yield from self.cut(
            Statement(
                before_name,
                (*scan.own, place),
                (*rows, as_index(place)),
                Call("select", (counted, Read(of_name, (*rows, as_index(other))), none)),
                (other,),
                statement.combine,
                span=statement.span,
            )
        )
        within = self._tensor(f"{statement.target}.within", TensorType(kind, tuple(a.extent for a in statement.axes)))
        yield from map(canonicalise, self._last(scan, value, none, element, within, before_name))

    def _last(
        self, scan: _Scan, value: Expr, none: Const, element: Var, within: str, before: str
    ) -> Iterator[Statement]:
        """Yield the running reduction within each part, and the result."""
        statement, axis = scan.statement, as_index(scan.axis)
        places = tuple(map(as_index, statement.axes))
        start = axis // scan.part
        counted = scan.counts(axis % scan.part, as_index(element), scan.skip)
        term = _element(value, scan, start * scan.part + element, none)
        body = Call("select", (counted, term, none))
        yield Statement(within, statement.axes, places, body, (element,), statement.combine, span=statement.span)
        carried = Read(before, (*map(as_index, scan.own), start))
        whole: Expr = Call(COMBINERS[str(statement.combine)].fn, (carried, Read(within, places)))
        kind = self.tensors[statement.target].dtype
        whole = whole if kind is none.dtype else Cast(kind, whole)
        yield evolve(statement, body=whole, reduce=(), combine=None)

    def _tensor(self, name: str, type_: TensorType) -> str:
        name = unused_name(name, self.tensors)
        self.tensors[name] = type_
        return name


def _element(value: Expr, scan: _Scan, place: Index, none: Const) -> Expr:
    """Return a term at a place within a part; beyond the end of the row nothing is read, and nothing counts."""
    moved = substitute_expr(value, {scan.term: place})
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
