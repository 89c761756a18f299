"""What a fused group in normal form means: an evaluator over NumPy arrays, in float64, for tests and for `--verify`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ir import (
    COMBINE_FUNCTION,
    FUNCTIONS,
    Call,
    Cast,
    Clamp,
    Const,
    DType,
    Expr,
    FloorDiv,
    FusedGroup,
    Guard,
    Index,
    IndexValue,
    Indirect,
    InRange,
    Mod,
    Read,
    Segment,
    Var,
)

Values = npt.NDArray[Any]


def interpret(group: FusedGroup, arrays: Mapping[str, Values]) -> dict[str, Values]:
    """Return the group's outputs; `arrays` has its inputs. Elements that the group does not write (parts of a
    concatenation) are NaN.
    """
    memory: dict[str, Values] = {name: _wide(np.asarray(value)) for name, value in arrays.items()}
    for name, table in group.constants.items():
        memory[name] = np.reshape(np.asarray(table, dtype=np.float64), group.tensors[name].shape)
    for segment in group.segments:
        for output in segment.outputs:
            type_ = group.tensors[output.tensor]
            memory.setdefault(
                output.tensor, np.full(type_.shape, np.nan if type_.dtype.is_float else 0, wide_dtype(type_.dtype))
            )
        _run_segment(segment, memory)
    return {name: memory[name] for name in group.outputs}


def _wide(array: Values) -> Values:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def wide_dtype(dtype: DType) -> np.dtype[Any]:
    """Return the NumPy type that values of a type are evaluated in."""
    return np.dtype(np.float64) if dtype.is_float else dtype.numpy


def _run_segment(segment: Segment, memory: dict[str, Values]) -> None:
    scope = dict(memory)
    shape = tuple(a.extent for a in segment.axes)
    for reduction in segment.reductions:
        space = Points((*segment.axes, *reduction.reduce), scope)
        values = np.broadcast_to(space.value(reduction.body), space.shape)
        function = FUNCTIONS[COMBINE_FUNCTION[reduction.combine]].numpy
        reduced = function.reduce(values, axis=tuple(range(len(shape), values.ndim)))  # type: ignore[attr-defined]
        scope[reduction.name] = np.reshape(reduced, shape)
    for output in segment.outputs:
        space = Points((*segment.axes, *output.extra), scope)
        position = tuple(np.broadcast_to(space.index(w), space.shape) for w in output.write)
        value = np.broadcast_to(space.value(output.body), space.shape)
        if output.guards:
            written = np.broadcast_to(space.guards(output.guards), space.shape)
            position, value = tuple(p[written] for p in position), value[written]
        memory[output.tensor][position] = value if position else value.reshape(())


class Points:
    """All points of a few axes at once; every expression becomes an array that broadcasts over them."""

    def __init__(self, axes: Sequence[Var], memory: Mapping[str, Values]) -> None:
        self.memory = memory
        self.shape = tuple(a.extent for a in axes)
        grids = np.meshgrid(*(np.arange(a.extent) for a in axes), indexing="ij", sparse=True)
        self.axes = dict(zip(axes, grids, strict=True))

    def index(self, index: Index, inside: Values | None = None) -> Values:
        """Return the values of an index expression, anything where not `inside`."""
        total: Values = np.asarray(index.const)
        for atom, factor in index.terms:
            if isinstance(atom, Var):
                value: Values = self.axes[atom]
            elif isinstance(atom, FloorDiv):
                value = self.index(atom.num, inside) // atom.den
            elif isinstance(atom, Mod):
                value = self.index(atom.num, inside) % atom.den
            elif isinstance(atom, Clamp):
                value = np.clip(self.index(atom.arg, inside), atom.low, atom.high)
            else:
                value = self._fetch(atom, inside)
            total = total + factor * value
        return total

    def _fetch(self, atom: Indirect, inside: Values | None) -> Values:
        found = self.element(atom.tensor, atom.indices, inside).astype(np.int64)
        return np.where(found < 0, found + atom.extent, found) if atom.wraps else found

    def element(self, tensor: str, indices: Sequence[Index], inside: Values | None = None) -> Values:
        """Return the elements of a tensor at indices, anything where not `inside`."""
        array = self.memory[tensor]
        places = [self.index(i, inside) for i in indices]
        if inside is not None:
            places = [np.where(inside, p, 0) for p in places]
        for place, extent in zip(places, array.shape, strict=True):
            assert np.all((place >= 0) & (place < extent)), f"{tensor} is read out of range"
        return np.asarray(array[tuple(places)])

    def guards(self, guards: Sequence[Guard]) -> Values:
        """Return where all guards hold."""
        result: Values = np.asarray(True)
        for guard in guards:
            place = self.index(guard.index)
            result = result & (guard.low <= place) & (place < guard.high)
        return result

    def value(self, expr: Expr) -> Values:
        """Return the values of a scalar expression."""
        if isinstance(expr, Const):
            return np.asarray(expr.value)
        if isinstance(expr, IndexValue):
            return self.index(expr.index).astype(wide_dtype(expr.dtype))
        if isinstance(expr, InRange):
            return self.guards(expr.guards)
        if isinstance(expr, Cast):
            return _convert(self.value(expr.arg), expr.dtype)
        if isinstance(expr, Call):
            with np.errstate(all="ignore"):
                return np.asarray(FUNCTIONS[expr.fn].numpy(*(self.value(a) for a in expr.args)))
        return self._read(expr)

    def _read(self, read: Read) -> Values:
        if not read.guards:
            return self.element(read.tensor, read.indices)
        inside = self.guards(read.guards)
        found: Values = np.where(inside, self.element(read.tensor, read.indices, inside), read.fill)
        return found


def _convert(value: Values, dtype: DType) -> Values:
    if dtype is DType.BOOL:
        return np.not_equal(value, 0)
    return np.asarray(np.trunc(value) if dtype.is_int and value.dtype.kind == "f" else value, dtype=wide_dtype(dtype))
