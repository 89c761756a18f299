"""The reference backend: NumPy in float64, straight from the declarations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..ir.graph import Graph
from ..ops.reference import evaluate_graph
from .device import Array


def run_reference(graph: Graph, registry: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return every output of a graph, computed in float64 and rounded to its declared type."""
    values = evaluate_graph(graph, registry, inputs)
    return {name: np.asarray(values[name]).astype(graph.types[name].dtype.numpy) for name in graph.outputs}
