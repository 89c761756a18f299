"""Values of 2^31 elements or more: within kernels only."""

from __future__ import annotations

import cuts
import pytest
from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.ir import CompileOptions, DType, Graph, GraphError, TensorType, verify_graph
from cuts.ops import Registry
from cuts.passes.pipeline import compile_graph

from ..kernels.cases import builder
from ..kernels.test_attention_chains import attention


def outer_sum(rows: int) -> Graph:
    """Return the sums over rows of exponentials of all pairs' products."""
    make = builder()
    column, row = make.input(rows, 1), make.input(1, rows)
    total = make.node("reduce_sum", make.node("exp", make.node("mul", column, row)), axes=(1,), keepdims=False)
    return Graph("outer", tuple(make.inputs), (total,), dict(make.types), tuple(make.nodes))


@pytest.mark.parametrize("target", ["cuda:h200", "opencl"])
def test_values_within_a_kernel_have_any_size(target: str) -> None:
    graph = verify_graph(outer_sum(1 << 16), None)
    compiled = compile_graph(graph, Registry.builtin(), find_target(target), CompileOptions(), emit)
    stored = {tensor for step in compiled.steps for tensor in step.tensors if tensor in graph.types}
    assert stored >= {*graph.inputs, *graph.outputs}
    assert all(graph.types[tensor].size < 1 << 31 for tensor in stored)


def test_larger_stored_values_are_an_error() -> None:
    graph = attention((1, 1, 1, 1 << 16, 1 << 16, 8, 8), DType.F16)
    with pytest.raises(GraphError, match=r"has to be stored: expected fewer than 2\^31 elements, found 4294967296"):
        cuts.build(graph, target="cuda:h200", mode="no-fusion")


def test_larger_results_are_an_error() -> None:
    make = builder()
    result = make.node("add", make.input(1 << 16, 1), make.input(1, 1 << 16))
    graph = Graph("outer", tuple(make.inputs), (result,), dict(make.types), tuple(make.nodes))
    with pytest.raises(cuts.CutsError, match="expected fewer than 2"):
        verify_graph(graph, None)
    assert graph.types[result] == TensorType(DType.F32, (1 << 16, 1 << 16))
