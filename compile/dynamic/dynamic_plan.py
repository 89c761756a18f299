"""Plan for a range of sizes, by buckets.

One bucket serves each call. It computes in memory with room for its greatest sizes. Kernels read the true sizes from
scalar inputs, so that no element that is there depends on one that is not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from attrs import field, frozen

from ...ir import Array, Dim, DimLayout, GraphError, SymbolicExtent, Target, TensorType, UsageError, quote
from ...numerics import Comparison, compare
from ...runtime import (
    DynamicRecord,
    PlannedBucket,
    check_names,
    checked_inputs,
    host_array,
    load_stages,
    random_inputs,
    save_dynamic,
)
from ..plan import CompiledPlan
from ..portable_plan import PortablePlan

Sizes = Mapping[str, int]


@frozen(eq=False)
class BucketPlan:
    """Plan for all sizes up to the greatest ones, `sizes`.

    `scalars` has the input of each dim that a kernel reads, which holds the size minus the least one; `layouts` the
    places of the elements of inputs and outputs, `fixed` the results that are sizes, `counts` the output with the size
    of each computed dim.
    """

    sizes: Sizes
    scalars: Mapping[str, str]
    layouts: Mapping[str, tuple[DimLayout, ...]]
    fixed: Mapping[str, SymbolicExtent]
    counts: Mapping[str, str]
    plan: CompiledPlan
    memory: dict[str, Array] = field(factory=dict, repr=False)
    running: Any = field(factory=Lock, repr=False)

    def room(self, inputs: Mapping[str, Array], sizes: Sizes, low: Sizes) -> dict[str, Array]:
        """Return inputs in arrays of the greatest sizes, and size scalars."""
        found = {name: self._with_room(name, array) for name, array in inputs.items()}
        return found | {name: np.array(sizes[dim] - low[dim], np.int32) for dim, name in self.scalars.items()}

    def _with_room(self, name: str, array: Array) -> Array:
        """Return an array of the greatest shape that begins with another one; elsewhere it holds any valid elements."""
        shape = self.plan.plan.types[name].shape
        if array.shape == shape:
            return array
        if name not in self.memory:
            self.memory[name] = np.zeros(shape, array.dtype)
        self.memory[name][tuple(slice(0, n) for n in array.shape)] = array
        return self.memory[name]

    def results(self, found: Mapping[str, Any], sizes: Sizes) -> dict[str, Any]:
        """Return the present elements of outputs, and results that are sizes."""
        made: dict[str, Any] = {}
        sizes = {**sizes, **{dim: int(found[name]) for dim, name in self.counts.items()}}
        for name, value in found.items():
            if name in self.counts.values():
                continue
            if name in self.fixed:
                made[name] = self.fixed[name].at(sizes)
            elif name in self.layouts and isinstance(value, np.ndarray):
                made[name] = elements_there(value, self.layouts[name], sizes)
            else:
                made[name] = value
        return made


def elements_there(array: Array, layouts: Sequence[DimLayout], sizes: Sizes) -> Array:
    """Return the elements of an array in memory that are there."""
    factors = [factor for layout in layouts for factor in layout]
    if all(factor.extent.at(sizes) == factor.capacity for factor in factors):
        return array
    whole = array.reshape([factor.capacity for factor in factors])
    part = whole[tuple(slice(0, factor.extent.at(sizes)) for factor in factors)]
    shape = [int(np.prod([factor.extent.at(sizes) for factor in layout])) for layout in layouts]
    return np.ascontiguousarray(part).reshape(shape)


class DynamicPlan(PortablePlan):
    """Plan for a range of sizes.

    Each of its buckets has memory for its greatest sizes. A run takes the first bucket with room and compiles nothing:
    operations that need the true sizes, such as a mean over a dim or its last element, read them from scalar inputs,
    and no present element depends on padding.

    A dim is named by the caller, as a symbol of the model, or after the first axis that has its size (`x.0`). The model
    is imported at some sizes; a number that differs must be an affine extent of the dims, such as `32*h`, and state has
    one size. Buckets end at powers of two, but for those whose next one takes at most a tenth longer by the cost model.

    Threads that call `run` on one bucket wait for one another.
    """

    def __init__(self, name: str, target: Target, dims: Sequence[Dim], buckets: Sequence[BucketPlan]) -> None:
        self.name = name
        self.target = target
        self.dims = tuple(dims)
        self.buckets = tuple(sorted(buckets, key=lambda bucket: tuple(bucket.sizes.values())))
        self._low = {dim.name: dim.low for dim in self.dims}
        self._largest = next(b for b in self.buckets if all(b.sizes[d.name] == d.high for d in self.dims))
        self.shapes = {name: self._shape(name) for name in self.inputs}
        self._check_dims()

    def __repr__(self) -> str:
        """Return the inputs with their dims, the ranges, the buckets, and the target."""
        given = ", ".join(f"{name}: {self._text(name)}" for name in self.inputs)
        ranges, count = ", ".join(map(str, self.dims)), len(self.buckets)
        return f"DynamicPlan({self.name!r}: ({given}), {ranges}, {count} buckets, for {self.target.name})"

    @property
    def inputs(self) -> Mapping[str, TensorType]:
        """The types of the inputs at the greatest sizes."""
        scalars = set(self._largest.scalars.values())
        return {name: type_ for name, type_ in self._largest.plan.inputs.items() if name not in scalars}

    @property
    def outputs(self) -> Mapping[str, TensorType]:
        """The types of the outputs at the greatest sizes."""
        counts = self._largest.counts.values()
        return {name: type_ for name, type_ in self._largest.plan.outputs.items() if name not in counts}

    @property
    def parts(self) -> tuple[CompiledPlan, ...]:
        """Plans of the buckets."""
        return tuple(bucket.plan for bucket in self.buckets)

    @property
    def complete(self) -> bool:
        """Return whether every search finished within its budget."""
        return all(part.complete for part in self.parts)

    def own_operations(self) -> tuple[str, ...]:
        """Return the user-declared operations of the model, in order."""
        return self._largest.plan.own_operations()

    def _shape(self, name: str) -> tuple[SymbolicExtent, ...]:
        return tuple(factor.extent for (factor,) in self._largest.layouts[name])

    def _text(self, name: str) -> str:
        return f"{self.inputs[name].dtype}[{', '.join(map(str, self.shapes[name]))}]"

    def _check_dims(self) -> None:
        """Raise where the size of a dim follows from no input."""
        found = {e.terms[0][0] for shape in self.shapes.values() for e in shape if len(e.terms) == 1}
        missing = [dim.name for dim in self.dims if dim.low < dim.high and dim.name not in found]
        if missing:
            raise GraphError(f"the size of dim {quote(missing[0])} follows from no input", hint="fix its size")

    # ---- sizes of a call

    def sizes_of(self, inputs: Mapping[str, Array]) -> dict[str, int]:
        """Return the size of each dim, from the shapes of the inputs.

        Raises `UsageError` where one is out of its range, and where the shapes contradict each other.
        """
        sizes = {dim.name: dim.low for dim in self.dims if dim.low == dim.high}
        for name, array in inputs.items():
            self._check_rank(name, array.shape)
            for axis, (extent, size) in enumerate(zip(self.shapes[name], array.shape, strict=True)):
                if len(extent.terms) == 1 and extent.terms[0][0] not in sizes:
                    sizes[extent.terms[0][0]] = self._size(name, axis, extent, size)
        for name, array in inputs.items():
            expected = tuple(extent.at(sizes) for extent in self.shapes[name])
            if array.shape != expected:
                known = ", ".join(f"{dim}={size}" for dim, size in sizes.items())
                raise UsageError(
                    f"input {quote(name)}: expected {self._text(name)} with {known}, which is {list(expected)}, found "
                    f"{list(array.shape)}"
                )
        return sizes

    def _check_rank(self, name: str, shape: tuple[int, ...]) -> None:
        if len(shape) != len(self.shapes[name]):
            raise UsageError(f"input {quote(name)}: expected {self._text(name)}, found shape {list(shape)}")

    def _size(self, name: str, axis: int, extent: SymbolicExtent, size: int) -> int:
        ((dim_name, factor),) = extent.terms
        dim = next(dim for dim in self.dims if dim.name == dim_name)
        found, rest = divmod(size - extent.const, factor)
        if rest or not dim.low <= found <= dim.high:
            low, high = extent.at({dim_name: dim.low}), extent.at({dim_name: dim.high})
            expected = f"{low}..{high}" + (f" ({extent})" if extent.const or factor != 1 else "")
            raise UsageError(
                f"input {quote(name)}: dim {axis} ({dim_name}): expected a size of {expected}, found {size}",
                hint=f"the plan is for {dim}; compile it for another range to run other sizes",
            )
        return found

    def bucket_of(self, sizes: Sizes) -> BucketPlan:
        """Return the first bucket with room for sizes."""
        return next(b for b in self.buckets if all(b.sizes[name] >= size for name, size in sizes.items()))

    # ---- runs

    def _host_inputs(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, int]]:
        """Return the inputs as host arrays, checked, and the sizes."""
        check_names(tuple(self.inputs), inputs)
        arrays = {name: host_array(name, inputs[name]) for name in self.inputs}
        sizes = self.sizes_of(arrays)
        types = {name: TensorType(type_.dtype, arrays[name].shape) for name, type_ in self.inputs.items()}
        return checked_inputs(types, tuple(types), inputs), sizes

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run the first bucket with room; return a dict of arrays.

        Raises `UsageError` for a size out of range.
        """
        arrays, sizes = self._host_inputs(inputs)
        bucket = self.bucket_of(sizes)
        with bucket.running:
            found = bucket.plan.run(bucket.room(arrays, sizes, self._low))
        return bucket.results(found, sizes)

    def reference(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Compute the outputs in float64 from the declarations of the bucket's graph."""
        arrays, sizes = self._host_inputs(inputs)
        bucket = self.bucket_of(sizes)
        with bucket.running:
            return bucket.results(bucket.plan.reference(bucket.room(arrays, sizes, self._low)), sizes)

    def part_inputs(self, inputs: Mapping[str, Any]) -> Iterator[tuple[CompiledPlan, Mapping[str, Any]]]:
        """Yield the plan that serves inputs, with its own inputs."""
        arrays, sizes = self._host_inputs(inputs)
        bucket = self.bucket_of(sizes)
        with bucket.running:
            yield bucket.plan, bucket.room(arrays, sizes, self._low)

    def random_inputs(self, seed: int = 0, sizes: Sizes | None = None) -> dict[str, Array]:
        """Return random inputs of the right types.

        They have the greatest sizes unless `sizes` are given.
        """
        at = {dim.name: dim.high for dim in self.dims} | dict(sizes or {})
        types = {
            name: TensorType(type_.dtype, tuple(extent.at(at) for extent in self.shapes[name]))
            for name, type_ in self.inputs.items()
        }
        return random_inputs(types, tuple(types), seed)

    def verify(
        self, inputs: Mapping[str, Any] | None = None, oracle: Mapping[str, Any] | None = None
    ) -> tuple[Comparison, ...]:
        """Run and compare every output with an oracle.

        The oracle is the float64 reference, unless its values are given.
        Without inputs each bucket runs on its greatest and its least sizes.

        Raises `GraphError` where the oracle lacks an output.
        """
        given = [inputs] if inputs is not None else [self.random_inputs(sizes=sizes) for sizes in self._corners()]
        return tuple(result for each in given for result in self._compare(each, oracle))

    def _corners(self) -> Iterator[Sizes]:
        for bucket in self.buckets:
            yield bucket.sizes
            below = [b.sizes for b in self.buckets if b is not bucket]
            yield {
                name: max([s[name] + 1 for s in below if s[name] < size], default=self._low[name])
                for name, size in bucket.sizes.items()
            }

    def _compare(self, inputs: Mapping[str, Any], oracle: Mapping[str, Any] | None) -> Iterator[Comparison]:
        found, expected = self.run(inputs), oracle or self.reference(inputs)
        allowed = self.bucket_of(self._host_inputs(inputs)[1]).plan.tolerances()
        for name, value in found.items():
            if name not in expected:
                raise GraphError(f"the oracle has no output {quote(name)}")
            if isinstance(value, np.ndarray):
                yield compare(name, value, expected[name], (1 if oracle is None else 2) * allowed[name])

    # ---- files

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the plan's folder atomically."""
        buckets = tuple(
            PlannedBucket(b.sizes, b.scalars, b.layouts, b.fixed, b.counts, b.plan.plan) for b in self.buckets
        )
        save_dynamic(DynamicRecord(self.name, self.target, self.dims, buckets), folder)

    def reopen(self) -> Callable[[Path], DynamicPlan]:
        return open_dynamic


def open_dynamic(folder: str | os.PathLike[str]) -> DynamicPlan:
    """Open the folder of a plan for a range of sizes."""
    record = load_stages(folder, DynamicRecord)
    buckets = [
        BucketPlan(b.sizes, b.scalars, b.layouts, b.fixed, b.counts, CompiledPlan(b.plan)) for b in record.buckets
    ]
    return DynamicPlan(record.name, record.target, record.dims, buckets)
