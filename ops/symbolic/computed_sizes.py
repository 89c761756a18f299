"""Sizes that a graph computes: numbers of rows that depend on values.

A producer has results with room for the most rows, and their number is a value of the graph:

    p = nonzero(mask[64], size: 64); c = reduce_sum(mask)     p[c] in the memory of p[64]

An importer leaves producers out: at a sample of sizes, their results are inputs with so many rows, and their operands
are outputs. The bounded graph takes them in again, and its nodes read the size from the count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from attrs import define, evolve, field

from ...ir import (
    Attribute,
    Dim,
    Graph,
    GraphError,
    Infer,
    Node,
    RowProducer,
    TensorType,
    live_graph,
    quote,
)  # fmt: skip


class Builder(Protocol):
    """Import that names and types values, and collects nodes."""

    types: dict[str, TensorType]
    nodes: list[Node]
    infer: Infer

    def fresh(self, hint: str) -> str: ...


@define
class ComputedSizes:
    """Computed dims of one import, in the order of their producers.

    `sizes` has those at a sample, and `bounds` the most rows of each dim; the lengths at hand where they are not given.
    Inputs have sizes that vary, too, where it `varies`. `selections` has the numbers of true elements, by mask.
    """

    sizes: Mapping[str, int] = field(factory=dict)
    bounds: Mapping[str, int] = field(factory=dict)
    varies: bool = False
    producers: list[RowProducer] = field(factory=list)
    selections: dict[str, str] = field(factory=dict)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dims of all producers so far."""
        return tuple(Dim(producer.dim, 0, producer.bound) for producer in self.producers)

    def room(self, length: int) -> int:
        """Return the elements that a list of `length` lacks.

        The next producer selects from a list that has one length for all sizes.
        """
        return self.bounds.get(self._dim, length + 1) - length if self.producers or self.varies else 0

    def is_fixed(self, length: int) -> bool:
        """Return whether the next producer's list has `length` elements for all sizes."""
        return self.bounds.get(self._dim, length) == length

    def size(self, dim: str) -> int | None:
        """Return the size of a dim at the sample, if known."""
        return self.sizes.get(dim, self.bounds.get(dim))

    @property
    def _dim(self) -> str:
        return f"rows.{len(self.producers)}"

    def produce(
        self, builder: Builder, op: str, operand: str, results: int, attributes: Mapping[str, Attribute], origin: str
    ) -> tuple[str, ...]:
        """Add a producer that selects from a list; return its results.

        The list is a node's result that no other output is; `set_count` is called next.
        """
        bound = builder.types[operand].shape[0]
        name = builder.fresh(f"{origin}.{op}")
        names = tuple(builder.fresh(f"{name}.{number}") for number in range(results))
        node = Node(name, op, (str(operand),), names, {**attributes, "size": bound}, origin)
        here = evolve(node, attributes={**node.attributes, "size": self.sizes.get(self._dim, bound)})
        builder.types.update(zip(names, builder.infer(here, [builder.types[operand]]), strict=True))
        self.producers.append(RowProducer(self._dim, bound, node, ""))
        return names

    def set_count(self, count: str) -> None:
        """Set the number of rows of the last producer, a node's result."""
        self.producers[-1] = evolve(self.producers[-1], count=str(count))

    def ends(self, inputs: Iterable[str], outputs: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return inputs and outputs with those of producers."""
        results = tuple(name for producer in self.producers for name in producer.node.outputs)
        read = (name for producer in self.producers for name in (*producer.node.operands, producer.count))
        return (*inputs, *results), (*outputs, *read)


def common_producers(graphs: Sequence[Graph]) -> tuple[RowProducer, ...]:
    """Return the producers of graphs at samples; raises `GraphError` where they differ."""
    producers = graphs[0].interface.producers
    if any(graph.interface.producers != producers for graph in graphs):
        raise GraphError("a result whose size depends on values is another one at other sizes")
    return producers


def take_in(
    graph: Graph, producers: Sequence[RowProducer], scalars: Mapping[str, str], infer: Infer
) -> tuple[Graph, dict[str, str]]:
    """Return a bounded graph with its producers, and outputs for sizes.

    `scalars` has the scalar input of each dim that nodes read.
    """
    types, outer, counts = dict(graph.types), set[str](), {each.dim: each.count for each in producers}
    added = [producer.node for producer in producers]
    for producer in producers:
        node = producer.node
        types |= zip(node.outputs, infer(node, [types[value] for value in node.operands]), strict=True)
        outer |= {*node.operands, producer.count}
    sizes = {scalar: counts[dim] for dim, scalar in scalars.items() if dim in counts}
    made = {*sizes, *(value for node in added for value in node.outputs)}
    read = [evolve(node, inputs=tuple(sizes.get(v or "", v) for v in node.inputs)) for node in graph.nodes]
    inputs = tuple(value for value in graph.inputs if value not in made)
    outputs = (*(value for value in graph.outputs if value not in outer), *counts.values())
    nodes = _in_order([*added, *read], {*inputs, *graph.constants})
    interface = evolve(graph.interface, producers=())
    whole = evolve(graph, inputs=inputs, outputs=outputs, nodes=nodes, types=types, interface=interface)
    return live_graph(whole), counts


def _in_order(nodes: Iterable[Node], known: set[str]) -> tuple[Node, ...]:
    """Return nodes in their order, but for those that read results of later ones."""
    found, waiting = list[Node](), list[Node]()
    for node in nodes:
        waiting.append(node)
        while ready := next((each for each in waiting if known.issuperset(each.operands)), None):
            waiting.remove(ready)
            found.append(ready)
            known.update(ready.outputs)
    if waiting:
        raise GraphError(f"the size of {quote(waiting[0].outputs[0])} depends on itself")
    return tuple(found)
