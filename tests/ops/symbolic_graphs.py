"""Random graphs whose sizes vary, as functions of their sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import evolve, frozen
from cuts.frontends import infer_types
from cuts.ir import Array, Dim, DType, Graph, Node, TensorType, size_samples
from cuts.numerics import run_reference
from cuts.ops import Registry
from cuts.ops.symbolic import BoundedGraph, bounded_graph, graphs_at_least
from hypothesis import strategies as st

Sizes = Mapping[str, int]
#: Extent of a dim: a number, the name of a dim, or a multiple of one.
Extents = tuple[int | str, ...]
REGISTRY = Registry.builtin()


@frozen
class SizedGraph:
    """Graph by its sizes: extents of inputs, and nodes."""

    inputs: Mapping[str, Extents]
    nodes: Sequence[tuple[str, tuple[str, ...], Callable[[Sizes], dict[str, Any]]]]
    outputs: tuple[str, ...]

    def at(self, sizes: Sizes) -> Graph:
        """Return the graph at sizes."""
        types = {
            name: TensorType(DType.F32, tuple(size_at(n, sizes) for n in extents))
            for name, extents in self.inputs.items()
        }
        nodes = tuple(
            Node(f"n{number}", op, operands, (f"v{number}",), attributes(sizes))
            for number, (op, operands, attributes) in enumerate(self.nodes)
        )
        graph = Graph("g", tuple(self.inputs), self.outputs, types, nodes)
        return evolve(graph, types=infer_types(graph, REGISTRY.instances.infer))

    def graph_of_range(self, dims: tuple[Dim, ...]) -> BoundedGraph:
        """Return the graph for all sizes of the dims."""
        least = {dim.name: dim.low for dim in dims}
        samples = size_samples(dims, least)
        ends = list(graphs_at_least(samples, least, self.at))
        return bounded_graph([self.at(sizes) for sizes in samples.samples], samples, REGISTRY.instances, ends)

    def random_inputs(self, sizes: Sizes, seed: int = 0) -> dict[str, Array]:
        """Return inputs of the shapes at sizes."""
        generator = np.random.default_rng(seed)
        shapes = {n: tuple(size_at(e, sizes) for e in extents) for n, extents in self.inputs.items()}
        return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def padded_inputs(bounded: BoundedGraph, arrays: Mapping[str, Array], sizes: Sizes) -> dict[str, Array]:
    """Return inputs padded by NaN, and the scalars of the sizes."""
    found: dict[str, Array] = {}
    for name, array in arrays.items():
        padding = 0 if array.dtype.kind in "biu" else np.nan
        found[name] = np.full(bounded.graph.types[name].shape, padding, array.dtype)
        found[name][tuple(slice(0, n) for n in array.shape)] = array
    return found | {s.tensor: np.array(sizes[dim] - s.low, np.int32) for dim, s in bounded.sizes.items()}


def present(bounded: BoundedGraph, name: str, array: Array, sizes: Sizes) -> Array:
    """Return the elements of an output that are there."""
    layouts = bounded.layouts[name]
    whole = array.reshape([factor.capacity for layout in layouts for factor in layout])
    part = whole[tuple(slice(0, factor.extent.at(sizes)) for layout in layouts for factor in layout)]
    return part.reshape([math.prod(factor.extent.at(sizes) for factor in layout) for layout in layouts])


def check_sizes(graph: SizedGraph, dims: tuple[Dim, ...], all_sizes: Sequence[Sizes]) -> None:
    """Compare the graph of a range with that at each size."""
    bounded = graph.graph_of_range(dims)
    for sizes in all_sizes:
        arrays = graph.random_inputs(sizes)
        with np.errstate(all="ignore"):
            found = run_reference(bounded.graph, REGISTRY, padded_inputs(bounded, arrays, sizes))
            expected = run_reference(graph.at(sizes), REGISTRY, arrays)
        for name, value in expected.items():
            got = present(bounded, name, found[name], sizes)
            np.testing.assert_allclose(got, value, rtol=1e-6, atol=1e-9, err_msg=f"{name} at {dict(sizes)}")


# ---- random graphs

#: A step: an operation, its attributes, and the extents of its result.
Step = tuple[str, Callable[[Sizes], dict[str, Any]], Extents]


def _no(_: Sizes) -> dict[str, Any]:
    return {}


def _last(size: int, axis: int) -> dict[str, Any]:
    return {"starts": [size - 1], "ends": [size], "axes": [axis]}


def _steps(shape: Extents, merged: bool) -> list[Step]:
    """Return the steps that a value of a shape may take."""
    rank, found = len(shape), list[Step]()
    found += [(op, _no, shape) for op in ("relu", "sigmoid", "tanh")]
    for axis in range(rank):
        along = {"axis": axis}
        found += [(op, lambda _, a=along: dict(a), shape) for op in ("softmax", "log_softmax", "cumsum")]
        for op in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_l2"):
            found.append((op, lambda _, a=axis: {"axes": [a]}, (*shape[:axis], 1, *shape[axis + 1 :])))
        if merged:
            continue
        last = (*shape[:axis], 1, *shape[axis + 1 :])
        found.append(("slice", lambda s, n=shape[axis], a=axis: _last(size_at(n, s), a), last))
        back = {"starts": [-1], "ends": [-(1 << 20)], "axes": [axis], "steps": [-1]}
        found.append(("slice", lambda _, b=back: dict(b), shape))
    if rank > 1:
        turned = (*shape[:-2], shape[-1], shape[-2])
        perm = [*range(rank - 2), rank - 1, rank - 2]
        found.append(("transpose", lambda _: {"perm": perm}, turned))
    if rank == 3 and not merged and not all(isinstance(n, int) for n in shape[:2]):
        found.append(("reshape", lambda s: {"shape": [-1, size_at(shape[2], s)]}, ()))
    return found


def size_at(extent: int | str, sizes: Sizes) -> int:
    """Return an extent, `n` or `4*n` or a number, at sizes."""
    if isinstance(extent, int):
        return extent
    factor, _, name = extent.rpartition("*")
    return int(factor or 1) * sizes[name]


@st.composite
def sized_graphs(draw: st.DrawFn, dims: Sequence[str]) -> SizedGraph:
    """Draw a chain of operations, with products of a value with itself."""
    extents = st.sampled_from([*dims, 3, 4])
    shape: Extents = (*draw(st.tuples(extents, extents)), draw(st.sampled_from([*dims, 5])))
    inputs = {"x": shape}
    nodes: list[tuple[str, tuple[str, ...], Callable[[Sizes], dict[str, Any]]]] = []
    value, merged, outputs = "x", False, list[str]()
    for _ in range(draw(st.integers(1, 5))):
        if len(shape) == 3 and not merged and draw(st.integers(0, 3)) == 0:
            nodes.append(("transpose", (value,), lambda _: {"perm": [0, 2, 1]}))
            nodes.append(("matmul", (value, f"v{len(nodes) - 1}"), _no))
            shape = (shape[0], shape[1], shape[1])
        else:
            op, attributes, made = draw(st.sampled_from(_steps(shape, merged)))
            merged, shape = merged or op == "reshape", made or (0, shape[2])
            nodes.append((op, (value,), attributes))
        value = f"v{len(nodes) - 1}"
        if draw(st.integers(0, 3)) == 0:
            outputs.append(value)
    return SizedGraph(inputs, nodes, tuple(dict.fromkeys((*outputs, value))))
