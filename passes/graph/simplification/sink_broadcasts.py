"""Broadcast sinking: readers that broadcast read the source of a broadcast.

    %r: f32[128, 768, 2304] = expand(%w) {shape = [128, 768, 2304]}   ->   %y: f32[128, 16, 2304] = matmul(%x, %w)
    %y: f32[128, 16, 2304] = matmul(%x, %r)

A tensor that is repeated along axes has the same numbers at many places. A declaration that broadcasts can read the
source itself, so a proposal is the same node with the movement's operand. It is accepted only if its statements are the
original ones, with the movement's index map substituted into each read. Then a kernel multiplies the rows of all
repetitions by one matrix, and a gradient is one sum over all of them instead of a tensor for each repetition and their
sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from attrs import evolve, frozen

from ....ir import CutsError, Expr, Graph, IndexLike, Node, Read, Statement, Var, rebuild, substitute_expr
from ....ops.language import Instance, Instances
from ..rewrite import prune
from .compose_movement import IndexMap, compose, read_move


@frozen
class SinkBroadcasts:
    """Sink broadcasts into readers that broadcast; drop values without readers."""

    name: ClassVar[str] = "drop-repetition"
    instances: Instances

    def run(self, graph: Graph) -> Graph:
        """Return the graph without broadcasts that their readers can absorb."""
        found = self.sink(graph)
        return graph if found is graph else prune(found)

    def sink(self, graph: Graph) -> Graph:
        """Return the graph with sunk broadcasts and all of its values."""
        repeated = self._broadcast_sources(graph)
        nodes = tuple(self._sink(node, graph, repeated) for node in graph.nodes) if repeated else graph.nodes
        return graph if nodes == graph.nodes else self.sink(evolve(graph, nodes=nodes))

    def _broadcast_sources(self, graph: Graph) -> Mapping[str, tuple[str, IndexMap]]:
        """Return the source of each broadcast value, and the composed movement."""
        found: dict[str, tuple[str, IndexMap]] = {}
        for node in graph.nodes:
            if len(node.operands) != 1 or len(node.inputs) != 1 or len(node.outputs) != 1:
                continue
            (source,), (result,) = node.operands, node.outputs
            smaller = source in found or graph.types[source].size < graph.types[result].size
            move = read_move(self.instances.of_node(node, graph).program) if smaller else None
            if move is None:
                continue
            if source in found:
                source, first = found[source]
                move = compose(first, move, graph.types[source])
            if isinstance(move.body, Read) and graph.types[source].size < graph.types[result].size:
                found[result] = source, move
        return found

    def _sink(self, node: Node, graph: Graph, repeated: Mapping[str, tuple[str, IndexMap]]) -> Node:
        """Return a node with operands from before broadcasts, where its meaning is the same."""
        for place, value in enumerate(node.inputs):
            if value is None or value not in repeated:
                continue
            source, move = repeated[value]
            short = evolve(node, inputs=(*node.inputs[:place], source, *node.inputs[place + 1 :]))
            if self._keeps_meaning(node, short, place, move, graph):
                node = short
        return node

    def _keeps_meaning(self, node: Node, short: Node, place: int, move: IndexMap, graph: Graph) -> bool:
        """Return whether a node has the same meaning with one operand from before its broadcast."""
        before = self.instances.of_node(node, graph)
        try:
            after = self.instances.of_node(short, graph)
        except CutsError:
            return False
        formal = before.inputs[place]
        if formal is None or (before.inputs, before.outputs) != (after.inputs, after.outputs):
            return False
        types = before.output_types == after.output_types
        return types and _read_source(before, formal, move) == after.program.statements


def _read_source(instance: Instance, operand: str, move: IndexMap) -> tuple[Statement, ...]:
    """Return the statements of an instance with an operand read at its source."""

    def leaf(read: Expr) -> Expr:
        if not isinstance(read, Read) or read.tensor != operand:
            return read
        values: dict[Var, IndexLike] = {
            Var(f"d{n}", extent): read.indices[n] for n, extent in enumerate(move.result.shape)
        }
        found = substitute_expr(move.body, values)
        assert isinstance(found, Read)
        return evolve(found, tensor=operand, guards=read.guards)

    return tuple(evolve(statement, body=rebuild(statement.body, leaf)) for statement in instance.program.statements)
