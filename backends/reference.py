"""The reference backend: NumPy in float64, straight from the declarations, and how much rounding a result may have collected."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from attrs import frozen

from ..ir.graph import Graph
from ..ops.inference import Instances
from ..ops.reference import evaluate_graph
from ..ops.registry import Registry
from .device import Array


def run_reference(graph: Graph, registry: Registry, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return every output of a graph, computed in float64 and rounded to its declared type."""
    values = evaluate_graph(graph, registry, inputs)
    return {name: np.asarray(values[name]).astype(graph.types[name].dtype.numpy) for name in graph.outputs}


@frozen
class Accumulation:
    """Terms added up and operations passed on the longest way to a value."""

    length: int = 0
    depth: int = 0


def accumulations(graph: Graph, registry: Registry) -> dict[str, Accumulation]:
    """Return the accumulation behind every value of a graph; reduction lengths add up along a path."""
    known = Instances(registry)
    result = {value: Accumulation() for value in (*graph.inputs, *graph.constants)}
    for node in graph.nodes:
        sources = [result.get(value, Accumulation()) for value in node.operands]
        program = known.of_node(node, graph).program
        own = sum(math.prod(axis.extent for axis in statement.reduce) for statement in program.statements if statement.reduce)
        length = max((source.length for source in sources), default=0) + own
        depth = max((source.depth for source in sources), default=0) + 1
        result |= dict.fromkeys(node.outputs, Accumulation(length, depth))
    return result
