"""Float64 reference of a graph, and the tolerances of its values."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
from attrs import frozen

from ..ir import MATH_MODES, PRECISIONS, Array, DType, Graph, Node, PrecisionName, TensorType, as_dtype
from ..ops import Registry, evaluate_graph
from .error_growth import amplification
from .tolerance import epsilon, tolerance


def run_reference(
    graph: Graph, registry: Registry, inputs: Mapping[str, Array], dtype: npt.DTypeLike = np.float64
) -> dict[str, Array]:
    """Return every output of a graph, computed in float64 or another type.

    Results are rounded to their declared types.
    """
    values = evaluate_graph(graph, registry, inputs, dtype)
    return {name: as_dtype(values[name], graph.types[name].dtype.numpy) for name in graph.outputs}


@frozen
class Accumulation:
    """Terms and operations on the longest path to a value.

    `narrowest` is the type of fewest digits on any path; constants are not rounded.
    """

    length: int = 0
    depth: int = 0
    narrowest: DType = DType.F64


def accumulations(graph: Graph, registry: Registry, algorithms: Collection[str] = ()) -> dict[str, Accumulation]:
    """Return the accumulation of every value; reduction lengths add up along paths.

    Where one of the named `algorithms` may have computed a node, its terms count more often, by its additional
    rounding.
    """
    known = registry.instances
    result = {value: Accumulation() for value in (*graph.inputs, *graph.constants)}
    for node in graph.nodes:
        sources = [result.get(value, Accumulation()) for value in node.operands]
        instance = known.of_node(node, graph)
        own = sum(
            math.prod(axis.extent for axis in statement.reduce)
            for statement in instance.program.statements
            if statement.reduce
        )
        factor = max(
            (amplification(node, _types(node, graph), a, known) for a in instance.algorithms if a in algorithms),
            default=1.0,
        )
        own = math.ceil(own * factor**2)
        length = max((source.length for source in sources), default=0) + own
        depth = max((source.depth for source in sources), default=0) + 1
        kinds = [source.narrowest for source in sources]
        rounded = (v for v in (*node.operands, *node.outputs) if v not in graph.constants)
        kinds += [graph.types[v].dtype for v in rounded if graph.types[v].dtype.is_float]
        narrowest = max(kinds, key=epsilon, default=DType.F64)
        result |= dict.fromkeys(node.outputs, Accumulation(length, depth, narrowest))
    return result


def value_tolerances(
    graph: Graph, registry: Registry, algorithms: Collection[str], precision: PrecisionName
) -> dict[str, float]:
    """Return every value's relative rounding error under a precision policy."""
    policy = PRECISIONS[precision]
    products = MATH_MODES[policy.math].epsilon if policy.math else 0.0
    return {
        name: tolerance(graph.types[name].dtype, a.length, a.depth, _coarsest(policy.stored, a.narrowest), products)
        for name, a in accumulations(graph, registry, algorithms).items()
    }


def _coarsest(stored: DType, narrowest: DType) -> DType:
    """Return the type of fewest digits that values pass where a policy stores those of f32 in another type."""
    return narrowest if stored is DType.F32 else max(stored, narrowest, key=epsilon)


def _types(node: Node, graph: Graph) -> list[TensorType | None]:
    return [None if v is None else graph.types[v] for v in node.inputs]
