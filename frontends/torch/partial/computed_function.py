"""Captured graphs whose results have numbers of rows that depend on values.

Kernels compute in memory with room for the most rows, and read the number from the device. A call waits for it, and
gives the rows that are there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from attrs import evolve

from ....ir import CutsError, DimLayout, SizeSamples, SymbolicExtent, size_samples
from ....ops.symbolic import ComputedSizes, bounded_graph, graphs_at_least
from ..calls import map_nodes
from ..captured_graph import CapturedGraph
from ..dispatch import results
from ..loading import computed_dims, computed_symbols, graph_of_nodes
from ..result_memory import dense_strides

#: Compiles a captured graph as a function of its inputs.
CompileCaptured = Callable[[CapturedGraph], Callable[..., list[Any]]]
#: Result of a graph: where its elements are, or the size that it is; and strides that are not dense.
_Form = tuple[Sequence[DimLayout] | None, SymbolicExtent | None, Sequence[SymbolicExtent] | None]


def compile_computed(graph: torch.fx.Graph, compile_captured: CompileCaptured) -> Callable[..., list[Any]] | None:
    """Compile a graph with computed sizes; return None where it has none.

    Raises `CutsError` where they enter it otherwise than as affine extents.
    """
    symbols = list(computed_symbols(graph))
    if not symbols:
        return None
    graph, given = _without_inputs(graph)
    dims = computed_dims(graph, lambda part, computed: graph_of_nodes(part, computed=computed))
    least, bounds = {dim.name: 0 for dim in dims}, {dim.name: dim.high for dim in dims}
    samples = size_samples(dims, least)

    def captured_at(sizes: Mapping[str, int]) -> CapturedGraph:
        return graph_of_nodes(graph, computed=ComputedSizes(sizes, bounds))

    found = [captured_at(sizes) for sizes in samples.samples]
    ends = tuple(graphs_at_least(samples, least, lambda sizes: captured_at(sizes).graph))
    first = found[0]
    bounded = bounded_graph([each.graph for each in found], samples, first.registry.instances, ends)
    forms: list[_Form] = []
    for number, (name, node) in enumerate(zip(first.results, results(graph), strict=True)):
        values = tuple(each.results[number] for each in found)
        extent = samples.fit(values) if all(type(value) is int for value in values) else None  # type: ignore[arg-type]
        if extent is None and any(value != name for value in values):
            raise CutsError("a result is another one at other sizes")
        forms.append((bounded.layouts.get(str(name)), extent, _strides(node, symbols, samples)))
    counts = tuple(bounded.counts.values())
    captured = evolve(first, graph=bounded.graph, results=(*first.results, *counts), reimport=None)
    return partial(_call, compile_captured(captured), tuple(bounded.counts), bounds, forms, given)


def _without_inputs(graph: torch.fx.Graph) -> tuple[torch.fx.Graph, tuple[int | None, ...]]:
    """Return a graph without results that are inputs, and the number of the input that each result is.

    Raises `CutsError` where results share memory otherwise.
    """
    places = {node: number for number, node in enumerate(graph.find_nodes(op="placeholder"))}
    found = results(graph)
    given = tuple(places.get(node) if isinstance(node, torch.fx.Node) else None for node in found)
    others = [node for node, place in zip(found, given, strict=True) if place is None]
    distinct = {node for node in (*places, *others) if isinstance(node, torch.fx.Node)}
    tensors = [v for node in distinct if isinstance(v := node.meta.get("val"), torch.Tensor)]
    if len({tensor.untyped_storage()._cdata for tensor in tensors}) < len(tensors):
        raise CutsError("results are views of inputs, or of one another")
    made = torch.fx.Graph(owning_module=graph.owning_module)
    known: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        if node.op != "output":
            known[node] = made.node_copy(node, known.__getitem__)
    made.output(map_nodes(tuple(others), known))
    return made, given


def _call(
    run: Callable[..., list[Any]], dims: Sequence[str], bounds: Mapping[str, int], forms: Sequence[_Form],
    given: Sequence[int | None], *arguments: Any,
) -> list[Any]:  # fmt: skip
    (*found,) = run(*arguments)
    numbers = found[len(forms) :]
    counts = torch.stack(numbers).tolist() if len(numbers) > 1 else [count.item() for count in numbers]
    sizes = {**bounds, **dict(zip(dims, counts, strict=True))}
    made = (_present(value, form, sizes) for value, form in zip(found, forms, strict=False))
    return [next(made) if place is None else arguments[place] for place in given]


def _present(value: Any, form: _Form, sizes: Mapping[str, int]) -> Any:
    layouts, extent, strides = form
    if extent is not None:
        return extent.at(sizes)
    if layouts is None or not isinstance(value, torch.Tensor):
        return value
    part = present_elements(value, layouts, sizes)
    if strides is None:
        return part
    wanted = [extent.at(sizes) for extent in strides]
    if all(n == 1 or a == b for n, a, b in zip(part.shape, part.stride(), wanted, strict=True)):
        return part.as_strided(part.shape, wanted)
    return part.new_empty_strided(part.shape, wanted).copy_(part)


def present_elements(found: torch.Tensor, layouts: Sequence[DimLayout], sizes: Mapping[str, int]) -> torch.Tensor:
    """Return the elements of a tensor in memory that are there."""
    factors = [factor for layout in layouts for factor in layout]
    if all(factor.extent.at(sizes) == factor.capacity for factor in factors):
        return found
    whole = found.view([factor.capacity for factor in factors])
    part = whole[tuple(slice(0, factor.extent.at(sizes)) for factor in factors)]
    return part.reshape([_extent(layout, sizes) for layout in layouts]).contiguous()


def _extent(layout: DimLayout, sizes: Mapping[str, int]) -> int:
    return math.prod(factor.extent.at(sizes) for factor in layout)


def _strides(node: Any, symbols: Sequence[Any], samples: SizeSamples) -> tuple[SymbolicExtent, ...] | None:
    """Return the strides of a result by sizes, None where it is dense.

    Raises `CutsError` where they are no affine function of the sizes.
    """
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or not any(isinstance(extent, torch.SymInt) for extent in value.shape):
        return None

    def numbers(extents: Sequence[Any], sizes: Mapping[str, int]) -> tuple[int, ...]:
        known = {symbol: sizes[f"rows.{number}"] for number, symbol in enumerate(symbols)}
        return tuple(int(n.node.expr.subs(known)) if isinstance(n, torch.SymInt) else n for n in extents)

    found = [numbers(value.stride(), sizes) for sizes in samples.samples]
    if found[0] == dense_strides(numbers(value.shape, samples.capacity)):
        return None
    extents = [samples.fit(each) for each in zip(*found, strict=True)]
    if None in extents:
        raise CutsError("the strides of a result are no affine function of its sizes")
    return tuple(extent for extent in extents if extent is not None)
