"""Long sums of one thread are added block by block.

Means and variances of many numbers then keep the digits of PyTorch, which accumulates in double precision.
"""

from __future__ import annotations

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.compile.driver import build_graph
from cuts.compile.loading import Spec
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry, evaluate_graph
from cuts.passes.lowering.reductions import MIN_BLOCKED_TERMS
from cuts.passes.pipeline import compile_graph

SPEC = Spec(Registry.builtin())
OPENCL = find_target("opencl")


def norm(channels: int, size: int) -> Graph:
    """Return a batch norm that computes its own statistics."""
    types = {name: TensorType(DType.F32, (2, channels, size, size)) for name in "xy"}
    types |= {name: TensorType(DType.F32, (channels,)) for name in ("s", "b", "m", "v", "running m", "running v")}
    node = Node("norm", "batch_norm_training", ("x", "s", "b", "m", "v"), ("y", "running m", "running v"))
    return Graph("norm", ("x", "s", "b", "m", "v"), ("y", "running m", "running v"), types, (node,))


@pytest.mark.opencl
def test_statistics_of_many_numbers_keep_their_digits() -> None:
    graph, rng = norm(96, 32), np.random.default_rng(0)
    given = {name: np.ones(graph.types[name].shape, np.float32) for name in graph.inputs}
    given["x"] = rng.standard_normal(graph.types["x"].shape).astype(np.float32)
    exact = evaluate_graph(graph, SPEC.registry, given)["y"]
    found = build_graph(graph, SPEC, OPENCL, CompileOptions()).run(given)["y"]
    off = np.asarray(found, np.float64) - exact
    assert np.sqrt((off**2).mean()) < 1.5e-7, "6e-7 where 2048 terms were added up one after another"


def accumulators(graph: Graph) -> int:
    """Return how many sums the kernels of a graph hold."""
    compiled = compile_graph(graph, SPEC.registry, OPENCL, CompileOptions(), emit)
    return sum(line.strip().startswith("float a") for k in compiled.kernels for line in k.source.splitlines())


def test_short_sums_and_products_are_added_at_once() -> None:
    assert accumulators(norm(96, 32)) == 4, "two sums, each with one of a chunk"
    assert accumulators(norm(96, 8)) == 2
    types = {"x": TensorType(DType.F32, (32, 4 * MIN_BLOCKED_TERMS)), "w": TensorType(DType.F32,
    (4 * MIN_BLOCKED_TERMS, 32)),
             "y": TensorType(DType.F32, (32, 32))}  # fmt: skip
    product = Graph("product", ("x", "w"), ("y",), types, (Node("n", "matmul", ("x", "w"), ("y",)),))
    assert accumulators(product) == len(compile_graph(product, SPEC.registry, OPENCL, CompileOptions(), emit).kernels)
