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
from ....ops.symbolic import ComputedSizes, bounded_graph
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
    dims = computed_dims(graph, lambda part, computed: graph_of_nodes(part, computed=computed))
    samples, bounds = size_samples(dims, {dim.name: 0 for dim in dims}), {dim.name: dim.high for dim in dims}
    found = [graph_of_nodes(graph, computed=ComputedSizes(sizes, bounds)) for sizes in samples.samples]
    first = found[0]
    bounded = bounded_graph([each.graph for each in found], samples, first.registry.instances)
    forms: list[_Form] = []
    for number, (name, node) in enumerate(zip(first.results, results(graph), strict=True)):
        values = tuple(each.results[number] for each in found)
        extent = samples.fit(values) if all(type(value) is int for value in values) else None  # type: ignore[arg-type]
        if extent is None and any(value != name for value in values):
            raise CutsError("a result is another one at other sizes")
        forms.append((bounded.layouts.get(str(name)), extent, _strides(node, symbols, samples)))
    counts = tuple(bounded.counts.values())
    whole = evolve(first, graph=bounded.graph, results=(*first.results, *counts), reimport=None)
    return partial(_call, compile_captured(whole), tuple(bounded.counts), {d.name: d.high for d in dims}, forms)


def _call(
    run: Callable[..., list[Any]], dims: Sequence[str], bounds: Mapping[str, int], forms: Sequence[_Form],
    *arguments: Any,
) -> list[Any]:  # fmt: skip
    (*found,) = run(*arguments)
    counts = torch.stack(found[len(forms) :]).tolist() if dims else []
    sizes = {**bounds, **dict(zip(dims, counts, strict=True))}
    return [_present(value, form, sizes) for value, form in zip(found, forms, strict=False)]


def _present(value: Any, form: _Form, sizes: Mapping[str, int]) -> Any:
    layouts, extent, strides = form
    if extent is not None:
        return extent.at(sizes)
    if layouts is None or not isinstance(value, torch.Tensor):
        return value
    part = present_elements(value, layouts, sizes)
    if strides is None:
        return part
    made = part.new_empty_strided(part.shape, [extent.at(sizes) for extent in strides])
    return made.copy_(part)


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
