"""Gradients of attention with limited memory: no kernel stores scores, and all that they compute is the reference."""

from __future__ import annotations

from typing import Any

import cuts
import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import Spec
from cuts.compile.plan import CompiledPlan
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType

from ..needs import needs_cuda, needs_opencl

#: Shapes of (batch, heads, heads of keys, queries, keys, width), attributes, and a mask.
CASES: dict[str, tuple[tuple[int, ...], dict[str, object], TensorType | None]] = {
    "even": ((1, 2, 2, 128, 128, 8), {}, None),
    "odd": ((1, 1, 1, 157, 157, 6), {}, None),
    "other lengths": ((1, 1, 1, 96, 203, 8), {}, None),
    "causal": ((1, 2, 2, 130, 130, 8), {"causal": True}, None),
    "masked": ((2, 1, 1, 128, 128, 8), {}, TensorType(DType.BOOL, (2, 1, 1, 128))),
    "biased": ((1, 1, 1, 128, 128, 8), {}, TensorType(DType.F32, (1, 1, 128, 128))),
    "in groups": ((1, 4, 2, 128, 128, 8), {}, None),
    "one head of keys, causal": ((2, 3, 1, 132, 132, 6), {"causal": True}, None),
    "softcap": ((1, 1, 1, 128, 128, 8), {"softcap": 2.0}, None),
}


def gradient(
    shape: tuple[int, ...], attributes: dict[str, Any], mask: TensorType | None, dtype: DType = DType.F32
) -> tuple[Graph, Spec]:
    """Return the gradients of attention and its result as a graph, with the declarations."""
    b, h, g, m, n, e = shape
    shapes = {"q": (b, h, m, e), "k": (b, g, n, e), "v": (b, g, n, e), "y": (b, h, m, e), "dy": (b, h, m, e)}
    types = {t: TensorType(dtype, dims) for t, dims in shapes.items()} | ({"mask": mask} if mask else {})
    operands = ("q", "k", "v", "mask") if mask else ("q", "k", "v")
    node = Node("a", "attention", operands, ("y",), attributes)
    made = cuts.grad(Graph("a", (*operands, "dy"), ("y",), types, (node,)), loss="y", wrt=["q", "k", "v"], given="dy")
    graph = evolve(made.graph, inputs=(*operands, "dy"), outputs=(*made.gradients.values(), "y"))
    return graph, made.spec


def built(graph: Graph, spec: Spec, memory: int | None) -> CompiledPlan:
    """Return a plan whose blocks have threads that work side by side, as a GPU's do."""
    small = evolve(find_target("opencl"), lockstep=True, NUM_SM=8, MAX_thread=64, MAX_shared=49152, l2_bytes=1 << 30)
    return build_graph(graph, spec, small, CompileOptions(memory=memory))


@needs_opencl
@pytest.mark.parametrize("name", CASES)
def test_gradients_without_scores_are_the_reference(name: str) -> None:
    shape, attributes, mask = CASES[name]
    graph, spec = gradient(shape, attributes, mask)
    scores = 4 * shape[0] * shape[1] * shape[3] * shape[4]
    values = sum(kind.nbytes for t, kind in graph.types.items() if t in {*graph.inputs, *graph.outputs})
    plan = built(graph, spec, values + scores)
    assert plan.plan.arena <= values + scores // 4
    assert all(result.ok for result in plan.verify())


@needs_opencl
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_halves_without_scores_are_the_reference(dtype: DType) -> None:
    graph, spec = gradient((1, 2, 2, 128, 128, 8), {}, None, dtype)
    values = sum(kind.nbytes for t, kind in graph.types.items() if t in {*graph.inputs, *graph.outputs})
    plan = built(graph, spec, values + 2 * 2 * 128 * 128)
    assert plan.plan.arena <= values + 2 * 2 * 128 * 128 // 4
    assert all(result.ok for result in plan.verify())


def test_no_kernel_stores_scores_though_one_that_does_is_faster() -> None:
    """Of four heads, kernels that compute all of it for each side have fewer blocks than the machine has room for."""
    graph, spec = gradient((1, 4, 2, 600, 600, 64), {}, None)
    values = sum(kind.nbytes for t, kind in graph.types.items() if t in {*graph.inputs, *graph.outputs})
    target, limit = find_target("cuda:h100"), values + 4 * 4 * 600 * 600
    plan = build_graph(graph, spec, target, CompileOptions(memory=limit))
    assert plan.plan.arena <= values + 600 * 600
    assert build_graph(graph, spec, target, CompileOptions()).plan.arena > limit


@needs_cuda
@pytest.mark.parametrize("causal", [False, True])
def test_long_gradients_without_scores_are_the_reference_on_a_gpu(causal: bool) -> None:
    graph, spec = gradient((1, 4, 2, 600, 600, 64), {"causal": causal}, None)
    values = sum(kind.nbytes for t, kind in graph.types.items() if t in {*graph.inputs, *graph.outputs})
    plan = build_graph(graph, spec, find_target("cuda"), CompileOptions(memory=values + 4 * 4 * 600 * 600))
    assert plan.plan.arena <= values + 600 * 600
    assert all(result.ok for result in plan.verify())


def test_without_a_limit_scores_that_caches_hold_are_kept() -> None:
    graph, spec = gradient(*CASES["even"])
    assert built(graph, spec, None).plan.arena > 4 * 2 * 128 * 128


@needs_opencl
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_spreads_as_it_does_in_the_reference(value: float) -> None:
    """Of an infinite factor, an exchanged sum may be infinite that was infinite terms of both signs."""
    graph, spec = gradient((1, 2, 2, 64, 96, 8), {}, None)
    rng = np.random.default_rng(0)
    inputs = {t: rng.standard_normal(graph.types[t].shape).astype(np.float32) for t in graph.inputs}
    inputs["v"][0, 1, 5, 3] = value
    inputs["dy"][0, 0, 7, 2] = value
    limit = sum(array.nbytes for array in inputs.values()) * 2 + 4 * 2 * 64 * 96
    plan = built(graph, spec, limit)
    found, expected = plan.run(inputs), plan.reference(inputs)
    for tensor, array in expected.items():
        np.testing.assert_array_equal(np.isfinite(found[tensor]), np.isfinite(array), err_msg=tensor)
        kept = np.isfinite(array) if np.isinf(value) else np.ones(array.shape, bool)
        np.testing.assert_allclose(found[tensor][kept], array[kept], rtol=1e-3, atol=1e-4, err_msg=tensor)
