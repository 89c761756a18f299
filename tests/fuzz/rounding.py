"""Effects of rounding on a graph's declarations.

They are computed narrowly, from slightly moved operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from cuts.ir.affine import Values
from cuts.ir.graph import Graph
from cuts.numerics.tolerance import epsilon
from cuts.ops import Registry
from cuts.ops.reference import evaluate_graph


def roundings(
    graph: Graph, registry: Registry, inputs: Mapping[str, Values], moves: int
) -> Iterator[dict[str, Values]]:
    """Yield results of a graph's declarations in single precision with rounded storage.

    Tensors of double type are computed in double. Inputs are exact first, then `moves` times off by a rounding error.
    Every second time each node reads other results with a rounding error of its own, too: a product that one reader
    multiplies and adds in one step is rounded for the others only.
    """
    doubles = any(t.dtype.is_float and t.dtype.size > np.dtype(np.float32).itemsize for t in graph.types.values())
    floats = np.float64 if doubles else np.float32
    yield evaluate_graph(graph, registry, inputs, floats, stored=True)
    for seed in range(moves):
        move = _mover(graph, seed)
        moved = {name: move(name, value) for name, value in inputs.items()}
        yield evaluate_graph(graph, registry, moved, floats, stored=True, read=move if seed % 2 == 0 else None)


def _mover(graph: Graph, seed: int) -> Callable[[str, Values], Values]:
    """Return a function that moves each float of a tensor by at most a rounding error of the tensor's type."""
    rng = np.random.default_rng(seed)

    def move(name: str, value: Values) -> Values:
        dtype = graph.types[name].dtype
        return value * (1 + epsilon(dtype) * rng.uniform(-1, 1, np.shape(value))) if dtype.is_float else value

    return move
