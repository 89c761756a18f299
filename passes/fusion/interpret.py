"""NumPy interpreter of normal forms in float64, for tests and `--verify`."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import numpy as np

from ...ir import (
    COMBINERS,
    SCAN_MODES,
    SORT_ORDERS,
    DType,
    Evaluation,
    Expr,
    FusedGroup,
    Index,
    Reduction,
    Segment,
    Values,
    Var,
    dtype_of_numpy,
    is_recurrence,
    working_dtype,
)


def interpret(group: FusedGroup, arrays: Mapping[str, Values]) -> dict[str, Values]:
    """Return the group's outputs.

    `arrays` has its inputs. Elements that the group does not write (parts of a concatenation) are NaN.
    """
    memory: dict[str, Values] = {name: _wide(np.asarray(value)) for name, value in arrays.items()}
    for name, table in group.constants.items():
        memory[name] = np.reshape(np.asarray(table, dtype=np.float64), group.tensors[name].shape)
    for segment in group.segments:
        for output in segment.outputs:
            type_ = group.tensors[output.tensor]
            combine = output.into or output.across
            start = COMBINERS[combine].identity(type_.dtype) if combine else np.nan if type_.dtype.is_float else 0
            memory.setdefault(output.tensor, np.full(type_.shape, start, working_dtype(type_.dtype)))
        _run_segment(segment, memory)
    return {name: memory[name] for name in group.outputs}


def _wide(array: Values) -> Values:
    dtype = dtype_of_numpy(array.dtype)
    return array.astype(np.float64) if dtype is not None and dtype.is_float else array


def _run_segment(segment: Segment, memory: dict[str, Values]) -> None:
    scope = dict(memory)
    shape = tuple(a.extent for a in segment.axes)
    held = frozenset(r.name for r in segment.reductions)
    for reduction in segment.reductions:
        if is_recurrence(reduction):
            scope[reduction.name] = _walk(segment, reduction, scope, held)
            continue
        space = Points((*segment.axes, *reduction.reduce), scope, held)
        values = np.broadcast_to(space.value(reduction.body), space.shape)
        function = COMBINERS[reduction.combine].function.numpy
        if reduction.along:
            scope[reduction.name] = along_row(reduction, values)
            continue
        along = tuple(range(len(shape), values.ndim))
        # In the type of the values, in which integers wrap: NumPy adds up narrow ones in 64 bits.
        with np.errstate(invalid="ignore", over="ignore"):
            reduced = function.reduce(values, axis=along, dtype=values.dtype)  # type: ignore[attr-defined]
        scope[reduction.name] = np.reshape(reduced, shape)
    for output in segment.outputs:
        space = Points((*segment.axes, *output.extra), scope, held)
        position = tuple(np.broadcast_to(space.index(w), space.shape) for w in output.write)
        value = np.broadcast_to(space.value(output.body), space.shape)
        if output.guards:
            written = np.broadcast_to(space.inside(output.guards), space.shape)
            position, value = tuple(p[written] for p in position), value[written]
        if combine := output.into or output.across:
            COMBINERS[combine].arrive(memory[output.tensor], position, value)
        else:
            memory[output.tensor][position] = value if position else value.reshape(())


def _walk(segment: Segment, reduction: Reduction, scope: dict[str, Values], held: frozenset[str]) -> Values:
    """Return the values of a recurrence, computed for whole rows as often as it has elements."""
    (row,) = reduction.reduce
    state = np.zeros((*(a.extent for a in segment.axes), row.extent))
    for _ in range(row.extent):
        before = np.concatenate([state[..., :1], state[..., :-1]], axis=-1)
        space = Points((*segment.axes, row), {**scope, reduction.name: before}, held)
        with np.errstate(all="ignore"):
            state = np.broadcast_to(space.value(reduction.body), space.shape)
    return state


def along_row(reduction: Reduction, values: Values) -> Values:
    """Return a value for each element of rows along the last dim."""
    if reduction.along in SORT_ORDERS:
        return _in_order(values, SORT_ORDERS[reduction.along])
    later, without = SCAN_MODES[reduction.along]
    combiner = COMBINERS[reduction.combine]
    row = values[..., ::-1] if later else values
    with np.errstate(invalid="ignore", over="ignore"):  # some functions warn for a NaN, or at the limits of a type
        found = combiner.function.numpy.accumulate(row, axis=-1, dtype=values.dtype)  # type: ignore[attr-defined]
    if without:
        none = combiner.identity(dtype_of_numpy(values.dtype) or DType.F64)
        found = np.concatenate([np.full_like(found[..., :1], none), found[..., :-1]], axis=-1)
    return np.asarray(found[..., ::-1] if later else found)


def _in_order(values: Values, rises: bool) -> Values:
    """Return the places of values in order along the last dim: NaN is greatest, of equals the first comes first."""
    if rises:
        return np.asarray(np.argsort(values, axis=-1, kind="stable"))
    found = np.argsort(values[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    return np.asarray(values.shape[-1] - 1 - found)


class Points(Evaluation):
    """All points of a few axes at once.

    Every expression becomes an array that broadcasts over them.
    """

    def __init__(self, axes: Sequence[Var], memory: Mapping[str, Values], held: Container[str] = ()) -> None:
        self.memory, self.held = memory, held
        self.shape = tuple(a.extent for a in axes)
        grids = np.meshgrid(*(np.arange(a.extent) for a in axes), indexing="ij", sparse=True)
        self.axes = dict(zip(axes, grids, strict=True))

    def axis(self, var: Var) -> Values:
        """Return the values of a variable along its dim."""
        return self.axes[var]

    def element(self, tensor: str, indices: tuple[Index, ...], inside: Values | None = None) -> Values:
        """Return the elements at indices, any value where not `inside`."""
        array = self.memory[tensor]
        places = [self.index(i) for i in indices]
        inside = self.live if inside is None else inside & self.live
        places = [np.where(inside, p, 0) for p in places]
        for place, extent in zip(places, array.shape, strict=True):
            assert np.all((place >= 0) & (place < extent)), f"{tensor} is read out of range"
        return np.asarray(array[tuple(places)])

    def where(self, condition: Values, expr: Expr) -> Values:
        """Return an expression that reads elements only where a condition holds."""
        with self.restricted_to(condition):
            return self.value(expr)
