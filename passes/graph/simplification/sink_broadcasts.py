"""Broadcast sinking: readers that broadcast read the source of a broadcast.

    %r: f32[128, 768, 2304] = expand(%w) {shape = [128, 768, 2304]}   ->   %y: f32[128, 16, 2304] = matmul(%x, %w)
    %y: f32[128, 16, 2304] = matmul(%x, %r)

A tensor that is repeated along axes has the same numbers at many places. A declaration that broadcasts can read the
source itself, or a tensor before more movements: a proposal is the same node with that operand. It is accepted only if
its statements are the original ones, with the movement's index map substituted into each read. Operands that must have
equal sizes, such as keys and values, are replaced together. Then a kernel multiplies the rows of all repetitions by one
matrix, and a gradient is one sum over all of them instead of a tensor for each repetition and their sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, combinations, zip_longest
from typing import Any, ClassVar, TypeAlias

from attrs import evolve, frozen

from ....ir import CutsError, Expr, Graph, IndexLike, Node, Read, Statement, TensorType, Var, rebuild, substitute_expr
from ....ops.language import Instances, canonicalise
from ..rewrite import prune
from .compose_movement import IndexMap, compose, read_move

#: Greatest number of repeated operands of a node that are replaced in any combination.
MAX_JOINT_OPERANDS = 4
#: A tensor, and the movement from it to a value; None for the value itself.
Source: TypeAlias = tuple[str, Any]


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

    def _broadcast_sources(self, graph: Graph) -> Mapping[str, Sequence[Source]]:
        """Return the sources of each broadcast value, the nearest first."""
        found: dict[str, Sequence[Source]] = {}
        producers = graph.producer()
        for node in graph.nodes:
            operand = node.operands[0] if len(node.operands) == len(node.outputs) == 1 else ""
            if not operand or not (operand in found or graph.types[operand].size < graph.types[node.outputs[0]].size):
                continue
            move = self._move(node, graph)
            if move is not None:
                sources = found.get(operand) or [(operand, None), *self._origins(operand, graph, producers)]
                moves = [(source, _composed_move(first, move, graph.types[source])) for source, first in sources]
                larger = graph.types[node.outputs[0]].size
                found[node.outputs[0]] = [(s, m) for s, m in moves if graph.types[s].size < larger and m is not None]
        return {value: sources for value, sources in found.items() if sources}

    def _origins(self, value: str, graph: Graph, producers: Mapping[str, Node]) -> Iterator[Source]:
        """Yield the tensors from which movements lead to a value, and the movement from each."""
        last: IndexMap | None = None
        while (node := producers.get(value)) is not None and (move := self._move(node, graph)) is not None:
            value = node.operands[0]
            last = move if last is None else _composed_move(move, last, graph.types[value])
            if last is None:
                return
            yield value, last

    def _move(self, node: Node, graph: Graph) -> IndexMap | None:
        """Return the index map of a node that moves one tensor, else None."""
        if len(node.operands) != 1 or len(node.inputs) != 1 or len(node.outputs) != 1:
            return None
        move = read_move(self.instances.of_node(node, graph).program)
        return move if move is not None and isinstance(move.body, Read) else None

    def _sink(self, node: Node, graph: Graph, repeated: Mapping[str, Sequence[Source]]) -> Node:
        """Return a node with operands from before broadcasts, where its meaning is the same."""
        places = [place for place, value in enumerate(node.inputs) if value is not None and value in repeated]
        together = range(len(places), 1, -1) if len(places) <= MAX_JOINT_OPERANDS else ()
        for chosen in chain.from_iterable(combinations(places, count) for count in (*together, 1)):
            sources = {place: repeated[value] for place in chosen if (value := node.inputs[place]) in repeated}
            for pairs in zip_longest(*sources.values()):
                moves = {place: pair for place, pair in zip(sources, pairs, strict=True) if pair is not None}
                inputs = tuple(moves[n][0] if n in moves else value for n, value in enumerate(node.inputs))
                short = evolve(node, inputs=inputs)
                if self._keeps_meaning(node, short, {place: move for place, (_, move) in moves.items()}, graph):
                    node = short
                    break
        return node

    def _keeps_meaning(self, node: Node, short: Node, moves: Mapping[int, IndexMap], graph: Graph) -> bool:
        """Return whether a node has the same meaning with operands from before their broadcasts."""
        before = self.instances.of_node(node, graph)
        try:
            after = self.instances.of_node(short, graph)
        except CutsError:
            return False
        formal = {str(before.inputs[place]): move for place, move in moves.items() if before.inputs[place] is not None}
        if len(formal) < len(moves) or (before.inputs, before.outputs) != (after.inputs, after.outputs):
            return False
        types = before.output_types == after.output_types
        return types and _read_sources(before.program.statements, tuple(formal.items())) == after.program.statements


def _composed_move(first: IndexMap | None, second: IndexMap, source: TensorType) -> IndexMap | None:
    """Return two movements as one; None where it converts."""
    move = second if first is None else compose(first, second, source)
    return move if isinstance(move.body, Read) else None


@lru_cache(maxsize=1 << 10)
def _read_sources(
    statements: tuple[Statement, ...], operands: tuple[tuple[str, IndexMap], ...]
) -> tuple[Statement, ...]:
    """Return statements with operands read at their sources; equal nodes share them."""
    moves = dict(operands)

    def leaf(read: Expr) -> Expr:
        if not isinstance(read, Read) or read.tensor not in moves:
            return read
        move = moves[read.tensor]
        values: dict[Var, IndexLike] = {
            Var(f"d{n}", extent): read.indices[n] for n, extent in enumerate(move.result.shape)
        }
        found = substitute_expr(move.body, values)
        assert isinstance(found, Read)
        return evolve(found, tensor=read.tensor, guards=read.guards)

    return tuple(canonicalise(evolve(statement, body=rebuild(statement.body, leaf))) for statement in statements)
