"""Oracle: expected outputs of a normal form, evaluated in float64.

Cheap outputs are evaluated whole, others at random elements and along the borders. Evaluating a large convolution in
float64 takes minutes, so a large group is checked in two steps. A kernel of a simple schedule is compared with the
float64 value of about two thousand elements, for long sums a few hundred. Every other kernel is then compared with all
elements of that one, and with the same values. The allowed difference is derived: sums of n terms err like the square
root of n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import frozen

from ...ir import COMBINERS, FusedGroup, Index, Output, Segment, Var, as_index, working_dtype
from ...passes.fusion import Points, along_row, interpret

Array = npt.NDArray[Any]

#: Evaluated elements of each output whose whole is too expensive.
SAMPLES = 2000
#: Scalar evaluations beyond which fewer elements of long sums are evaluated, about a second of a core, and the smallest
#: number of elements then.
MAX_SAMPLE_EVALUATIONS, MIN_SAMPLED_ELEMENTS = 20_000_000, 400
#: Largest number of scalar evaluations of a group that is evaluated whole.
MAX_WHOLE_EVALUATIONS = 1_000_000
#: Scalar evaluations at once, which limits memory.
_AT_ONCE = 4_000_000


@frozen(eq=False)
class Sample:
    """Values of a tensor at `places`, an index array per dimension."""

    places: tuple[Array, ...]
    values: Array


def evaluations(form: FusedGroup) -> int:
    """Return the number of scalar evaluations of a group."""
    total = 0
    for segment in form.segments:
        points = prod(a.extent for a in segment.axes)
        total += points * sum(prod(v.extent for v in r.reduce) for r in segment.reductions)
        total += points * sum(prod(v.extent for v in o.extra) for o in segment.outputs)
    return total


def expected_outputs(
    form: FusedGroup, arrays: Mapping[str, Array], count: int = SAMPLES, seed: int = 0
) -> dict[str, Sample]:
    """Return the expected outputs, at every written element or at a sample.

    All elements are evaluated if that is cheap.
    """
    if evaluations(form) <= MAX_WHOLE_EVALUATIONS:
        found = interpret(form, arrays)
        places = {name: _written_places(form, name) for name in found}
        return {name: Sample(places[name], np.atleast_1d(value[places[name]])) for name, value in found.items()}
    result: dict[str, list[Sample]] = {name: [] for name in form.outputs}
    generator = np.random.default_rng(seed)
    for segment in form.segments:
        wanted = [o for o in segment.outputs if o.tensor in result]
        if wanted:
            for tensor, sample in _segment_sample(form, segment, wanted, arrays, count, generator):
                result[tensor].append(sample)
    return {name: _concatenate(samples) for name, samples in result.items()}


def _written_places(form: FusedGroup, tensor: str) -> tuple[Array, ...]:
    """Return the indices of all elements that a group writes (a part of a concatenation skips the others)."""
    mask = np.zeros(form.tensors[tensor].shape, bool)
    for segment in form.segments:
        for output in segment.outputs:
            if output.tensor == tensor:
                space = Points((*segment.axes, *output.extra), {})
                kept = (
                    np.broadcast_to(space.inside(output.guards), space.shape)
                    if output.guards
                    else np.ones(space.shape, bool)
                )
                mask[tuple(np.broadcast_to(space.index(w), space.shape)[kept] for w in output.write)] = True
    return tuple(np.argwhere(mask).T)  # `nonzero` has no result for a tensor without axes


def _concatenate(samples: Sequence[Sample]) -> Sample:
    places = tuple(np.concatenate(parts) for parts in zip(*(s.places for s in samples), strict=True))
    return Sample(places, np.concatenate([s.values for s in samples]))


def _coordinates(axes: Sequence[Var], count: int, generator: np.random.Generator) -> dict[Var, Array]:
    """Return coordinates of instances: random ones, and as many again with one axis at its first or last index.

    Where there are no more instances than that, each is returned once.
    """
    extents = [a.extent for a in axes]
    if prod(extents) <= 2 * count:
        return {a: column.reshape(-1) for a, column in zip(axes, np.indices(extents), strict=True)}
    columns = {a: generator.integers(0, a.extent, 2 * count) for a in axes}
    for number, axis in enumerate(axes):
        chosen = slice(count + number, None, max(1, len(axes)))
        side = generator.integers(0, 2, len(columns[axis][chosen]))
        columns[axis][chosen] = side * (axis.extent - 1)
    return columns


def _segment_sample(
    form: FusedGroup,
    segment: Segment,
    outputs: Sequence[Output],
    arrays: Mapping[str, Array],
    count: int,
    generator: np.random.Generator,
) -> list[tuple[str, Sample]]:
    row = max((prod(v.extent for v in o.extra) for o in outputs), default=1)
    count = min(count, max(MIN_SAMPLED_ELEMENTS, row * MAX_SAMPLE_EVALUATIONS // max(1, _widest(segment))))
    columns = _coordinates(segment.axes, max(8, count // (2 * row)), generator)
    size = len(next(iter(columns.values()))) if columns else 1
    step = max(1, _AT_ONCE // max(1, _widest(segment)))
    found = []
    for start in range(0, size, step):
        part = {a: c[start : start + step] for a, c in columns.items()}
        found += _values(form, segment, outputs, arrays, part, min(step, size - start))
    return found


def _widest(segment: Segment) -> int:
    spaces = [r.reduce for r in segment.reductions] + [o.extra for o in segment.outputs]
    return max((prod(v.extent for v in space) for space in spaces), default=1)


def _values(
    form: FusedGroup,
    segment: Segment,
    outputs: Sequence[Output],
    arrays: Mapping[str, Array],
    columns: Mapping[Var, Array],
    size: int,
) -> list[tuple[str, Sample]]:
    """Return outputs of a segment at instances given by a coordinate array per axis."""
    held: dict[str, Array] = {}
    for reduction in segment.reductions:
        space = _ChosenElements(form, columns, size, reduction.reduce, arrays, held)
        values: Array = np.broadcast_to(space.value(reduction.body), space.shape).reshape(size, -1)
        if reduction.along:
            held[reduction.name] = along_row(reduction, values)
            continue
        held[reduction.name] = COMBINERS[reduction.combine].function.numpy.reduce(values, axis=1)  # type: ignore[attr-defined]
    found = []
    for output in outputs:
        space = _ChosenElements(form, columns, size, output.extra, arrays, held)
        places = tuple(np.broadcast_to(space.index(w), space.shape).reshape(-1) for w in output.write)
        values = np.broadcast_to(space.value(output.body), space.shape).reshape(-1)
        kept = (
            np.broadcast_to(space.inside(output.guards), space.shape).reshape(-1)
            if output.guards
            else np.ones(len(values), bool)
        )
        found.append((output.tensor, Sample(tuple(p[kept] for p in places), np.asarray(values)[kept])))
    return found


class _ChosenElements(Points):
    """Row spaces of some instances of a segment.

    The instances vary along the first dimension, row variables along the others. A tensor in shared memory has no
    array: its elements are computed by the segment that writes it.
    """

    def __init__(
        self,
        form: FusedGroup,
        columns: Mapping[Var, Array],
        size: int,
        rows: Sequence[Var],
        arrays: Mapping[str, Array],
        held: Mapping[str, Array],
    ) -> None:
        super().__init__(rows, arrays, held)
        rank = len(rows)
        self.form, self.values_held = form, held
        self.shape = (size, *self.shape)
        self.axes = {v: grid[np.newaxis] for v, grid in self.axes.items()}
        self.axes |= {a: column.reshape(-1, *[1] * rank) for a, column in columns.items()}
        self._rank = rank

    def element(self, tensor: str, indices: tuple[Index, ...], inside: Array | None = None) -> Array:
        """Return elements in float64; reduction results are those of the same instance."""
        if tensor in self.values_held:
            found = self.values_held[tensor]
            return found if found.ndim > 1 else found.reshape(-1, *[1] * self._rank)
        if tensor in self.form.shared:
            return self._compute(tensor, indices, inside)
        if tensor in self.form.constants and tensor not in self.memory:
            table = np.reshape(np.asarray(self.form.constants[tensor], np.float64), self.form.tensors[tensor].shape)
            self.memory = {**self.memory, tensor: table}
        found = super().element(tensor, indices, inside)
        return found.astype(working_dtype(self.form.tensors[tensor].dtype))

    def _compute(self, tensor: str, indices: Sequence[Index], inside: Array | None) -> Array:
        segment, output = next((s, o) for s in self.form.segments for o in s.outputs if o.tensor == tensor)
        asked = [self.index(i) for i in indices]
        if inside is not None:
            asked = [np.where(inside, p, 0) for p in asked]
        places = np.broadcast_arrays(*asked)
        axes = _written_axes(output)
        along = [n for n, axis in enumerate(axes) if axis in output.extra]
        # Rows are computed whole, once for all requested elements.
        shape = tuple(1 if n in along else extent for n, extent in enumerate(self.form.tensors[tensor].shape))
        first = [np.zeros(p.size, np.int64) if n in along else p.reshape(-1) for n, p in enumerate(places)]
        unique, inverse = np.unique(np.ravel_multi_index(first, shape), return_inverse=True)
        wanted = np.unravel_index(unique, shape)
        axes = [None if n in along else axis for n, axis in enumerate(axes)]
        step = max(1, _AT_ONCE // max(1, _widest(segment)))
        parts = []
        for start in range(0, len(unique), step):
            columns = {a: w[start : start + step] for a, w in zip(axes, wanted, strict=True) if a is not None}
            columns |= {
                a: np.zeros(len(wanted[0][start : start + step]), np.int64) for a in segment.axes if a not in columns
            }
            ((_, sample),) = _values(
                self.form, segment, [output], self.memory, columns, len(next(iter(columns.values())))
            )
            parts.append(sample.values)
        found = np.concatenate(parts)
        if along:
            lengths = [v.extent for v in output.extra]
            order = [n for v in output.extra for n in along if output.write[n] == as_index(v)]
            inverse = inverse * prod(lengths) + np.ravel_multi_index([places[n].reshape(-1) for n in order], lengths)
        return found[inverse].reshape(places[0].shape)


def _written_axes(output: Output) -> list[Var | None]:
    """Return the axis of each index of a shared tensor; such a tensor is written by one dim per axis."""
    found: list[Var | None] = []
    for index in output.write:
        primaries = [primary for primary, _ in index.terms]
        assert len(primaries) <= 1 and index.const == 0 and all(isinstance(a, Var) for a in primaries), (
            "shared tensors are written in place"
        )
        found.append(primaries[0] if primaries and isinstance(primaries[0], Var) else None)
    return found
