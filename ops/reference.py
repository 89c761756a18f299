"""The meaning of programs as NumPy, in float64: what every kernel is compared with.

A statement is computed over boxes of its axes that keep every array below a fixed size. A sum of products of two reads
becomes a batched matrix product of gathered operands; everything else is evaluated element by element, vectorised.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir import (
    COMBINERS,
    FUNCTIONS,
    Array,
    Call,
    Cast,
    Clamp,
    Const,
    DType,
    Expr,
    FloorDiv,
    Graph,
    GraphError,
    Guard,
    Index,
    IndexFault,
    IndexValue,
    Indirect,
    InRange,
    Mod,
    Program,
    Read,
    Statement,
    Var,
    expr_variables,
    out_of_range,
    row_major,
    tensor_words,
)
from .language import Registry

Box = dict[Var, tuple[int, int]]
Values = npt.NDArray[Any]

_LIMIT = 4_000_000  # elements of the largest array made: 32 MB in float64
_REDUCERS: dict[str, np.ufunc] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def evaluate(program: Program, inputs: Mapping[str, Array], dtype: npt.DTypeLike = np.float64) -> dict[str, Array]:
    """Return the outputs of a program; floats are computed in `dtype`, integers and conditions exactly."""
    tensors: dict[str, Values] = {}
    for name, type_ in program.tensors.items():
        working = _working(type_.dtype, dtype)
        if name in program.constants:
            tensors[name] = np.array(program.constants[name], working).reshape(type_.shape)
        elif name in program.inputs:
            tensors[name] = np.ascontiguousarray(inputs[name], working).reshape(type_.shape)
            assert np.shape(inputs[name]) == type_.shape, f"{name}: {np.shape(inputs[name])} is not {type_}"
        else:
            tensors[name] = np.zeros(type_.shape, working)
    with np.errstate(all="ignore"):
        for statement in program.statements:
            _Run(statement, tensors, np.dtype(dtype)).run()
    return {name: tensors[name] for name in program.outputs}


def evaluate_graph(
    graph: Graph, registry: Registry, inputs: Mapping[str, Array], dtype: npt.DTypeLike = np.float64
) -> dict[str, Array]:
    """Return the outputs of a graph, computed node by node from the declarations."""
    missing = [name for name in graph.inputs if name not in inputs]
    if missing:
        raise GraphError(f"graph '{graph.name}': no value for input {', '.join(map(repr, missing))}")
    values: dict[str, Array] = {**graph.constants, **{name: inputs[name] for name in graph.inputs}}
    for node in graph.nodes:
        types = [None if v is None else graph.types[v] for v in node.inputs]
        known = {n: graph.constants[v] for n, v in enumerate(node.inputs) if v is not None and v in graph.constants}
        instance = registry[node.op].instantiate(types, node.attributes, known)
        operands = {
            formal: values[v]
            for formal, v in zip(instance.inputs, node.inputs, strict=False)
            if formal is not None and v is not None
        }
        try:
            results = evaluate(instance.program, operands, dtype)
        except IndexFault as fault:
            named = dict(zip(instance.inputs, node.inputs, strict=False)).get(fault.tensor) or ""
            where = tensor_words(node.origin or node.name, node.op, fault.tensor, named)
            raise out_of_range(where, fault.at, fault.found, fault.extent) from fault
        values.update({v: results[formal] for v, formal in zip(node.outputs, instance.outputs, strict=False)})
    return {name: values[name] for name in graph.outputs}


def _working(dtype: DType, floats: npt.DTypeLike) -> np.dtype[Any]:
    return np.dtype(floats) if dtype.is_float else dtype.numpy


class _Run:
    """Evaluation of one statement."""

    def __init__(self, statement: Statement, tensors: dict[str, Values], floats: np.dtype[Any]) -> None:
        self.statement, self.tensors, self.floats = statement, tensors, floats
        self.factors = _factors(statement)

    def run(self) -> None:
        """Compute the statement's elements of its target."""
        statement = self.statement
        target = self.tensors[statement.target]
        if target.size == 0:
            return
        started: set[tuple[tuple[int, int], ...]] = set()
        whole = {v: (0, v.extent) for v in (*statement.axes, *statement.reduce)}
        for box in self._boxes(whole):
            part = _Box(self, box).compute().astype(target.dtype, copy=False)
            where = _Box(self, {v: box[v] for v in statement.axes}).flat(statement.write, target.shape)
            key = tuple(box[v] for v in statement.axes)
            flat = target.reshape(-1)
            if statement.combine in _REDUCERS and key in started:
                part = _REDUCERS[statement.combine](flat[where], part)
            started.add(key)
            flat[where] = part

    def _boxes(self, box: Box) -> Iterator[Box]:
        """Cut the iteration space until no array made for a box is too large; axes of the result first."""
        if self._size(box) <= _LIMIT:
            yield box
            return
        splittable = [v for v in self.statement.axes if box[v][1] - box[v][0] > 1]
        if not splittable and not (self.statement.combine or "").startswith("arg"):
            splittable = [v for v in self.statement.reduce if box[v][1] - box[v][0] > 1]
        if not splittable:
            yield box
            return
        var = max(splittable, key=lambda v: box[v][1] - box[v][0])
        low, high = box[var]
        for half in ((low, (low + high) // 2), ((low + high) // 2, high)):
            yield from self._boxes({**box, var: half})

    def _size(self, box: Box) -> int:
        groups = [expr_variables(f) for f in self.factors] or [frozenset(box)]
        groups.append(frozenset(self.statement.axes))
        return max(math.prod(box[v][1] - box[v][0] for v in group if v in box) for group in groups)


class _Box:
    """Evaluation over a box: every array has one dim per axis of the box, of size 1 where it does not vary."""

    def __init__(self, run: _Run, box: Box) -> None:
        self.run, self.tensors, self.box = run, run.tensors, box
        self.dims = {var: n for n, var in enumerate(box)}
        self.live: Values = np.ones((1,) * len(box), np.bool_)  # where the value of what is being evaluated matters

    def compute(self) -> Values:
        """Return the values of the statement over its axes."""
        statement = self.run.statement
        shape = tuple(self.box[v][1] - self.box[v][0] for v in statement.axes)
        if self.run.factors:
            left, right = (self.expr(f) for f in self.run.factors)
            return _contract(left, right, len(statement.axes), shape)
        body = np.asarray(self.expr(statement.body))
        if statement.combine is None:
            return np.broadcast_to(body, shape)
        body = np.broadcast_to(body, tuple(high - low for low, high in self.box.values()))
        return self._reduce(body, len(shape))

    def _reduce(self, body: Values, kept: int) -> Values:
        combine = self.run.statement.combine
        assert combine is not None
        flat = body.reshape(*body.shape[:kept], math.prod(body.shape[kept:]))
        if combine in _REDUCERS and flat.shape[-1] == 0:
            neutral = COMBINERS[combine]
            return np.full(
                flat.shape[:-1], neutral if flat.dtype.kind == "f" or math.isfinite(neutral) else 0, flat.dtype
            )
        if combine in _REDUCERS:
            return np.asarray(_REDUCERS[combine].reduce(flat, axis=-1))
        return np.asarray(np.argmax(flat, axis=-1) if combine == "argmax" else np.argmin(flat, axis=-1))

    # ---- indices

    def index(self, index: Index) -> Values:
        """Return an index over the box."""
        total: Any = np.full((1,) * len(self.dims), index.const, np.int64)
        for atom, factor in index.terms:
            value = self._atom(atom)
            total = total + (value if factor == 1 else value * factor)
        return np.asarray(total)

    def _atom(self, atom: Var | FloorDiv | Mod | Clamp | Indirect) -> Values:
        if isinstance(atom, Var):
            shape = [1] * len(self.dims)
            shape[self.dims[atom]] = -1
            return np.arange(*self.box[atom], dtype=np.int64).reshape(shape)
        if isinstance(atom, FloorDiv):
            return self.index(atom.num) // atom.den
        if isinstance(atom, Mod):
            return self.index(atom.num) % atom.den
        if isinstance(atom, Clamp):
            return np.clip(self.index(atom.arg), atom.low, atom.high)
        return self._indirect(atom)

    def _indirect(self, atom: Indirect) -> Values:
        """Return elements of an integer tensor as indices; each that is looked at must be one."""
        tensor = self.tensors[atom.tensor]
        flat = self.flat(atom.indices, tensor.shape)
        element = tensor.reshape(-1)[flat].astype(np.int64)
        value = np.where(element < 0, element + atom.extent, element) if atom.wraps else element
        wrong, flat = np.broadcast_arrays(self.live & ((value < 0) | (value >= atom.extent)), flat)
        if wrong.any():
            first = int(flat[wrong].min())
            at = tuple(int(n) for n in np.unravel_index(first, tensor.shape))
            raise IndexFault(atom.tensor, at, int(tensor.reshape(-1)[first]), atom.extent)
        return np.clip(value, 0, atom.extent - 1)

    def flat(self, indices: tuple[Index, ...], shape: tuple[int, ...]) -> Values:
        """Return row-major flat positions of the indexed elements."""
        total: Any = np.zeros((1,) * len(self.dims), np.int64)
        for index, step in zip(indices, row_major(shape), strict=True):
            total = total + self.index(index) * step
        return np.asarray(total)

    def inside(self, guards: tuple[Guard, ...]) -> Values:
        """Return where all guards hold."""
        total: Any = np.ones((1,) * len(self.dims), np.bool_)
        for guard in guards:
            value = self.index(guard.index)
            total = total & (value >= guard.low) & (value < guard.high)
        return np.asarray(total)

    # ---- expressions

    def expr(self, expr: Expr) -> Values:
        """Return a scalar expression over the box."""
        if isinstance(expr, Const):
            return np.asarray(expr.value, self._dtype(expr.dtype))
        if isinstance(expr, Read):
            return self._read(expr)
        if isinstance(expr, IndexValue):
            return self.index(expr.index).astype(self._dtype(expr.dtype))
        if isinstance(expr, InRange):
            return self.inside(expr.guards)
        if isinstance(expr, Cast):
            return self._cast(self.expr(expr.arg), expr.dtype)
        assert isinstance(expr, Call)
        return self._call(expr)

    def _call(self, expr: Call) -> Values:
        first = self.expr(expr.args[0])
        if expr.fn == "select":
            rest = [self._where(first, expr.args[1]), self._where(~first, expr.args[2])]
        elif expr.fn in ("and", "or"):
            rest = [self._where(first if expr.fn == "and" else ~first, expr.args[1])]
        else:
            rest = [self.expr(a) for a in expr.args[1:]]
        return np.asarray(FUNCTIONS[expr.fn].numpy(first, *rest))

    def _where(self, condition: Values, expr: Expr) -> Values:
        """Return an expression whose value matters where a condition holds."""
        before, self.live = self.live, self.live & condition
        try:
            return self.expr(expr)
        finally:
            self.live = before

    def _dtype(self, dtype: DType) -> np.dtype[Any]:
        return _working(dtype, self.run.floats)

    def _read(self, read: Read) -> Values:
        tensor = self.tensors[read.tensor]
        if not read.guards:
            return np.asarray(tensor.reshape(-1)[self.flat(read.indices, tensor.shape)])
        inside = self.inside(read.guards)
        before, self.live = self.live, self.live & inside
        where = self.flat(read.indices, tensor.shape)
        self.live = before
        values = tensor.reshape(-1)[np.where(inside, where, 0)]
        return np.where(inside, values, np.asarray(read.fill).astype(tensor.dtype))

    def _cast(self, value: Values, dtype: DType) -> Values:
        if dtype is DType.BOOL:
            return np.asarray(value != 0)
        if dtype.is_int and value.dtype.kind == "f":
            value = np.trunc(value)
        return np.asarray(value.astype(self._dtype(dtype)))


def _factors(statement: Statement) -> tuple[Expr, ...]:
    """Return both factors of a float sum of products, else nothing."""
    body = statement.body
    if statement.combine != "sum" or not isinstance(body, Call) or body.fn != "mul":
        return ()
    left, right = (expr_variables(a) for a in body.args)
    return body.args if left != right and set(statement.reduce) <= left | right else ()


def _contract(left: Values, right: Values, kept: int, shape: tuple[int, ...]) -> Values:
    """Sum the product of two arrays over all dims from `kept` on, as a batched matrix product."""
    dims = max(left.ndim, right.ndim)
    left, right = (a.reshape((1,) * (dims - a.ndim) + a.shape) for a in (left, right))
    alone_left = tuple(d for d in range(kept, dims) if right.shape[d] == 1)
    alone_right = tuple(d for d in range(kept, dims) if left.shape[d] == 1)
    left = left.sum(axis=alone_left, keepdims=True) if alone_left else left
    right = (
        right.sum(axis=tuple(d for d in alone_right if d not in alone_left), keepdims=True) if alone_right else right
    )
    batch = [d for d in range(kept) if left.shape[d] > 1 and right.shape[d] > 1]
    rows = [d for d in range(kept) if d not in batch and left.shape[d] > 1]
    columns = [d for d in range(kept) if d not in batch and d not in rows]
    inner = list(range(kept, dims))
    a = left.transpose(batch + rows + columns + inner).reshape(
        _size(left, batch), _size(left, rows), _size(left, inner)
    )
    b = right.transpose(batch + inner + rows + columns).reshape(
        _size(right, batch), _size(right, inner), _size(right, columns)
    )
    order = batch + rows + columns
    result = (a @ b).reshape([max(left.shape[d], right.shape[d]) for d in order])
    return np.broadcast_to(result.transpose(np.argsort(order)) if order else result, shape)


def _size(array: Values, dims: list[int]) -> int:
    return math.prod(array.shape[d] for d in dims)
