"""Removes nodes that copy their input.

Examples are identities, dropout at inference, reshapes to the same shape, casts to the same type.

An output is a copy when every statement that writes it is one unguarded read of one input at the written place, and the
types are equal. Nothing depends on the name of the operation. A node whose other outputs are no copies stays for these.
A node copies, too, that subtracts a constant of zeros (zero points of symmetric weights), or multiplies by ones.

    %a: f32[4] = relu(%x)                 ->     %y: f32[4] = relu(%x)
    %y: f32[4] = dropout(%a)                     output %y
    output %y
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from attrs import evolve, frozen

from ....ir import Array, Call, Graph, Node, Program, Read
from ....ops.language import Instances
from ...packing import repeated_number
from ..rewrite import elementwise_copies, prune, rename_inputs, replace_value

#: Second operands that change no number of the first, of any type and sign.
_NEUTRAL = {"sub": 0, "mul": 1, "div": 1}


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
        producers = graph.producer()
        for output in graph.outputs:
            last = producers.get(output)
            source = None if last is None else self._copies(last, graph).get(output)
            if source is not None and last is not None and len(last.outputs) == 1:
                found = replace_value(graph, output, source)
                graph, producers = (graph, producers) if found is None else (found, found.producer())
        return prune(graph)

    def _copies(self, node: Node, graph: Graph) -> dict[str, str]:
        """Map the outputs of a node that copy an operand to that operand."""
        instance = self.instances.of_node(node, graph)
        results = dict(zip(instance.outputs, node.outputs, strict=False))
        operands = dict(zip(instance.inputs, node.inputs, strict=False))
        arrays = {f: graph.constants[v] for f, v in operands.items() if f and v and v in graph.constants}
        copies = elementwise_copies(_without_neutral(instance.program, arrays)).items()
        found = {results.get(c): operands.get(source) for c, source in copies}
        return {c: source for c, source in found.items() if c is not None and source is not None}


def _without_neutral(program: Program, arrays: Mapping[str, Array]) -> Program:
    """Return a program without operations whose second operand is a constant that changes nothing."""
    first = program.statements[0].body if len(program.statements) == 1 else None
    if not arrays or not isinstance(first, Call) or first.fn not in _NEUTRAL or len(first.args) != 2:
        return program
    value, other = first.args
    array = arrays.get(other.tensor) if isinstance(other, Read) and not other.guards else None
    if array is None or not array.size or repeated_number(array) != _NEUTRAL[first.fn]:
        return program
    if array.dtype.kind not in "biu" and bool(np.signbit(array).any()):  # -0 - -0 is 0
        return program
    return evolve(program, statements=(evolve(program.statements[0], body=value),))
