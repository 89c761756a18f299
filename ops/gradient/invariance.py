"""Shifts that cancel: intermediates whose value does not matter to the results.

Softmax subtracts the maximum of a row for range only; any other number would give the same result, so no gradient flows
through it. That is proved here: let a maximum (or minimum) m grow by d. Every later tensor then grows by `k * d`, is
multiplied by `exp(k * d)`, or depends on d in some other way. Where all results grow by `0 * d`, m is irrelevant.

    e = exp(x - m)    exp(-d)          t = sum(e)    exp(-d)          y = e / t    unchanged
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from ...ir import (
    Call,
    Const,
    Expr,
    Index,
    IndexValue,
    InRange,
    Program,
    Read,
    Statement,
    Var,
    as_index,
    guarded_read,
    substitute,
    variables,
    walk,
)


@frozen
class _Growth:
    """Growth of a tensor: `kind` is add or scale; `times` the factor k; `row` the element of m whose shift it follows,
    None where k is 0.
    """

    kind: str
    times: float
    row: tuple[Index, ...] | None


_NO_GROWTH = _Growth("add", 0, None)
_Tensors = Mapping[str, tuple[tuple[Var, ...], _Growth]]


def irrelevant_extrema(program: Program, results: Sequence[str]) -> frozenset[str]:
    """Return the extrema whose shifts leave all given results as they are."""
    if any(s.step is not None for s in program.statements):
        return frozenset()  # growth over iterations is not analysed
    single = {s.target for s in program.statements if sum(o.target == s.target for o in program.statements) == 1}
    found = (s for s in program.statements if s.combine in ("max", "min") and s.target in single - set(results))
    return frozenset(s.target for s in found if _cancels(program, s, results))


def _cancels(program: Program, extremum: Statement, results: Sequence[str]) -> bool:
    growth: dict[str, tuple[tuple[Var, ...], _Growth]] = {}
    seen = False
    for statement in program.statements:
        axes = tuple(Var(f".{n}", extent) for n, extent in enumerate(program.tensors[statement.target].shape))
        element = tuple(map(as_index, axes))
        if statement is extremum:
            growth[statement.target] = axes, _Growth("add", 1, element)
            seen = True
        elif seen and any(r.tensor in growth for r in statement.reads):
            found = _statement_growth(statement, growth, element)
            if found is None or growth.get(statement.target, (axes, found))[1] != found:
                return False
            growth[statement.target] = axes, found
    return all(growth[r][1].times == 0 for r in results if r in growth)


def _plain(statement: Statement, element: Sequence[Index]) -> bool:
    """Return whether a statement writes its axes in order, axes of extent 1 left out."""
    kept = [w for w, e in zip(statement.write, element, strict=True) if e.terms]
    return kept == [as_index(a) for a in statement.axes]


def _statement_growth(statement: Statement, tensors: _Tensors, element: Sequence[Index]) -> _Growth | None:
    found = _growth(statement.body, tensors)
    if found is None or found.times == 0:
        return found
    if (
        statement.into
        or not _plain(statement, element)
        or found.row is None
        or any(variables(i) & set(statement.reduce) for i in found.row)
    ):
        return None
    if statement.combine not in (None, "sum", "max", "min") or (statement.combine == "sum" and found.kind == "add"):
        return None
    places = {axis: as_index(Var(f".{n}", axis.extent)) for n, axis in enumerate(_dims(statement))}
    return _Growth(found.kind, found.times, tuple(substitute(i, places) for i in found.row))


def _dims(statement: Statement) -> list[Var]:
    """Return the axis that each dim of the target stands for; dims of extent 1 have one of their own."""
    axes = list(statement.axes)
    return [axes.pop(0) if w.terms else Var(f".one{n}", 1) for n, w in enumerate(statement.write)]


def _growth(expr: Expr, tensors: _Tensors) -> _Growth | None:
    """Return the growth of an expression; None where it is none of the two kinds."""
    if isinstance(expr, Read):
        if expr.tensor not in tensors:
            return _NO_GROWTH
        axes, growth = tensors[expr.tensor]
        if growth.row is None:
            return growth
        if expr.guards:
            return None
        places = dict(zip(axes, expr.indices, strict=True))
        return _Growth(growth.kind, growth.times, tuple(substitute(i, places) for i in growth.row))
    if isinstance(expr, (Const, IndexValue, InRange)):
        return _NO_GROWTH
    if isinstance(expr, Call) and expr.fn == "isinf":
        return None if _growth(expr.args[0], tensors) is None else _NO_GROWTH  # finite values stay finite
    if isinstance(expr, Call) and expr.fn == "select" and _asks_for_infinity(expr.args[0]):
        return _growth(expr.args[2], tensors)  # there is nothing to grow in the other case
    if isinstance(expr, Call) and (element := guarded_read(expr)) is not None:
        return _growth(element, tensors)  # at the one value where it is a constant there is no derivative
    if not isinstance(expr, Call):
        return _NO_GROWTH if not any(isinstance(n, Read) and n.tensor in tensors for n in walk(expr)) else None
    args = [_growth(a, tensors) for a in expr.args]
    known = [a for a in args if a is not None]
    if len(known) < len(args):
        return None
    return _NO_GROWTH if all(a.times == 0 for a in known) else _call_growth(expr.fn, known)


def _asks_for_infinity(condition: Expr) -> bool:
    return isinstance(condition, Call) and condition.fn == "isinf"


def _call_growth(fn: str, args: Sequence[_Growth]) -> _Growth | None:
    if fn in ("add", "sub") and all(a.kind == "add" or a.times == 0 for a in args):
        return _combine("add", args[0], args[1], -1 if fn == "sub" else 1)
    if fn in ("mul", "div") and all(a.kind == "scale" or a.times == 0 for a in args):
        return _combine("scale", args[0], args[1], -1 if fn == "div" else 1)
    if fn == "neg" and args[0].kind == "scale":
        return args[0]
    if fn == "neg":
        return _Growth("add", -args[0].times, args[0].row)
    if fn == "exp" and args[0].kind == "add":
        return _Growth("scale", args[0].times, args[0].row)
    if fn == "log" and args[0].kind == "scale":
        return _Growth("add", args[0].times, args[0].row)
    return None


def _combine(kind: str, a: _Growth, b: _Growth, sign: int) -> _Growth | None:
    rows = [g.row for g in (a, b) if g.times != 0]
    if any(r != rows[0] for r in rows):
        return None
    times = a.times + sign * b.times
    return _Growth(kind, times, rows[0]) if times else _NO_GROWTH
