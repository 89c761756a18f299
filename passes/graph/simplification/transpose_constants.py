"""Transposes constants so that attributes like `trans_b` can be left out.

    %y: f32[1, 8] = gemm(%x, %w) {trans_b = true}     ->     %y: f32[1, 8] = gemm(%x, %w.turned)

Exporters write the same product either way; afterwards both are one graph, with one tuning result. An attribute can be
left out if without it, and with the constant's axes in another order, the operation's program is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import ClassVar

import numpy as np
from attrs import evolve, frozen

from ....ir import (
    CutsError,
    Expr,
    Graph,
    Node,
    Program,
    Read,
    TensorType,
    expr_indirects,
    fresh_name,
    indirects,
    rebuild,
)
from ....ops.language import Instances
from ..rewrite import prune, with_constants

#: Limit of the axes of a transposed constant, as each permutation is tried.
MAX_AXES = 4


@frozen
class TransposeConstants:
    """Transpose constants of up to `max_elements` instead of a true attribute."""

    name: ClassVar[str] = "turn-constants"
    instances: Instances
    max_elements: int = 1 << 24

    def run(self, graph: Graph) -> Graph:
        """Return the graph without such attributes."""
        for position in range(len(graph.nodes)):
            while (found := next(self._transpositions(node := graph.nodes[position], graph), None)) is not None:
                attribute, place, order = found
                value = node.inputs[place]
                assert value is not None, "a constant is turned"
                name = fresh_name(graph.types, f"{value}.turned")
                inputs = (*node.inputs[:place], name, *node.inputs[place + 1 :])
                left = {k: v for k, v in node.attributes.items() if k != attribute}
                permute = np.ascontiguousarray(np.transpose(graph.constants[value], order))
                graph = with_constants(graph, {name: permute}, {name: _type_of(graph.types[value], order)})
                nodes = (
                    *graph.nodes[:position],
                    evolve(node, inputs=inputs, attributes=left),
                    *graph.nodes[position + 1 :],
                )
                graph = evolve(graph, nodes=nodes)
        return prune(graph)

    def _transpositions(self, node: Node, graph: Graph) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        """Yield removable attributes of a node, with the operand to transpose and its permutation."""
        said = [name for name, value in node.attributes.items() if value is True]
        constants = [p for p, v in enumerate(node.inputs) if v and v in graph.constants and self._small(graph.types[v])]
        if not said or not constants:
            return
        types = [None if v is None else graph.types[v] for v in node.inputs]
        instance = self.instances.of(node, types)
        program, formal, looked_up = instance.program, instance.inputs, _tensors_looked_up(instance.program)
        places = [p for p in constants if formal[p] not in looked_up]
        for attribute in said:
            bare = evolve(node, attributes={k: v for k, v in node.attributes.items() if k != attribute})
            for place in places:
                name, type_ = formal[place], types[place]
                assert name is not None and type_ is not None, "constants are given"
                for order in list(permutations(range(len(type_.shape))))[1:]:
                    try:
                        other = self.instances.of(bare, [*types[:place], _type_of(type_, order), *types[place + 1 :]])
                    except CutsError:  # it has no meaning for such operands
                        continue
                    if other.program == _permute_input(program, name, order):
                        yield attribute, place, order

    def _small(self, type_: TensorType) -> bool:
        return 2 <= len(type_.shape) <= MAX_AXES and type_.size <= self.max_elements


def _type_of(type_: TensorType, order: tuple[int, ...]) -> TensorType:
    return TensorType(type_.dtype, tuple(type_.shape[axis] for axis in order))


def _tensors_looked_up(program: Program) -> set[str]:
    """Return the tensors whose integers are indices: these are read elsewhere than in values."""
    places = [i for s in program.statements for index in s.write for i in indirects(index)]
    return {i.tensor for i in (*places, *(i for s in program.statements for i in expr_indirects(s.body)))}


def _permute_input(program: Program, name: str, order: tuple[int, ...]) -> Program:
    """Return a program that reads one input with its axes in another order."""

    def permute(leaf: Expr) -> Expr:
        if not isinstance(leaf, Read) or leaf.tensor != name:
            return leaf
        return evolve(leaf, indices=tuple(leaf.indices[axis] for axis in order))

    return evolve(
        program,
        tensors={**program.tensors, name: _type_of(program.tensors[name], order)},
        statements=tuple(evolve(s, body=rebuild(s.body, permute)) for s in program.statements),
    )
