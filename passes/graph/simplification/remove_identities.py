"""Removes nodes that copy their input.

Examples are identities, dropout at inference, reshapes to the same shape, casts to the same type.

An output is a copy when every statement that writes it is one unguarded read of one input at the written place, and the
types are equal. Nothing depends on the name of the operation. A node whose other outputs are no copies stays for these.

    %a: f32[4] = relu(%x)                 ->     %y: f32[4] = relu(%x)
    %y: f32[4] = dropout(%a)                     output %y
    output %y
"""

from __future__ import annotations

from typing import ClassVar

from attrs import evolve, frozen

from ....ir import Graph, Node
from ....ops.language import Instances
from ..rewrite import elementwise_copies, prune, rename_inputs, replace_value


@frozen
class RemoveIdentities:
    """Replace copies by their sources; named outputs stay.

    A copy stays where it gives an input or another output a second name.
    """

    name: ClassVar[str] = "remove-identities"
    instances: Instances

    def run(self, graph: Graph) -> Graph:
        """Return the graph without copies."""
        renamed: dict[str, str] = {}
        nodes = []
        for node in graph.nodes:
            node = rename_inputs(node, renamed)
            copies = {c: source for c, source in self._copies(node, graph).items() if c not in graph.outputs}
            renamed |= copies
            if len(copies) < len(node.outputs):
                nodes.append(node)
        graph = evolve(graph, nodes=tuple(nodes)) if renamed else graph
        for output in graph.outputs:
            last = graph.producer().get(output)
            source = None if last is None else self._copies(last, graph).get(output)
            if source is not None and last is not None and len(last.outputs) == 1:
                graph = replace_value(graph, output, source) or graph
        return prune(graph)

    def _copies(self, node: Node, graph: Graph) -> dict[str, str]:
        """Map the outputs of a node that copy an operand to that operand."""
        instance = self.instances.of_node(node, graph)
        results = dict(zip(instance.outputs, node.outputs, strict=False))
        operands = dict(zip(instance.inputs, node.inputs, strict=False))
        copies = elementwise_copies(instance.program).items()
        found = {results.get(c): operands.get(source) for c, source in copies}
        return {c: source for c, source in found.items() if c is not None and source is not None}
