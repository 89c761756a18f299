"""Gradients of attention with limited memory.

No kernel stores scores, and all results are the reference's.
"""

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
from cuts.ops.reference import evaluate_graph
from cuts.passes.costs.evaluators import Roofline
from cuts.passes.fusion import (
    Group,
    GroupBuilder,
    Partitioner,
    Policy,
    build_programs,
    defer_normalisation,
    drop_unused,
    eliminate_common_reductions,
    find_views,
    recompute_contractions,
)
from cuts.passes.fusion.grouping.convex_merge import convex_merge_candidates, merge_candidate

from ..kernels.test_attention_chains import compute, points_in_parts
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
    """Return attention's gradients and result as a graph, with the declarations."""
    b, h, g, m, n, e = shape
    shapes = {"q": (b, h, m, e), "k": (b, g, n, e), "v": (b, g, n, e), "y": (b, h, m, e), "dy": (b, h, m, e)}
    types = {t: TensorType(dtype, dims) for t, dims in shapes.items()} | ({"mask": mask} if mask else {})
    operands = ("q", "k", "v", "mask") if mask else ("q", "k", "v")
    node = Node("a", "attention", operands, ("y",), attributes)
    made = cuts.grad(Graph("a", (*operands, "dy"), ("y",), types, (node,)), loss="y", wrt=["q", "k", "v"], given="dy")
    graph = evolve(made.graph, inputs=(*operands, "dy"), outputs=(*made.gradients.values(), "y"))
    return graph, made.spec


def build_plan(graph: Graph, spec: Spec, memory: int | None) -> CompiledPlan:
    """Return a plan whose blocks have parallel threads, as a GPU's do."""
    small = evolve(find_target("opencl"), lockstep=True, NUM_SM=8, MAX_thread=64, MAX_shared=49152, l2_bytes=1 << 30)
    return build_graph(graph, spec, small, CompileOptions(memory=memory))


@needs_opencl
@pytest.mark.parametrize("name", CASES)
def test_gradients_without_scores_are_the_reference(name: str) -> None:
    shape, attributes, mask = CASES[name]
    graph, spec = gradient(shape, attributes, mask)
    scores = 4 * shape[0] * shape[1] * shape[3] * shape[4]
    values = sum(kind.nbytes for t, kind in graph.types.items() if t in {*graph.inputs, *graph.outputs})
    plan = build_plan(graph, spec, values + scores)
    assert plan.plan.arena <= values + scores // 4
    assert all(result.ok for result in plan.verify())


@needs_opencl
@pytest.mark.parametrize("causal", [False, True])
def test_row_sums_leave_chains_of_partial_rows(causal: bool) -> None:
    """Lanes fill tiles with rows of other blocks.

    A mask gives these more parts, and those rows are written.
    """
    graph, spec = gradient((1, 2, 2, 150, 150, 64), {"causal": causal}, None)
    programs = defer_normalisation(
        recompute_contractions(eliminate_common_reductions(drop_unused(build_programs(graph, spec.registry))))
    )
    parts = Partitioner(GroupBuilder(find_views(programs), Policy()), Roofline(find_target("cuda:h200")))
    groups = parts.singletons()
    chain = merge_candidate(parts.builder, next(iter(convex_merge_candidates(parts, groups, parts.owners(groups)))))
    assert isinstance(chain, Group)
    assert len(chain.form.outputs) == 3  # the greatest of each row, its sum, the result
    points = points_in_parts(chain.form, 4)
    assert any(p.segments[1].dims[-1].block > p.segments[2].dims[-2].block for p in points)
    for schedule in points[:6]:
        compute(chain.form, schedule)


@needs_opencl
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_halves_without_scores_are_the_reference(dtype: DType) -> None:
    graph, spec = gradient((1, 2, 2, 128, 128, 8), {}, None, dtype)
    values = sum(kind.nbytes for t, kind in graph.types.items() if t in {*graph.inputs, *graph.outputs})
    plan = build_plan(graph, spec, values + 2 * 2 * 128 * 128)
    assert plan.plan.arena <= values + 2 * 2 * 128 * 128 // 4
    assert all(result.ok for result in plan.verify())


