"""Topological order of nodes, which not every exporter writes.

The ONNX standard requires it. A converter to float16, for one, appends its casts to the end of the list, after their
readers. ONNX Runtime sorts nodes when it loads a model; so does this. Sorted nodes stay unchanged.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

import onnx


def sort_graph(graph: onnx.GraphProto) -> onnx.GraphProto:
    """Return a graph with its nodes, and those of subgraphs, sorted.

    The importer reports a cycle.
    """
    if _is_ordered(graph):
        return graph
    copy = onnx.GraphProto()
    copy.CopyFrom(graph)
    del copy.node[:]
    copy.node.extend(graph.node[place] for place in _order(graph))
    for body in _bodies(copy.node):
        body.CopyFrom(sort_graph(body))
    return copy


def values_read(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """Return the values that nodes read, those of their subgraphs included."""
    found: set[str] = set()
    for node in nodes:
        found.update(name for name in node.input if name)
        for body in _bodies([node]):
            inner = {name for each in body.node for name in each.output} | {
                v.name for v in (*body.initializer, *body.input)
            }
            found |= (values_read(body.node) | {v.name for v in body.output}) - inner
    return found


def _bodies(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    yield from (attribute.g for node in nodes for attribute in node.attribute if attribute.HasField("g"))


def _is_ordered(graph: onnx.GraphProto) -> bool:
    return all(max(read, default=-1) < place for place, read in enumerate(_reads(graph))) and all(
        map(_is_ordered, _bodies(graph.node))
    )


def _reads(graph: onnx.GraphProto) -> list[set[int]]:
    """Return the positions of the nodes that each node reads."""
    given = {value.name for value in (*graph.initializer, *graph.input)}
    maker: dict[str, int] = {}
    for place, node in enumerate(graph.node):
        for name in node.output:
            if name and name not in given:
                maker.setdefault(name, place)
    return [{maker[name] for name in values_read([node]) if name in maker} for node in graph.node]


def _order(graph: onnx.GraphProto) -> list[int]:
    """Return the positions of the nodes in topological order, unchanged where there is a cycle.

    Of the ready nodes the first comes next.
    """
    reads = _reads(graph)
    readers: list[list[int]] = [[] for _ in reads]
    for place, read in enumerate(reads):
        for maker in read:
            readers[maker].append(place)
    missing = [len(read) for read in reads]
    ready = [place for place, count in enumerate(missing) if count == 0]
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        for reader in readers[order[-1]]:
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(ready, reader)
    return order if len(order) == len(reads) else list(range(len(reads)))
