"""Functions that a model defines itself: put in the place of their calls, where that comes to an end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import onnx
from onnx import inliner

from ...ir import GraphError, quote

#: Nodes that a model may come to have; a few functions that call each other twice make any number.
MOST_NODES = 1_000_000

Key = tuple[str, str, str]


def inline_functions(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return the model without functions of its own. Raises `GraphError` where one calls itself, or they grow large."""
    if not model.functions:
        return model
    bodies = {_key(f.domain, f.name, f.overload): f for f in model.functions}
    calls = {key: [c for c in _calls(body.node) if c in bodies] for key, body in bodies.items()}
    try:
        order = list(TopologicalSorter(calls).static_order())
    except CycleError as error:
        cycle = " -> ".join(quote(key[1]) for key in error.args[1])
        raise GraphError(
            f"{name}: a function of the model calls itself: {cycle}", hint="write what is repeated as a Loop or a Scan"
        ) from None
    sizes: dict[Key, int] = {}
    for key in order:
        sizes[key] = _size(bodies[key].node, sizes)
    total = _size(model.graph.node, sizes)
    if total > MOST_NODES:
        raise GraphError(f"{name}: its functions stand for {total:,} nodes, expected at most {MOST_NODES:,}")
    return inliner.inline_local_functions(model)


def _key(domain: str, name: str, overload: str) -> Key:
    return ("" if domain == "ai.onnx" else domain, name, overload)


def _calls(nodes: Iterable[onnx.NodeProto]) -> Iterator[Key]:
    """Yield what each node calls, those of subgraphs too."""
    for node in nodes:
        yield _key(node.domain, node.op_type, node.overload)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _calls(graph.node)


def _size(nodes: Iterable[onnx.NodeProto], sizes: Mapping[Key, int]) -> int:
    return sum(sizes.get(key, 1) for key in _calls(nodes))
