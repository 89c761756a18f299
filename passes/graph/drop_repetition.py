"""Lets what repeats its operand by itself read what is repeated.

    %r: f32[128, 768, 2304] = expand(%w) {shape = [128, 768, 2304]}   ->   %y: f32[128, 16, 2304] = matmul(%x, %w)
    %y: f32[128, 16, 2304] = matmul(%x, %r)

A tensor that is repeated along axes is the same numbers at many places. A declaration that broadcasts reads them where
they are, so a proposal is the same node with the movement's operand: it is taken only if its statements are those that
it had, with the movement's index map in the place of each read. Then a kernel sees that rows of all repetitions meet
one matrix, and a gradient is one sum over all of them, not one tensor a repetition and their sum behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from attrs import evolve, frozen

from ...ir import CutsError, Expr, Graph, IndexLike, Node, Read, Statement, Var, rebuild, substitute_expr
from ...ops.language import Instance, Instances
from .compose_movement import IndexMap, compose, read_move
from .rewrite import prune


@frozen
class DropRepetition:
    """Let broadcasting readers read the source of a repetition; values that nothing reads then are dropped."""

    name: ClassVar[str] = "drop-repetition"
    instances: Instances

    def run(self, graph: Graph) -> Graph:
        """Return the graph without repetitions that their readers can do without."""
        found = self.shorten(graph)
        return graph if found is graph else prune(found)

    def shorten(self, graph: Graph) -> Graph:
        """Return the graph with every value that it had."""
        repeated = self._repeated(graph)
        nodes = tuple(self._without(node, graph, repeated) for node in graph.nodes) if repeated else graph.nodes
        return graph if nodes == graph.nodes else self.shorten(evolve(graph, nodes=nodes))

    def _repeated(self, graph: Graph) -> Mapping[str, tuple[str, IndexMap]]:
        """Return for each value that repeats a smaller one that value and the movement, over all movements between."""
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

    def _without(self, node: Node, graph: Graph, repeated: Mapping[str, tuple[str, IndexMap]]) -> Node:
        """Return a node with operands as they were before they were repeated, where it then means the same."""
        for place, value in enumerate(node.inputs):
            if value is None or value not in repeated:
                continue
            source, move = repeated[value]
            short = evolve(node, inputs=(*node.inputs[:place], source, *node.inputs[place + 1 :]))
            if self._same(node, short, place, move, graph):
                node = short
        return node

    def _same(self, node: Node, short: Node, place: int, move: IndexMap, graph: Graph) -> bool:
        """Whether a node means the same where one operand is read before it is repeated."""
        before = self.instances.of_node(node, graph)
        try:
            after = self.instances.of_node(short, graph)
        except CutsError:
            return False
        formal = before.inputs[place]
        if formal is None or (before.inputs, before.outputs) != (after.inputs, after.outputs):
            return False
        types = before.output_types == after.output_types
        return types and _moved(before, formal, move) == after.program.statements


def _moved(instance: Instance, operand: str, move: IndexMap) -> tuple[Statement, ...]:
    """Return the statements of an instance with an operand read where it is repeated from."""

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
