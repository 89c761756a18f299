"""Tensors between kernels in any order of their dims, with equal results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.ir.affine import as_index
from cuts.ir.compiled import Storage
from cuts.ir.evaluation import as_dtype
from cuts.ir.graph import Graph
from cuts.ir.types import DType, TensorType
from cuts.ops.reference import evaluate_graph
from cuts.passes.costs.evaluators import Roofline
from cuts.passes.fusion.grouping.group_builder import GroupBuilder
from cuts.passes.fusion.grouping.partition import partition
from cuts.passes.fusion.grouping.partitioner import Partitioner
from cuts.passes.fusion.legality import Policy
from cuts.passes.fusion.programs import Programs, build_programs
from cuts.passes.fusion.reorder import graph_layout, permute, reorder, unpermute
from cuts.passes.fusion.views import find_views
from cuts.passes.inspection.verify import verify_groups, verify_programs
from cuts.passes.layout.accesses import find_aliases
from cuts.passes.layout.fixed_layouts import fixed_tensors
from hypothesis import given, settings
from hypothesis import strategies as st

from ..operations import DIFFERENTIABLE, FLAT, SCALAR, uses
from ..operations_graph import bench_of
from .build import REGISTRY, graph, op, random_inputs, reorder_randomly, run_groups, views_of
from .test_semantics import MODES, convolutions, graphs

TARGET = find_target("cuda:sm_90")
X = TensorType(DType.F32, (2, 6, 4))
#: Uses of several kernels with many axes of one extent, which does not identify an axis.
SQUARE = (
    uses("attention", (2, 2, 2, 2), (2, 2, 2, 2), (2, 2, 2, 2)),
    uses("attention", (3, 4, 3, 4), (3, 4, 4, 4), (3, 4, 4, 3), causal=True),
    uses("deform_conv", (2, 2, 3, 3), (2, 2, 2, 2), (2, 8, 2, 2), (2,), (2, 4, 2, 2)),
    uses("irfft2", (2, 3, 3, 3, 2)),
)
#: Parts of the operations; a tier takes some.
PARTS = 8


@st.composite
def orders(draw: st.DrawFn, made: Graph) -> dict[str, tuple[int, ...]]:
    """Orders of some tensors that are not fixed."""
    programs = build_programs(made, REGISTRY)
    fixed = fixed_tensors(programs, find_aliases(programs))
    free = [t for t in programs.types if t not in fixed]
    chosen = draw(st.lists(st.sampled_from(free), unique=True)) if free else []
    return {t: tuple(draw(st.permutations(range(len(programs.types[t].shape))))) for t in chosen}


@settings(max_examples=120, deadline=None)
@given(st.one_of(graphs(), convolutions()), st.sampled_from(MODES), st.data())
def test_any_order_computes_the_reference(made: Graph, mode: str, data: st.DataObject) -> None:
    programs = reorder(build_programs(made, REGISTRY), data.draw(orders(made)))
    _is_the_reference(made, programs, mode, random_inputs(made))


def _is_the_reference(made: Graph, programs: Programs, mode: str, arrays: dict[str, Any]) -> None:
    """Assert that the groups of programs compute the graph's results."""
    verify_programs(programs)
    views = find_views(programs)
    groups = partition(Partitioner(GroupBuilder(views, Policy()), Roofline(TARGET)), mode)  # type: ignore[arg-type]
    verify_groups(groups, views)
    found = run_groups(groups, views, arrays)
    for name, value in evaluate_graph(made, REGISTRY, arrays).items():
        # A stored result of a half type is rounded, one of a group may have all digits.
        kind = made.types[name].dtype
        result = as_dtype(found[name], kind.numpy).astype(value.dtype) if kind.arithmetic is not kind else found[name]
        np.testing.assert_allclose(result, value, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_operation_computes_the_same_in_any_order(part: int) -> None:
    every = [*enumerate((*DIFFERENTIABLE, *SCALAR, *FLAT, *SQUARE))]
    for number, use in every[part::PARTS]:
        made = bench_of([use])
        for seed in range(3):
            programs = build_programs(made.graph, REGISTRY)
            other = reorder_randomly(programs, np.random.default_rng([number, seed]))
            if not other.orders:
                break
            _is_the_reference(made.graph, other, "no-fusion", made.inputs)


@given(st.permutations(range(3)))
def test_a_stored_tensor_differs_only_in_strides(order: list[int]) -> None:
    stored = TensorType(X.dtype, permute(X.shape, tuple(order)))
    assert unpermute(stored.shape, tuple(order)) == X.shape
    type_, storage = graph_layout(stored, Storage("x", 3, stored.strides), tuple(order))
    array = np.arange(3 + X.size, dtype=np.float32)
    there = np.lib.stride_tricks.as_strided(array[3:], stored.shape, [4 * s for s in stored.strides])
    seen = np.lib.stride_tricks.as_strided(array[3:], type_.shape, [4 * s for s in storage.strides])
    np.testing.assert_array_equal(np.transpose(seen, order), there)


def test_statements_walk_memory_in_its_order() -> None:
    made = graph({"x": (2, 6, 4)}, op("a", "relu", "x"), op("y", "exp", "a"), out="y")
    programs = reorder(build_programs(made, REGISTRY), {"a": (2, 0, 1)})
    (statement,) = programs.units[0].statements
    assert [v.extent for v in statement.axes] == [4, 2, 6]
    assert statement.write == tuple(map(as_index, statement.axes))


def test_parts_lie_inside_their_concatenation_in_order() -> None:
    made = graph({"x": (2, 3, 4), "z": (2, 5, 4)}, op("a", "relu", "x"), op("b", "exp", "z"),
                 op("c", "concat", "a", "b", axis=1), op("y", "relu", "c"), out="y")  # fmt: skip
    last = (0, 2, 1)
    views = views_of(reorder(build_programs(made, REGISTRY), {"a": last, "b": last, "c": last}))
    assert views.storages == {"a": Storage("c", 0, (32, 8, 1)), "b": Storage("c", 3, (32, 8, 1))}
