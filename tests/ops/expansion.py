"""Programs as scalar expressions, for counts of operations after folding."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping

from cuts.ir import (
    COMBINERS,
    Call,
    Cast,
    Const,
    DType,
    Expr,
    Index,
    IndexLike,
    IndexValue,
    InRange,
    Program,
    Read,
    Statement,
    Var,
    row_major,
    substitute,
    substitute_expr,
)
from cuts.ops import Folder

Element = tuple[int, ...]


class Expansion:
    """Program as scalar expressions over the elements of its inputs.

    It has an expression for every element of every computed tensor.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.folder = Folder(program.tensors)
        self.elements: dict[tuple[str, Element], Expr] = {}
        for statement in program.statements:
            self._expand(statement)

    def results(self) -> list[Expr]:
        """Return the elements of the outputs in row-major order."""
        shapes = ((name, self.program.tensors[name].shape) for name in self.program.outputs)
        return [
            self.elements[name, element] for name, shape in shapes for element in itertools.product(*map(range, shape))
        ]

    def _expand(self, statement: Statement) -> None:
        for point in itertools.product(*(range(v.extent) for v in statement.axes)):
            values: dict[Var, IndexLike] = dict(zip(statement.axes, point, strict=True))
            element = tuple(substitute(w, values).const for w in statement.write)
            self.elements[statement.target, element] = self._value(statement, values)

    def _value(self, statement: Statement, values: Mapping[Var, IndexLike]) -> Expr:
        if statement.combine is None:
            return self._scalar(substitute_expr(statement.body, values))
        combiner = COMBINERS[statement.combine]
        assert not combiner.position, f"{combiner.name} has no scalar expansion"
        terms = [
            self._scalar(substitute_expr(statement.body, {**values, **dict(zip(statement.reduce, point, strict=True))}))
            for point in itertools.product(*(range(v.extent) for v in statement.reduce))
        ]
        if not terms:
            dtype = self.program.tensors[statement.target].dtype
            return Const(combiner.identity(dtype), dtype)
        total = terms[0]
        for term in terms[1:]:
            total = self.folder.call(combiner.fn, total, term)
        return total

    def _scalar(self, expr: Expr) -> Expr:
        """Fold an expression whose indices are all constant."""
        if isinstance(expr, Call):
            return self.folder.call(expr.fn, *(self._scalar(a) for a in expr.args))
        if isinstance(expr, Cast):
            return self.folder.intern(Cast(expr.dtype, self._scalar(expr.arg)))
        if isinstance(expr, IndexValue):
            return self.folder.intern(Const(_literal(expr.index.const, expr.dtype), expr.dtype))
        if isinstance(expr, InRange):
            return self.folder.intern(Const(all(g.always for g in expr.guards), DType.BOOL))
        return self._read(expr) if isinstance(expr, Read) else self.folder.intern(expr)

    def _read(self, read: Read) -> Expr:
        type_ = self.program.tensors[read.tensor]
        if not all(g.always for g in read.guards):
            return self.folder.intern(Const(_literal(read.fill, type_.dtype), type_.dtype))
        element = tuple(_constant_index(i) for i in read.indices)
        if read.tensor in self.program.constants:
            flat = sum(i * step for i, step in zip(element, row_major(type_.shape), strict=True))
            return self.folder.intern(
                Const(_literal(self.program.constants[read.tensor][flat], type_.dtype), type_.dtype)
            )
        return self.elements.get((read.tensor, element)) or self.folder.intern(Read(read.tensor, read.indices))


def operations(roots: Iterable[Expr]) -> Counter[str]:
    """Return the number of calls of each function, after CSE."""
    seen: set[int] = set()
    count: Counter[str] = Counter()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        stack.extend(node.children)
        if isinstance(node, Call):
            count[node.fn] += 1
    return count


def _constant_index(index: Index) -> int:
    assert index.is_const, f"{index.text} is not constant"
    return index.const


def _literal(value: float, dtype: DType) -> float | int | bool:
    return float(value) if dtype.is_float else bool(value) if dtype is DType.BOOL else int(value)
