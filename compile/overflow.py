"""Which value of a model outgrows the half type that a precision policy stores it in.

A kernel that fuses several operations shows only what it writes, which is no number by then. So the graph that the
policy makes of the model is evaluated in double precision, where nothing overflows, and its values are looked at in the
order in which they are computed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import evolve

from ..backends import Array
from ..ir import PRECISIONS, DType
from ..ops import evaluate_graph
from ..passes import graph_passes
from ..passes.graph import run_passes
from ..runtime import PlannedModel, outgrown
from .loading import spec_of_texts


def first_overflow(model: PlannedModel, inputs: Mapping[str, Array]) -> str:
    """Describe the first value that is finite in double precision and infinite in the type of its own; return an empty
    text where there is none.
    """
    stored = PRECISIONS[model.precision].stored
    if stored is DType.F32:
        return ""
    registry = spec_of_texts(model.specs).registry
    graph = run_passes(model.graph, graph_passes(registry, model.precision))
    convert, _ = registry.instances.conversion
    # A conversion rounds in double precision too, so what it is given says what it should yield.
    meant = {node.outputs[0]: node.operands[0] for node in graph.nodes if node.op == convert}
    narrow = tuple(v for node in graph.nodes for v in node.outputs if graph.types[v].dtype is stored)
    wanted = tuple(dict.fromkeys(meant.get(v, v) for v in narrow))
    values = {**inputs, **graph.constants, **evaluate_graph(evolve(graph, outputs=wanted), registry, inputs)}
    for name in narrow:
        right = values[meant.get(name, name)]
        with np.errstate(over="ignore"):
            infinite = np.isinf(right.astype(stored.numpy).astype(np.float64))
        if text := outgrown(name, infinite, right, stored):
            return text
    return ""
