"""ONNX's node tests with a size that varies, against each size.

A model's inputs have one open size: a dim of one of them, or all dims that are equally long. Padding holds NaN, the
greatest integer, or a value of the input where integers select elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import onnx
from cuts.compile.dynamic.dynamic_plan import elements_there
from cuts.frontends.onnx.load import load_onnx_for
from cuts.ir import CutsError, Dim, DType, Graph, size_samples
from cuts.numerics import run_reference
from cuts.ops import Registry
from cuts.ops.symbolic import BoundedGraph, bounded_graph, graphs_at_least
from cuts.tests.frontends.conformance import arrays_of

REGISTRY = Registry.builtin()
#: Sizes above a case's own that the range has: samples of its greatest ones are larger than the case.
MORE_SIZES = 5
#: Inputs and their axes of one size.
Axes: TypeAlias = frozenset[tuple[str, int]]
Arrays: TypeAlias = Mapping[str, Any]


def open_axes(arrays: Arrays) -> Iterator[Axes]:
    """Yield axes of one size: those of equal length, and each."""
    lengths = {(name, axis): size for name, x in arrays.items() for axis, size in enumerate(x.shape) if size > 1}
    equal = [frozenset(place for place in lengths if lengths[place] == size) for size in lengths.values()]
    yield from dict.fromkeys([*equal, *(frozenset({place}) for place in lengths)])


def arrays_at(arrays: Arrays, axes: Axes, size: int) -> dict[str, Any]:
    """Return inputs whose axes have a size; elements repeat."""
    found = {}
    for name, x in arrays.items():
        places = [np.arange(size) % n if (name, axis) in axes else np.arange(n) for axis, n in enumerate(x.shape)]
        found[name] = x[np.ix_(*places)] if places else x
    return found


def open_model(model: onnx.ModelProto, axes: Axes) -> onnx.ModelProto:
    """Return a model without the sizes of axes, and of results."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for value in made.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if (value.name, axis) in axes:
                dim.dim_param = "n"
    for value in made.graph.output:
        value.type.tensor_type.ClearField("shape")
    return made


def sized_fault(case: Any, axes: Axes) -> str | None:
    """Return the first difference from exact graphs, or "".

    It is None where the size cannot vary.
    """
    arrays, model = arrays_of(case), open_model(case.model, axes)
    (own,) = {arrays[name].shape[axis] for name, axis in axes}
    samples = size_samples((Dim("n", 1, own + MORE_SIZES),), {"n": 1})

    def graph_at(sizes: Mapping[str, int]) -> Graph:
        graph, known = load_onnx_for(model, arrays_at(arrays, axes, sizes["n"]))
        if any(name in known for name, _ in axes):
            raise CutsError("the size is one of values that select elements")
        return graph

    try:
        graphs = [graph_at(sizes) for sizes in samples.samples]
        bounded = bounded_graph(graphs, samples, REGISTRY.instances, [*graphs_at_least(samples, {"n": 1}, graph_at)])
    except CutsError:
        return None
    faults = (_fault_at(graph_at, bounded, arrays_at(arrays, axes, n), n) for n in (1, 2, own - 1, own, own + 3))
    return next(filter(None, faults), "")


def _fault_at(graph_at: Any, bounded: BoundedGraph, arrays: Arrays, size: int) -> str:
    try:
        graph = graph_at({"n": size})
        wanted = run_reference(graph, REGISTRY, {name: arrays[name] for name in graph.inputs})
    except CutsError:
        return ""  # integers select elements that this size has not
    sizes = {source.tensor: np.array(size - source.low, np.int32) for source in bounded.sizes.values()}
    whole: dict[str, Any] = {}
    with np.errstate(all="ignore"):
        try:
            whole = run_reference(bounded.graph, REGISTRY, sizes | _with_padding(arrays, bounded, extreme=True))
        except CutsError:
            whole = run_reference(bounded.graph, REGISTRY, sizes | _with_padding(arrays, bounded, extreme=False))
    for name, want in wanted.items():
        found = elements_there(whole[name], bounded.layouts[name], {"n": size})
        if (found.dtype, found.shape) != (want.dtype, want.shape):
            return f"n={size}: {name}: expected shape {want.shape}, found {found.shape}"
        if not _agree(found, want):
            return f"n={size}: {name}: expected {want.ravel()[:4]}, found {found.ravel()[:4]}"
    return ""


def _with_padding(arrays: Arrays, bounded: BoundedGraph, *, extreme: bool) -> dict[str, Any]:
    found = {}
    for name in (name for name in arrays if name in bounded.graph.inputs):
        array = arrays[name]
        whole = np.empty(bounded.graph.types[name].shape, array.dtype)
        whole[...] = _padding(array, extreme)
        whole[tuple(slice(0, n) for n in array.shape)] = array
        found[name] = whole
    return found


def _padding(array: Any, extreme: bool) -> Any:
    if array.dtype.kind in "iu":
        return np.iinfo(array.dtype).max if extreme else array.max()
    return True if array.dtype.kind == "b" else np.nan


def _agree(found: Any, wanted: Any) -> bool:
    """Return whether results differ by a few roundings of the largest one."""
    if wanted.dtype.kind in "biu" or not wanted.size:
        return bool(np.array_equal(found, wanted))
    numbers = wanted.astype(float)
    largest = np.abs(numbers[np.isfinite(numbers)]).max(initial=0)
    is_float = wanted.dtype.kind == "f" or wanted.dtype == DType.BF16.numpy
    rounding = 4 * float(ml_dtypes.finfo(wanted.dtype).eps) * float(largest) if is_float else 0.0
    return bool(np.allclose(found.astype(float), numbers, 0, rounding, equal_nan=True))
