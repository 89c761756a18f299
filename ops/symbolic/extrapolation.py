"""Graph at the greatest sizes, from graphs at smaller ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from ...ir import Attribute, CutsError, Graph, GraphError, Node, SizeSamples, TensorType, quote
from ..language import Instances
from .products import fit_products


def graph_form(graph: Graph) -> object:
    """Return names and operations, which no size changes."""
    nodes = tuple((node.op, node.inputs, node.outputs) for node in graph.nodes)
    return graph.inputs, graph.outputs, tuple(graph.constants), tuple(graph.interface.fixed), nodes


def extrapolated_graph(graphs: Sequence[Graph], samples: SizeSamples, instances: Instances) -> Graph:
    """Return the graph at the greatest sizes.

    `graphs` are those at the other samples.

    Raises `GraphError` where they differ in more than shapes and attributes that follow the sizes.
    """
    first = graphs[0]
    if any(graph_form(graph) != graph_form(first) for graph in graphs):
        raise _other_form(samples, first)
    types = {
        name: _type([graph.types[name] for graph in graphs], samples) for name in (*first.inputs, *first.constants)
    }
    if any(types[name].shape != array.shape for name, array in first.constants.items()):
        raise _other_form(samples, first)
    nodes = []
    for parts in zip(*(graph.nodes for graph in graphs), strict=True):
        node = evolve(parts[0], attributes=_attributes(parts, samples, first))
        operands = [None if value is None else types[value] for value in node.inputs]
        try:
            types |= dict(zip(node.outputs, instances.infer(node, operands), strict=True))
        except CutsError as error:
            raise GraphError(f"node {quote(node.origin or node.name)}: {error.message}", node.span) from error
        nodes.append(node)
    fixed = {
        name: evolve(result, value=_value([graph.interface.fixed[name].value for graph in graphs], samples, first))
        for name, result in first.interface.fixed.items()
    }
    return evolve(first, nodes=tuple(nodes), types=types, interface=evolve(first.interface, fixed=fixed))


def _other_form(samples: SizeSamples, graph: Graph) -> GraphError:
    dims = ", ".join(map(str, samples.varying))
    return GraphError(
        f"graph {quote(graph.name)} has other nodes at other sizes of {dims}",
        hint="fix the sizes with --shape (shapes= of cuts.build), or leave one of these dims fixed",
    )


def _type(found: Sequence[TensorType], samples: SizeSamples) -> TensorType:
    shape = tuple(_number(sizes, samples) for sizes in zip(*(type_.shape for type_ in found), strict=True))
    return TensorType(found[0].dtype, shape)


def _number(values: Sequence[int], samples: SizeSamples) -> int:
    found = fit_products(samples, values, 1)
    if found is None:
        raise GraphError(f"a size is no sum of products of the sizes of {', '.join(map(str, samples.varying))}")
    return found.at(samples.capacity)


def _attributes(nodes: Sequence[Node], samples: SizeSamples, graph: Graph) -> dict[str, Attribute]:
    if any(node.attributes.keys() != nodes[0].attributes.keys() for node in nodes):
        raise _other_form(samples, graph)
    return {name: _value([node.attributes[name] for node in nodes], samples, graph) for name in nodes[0].attributes}


def _value(found: Sequence[Any], samples: SizeSamples, graph: Graph) -> Any:
    first = found[0]
    if all(value == first for value in found):
        return first
    if isinstance(first, tuple) and all(isinstance(v, tuple) and len(v) == len(first) for v in found):
        return tuple(_value(each, samples, graph) for each in zip(*found, strict=True))
    if not all(isinstance(value, int) for value in found):
        raise _other_form(samples, graph)
    return _number(found, samples)
