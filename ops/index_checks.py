"""Index checks: the program that finds the first out-of-range index.

Derived from the accesses: wherever a statement reads `x[ids[i]]`, scatters to it, or asks whether `index(ids[i], n)`
equals a place, the element `ids[i]` must lie from -n to n - 1, for all values of the statement's variables under which
it is looked at (the guards of the read, the branch of a conditional, the left side of an `and`). The program finds the
out-of-range element of least position:

    place[] = min over i of (i if condition(i) and (ids[i] < -n or ids[i] >= n) else size)
    found[] = max over i of (ids[i] if the element is at place[] else the least integer)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen

from ..ir import (
    ONE_ARRIVAL,
    Call,
    Cast,
    Const,
    DType,
    Expr,
    Guard,
    Index,
    IndexValue,
    Indirect,
    InRange,
    Program,
    Read,
    Statement,
    TensorType,
    Var,
    expr_variables,
    indirects,
    linearise,
)
from .language import live_statements, unused_name


@frozen
class IndexUse:
    """Element of an integer tensor that is used as an index.

    The use is under all conditions.
    """

    element: Indirect
    conditions: tuple[Expr, ...] = ()


@frozen
class Finding:
    """Check of a tensor: indexed extent and names of its results.

    The two results are explained at `IndexCheck`.
    """

    tensor: str
    extent: int
    place: str
    found: str


def index_uses(program: Program) -> tuple[IndexUse, ...]:
    """Return every use of an integer as an index, without repeats.

    A use under no condition stands for those under some.
    """
    found = dict.fromkeys(use for statement in program.statements for use in _statement_uses(statement))
    always = {use.element for use in found if not use.conditions}
    return tuple(use for use in found if not use.conditions or use.element not in always)


def index_program(program: Program) -> tuple[Program, tuple[Finding, ...]]:
    """Return the program that checks a program's indices, and its results.

    There are no results where there are no indices.
    """
    tensors: dict[str, TensorType] = dict(program.tensors)
    statements: list[Statement] = []
    findings: list[Finding] = []
    for number, use in enumerate(index_uses(program)):
        place, element = unused_name(f"place{number}", tensors), unused_name(f"found{number}", tensors)
        finding = Finding(use.element.tensor, use.element.extent, place, element)
        tensors[finding.place] = tensors[finding.found] = TensorType(DType.I64, ())
        statements += _search(use, finding, tensors)
        findings.append(finding)
    outputs = tuple(name for f in findings for name in (f.place, f.found))
    kept = live_statements([*program.statements, *statements], outputs)
    read = {tensor for s in kept for tensor in s.tensors_read}
    tables = {name: rows for name, rows in program.constants.items() if name in read}
    inputs = tuple(name for name in program.inputs if name in read)
    names = {*inputs, *tables, *(s.target for s in kept)}
    return Program({n: t for n, t in tensors.items() if n in names}, inputs, outputs, kept, tables), tuple(findings)


def _search(use: IndexUse, finding: Finding, tensors: Mapping[str, TensorType]) -> Iterator[Statement]:
    """Yield the statements that find the first wrong element of one use."""
    element = use.element
    type_ = tensors[element.tensor]
    value = Read(element.tensor, element.indices)
    wide: Expr = value if type_.dtype is DType.I64 else Cast(DType.I64, value)
    place = linearise(element.indices, type_.strides)
    variables = sorted({v for e in (value, *use.conditions) for v in expr_variables(e)}, key=lambda v: v.name)
    outside: Expr = Call("ge", (wide, Const(element.extent, DType.I64)))
    if not type_.dtype.value.startswith("u"):
        outside = Call("or", (Call("lt", (wide, Const(-element.extent, DType.I64))), outside))
    first = _select((*use.conditions, outside), IndexValue(place, DType.I64), type_.size)
    yield _reduction(finding.place, "min", first, variables)
    here = Call("eq", (IndexValue(place, DType.I64), Read(finding.place, ())))
    yield _reduction(finding.found, "max", _select((*use.conditions, here), wide, -(1 << 63)), variables)


def _select(conditions: Sequence[Expr], value: Expr, other: int) -> Expr:
    """Return a value where all conditions hold, else a number; conditions of ranges come first."""
    guards = [g for c in conditions if isinstance(c, InRange) for g in c.guards]
    tests = [c for c in conditions if not isinstance(c, InRange)]
    body = value
    for test in reversed(tests):
        body = Call("select", (test, body, Const(other, DType.I64)))
    return Call("select", (InRange(tuple(dict.fromkeys(guards))), body, Const(other, DType.I64))) if guards else body


def _reduction(target: str, combine: str, body: Expr, variables: Sequence[Var]) -> Statement:
    kept = tuple(v for v in variables if v.extent > 1)
    return Statement(target, (), (), body, kept, combine if kept else None)


# ---- where indices are used


def _statement_uses(statement: Statement) -> Iterator[IndexUse]:
    """Yield the indices that a statement looks at: in its body, and to find where it writes."""
    yield from _uses(statement.body, ())
    arrives = statement.arrival_condition
    for index in statement.write if statement.into != ONE_ARRIVAL else ():
        yield from _index_uses(index, () if arrives is None else (arrives,))


def _uses(expr: Expr, conditions: tuple[Expr, ...]) -> Iterator[IndexUse]:
    """Yield the indices that an expression looks at where the conditions hold."""
    if isinstance(expr, Read):
        inner = _add_conditions(conditions, *_plain(expr.guards))
        for guard in expr.guards:
            yield from _index_uses(guard.index, conditions)
        for index in expr.indices:
            yield from _index_uses(index, inner)
    elif isinstance(expr, InRange):
        inner = _add_conditions(conditions, *_plain(expr.guards))
        for guard in expr.guards:
            yield from _index_uses(guard.index, inner if indirects(guard.index) else conditions)
    elif isinstance(expr, IndexValue):
        yield from _index_uses(expr.index, conditions)
    elif isinstance(expr, Cast):
        yield from _uses(expr.arg, conditions)
    elif isinstance(expr, Call):
        yield from _call_uses(expr, conditions)


def _call_uses(expr: Call, conditions: tuple[Expr, ...]) -> Iterator[IndexUse]:
    first, *rest = expr.args
    yield from _uses(first, conditions)
    if expr.fn == "select":
        yield from _uses(rest[0], _add_conditions(conditions, first))
        yield from _uses(rest[1], _add_conditions(conditions, Call("not", (first,))))
    elif expr.fn in ("and", "or"):
        yield from _uses(rest[0], _add_conditions(conditions, first if expr.fn == "and" else Call("not", (first,))))
    else:
        for arg in rest:
            yield from _uses(arg, conditions)


def _plain(guards: Sequence[Guard]) -> tuple[Expr, ...]:
    """Return the conditions of guards that do not look at data themselves."""
    known = tuple(g for g in guards if not indirects(g.index))
    return (InRange(known),) if known else ()


def _add_conditions(conditions: tuple[Expr, ...], *more: Expr) -> tuple[Expr, ...]:
    return tuple(dict.fromkeys((*conditions, *more)))


def _index_uses(index: Index, conditions: tuple[Expr, ...]) -> Iterator[IndexUse]:
    for element in indirects(index):
        yield IndexUse(element, conditions)
