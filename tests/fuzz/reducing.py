"""Reduction of a graph to a smaller one with the same finding.

One output stays, and inputs replace computed values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attrs import evolve
from cuts.ir.graph import Graph


def reduce_graph(graph: Graph, shows: Callable[[Graph], bool], most: int = 100) -> Graph:
    """Return a smaller graph for which `shows` holds.

    `shows` is called at most `most` times.
    """
    asked = 0
    smaller: Graph | None = graph
    while smaller is not None:
        graph, smaller = smaller, None
        for candidate in _candidates(graph):
            if asked == most:
                return graph
            asked += 1
            if shows(candidate):
                smaller = candidate
                break
    return graph


def _candidates(graph: Graph) -> Iterator[Graph]:
    """Yield graphs with one output only, with an operand of an output instead of it, and with results of a node as
    inputs.
    """
    if len(graph.outputs) > 1:
        yield from (_needed_part(evolve(graph, outputs=(output,))) for output in graph.outputs)
        yield from (
            _needed_part(evolve(graph, outputs=tuple(v for v in graph.outputs if v != output)))
            for output in graph.outputs
        )
    producer = graph.producer()
    earlier = dict.fromkeys(v for output in graph.outputs for v in producer[output].operands if v in producer)
    yield from (_needed_part(evolve(graph, outputs=(value,))) for value in earlier)
    for node in reversed(graph.nodes):
        if not set(node.outputs) & set(graph.outputs):
            inputs, nodes = (*graph.inputs, *node.outputs), tuple(n for n in graph.nodes if n is not node)
            yield _needed_part(evolve(graph, inputs=inputs, nodes=nodes))


def _needed_part(graph: Graph) -> Graph:
    """Return a graph without the nodes that its outputs do not depend on."""
    wanted = set(graph.outputs)
    nodes = []
    for node in reversed(graph.nodes):
        if wanted & set(node.outputs):
            nodes.append(node)
            wanted.update(node.operands)
            wanted.update(node.outputs)
    constants = {name: array for name, array in graph.constants.items() if name in wanted}
    types = {name: type_ for name, type_ in graph.types.items() if name in wanted}
    inputs = tuple(v for v in graph.inputs if v in wanted)
    return Graph(graph.name, inputs, graph.outputs, types, tuple(reversed(nodes)), constants)
