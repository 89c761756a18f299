"""Helpers of graph passes: replacing values, pruning, fresh names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import define, evolve, field

from ...ir import Array, Graph, Node, Program, Read, TensorType, needed_nodes
from ...ir import fresh_name as fresh_name  # the passes take it from here


def rename_inputs(node: Node, renamed: Mapping[str, str]) -> Node:
    """Return a node that reads other values."""
    if not any(v in renamed for v in node.operands):
        return node
    return evolve(node, inputs=tuple(None if v is None else renamed.get(v, v) for v in node.inputs))


def replace_value(graph: Graph, old: str, new: str) -> Graph | None:
    """Replace `old` by `new` in all readers and drop its definition.

    Returns None where an output's name forbids it.

    An output of the graph keeps its name: the node that makes `new` makes it under the name `old`, unless `new` has a
    name to keep itself.
    """
    if old in graph.outputs and (new in graph.outputs or new in graph.inputs or new in graph.constants):
        return None
    gone, stays = (new, old) if old in graph.outputs else (old, new)
    nodes = []
    for node in graph.nodes:
        if old not in node.outputs:
            node = rename_inputs(node, {gone: stays})
            renamed = tuple(stays if v == gone else v for v in node.outputs)
            nodes.append(node if renamed == node.outputs else evolve(node, outputs=renamed))
    return evolve(graph, nodes=tuple(nodes), types={v: t for v, t in graph.types.items() if v != gone})


@define
class Rewriting:
    """Walk over a graph with its rewritten nodes so far, in order.

    `producers` define their values, `renamed` has the new names of replaced ones.
    """

    graph: Graph
    nodes: list[Node] = field(factory=list)
    producers: dict[str, Node] = field(factory=dict)
    renamed: dict[str, str] = field(factory=dict)

    def next(self) -> Iterator[Node]:
        """Yield the nodes of the graph, which read new values."""
        for node in self.graph.nodes:
            yield rename_inputs(node, self.renamed)

    def add(self, node: Node) -> None:
        """Add a node."""
        self.nodes.append(node)
        self.producers.update(dict.fromkeys(node.outputs, node))

    def replace(self, old: str, new: str) -> bool:
        """Replace a value that is not defined yet.

        Returns false where the name of an output forbids it.
        """
        if old not in self.graph.outputs:
            self.renamed[old] = new
            return True
        so_far = replace_value(evolve(self.graph, nodes=tuple(self.nodes)), old, new)
        if so_far is None:
            return False
        self.renamed = {value: old if name == new else name for value, name in self.renamed.items()} | {new: old}
        self.nodes, self.producers = list(so_far.nodes), so_far.producer()
        return True

    @property
    def result(self) -> Graph:
        """The rewritten graph, without unused values."""
        nodes = tuple(self.nodes)
        return self.graph if nodes == self.graph.nodes else prune(evolve(self.graph, nodes=nodes))


def prune(graph: Graph) -> Graph:
    """Drop nodes, constants and types that no output needs; inputs stay."""
    nodes, live = needed_nodes(graph.nodes, graph.outputs)
    constants = {v: a for v, a in graph.constants.items() if v in live}
    defined = {*graph.inputs, *constants, *(v for node in nodes for v in node.outputs)}
    types = {v: t for v, t in graph.types.items() if v in defined}
    if len(nodes) == len(graph.nodes) and len(constants) == len(graph.constants) and len(types) == len(graph.types):
        return graph
    return evolve(graph, nodes=nodes, constants=constants, types=types)


def with_constants(graph: Graph, arrays: Mapping[str, Array], types: Mapping[str, TensorType]) -> Graph:
    """Return the graph with more constants."""
    return evolve(graph, constants={**graph.constants, **arrays}, types={**graph.types, **types})


def elementwise_copies(program: Program) -> dict[str, str]:
    """Map outputs that copy an input element by element to that input."""
    sources: dict[str, set[str | None]] = {}
    for statement in program.statements:
        body = statement.body
        in_place = (
            isinstance(body, Read) and not body.guards and statement.is_pointwise and body.indices == statement.write
        )
        read = body.tensor if in_place and isinstance(body, Read) else None
        sources.setdefault(statement.target, set()).add(read)
    found = {output: of.pop() for output, of in sources.items() if output in program.outputs and len(of) == 1}
    return {
        output: source
        for output, source in found.items()
        if source is not None and source in program.inputs and program.tensors[source] == program.tensors[output]
    }
