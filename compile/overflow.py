"""Finds the value that overflows the half type of a precision policy.

A fused kernel shows only its results, which are NaN or infinite by then. So the graph that the policy makes of the
model is evaluated in double precision, where nothing overflows, and its values are checked in order of computation.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import evolve

from ..backends import Array
from ..ir import PRECISIONS, DType
from ..numerics import overflow_message
from ..ops import evaluate_graph
from ..passes import graph_passes
from ..passes.graph import run_passes
from ..runtime import PlannedModel
from .loading import spec_of_texts


def first_overflow(model: PlannedModel, inputs: Mapping[str, Array]) -> str:
    """Describe the first value that overflows its type.

    The value is finite in double precision.

    The text is empty where there is none.
    """
    stored = PRECISIONS[model.precision].stored
    if stored is DType.F32:
        return ""
    registry = spec_of_texts(model.specs).registry
    graph = run_passes(model.graph, graph_passes(registry, model.precision))
    convert, _ = registry.instances.conversion
    # A conversion rounds in double precision too, so its operand has the expected value.
    meant = {node.outputs[0]: node.operands[0] for node in graph.nodes if node.op == convert}
    narrow = tuple(v for node in graph.nodes for v in node.outputs if graph.types[v].dtype is stored)
    wanted = tuple(dict.fromkeys(meant.get(v, v) for v in narrow))
    values = {**inputs, **graph.constants, **evaluate_graph(evolve(graph, outputs=wanted), registry, inputs)}
    for name in narrow:
        right = values[meant.get(name, name)]
        with np.errstate(over="ignore"):
            infinite = np.isinf(right.astype(stored.numpy).astype(np.float64))
        if text := overflow_message(name, infinite, right, stored):
            return text
    return ""
