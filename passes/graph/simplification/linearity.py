"""Linearity analysis: affine in one tensor, or linear in several.

The latter is along one axis of the result.

Both follow from the statements, so they hold for any declared operation. Folding a per-channel scale and shift into
constant parameters uses them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeAlias

from attrs import define, field

from ....ir import FUNCTIONS, Call, Cast, Const, DType, Expr, Index, Program, Read, Statement, call, dtype_of, walk

Parts: TypeAlias = tuple[Expr, Expr]


def _mentions(expr: Expr, tensor: str) -> bool:
    return any(isinstance(node, Read) and node.tensor == tensor for node in walk(expr))


def affine_parts(expr: Expr, tensor: str, one: Const, zero: Const) -> Parts | None:
    """Return `(a, b)` of an affine expression, or None.

    `expr == a * read + b` for all reads of `tensor`, and neither mentions `tensor`.
    """
    if not _mentions(expr, tensor):
        return zero, expr
    if isinstance(expr, Read):
        return one, zero
    if not isinstance(expr, Call) or expr.fn not in ("add", "sub", "mul", "div", "neg"):
        return None
    parts = [affine_parts(arg, tensor, one, zero) for arg in expr.args]
    if any(part is None for part in parts):
        return None
    (a, b), *rest = [part for part in parts if part is not None]
    if expr.fn == "neg":
        return call("neg", a), call("neg", b)
    c, d = rest[0]
    if expr.fn in ("add", "sub"):
        return call(expr.fn, a, c), call(expr.fn, b, d)
    if not _mentions(expr.args[1], tensor):
        return call(expr.fn, a, expr.args[1]), call(expr.fn, b, expr.args[1])
    if expr.fn == "mul" and not _mentions(expr.args[0], tensor):
        return call("mul", expr.args[0], c), call("mul", expr.args[0], d)
    return None


@define
class _Walk:
    """Analysis of one program; `found` collects the dims of each parameter that the axis indexes in every read."""

    program: Program
    parameters: Collection[str]
    found: dict[str, set[int]] = field(factory=dict)

    def tensor(self, name: str, dim: int | None) -> int | None:
        """Return a tensor's degree in the parameters: 0, 1, or None."""
        degrees = {self.statement(s, dim) for s in self.program.producers(name)}
        return degrees.pop() if len(degrees) == 1 else None

    def statement(self, statement: Statement, dim: int | None) -> int | None:
        """Return the degree of a statement's result; sums preserve it."""
        degree = self.expr(statement.body, None if dim is None else statement.write[dim])
        return degree if {statement.combine, statement.into} <= {None, "sum"} or degree == 0 else None

    def expr(self, expr: Expr, axis: Index | None) -> int | None:
        if isinstance(expr, Read):
            return self.read(expr, axis)
        if isinstance(expr, Cast):
            degree = self.expr(expr.arg, axis)
            floats = expr.dtype.is_float and dtype_of(expr.arg, self.program.tensors).is_float
            return degree if floats or degree == 0 else None
        if not isinstance(expr, Call):
            return 0
        degrees = [self.expr(arg, axis) for arg in expr.args]
        if None in degrees:
            return None
        return _degree_of_call(expr, [d for d in degrees if d is not None])

    def read(self, read: Read, axis: Index | None) -> int | None:
        dims = {n for n, index in enumerate(read.indices) if index == axis}
        if read.tensor in self.parameters:
            self.found[read.tensor] = self.found.get(read.tensor, dims) & dims
            legal = (axis is None or self.found[read.tensor]) and (not read.guards or read.fill == 0)
            return 1 if legal else None
        if read.tensor in self.program.inputs or read.tensor in self.program.constants:
            return 0
        if axis is None or not self.depends(read.tensor):
            return self.tensor(read.tensor, None)
        # Any dim with the axis suffices; there is more than one only for square diagonals.
        return self.tensor(read.tensor, min(dims)) if dims and not read.guards else None

    def depends(self, name: str) -> bool:
        """Return whether a computed tensor mentions a parameter."""
        names = {t for s in self.program.producers(name) for t in s.tensors_read}
        return any(
            n in self.parameters or (n not in self.program.inputs and n != name and self.depends(n)) for n in names
        )


def _degree_of_call(expr: Call, degrees: list[int]) -> int | None:
    if not any(degrees):
        return 0
    if expr.fn in ("add", "sub", "select"):
        values = list(zip(expr.args, degrees, strict=True))
        if expr.fn == "select" and values.pop(0)[1]:
            return None
        linear = all(d == 1 or (isinstance(arg, Const) and arg.value == 0) for arg, d in values)
        return 1 if linear else None
    if expr.fn == "mul":
        return sum(degrees) if sum(degrees) == 1 else None
    if expr.fn == "div":
        return 1 if degrees == [1, 0] else None
    return 1 if expr.fn == "neg" else None


def linear_dims(program: Program, parameters: Collection[str], dim: int | None) -> dict[str, int | None] | None:
    """Return each parameter's dim that runs with `dim` of the result.

    None where the result is not linear in all parameters jointly.

    Scaling every parameter along its dim then scales the result along `dim`. With `dim` None the dims are None too: a
    scale of everything.
    """
    if any(s.step is not None for s in program.statements):
        return None  # a state is no linear function of a parameter that its steps share
    walk_ = _Walk(program, parameters)
    if walk_.tensor(program.outputs[0], dim) != 1 or set(walk_.found) != set(parameters):
        return None
    return {name: None if dim is None else min(dims) for name, dims in walk_.found.items()}


def additive_slots(program: Program) -> Iterator[tuple[str, int, float]]:
    """Yield `(tensor, dim, factor)` for each input added to the result.

    It is added along one dim, times a constant factor.
    """
    statements = program.producers(program.outputs[0])
    if len(statements) != 1 or not statements[0].is_pointwise:
        return
    statement = statements[0]
    for name in program.inputs:
        reads = [r for r in statement.reads if r.tensor == name]
        if (
            len(reads) != 1
            or reads[0].guards
            or any(r.tensor == name for s in program.statements if s is not statement for r in s.reads)
        ):
            continue
        parts = affine_parts(statement.body, name, Const(1.0, DType.F64), Const(0.0, DType.F64))
        factor = None if parts is None else constant_value(parts[0])
        varying = [index for index in reads[0].indices if not (index.is_const and index.const == 0)]
        if factor and len(varying) == 1 and varying[0] in statement.write:
            yield name, statement.write.index(varying[0]), factor


def constant_value(expr: Expr) -> float | None:
    """Return the value of an expression of literals, or None."""
    if isinstance(expr, Const):
        return float(expr.value)
    if isinstance(expr, Call):
        values = [constant_value(arg) for arg in expr.args]
        return None if None in values else float(FUNCTIONS[expr.fn].numpy(*values))
    return None