@needs_opencl
@pytest.mark.parametrize("dtype", [DType.BOOL, DType.F32, None])
def test_queries_that_see_no_key_have_no_gradient(dtype: DType | None) -> None:
    torch = pytest.importorskip("torch")
    shape, rng = (2, 2, 1, 20, 24, 8), np.random.default_rng(0)
    seen = rng.random((20, 24)) < 0.6 if dtype else np.tril(np.ones((20, 24), bool), -3)
    seen[2:3] = False
    seen[:, 7] = False if dtype else seen[:, 7]
    attributes = {} if dtype else {"causal": True, "offset": -3}
    graph, spec = gradient(shape, attributes, TensorType(dtype, seen.shape) if dtype else None)
    inputs = {t: rng.standard_normal(graph.types[t].shape).astype(np.float32) for t in graph.inputs if t != "mask"}
    given = [torch.tensor(inputs[t], requires_grad=True) for t in "qkv"]
    attend = torch.nn.functional.scaled_dot_product_attention
    attend(*given, torch.tensor(seen), enable_gqa=True).backward(torch.tensor(inputs["dy"]))
    if dtype:
        inputs["mask"] = seen if dtype is DType.BOOL else np.where(seen, 0, -np.inf).astype(np.float32)
    plan = build_graph(graph, spec, find_target("opencl"), CompileOptions())
    for found in (plan.run(inputs), evaluate_graph(graph, spec.registry, inputs)):
        for name, operand in zip(graph.outputs, given, strict=False):
            np.testing.assert_allclose(found[name], operand.grad.numpy(), rtol=1e-4, atol=1e-5)
        assert not found[graph.outputs[0]][:, :, 2].any()


def test_no_kernel_stores_scores_even_where_faster() -> None:
    """Kernels that compute scores for each side have few blocks.

    Of four heads there are fewer than the machine has room for.
    """
    graph, spec = gradient((1, 4, 2, 600, 600, 64), {}, None)
    values = sum(kind.nbytes for t, kind in graph.types.items() if t in {*graph.inputs, *graph.outputs})
    target, limit = find_target("cuda:h100"), values + 4 * 4 * 600 * 600
    plan = build_graph(graph, spec, target, CompileOptions(memory=limit))
    assert plan.plan.arena <= values + 600 * 600
    assert build_graph(graph, spec, target, CompileOptions()).plan.arena > limit


@needs_cuda
@pytest.mark.parametrize("causal", [False, True])
def test_long_gradients_without_scores_equal_the_reference(causal: bool) -> None:
    graph, spec = gradient((1, 4, 2, 600, 600, 64), {"causal": causal}, None)
    values = sum(kind.nbytes for t, kind in graph.types.items() if t in {*graph.inputs, *graph.outputs})
    plan = build_graph(graph, spec, find_target("cuda"), CompileOptions(memory=values + 4 * 4 * 600 * 600))
    assert plan.plan.arena <= values + 600 * 600
    assert all(result.ok for result in plan.verify())


def test_cached_scores_stay_without_a_limit() -> None:
    graph, spec = gradient(*CASES["causal"])
    assert build_plan(graph, spec, None).plan.arena > 4 * 2 * 130 * 130


@needs_opencl
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_infinities_spread_as_in_the_reference(value: float) -> None:
    """An exchanged sum of infinite terms of both signs may be infinite.

    One factor is infinite.
    """
    graph, spec = gradient((1, 2, 2, 64, 96, 8), {}, None)
    rng = np.random.default_rng(0)
    inputs = {t: rng.standard_normal(graph.types[t].shape).astype(np.float32) for t in graph.inputs}
    inputs["v"][0, 1, 5, 3] = value
    inputs["dy"][0, 0, 7, 2] = value
    limit = sum(array.nbytes for array in inputs.values()) * 2 + 4 * 2 * 64 * 96
    plan = build_plan(graph, spec, limit)
    found, expected = plan.run(inputs), plan.reference(inputs)
    for tensor, array in expected.items():
        np.testing.assert_array_equal(np.isfinite(found[tensor]), np.isfinite(array), err_msg=tensor)
        kept = np.isfinite(array) if np.isinf(value) else np.ones(array.shape, bool)
        np.testing.assert_allclose(found[tensor][kept], array[kept], rtol=1e-3, atol=1e-4, err_msg=tensor)
