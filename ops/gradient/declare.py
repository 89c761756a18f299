"""Printing of a program as a declaration at fixed shapes.

The text is an operation in the language of `.cuts` files. A program from a pass or a derivation becomes an operation
like any other: it prints, parses back to an equal program, and goes through the same lowering as the declarations that
people write.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from ...ir import (
    Call,
    Cast,
    Clamp,
    Const,
    DType,
    Expr,
    FloorDiv,
    Guard,
    Index,
    IndexValue,
    Indirect,
    InRange,
    Mod,
    Node,
    Primary,
    Program,
    Read,
    Statement,
    Var,
    as_index,
    dtype_of,
    runs,
)
from ..language import BUILTINS, RESERVED_NAMES

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==",
    "ne": "!=",
    "and": "and", "or": "or",
}  # fmt: skip
_WORDS = frozenset(
    {
        "if",
        "else",
        "for",
        "and",
        "or",
        "not",
        "outside",
        "in",
        "out",
        "temp",
        "attr",
        "let",
        "table",
        "require",
        "type",
        "each",
        "when",
    }
)


def declare(name: str, summary: str, program: Program, algorithms: Mapping[str, Sequence[Node]] | None = None) -> str:
    """Return the text of an operation that means a program.

    The steps of its algorithms are nodes over its operands, its results, and values of their own.
    """
    return _Writer(program, algorithms or {}).text(name, summary)


class _Writer:
    def __init__(self, program: Program, algorithms: Mapping[str, Sequence[Node]]) -> None:
        self.program = program
        self.algorithms = algorithms
        values = (v for steps in algorithms.values() for node in steps for v in (*node.operands, *node.outputs))
        self.names = _safe_names(dict.fromkeys((*program.tensors, *values)))
        self.types = program.tensors
        self.lists: set[str] = set()  # tensors that iterations write: a list, one tensor for each iteration

    def element(self, tensor: str, indices: Sequence[str]) -> str:
        """Return an element of a tensor by its subscripts."""
        if tensor not in self.lists:
            return f"{self.names[tensor]}[{', '.join(indices)}]"
        row, *rest = indices
        return f"{self.names[tensor]}[{row}]" + (f"[{', '.join(rest)}]" if rest else "")

    def text(self, name: str, summary: str) -> str:
        program = self.program
        temps = [t for t in dict.fromkeys(s.target for s in program.statements) if t not in program.outputs]
        self.lists.update(s.target for s in program.statements if s.step is not None and s.target in temps)
        lines = [f"in {', '.join(map(self._tensor, program.inputs))}"] if program.inputs else []
        lines += [
            f"table {self.names[t]}: {self.types[t].dtype} = {_rows(v, self.types[t].shape)}"
            for t, v in program.constants.items()
        ]
        lines += [f"temp {', '.join(map(self._tensor, temps))}"] if temps else []
        lines += [f"out {', '.join(map(self._tensor, program.outputs))}"]
        for number, (step, run) in enumerate(runs(program.statements)):
            texts = [_StatementWriter(self, s, f"t{number}").text() for s in run]
            block = [f"each t{number} < {step.extent} {{", *(f"  {text}" for text in texts), "}"] if step else texts
            lines += block
        for algorithm, steps in self.algorithms.items():
            lines += [f"algorithm {algorithm} {{", *(f"  {self._step(node)}" for node in steps), "}"]
        return "\n".join([f'op {name} "{summary}" {{', *(f"  {line}" for line in lines), "}", ""])

    def _step(self, node: Node) -> str:
        results = ", ".join(self.names[v] for v in node.outputs)
        operands = ["none" if v is None else self.names[v] for v in node.inputs]
        attributes = [f"{name}: {_literal(value)}" for name, value in node.attributes.items() if value is not None]
        return f"{results} = {node.op}({', '.join([*operands, *attributes])})"

    def _tensor(self, tensor: str) -> str:
        type_ = self.types[tensor]
        if tensor in self.lists:
            count, *shape = type_.shape
            return f"{self.names[tensor]}[t < {count}]: {type_.dtype}[{', '.join(map(str, shape))}]"
        return f"{self.names[tensor]}: {type_.dtype}[{', '.join(map(str, type_.shape))}]"


class _StatementWriter:
    """Writer of one statement. Axes are `i0, i1, ...`, reduced axes `r0, r1, ...`; the step has one name in all
    statements of its recurrence.
    """

    def __init__(self, writer: _Writer, statement: Statement, step: str) -> None:
        self.writer, self.statement = writer, statement
        self.vars: dict[Var, str] = {v: f"i{n}" for n, v in enumerate(statement.axes)}
        self.vars |= {v: f"r{n}" for n, v in enumerate(statement.reduce)}
        self.vars |= {statement.step: step} if statement.step else {}

    def text(self) -> str:
        statement = self.statement
        shape = self.writer.types[statement.target].shape
        left = self.writer.element(statement.target, [self.index(w) for w in statement.write])
        listed = statement.target in self.writer.lists
        bound = {statement.step} | {
            v
            for w, n in list(zip(statement.write, shape, strict=True))[listed:]
            for v in statement.axes
            if w == as_index(v) and v.extent == n and not statement.into
        }
        rest = [f"{self.vars[v]} < {v.extent}" for v in statement.axes if v not in bound]
        dtype = self.writer.types[statement.target].dtype
        body = self.expr(statement.body, None if statement.combine else dtype)
        if statement.combine:
            binders = ", ".join(f"{self.vars[v]} < {v.extent}" for v in statement.reduce)
            body = f"{statement.combine}[{binders}] {_parenthesise(body)}"
        if statement.into:
            left = f"{'atomic' if statement.atomic else 'scatter'} {statement.into} {left}"
        return f"{left} = {_strip_parentheses(body)}" + (f" for {', '.join(rest)}" if rest else "")

    # ---- indices

    def index(self, index: Index) -> str:
        parts: list[str] = []
        for primary, factor in sorted(index.terms, key=lambda term: term[1] < 0):
            text = self._primary(primary) if abs(factor) == 1 else f"{abs(factor)} * {self._primary(primary)}"
            parts.append(
                text
                if factor > 0 and not parts
                else f"-{text}"
                if not parts
                else f"{'+' if factor > 0 else '-'} {text}"
            )
        if index.const or not parts:
            parts.append(str(index.const) if not parts else f"{'+' if index.const > 0 else '-'} {abs(index.const)}")
        return " ".join(parts)

    def _primary(self, primary: Primary) -> str:
        if isinstance(primary, Var):
            return self.vars[primary]
        if isinstance(primary, (FloorDiv, Mod)):
            return f"(({self.index(primary.num)}) {'//' if isinstance(primary, FloorDiv) else '%'} {primary.den})"
        if isinstance(primary, Clamp):
            return f"clamp({self.index(primary.arg)}, {primary.low}, {primary.high})"
        assert isinstance(primary, Indirect)
        return f"index({self._element(primary)}, {primary.extent})"

    def _element(self, read: Read | Indirect) -> str:
        places = zip(read.indices, self.writer.types[read.tensor].shape, strict=True)
        return self.writer.element(read.tensor, [self._subscript(*place) for place in places])

    def _subscript(self, index: Index, extent: int) -> str:
        """Return an index of an axis as a subscript, where an element of an integer tensor may stand alone."""
        (primary, factor), *rest = index.terms or ((None, 0),)
        alone = isinstance(primary, Indirect) and factor == 1 and not rest and not index.const
        if alone and isinstance(primary, Indirect) and primary.extent == extent:
            return self._element(primary)
        return self.index(index)

    def _guard(self, guard: Guard) -> str:
        low, high = guard.index.bounds()
        text = self.index(guard.index)
        if guard.high == guard.low + 1:
            return f"{text} == {guard.low}"
        parts = ([f"{text} >= {guard.low}"] if low < guard.low else []) + (
            [f"{text} < {guard.high}"] if high >= guard.high else []
        )
        return " and ".join(parts) or "true"

    def _guards(self, guards: Iterable[Guard]) -> str:
        return f"({' and '.join(map(self._guard, guards)) or 'true'})"

    # ---- expressions

    def expr(self, expr: Expr, dtype: DType | None = None) -> str:
        """Return an expression of the expected type `dtype`.

        A literal is bare where its type follows from `dtype`."""
        if isinstance(expr, Const):
            text = _number(expr.value)
            return text if dtype is expr.dtype or expr.dtype is DType.BOOL else f"{expr.dtype}({text})"
        if isinstance(expr, IndexValue):
            return f"{expr.dtype}({self.index(expr.index)})"
        if isinstance(expr, InRange):
            return self._guards(expr.guards)
        if isinstance(expr, Cast):
            return f"{expr.dtype}({self.expr(expr.arg)})"
        if isinstance(expr, Read):
            return self._read(expr)
        return self._call(expr, dtype)

    def _read(self, read: Read) -> str:
        shape = self.writer.types[read.tensor].shape
        own = {Guard(index, 0, extent) for index, extent in zip(read.indices, shape, strict=True)}
        text = self._element(read)
        inside = all(g.always for g in own) or not shape
        extra = [g for g in read.guards if g not in own]
        text = text if inside else f"{text} outside {_number(read.fill)}"
        if not extra:
            return text
        fill = self.expr(Const(read.fill, self.writer.types[read.tensor].dtype))
        return f"({text} if {self._guards(extra)} else {fill})"

    def _call(self, expr: Call, dtype: DType | None) -> str:
        known = next((dtype_of(a, self.writer.types) for a in expr.args if not isinstance(a, Const)), None)
        if expr.fn == "select":
            test, then, other = expr.args
            inner = known = next(
                (dtype_of(a, self.writer.types) for a in (then, other) if not isinstance(a, Const)), None
            )
            return f"({self.expr(then, inner)} if {self.expr(test)} else {self.expr(other, known)})"
        args = [self.expr(a, known) for a in expr.args]
        if expr.fn in _INFIX:
            return f"({args[0]} {_INFIX[expr.fn]} {args[1]})"
        if expr.fn == "neg":
            return f"(-{args[0]})"
        if expr.fn == "not":
            return f"(not {args[0]})"
        return f"{expr.fn}({', '.join(args)})"


def _literal(value: object) -> str:
    """Return the value of an attribute."""
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, (bool, int, float)):
        return _number(value)
    return f'"{value}"'


def _number(value: float) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(value)


def _parenthesise(text: str) -> str:
    return text if text.startswith("(") and _strip_parentheses(text) != text else f"({text})"


def _strip_parentheses(text: str) -> str:
    """Drop parentheses around the whole."""
    if not text.startswith("("):
        return text
    depth = 0
    for position, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return text[1:-1] if position == len(text) - 1 else text
    return text


def _rows(values: tuple[float, ...], shape: tuple[int, ...]) -> str:
    if not shape:
        return _number(values[0])
    step = math.prod(shape[1:])
    return f"[{', '.join(_rows(values[n * step : (n + 1) * step], shape[1:]) for n in range(shape[0]))}]"


def _safe_names(tensors: Iterable[str]) -> dict[str, str]:
    """Return an unreserved name for each tensor."""
    found: dict[str, str] = {}
    for tensor in tensors:
        name = re.sub(r"[^A-Za-z0-9_]", "_", tensor)
        name = name if re.match(r"[A-Za-z_]", name) else f"t_{name}"
        while (
            name in found.values()
            or name in RESERVED_NAMES
            or name in _WORDS
            or name in BUILTINS
            or re.fullmatch(r"t|[irt]\d+", name)
        ):
            name += "_"
        found[tensor] = name
    return found
