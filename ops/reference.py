"""Reference semantics of programs in float64 NumPy, the oracle of kernels.

A statement is computed over boxes of its axes that keep every array below a fixed size. A sum of products of two reads
becomes a batched matrix product of gathered operands; everything else is evaluated element by element, vectorised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product as cartesian
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import evolve

from ..ir import (
    COMBINERS,
    ONE_ARRIVAL,
    Array,
    Call,
    Combiner,
    DType,
    Evaluation,
    Expr,
    Graph,
    GraphError,
    Index,
    IndexFault,
    Indirect,
    Program,
    Statement,
    Values,
    Var,
    as_dtype,
    dtype_of_numpy,
    expr_variables,
    out_of_range,
    row_major,
    runs,
    tensor_words,
    working_dtype,
)
from .contract import contract
from .language import Registry

Box = dict[Var, tuple[int, int]]
Perturb: TypeAlias = Callable[[str, Values], Values]
Read: TypeAlias = Callable[[str, Array], Array]

#: Elements along either side of the blocks of a transposed copy.
TRANSPOSE_BLOCK = 64
_LIMIT = 4_000_000  # elements of the largest array made: 32 MB in float64


def evaluate(
    program: Program,
    inputs: Mapping[str, Array],
    dtype: npt.DTypeLike = np.float64,
    *,
    checked: bool = True,
    stored: bool = False,
    perturb: Perturb | None = None,
) -> dict[str, Array]:
    """Return the outputs of a program.

    Floats are computed in `dtype`, integers and conditions exactly.

    Unless it is `checked`, an out-of-range index is read as the nearest one, and a negative power of an integer is
    rounded towards zero, as in kernels. With `stored`, the results of a statement are rounded to the type of its
    tensor, as where a kernel ends after each statement. `perturb` replaces the values of scalar functions: its operands
    are the name of each, and its values.
    """
    with np.errstate(all="ignore"):
        tensors = _tensors(program, inputs, dtype)
        ordered = (evolve(s, step=s.along) if s.is_recurrence else s for s in program.statements)
        for step, run in runs(ordered):
            computed = [_Run(statement, tensors, np.dtype(dtype), checked, perturb) for statement in run]
            for turn in range(1 if step is None else step.extent):
                for one in computed:
                    one.run(turn)
                    if stored:
                        written = tensors[one.statement.target]
                        written[...] = as_dtype(written, program.tensors[one.statement.target].dtype.numpy)
    return {name: tensors[name] for name in program.outputs}


def _tensors(program: Program, inputs: Mapping[str, Array], dtype: npt.DTypeLike) -> dict[str, Values]:
    """Return the tensors of a program in their computation types; those that statements write are zero."""
    tensors: dict[str, Values] = {}
    meeting = {statement.target: statement.into for statement in program.statements if statement.into}
    for name, type_ in program.tensors.items():
        working = working_dtype(type_.dtype, dtype)
        if name in program.constants:
            tensors[name] = np.array(program.constants[name], working).reshape(type_.shape)
        elif name in program.inputs:
            tensors[name] = np.ascontiguousarray(as_dtype(inputs[name], working)).reshape(type_.shape)
            assert np.shape(inputs[name]) == type_.shape, f"{name}: {np.shape(inputs[name])} is not {type_}"
        else:
            tensors[name] = np.zeros(type_.shape, working)
            if name in meeting:
                tensors[name][...] = COMBINERS[meeting[name]].identity(type_.dtype)
    return tensors


def evaluate_graph(
    graph: Graph,
    registry: Registry,
    inputs: Mapping[str, Array],
    dtype: npt.DTypeLike = np.float64,
    *,
    stored: bool = False,
    read: Read | None = None,
) -> dict[str, Array]:
    """Return the outputs of a graph, computed node by node from declarations.

    `stored` is that of `evaluate`. `read` replaces the values that a node reads of another's results: its operands are
    the name of each, and its values.

    Raises `GraphError` where an input has no value, or an integer that is used as an index is out of range.
    """
    missing = [name for name in graph.inputs if name not in inputs]
    if missing:
        raise GraphError(f"graph '{graph.name}': no value for input {', '.join(map(repr, missing))}")
    given: dict[str, Array] = {**graph.constants, **{name: inputs[name] for name in graph.inputs}}
    values = dict(given)
    for node in graph.nodes:
        types = [None if v is None else graph.types[v] for v in node.inputs]
        known = {n: graph.constants[v] for n, v in enumerate(node.inputs) if v is not None and v in graph.constants}
        instance = registry.of(node).instantiate(types, node.attributes, known)
        operands = {
            formal: values[v] if read is None or v in given else read(v, values[v])
            for formal, v in zip(instance.inputs, node.inputs, strict=False)
            if formal is not None and v is not None
        }
        try:
            results = evaluate(instance.program, operands, dtype, stored=stored)
        except IndexFault as fault:
            named = dict(zip(instance.inputs, node.inputs, strict=False)).get(fault.tensor) or ""
            where = tensor_words(node.origin or node.name, node.op, fault.tensor, named)
            raise out_of_range(where, fault.at, fault.found, fault.extent) from fault
        except GraphError as error:
            raise GraphError(f"node '{node.name}': {error.message}", error.span, error.hint) from error
        values.update({v: results[formal] for v, formal in zip(node.outputs, instance.outputs, strict=False)})
    return {name: values[name] for name in graph.outputs}


def _check_single_arrivals(target: str, places: Values, values: Values) -> None:
    """Raise `GraphError` where different values arrive at one element."""
    order = np.argsort(places, kind="stable")
    again = np.flatnonzero((np.diff(places[order]) == 0) & (np.diff(values[order]) != 0))
    if again.size:
        raise GraphError(
            f"'{target}': two values arrive at element {places[order][again[0]]}, expected one",
            hint="correct the integers that the model is given",
        )


class _Run:
    """Evaluation of one statement."""

    def __init__(
        self,
        statement: Statement,
        tensors: dict[str, Values],
        floats: np.dtype[Any],
        checked: bool = True,
        moved: Perturb | None = None,
    ) -> None:
        self.statement, self.tensors, self.floats = statement, tensors, floats
        self.checked, self.moved = checked, moved
        self.factors = _factors(statement)
        self.combiner: Combiner | None = COMBINERS[statement.combine] if statement.combine else None

    def run(self, turn: int = 0) -> None:
        """Compute the statement's elements of its target.

        With a step, those of one iteration.
        """
        statement = self.statement
        target = self.tensors[statement.target]
        if target.size == 0:
            return
        started: set[tuple[tuple[int, int], ...]] = set()
        whole = {v: (0, v.extent) for v in (*statement.axes, *statement.reduce)}
        if statement.step is not None:
            whole[statement.step] = (turn, turn + 1)
        for box in self._boxes(whole):
            part = _Box(self, box).compute().astype(target.dtype, copy=False)
            place = _Box(self, {v: box[v] for v in statement.axes})
            place.checked = self.checked and statement.into != ONE_ARRIVAL
            arrives = None if statement.arrival_condition is None else place.value(statement.arrival_condition)
            if statement.into and not place.checked:
                arrives = place.in_range(statement.write, target.shape) & (True if arrives is None else arrives)
            key = tuple(box[v] for v in statement.axes)
            there = None if statement.into else place.view(statement.write, target)
            if there is not None:
                self._put(there, ..., np.reshape(part, there.shape), key in started)
                started.add(key)
                continue
            with place.restricted_to(np.ones((), np.bool_) if arrives is None else arrives):
                where = place.flat(statement.write, target.shape)
            flat = target.reshape(-1)
            if statement.into:
                everything = np.broadcast_arrays(where, part, True if arrives is None else arrives)
                found, part, kept = (np.asarray(a).reshape(-1) for a in everything)
                if self.checked and statement.into == ONE_ARRIVAL:
                    _check_single_arrivals(statement.target, found[kept], part[kept])
                COMBINERS[statement.into].arrive(flat, found[kept], part[kept])
                flat += self._order(flat, found[kept], part[kept])
                continue
            self._put(flat, where, part, key in started)
            started.add(key)

    def _put(self, array: Values, where: Any, part: Values, again: bool) -> None:
        """Write a part of the target, combined with the value that another part of a reduction left there."""
        if self.combiner and not self.combiner.position and again:
            part = self.combiner.function.numpy(array[where], part)
        if where is ...:
            copy_array(array, part)
        else:
            array[where] = part

    def _order(self, flat: Values, places: Values, terms: Values) -> Values | int:
        """Return by how much the order of terms that meet in a sum of floats may change it, where values are
        perturbed.
        """
        if self.moved is None or COMBINERS[self.statement.into or "sum"].fn != "add" or flat.dtype.kind != "f":
            return 0
        whole = np.zeros_like(flat)
        np.add.at(whole, places, abs(terms))
        return np.where(np.isfinite(whole), self.moved("add", whole) - whole, 0).astype(flat.dtype)

    def _boxes(self, box: Box) -> Iterator[Box]:
        """Cut the iteration space until no array made for a box is too large; axes of the result first."""
        if self._size(box) <= _LIMIT:
            yield box
            return
        splittable = [v for v in self.statement.axes if box[v][1] - box[v][0] > 1]
        if not splittable and not (self.combiner and self.combiner.position):
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


def copy_array(target: Values, source: Values) -> None:
    """Copy an array of equal shape.

    A transposed copy is done block by block, so that a cache line is used fully before its eviction.
    """
    wide = [d for d, extent in enumerate(target.shape) if extent > 1]
    to, of = (min(wide, key=lambda d: abs(array.strides[d]), default=0) for array in (target, source))
    if to == of or source.strides[of] == 0 or target.size < TRANSPOSE_BLOCK**3:
        target[...] = source
        return
    for first, second in cartesian(
        range(0, target.shape[to], TRANSPOSE_BLOCK), range(0, target.shape[of], TRANSPOSE_BLOCK)
    ):
        place = [slice(None)] * target.ndim
        place[to], place[of] = slice(first, first + TRANSPOSE_BLOCK), slice(second, second + TRANSPOSE_BLOCK)
        target[tuple(place)] = source[tuple(place)]


def _magnitude(terms: Values) -> Values:
    """Return the scale of rounding in sums along the last axis: the magnitudes of the terms, and of their deviations,
    as sequential addition loses more of values that differ (`numerics.tolerance`).
    """
    count = terms.shape[-1]
    others = abs(terms - terms.sum(axis=-1, keepdims=True) / max(count, 1))
    return np.asarray(abs(terms).sum(axis=-1) + math.sqrt(count) * others.sum(axis=-1))


class _Box(Evaluation):
    """Evaluation over a box: arrays have one dim per axis of the box, of size 1 where they do not vary.

    `reading` is true for an index of a read, false for a compared one.
    """

    reading = False

    def __init__(self, run: _Run, box: Box) -> None:
        self.run, self.tensors, self.box, self.checked = run, run.tensors, box, run.checked
        self.dims = {var: n for n, var in enumerate(box)}

    def compute(self) -> Values:
        """Return the values of the statement over its axes."""
        statement = self.run.statement
        shape = tuple(self.box[v][1] - self.box[v][0] for v in statement.axes)
        if self.run.factors:
            left, right = (self.value(f) for f in self.run.factors)
            total = contract(left, right, len(statement.axes), shape)
            return self._perturb_sum(total, lambda: contract(abs(left), abs(right), len(statement.axes), shape))
        body = self.value(statement.body)
        if statement.combine is None:
            return np.broadcast_to(body, shape)
        body = np.broadcast_to(body, tuple(high - low for low, high in self.box.values()))
        return self._reduce(body, len(shape))

    def _reduce(self, body: Values, kept: int) -> Values:
        combiner = self.run.combiner
        assert combiner is not None
        flat = body.reshape(*body.shape[:kept], math.prod(body.shape[kept:]))
        if combiner.position:
            return np.asarray(np.argmax(flat, axis=-1) if combiner.fn == "max" else np.argmin(flat, axis=-1))
        dtype = DType.F64 if flat.dtype.kind == "f" else dtype_of_numpy(flat.dtype)
        assert dtype is not None
        initial = np.asarray(combiner.identity(dtype), flat.dtype)
        total = np.asarray(combiner.function.numpy.reduce(flat, axis=-1, initial=initial))  # type: ignore[attr-defined]
        return self._perturb_sum(total, lambda: _magnitude(flat)) if combiner.fn == "add" else total

    def dtype(self, dtype: DType) -> np.dtype[Any]:
        """Return the type that numbers of an element type are computed in."""
        return working_dtype(dtype, self.run.floats)

    def axis(self, var: Var) -> Values:
        """Return the values of a variable along its dim."""
        shape = [1] * len(self.dims)
        shape[self.dims[var]] = -1
        return np.arange(*self.box[var], dtype=np.int64).reshape(shape)

    def place(self, primary: Indirect) -> Values:
        """Return elements of an integer tensor as indices.

        With checks, each must be in range. Otherwise an out-of-range one reads the nearest element; compared, it is
        the one before the first or after the last.
        """
        tensor = self.tensors[primary.tensor]
        flat = self.flat(primary.indices, tensor.shape)
        element = tensor.reshape(-1)[flat].astype(np.int64)
        value = np.where(element < 0, element + primary.extent, element) if primary.wraps else element
        wrong, flat = np.broadcast_arrays(self.live & ((value < 0) | (value >= primary.extent)), flat)
        if wrong.any() and self.checked:
            first = int(flat[wrong].min())
            at = tuple(int(n) for n in np.unravel_index(first, tensor.shape))
            raise IndexFault(primary.tensor, at, int(tensor.reshape(-1)[first]), primary.extent)
        if self.checked or self.reading:
            return np.clip(value, 0, primary.extent - 1)
        return np.clip(value, -1, primary.extent) if primary.wraps else value

    def flat(self, indices: tuple[Index, ...], shape: tuple[int, ...]) -> Values:
        """Return row-major flat positions of the indexed elements."""
        total: Any = np.zeros((1,) * len(self.dims), np.int64)
        before, self.reading = self.reading, True
        for index, step in zip(indices, row_major(shape), strict=True):
            total = total + self.index(index) * step
        self.reading = before
        return np.asarray(total)

    def view(self, indices: tuple[Index, ...], array: Values) -> Values | None:
        """Return the indexed elements of an array as a view.

        None where an index is not a single axis.
        """
        axes = [axis for index in indices if (axis := _axis(index)) is not None]
        if len(axes) < len(indices) or len(set(axes)) < len(axes) or not self.dims.keys() >= set(axes):
            return None
        if any(self.box[v][1] > extent for v, extent in zip(axes, array.shape, strict=True)):
            return None
        where: tuple[Any, ...] = (*(slice(*self.box[v]) for v in axes), ...)
        part = array[where]
        order = sorted(range(len(axes)), key=lambda n: self.dims[axes[n]])
        others = [n for v, n in self.dims.items() if v not in axes]
        return np.expand_dims(part.transpose(order), others)

    def in_range(self, indices: tuple[Index, ...], shape: tuple[int, ...]) -> Values:
        """Return a mask of in-range indices.

        Values sent elsewhere are dropped.
        """
        inside: Values = np.ones((1,) * len(self.dims), np.bool_)
        for index, extent in zip(indices, shape, strict=True):
            value = self.index(index)
            inside = inside & (value >= 0) & (value < extent)
        return inside

    def where(self, condition: Values, expr: Expr) -> Values:
        """Return an expression whose indices are checked where a condition holds."""
        with self.restricted_to(condition):
            return self.value(expr)

    def apply(self, fn: str, *args: Values) -> Values:
        """Return a function of values.

        Integers have no negative powers where the result matters.
        """
        if fn == "pow" and args[0].dtype.kind == "i" and self.run.checked:
            self._check_power(*args)
        return self._perturb(fn, super().apply(fn, *args))

    def _perturb(self, fn: str, values: Values) -> Values:
        return values if self.run.moved is None else self.run.moved(fn, values)

    def _perturb_sum(self, total: Values, magnitude: Callable[[], Values]) -> Values:
        """Return a sum perturbed as the sum of the magnitudes of its terms is."""
        if self.run.moved is None or total.dtype.kind != "f":
            return total
        whole = magnitude()
        return np.asarray(total + (self.run.moved("add", whole) - whole))

    def _check_power(self, base: Values, exponent: Values) -> None:
        wrong, base, exponent = np.broadcast_arrays(self.live & (exponent < 0), base, exponent)
        if wrong.any():
            first = tuple(map(int, np.argwhere(wrong)[0]))
            raise GraphError(
                f"expected exponents of at least 0 for integers, found {base[first]} to the power {exponent[first]}",
                hint="convert the base to a float type",
            )

    def element(self, tensor: str, indices: tuple[Index, ...], inside: Values | None = None) -> Values:
        """Return elements of a tensor, its first where not `inside`."""
        array = self.tensors[tensor]
        if inside is None and (found := self.view(indices, array)) is not None:
            return found
        flat = self.flat(indices, array.shape)
        return np.asarray(array.reshape(-1)[flat if inside is None else np.where(inside, flat, 0)])


def _axis(index: Index) -> Var | None:
    """Return the variable that an index is, nothing where it is more than that."""
    if index.const or len(index.terms) != 1:
        return None
    ((primary, step),) = index.terms
    return primary if step == 1 and isinstance(primary, Var) else None


def _factors(statement: Statement) -> tuple[Expr, ...]:
    """Return both factors of a float sum of products, else nothing."""
    body = statement.body
    if statement.combine != "sum" or not isinstance(body, Call) or body.fn != "mul":
        return ()
    left, right = (expr_variables(a) for a in body.args)
    return body.args if left != right and set(statement.reduce) <= left | right else ()
