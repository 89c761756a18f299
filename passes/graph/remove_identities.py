"""Removes nodes that copy their input: identities, dropout at inference, reshapes to the same shape, casts to the same
type.

A node is an identity when its program says so: every statement is one unguarded read of one input at the place written,
and the types are equal. Nothing depends on the name of the operation.

    %a: f32[4] = relu(%x)                 ->     %y: f32[4] = relu(%x)
    %y: f32[4] = dropout(%a)                     output %y
    output %y
"""

from __future__ import annotations

from typing import ClassVar

from attrs import evolve, frozen

from ...ir import Graph, Node
from ...ops.language import Instances
from .rewrite import copied_in_place, prune, rename_inputs, replace_value


@frozen
class RemoveIdentities:
    """Replace each copied value by its source; a copy stays where it gives an input or another output a second name."""

    name: ClassVar[str] = "remove-identities"
    instances: Instances

    def run(self, graph: Graph) -> Graph:
        """Return the graph without copies."""
        renamed: dict[str, str] = {}
        nodes = []
        for node in graph.nodes:
            node = rename_inputs(node, renamed)
            source = self._source(node, graph)
            if source is None or node.outputs[0] in graph.outputs:
                nodes.append(node)
            else:
                renamed[node.outputs[0]] = source
        graph = evolve(graph, nodes=tuple(nodes)) if renamed else graph
        for output in graph.outputs:
            last = graph.producer().get(output)
            source = None if last is None else self._source(last, graph)
            if source is not None:
                graph = replace_value(graph, output, source) or graph
        return prune(graph)

    def _source(self, node: Node, graph: Graph) -> str | None:
        """Return the operand that a node copies, or None."""
        instance = self.instances.of_node(node, graph)
        formal = copied_in_place(instance.program)
        return None if formal is None else node.inputs[instance.inputs.index(formal)]
