"""Folds nodes of constant inputs with the float64 reference, rounded once.

    const %a: f32[2] = [1.0, 4.0]         ->     const %b: f32[2] = [1.0, 2.0]
    %b: f32[2] = sqrt(%a)                        %y: f32[2] = add(%x, %b)
    %y: f32[2] = add(%x, %b)

Nodes whose results would be large, or which take many steps, are left to the kernels; so are nodes that define an
output of the graph, those that widen packed constants (`passes.packing`), and those that only repeat elements for a
reader that stays: it finds them by its index map.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import numpy as np
from attrs import evolve, frozen

from ....ir import Array, DType, Graph, Node, Program, Read, as_dtype
from ....ops import evaluate
from ....ops.language import Instance, Instances
from ...packing import PackedConstants
from ..rewrite import prune


@frozen
class FoldConstants:
    """Evaluate constant nodes up to `max_elements` results and `max_steps` steps.

    Repeated elements are stored up to `min_repeated` of them.
    """

    name: ClassVar[str] = "fold-constants"
    instances: Instances
    max_elements: int = 1 << 24
    max_steps: int = 1 << 28
    min_repeated: int = 1 << 14

    def run(self, graph: Graph) -> Graph:
        """Return the graph with constant nodes as constants."""
        known = PackedConstants(dict(graph.constants), graph.types)
        stays, stored = [], {name: graph.types[name].size for name in graph.constants}
        for node in graph.nodes:
            folded = self._fold(node, graph, known)
            stays.append(folded is None)
            known.constants.update(folded or {})
            stored.update(self._storage_sizes(node, graph, stored) if folded else {})
        wanted, nodes = set[str](), []
        for node, left in reversed([*zip(graph.nodes, stays, strict=True)]):
            if left or any(v in wanted and graph.types[v].size > stored[v] for v in node.outputs):
                nodes.append(node)
                wanted.update(node.operands)
        if len(nodes) == len(graph.nodes):
            return graph
        made = {value for node in nodes for value in node.outputs}
        constants = {name: array for name, array in known.constants.items() if name not in made}
        return prune(evolve(graph, nodes=tuple(reversed(nodes)), constants=constants))

    def _storage_sizes(self, node: Node, graph: Graph, stored: Mapping[str, int]) -> dict[str, int]:
        """Return the elements to store for each output of a constant node: fewer where elements are only repeated."""
        before = sum(stored.get(v, graph.types[v].size) for v in node.operands)  # packed constants are not stored
        after = sum(graph.types[v].size for v in node.outputs)
        moves = after > max(before, self.min_repeated) and _only_moves(self.instances.of_node(node, graph).program)
        return {v: before if moves else graph.types[v].size for v in node.outputs}

    def _fold(self, node: Node, graph: Graph, known: PackedConstants) -> dict[str, Array] | None:
        """Return the values of a node's outputs, or None where it stays."""
        if not known.knows(node.operands) or any(v in graph.outputs for v in node.outputs):
            return None
        instance = self.instances.of_node(node, graph)
        compute = partial(self._compute, node, instance, graph, known)
        if known.widen(instance.program.statements, node.operands, node.outputs, compute):
            return None
        if sum(graph.types[v].size for v in node.outputs) > self.max_elements:
            return None
        return None if _steps(instance.program) > self.max_steps else compute()

    def _compute(self, node: Node, instance: Instance, graph: Graph, known: PackedConstants) -> dict[str, Array]:
        """Return the values of the outputs of a node of known values."""
        operands = {
            f: known.array(v)
            for f, v in zip(instance.inputs, node.inputs, strict=False)
            if f is not None and v is not None
        }
        results = evaluate(instance.program, operands, np.float32 if _only_moves(instance.program) else np.float64)
        found = {v: results[f] for f, v in zip(instance.outputs, node.outputs, strict=True)}
        kinds = {v: graph.types[v].dtype.numpy for v in found}
        return {v: a if a.dtype == kinds[v] else as_dtype(a, kinds[v]) for v, a in found.items()}


def _only_moves(program: Program) -> bool:
    """Return whether values are only moved, none of a type wider than the folding's."""
    kinds = {type_.dtype for type_ in program.tensors.values()}
    return DType.F64 not in kinds and all(isinstance(s.body, Read) and s.is_pointwise for s in program.statements)


def _steps(program: Program) -> int:
    """Return the number of evaluations of a program's statement bodies."""
    return sum(math.prod(v.extent for v in (*s.axes, *s.reduce)) for s in program.statements)
