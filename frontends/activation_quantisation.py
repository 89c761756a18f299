"""Quantises activations that multiply quantised weights, by the largest size of each.

                                        %x.fp8 = quantize(%x, %x.scale) {to = f8e4m3}
    %y = matmul(%x, %w)           ->    %x.real = dequantize(%x.fp8, %x.scale)
                                        %y = matmul(%x.real, %w)

Scales are positive, symmetric and constant: the largest size, which is given or seen in samples, becomes the largest
number of the format. Larger numbers are clamped to it. Products of two such factors multiply the narrow numbers and
scale their sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from attrs import evolve

from ..ir import Array, Graph, Node, TensorType, UsageError, as_dtype, fresh_name, quote
from ..ops import Registry, evaluate_graph
from ..ops.language import Instances
from .weight_formats import WeightFormat
from .weight_quantisation import bound_statements, find_weights, read_factors, with_turned_constants


def find_activations(graph: Graph, instances: Instances) -> Mapping[str, tuple[str, ...]]:
    """Return the values by node that multiply weights in a canonical graph."""
    given = with_turned_constants(graph, instances)
    found = {node.name: tuple(dict.fromkeys(_activations(node, given, instances))) for node in graph.nodes}
    return {name: values for name, values in found.items() if values}


def _activations(node: Node, graph: Graph, instances: Instances) -> Iterator[str]:
    weights = {value for value, _ in find_weights(node, graph, instances)}
    for statement, values in bound_statements(node, graph, instances) if weights else ():
        read = [value for value, _ in read_factors(statement, values)]
        if weights.intersection(read):
            yield from (v for v in read if v not in graph.constants and graph.types[v].dtype.is_float)


def largest_sizes(
    graph: Graph, registry: Registry, values: Sequence[str], samples: Sequence[Mapping[str, Array]]
) -> Mapping[str, float]:
    """Return the largest size of some values over samples, by the reference."""
    found = dict.fromkeys(values, 0.0)
    for sample in samples:
        results = evaluate_graph(evolve(graph, outputs=tuple(values)), registry, sample)
        found = {value: max(size, float(np.abs(results[value]).max(initial=0.0))) for value, size in found.items()}
    return found


def quantise_activations(
    graph: Graph, uses: Mapping[str, tuple[str, ...]], format_: WeightFormat, sizes: Mapping[str, float]
) -> Graph:
    """Return a graph whose nodes read the rounded values of `uses`.

    Raises `UsageError` for a value without a size, and for a format with groups.
    """
    wanted = tuple(dict.fromkeys(value for values in uses.values() for value in values))
    if format_.group:
        raise UsageError(f"activations in {quote(format_.name)}", hint="they can be int8 or fp8")
    if missing := [value for value in wanted if value not in sizes]:
        raise UsageError(f"no size of activation {quote(missing[0])}", hint="give samples, or the size of each value")
    constants, types, names = dict(graph.constants), dict(graph.types), {node.name for node in graph.nodes}
    rounded, rounding = dict[str, str](), dict[str, tuple[Node, Node]]()
    for value in wanted:
        kind = types[value]
        number, scale, real = (fresh_name(types, f"{value}.{s}") for s in (format_.name, "scale", "real"))
        size = sizes[value] / format_.largest if sizes[value] > 0 else 1.0
        constants[scale] = as_dtype(np.float64(size), kind.dtype.numpy)
        types |= {scale: TensorType(kind.dtype, ()), number: evolve(kind, dtype=format_.dtype), real: kind}
        nodes = (
            Node("", "quantize", (value, scale), (number,), {"to": format_.dtype.value}),
            Node("", "dequantize", (number, scale), (real,), {}),
        )
        rounding[value] = tuple(evolve(n, name=_take(names, f"{value}.{n.op}")) for n in nodes)  # type: ignore[assignment]
        rounded[value] = real
    return evolve(graph, nodes=tuple(_in_order(graph, uses, rounded, rounding)), constants=constants, types=types)


def _take(names: set[str], wish: str) -> str:
    names.add(name := fresh_name(names, wish))
    return name


def _in_order(
    graph: Graph, uses: Mapping[str, tuple[str, ...]], rounded: Mapping[str, str], left: dict[str, tuple[Node, Node]]
) -> Iterator[Node]:
    """Yield the nodes, each rounding before its first use."""
    for node in graph.nodes:
        own = uses.get(node.name, ())
        for value in own:
            yield from left.pop(value, ())
        yield evolve(node, inputs=tuple(rounded[v] if v in own else v for v in node.inputs)) if own else node
