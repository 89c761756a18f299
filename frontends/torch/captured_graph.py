"""Captured graph of PyTorch after import, and its signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import evolve, field, frozen

from ...ir import Graph, TensorType, verify_graph
from ...ops import Registry
from .import_context import ImportContext, extract_graph
from .result_memory import ResultMemory, dense_memory


class UncompiledWarning(UserWarning):
    """Warns that a captured graph cannot be imported and runs in PyTorch."""


@frozen
class GraphSignature:
    """Signature of a captured graph, as `CapturedGraph` has it, with types.

    `updates` maps inputs to the outputs that may be written in their place.
    """

    inputs: tuple[str | None, ...]
    results: tuple[str | int | float | None, ...]
    seeds: tuple[str, ...]
    orders: Mapping[str, tuple[int, ...]]
    types: Mapping[str, TensorType]
    memory: ResultMemory
    updates: Mapping[str, str] = field(factory=dict)


@frozen
class CapturedGraph:
    """Captured graph after import, its signature and derived gradients.

    A result is a name, or the number or None that it is. `inputs` has the name of each of its inputs, None for one
    without a reader. Besides them the graph has the inputs `seeds`: random numbers, new ones for each run. Where
    `orders` has an input, the graph's input is that one with its axes in this order. Results have the names of views in
    `memory`, or of outputs, each with its own memory, where there is none. Unless it `is_last`, other graphs of its
    module are compiled later. Where the graph has constants, `reimport` imports it once more, so that they need not be
    kept.
    """

    graph: Graph
    inputs: tuple[str | None, ...]
    results: tuple[str | int | float | None, ...]
    seeds: tuple[str, ...]
    registry: Registry
    texts: Mapping[str, str]
    orders: Mapping[str, tuple[int, ...]] = field(factory=dict)
    memory: ResultMemory | None = None
    is_last: bool = field(default=True, eq=False)
    reimport: Callable[[], CapturedGraph] | None = field(default=None, eq=False, repr=False)

    @property
    def signature(self) -> GraphSignature:
        """Signature of the graph."""
        types = {name: self.graph.types[name] for name in (*self.graph.inputs, *self.graph.outputs)}
        memory = self.memory or dense_memory(types, self.graph.outputs)
        return GraphSignature(
            self.inputs, self.results, self.seeds, self.orders, types, memory, self.graph.interface.updates
        )


def captured_graph(
    ctx: ImportContext,
    name: str,
    places: Sequence[str],
    found: Sequence[str | int | float | None],
    memory: ResultMemory | None = None,
) -> CapturedGraph:
    """Return the imported graph as a function of `places`.

    Places without a reader or a name are no inputs of the graph.
    """
    outputs = memory.outputs if memory else tuple(dict.fromkeys(value for value in found if isinstance(value, str)))
    whole = extract_graph(ctx, name, (*(p for p in places if p in ctx.types), *ctx.seeds), outputs)
    read = {value for node in whole.nodes for value in node.operands}
    given = tuple(place if place in read else None for place in places)
    seeds = tuple(value for value in ctx.seeds if value in read)
    computed = (name for producer in whole.interface.producers for name in producer.node.outputs)
    inputs = (*(place for place in given if place is not None), *seeds, *computed)
    types = {value: type_ for value, type_ in whole.types.items() if value in inputs or value not in whole.inputs}
    registry = ctx.gradients.registry
    graph = verify_graph(evolve(whole, inputs=inputs, types=types), registry.instances.infer)
    texts = ctx.gradients.texts
    return CapturedGraph(graph, given, tuple(found), seeds, registry, texts, ctx.orders, memory)
