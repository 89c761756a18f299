"""Inputs of a group that no kernel writes.

Weights stay so in every view, packing, split and horizontal fusion.
"""

from __future__ import annotations

import numpy as np
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.backends.source import emit
from cuts.ir import Graph, Node, TensorType
from cuts.ir.compiled import CompileOptions
from cuts.ir.types import DType
from cuts.ops import Registry
from cuts.passes.fusion import Group, GroupBuilder, Policy, build_programs, find_views, form_key
from cuts.passes.partitioning.shared_launches import join_forms
from cuts.passes.pipeline import stage_results
from cuts.passes.split.split_reduction import split_reduction
from cuts.search.measurement.task_data import MAX_WARM_L2_SHARE, warm_inputs
from cuts.search.tasks.tuning_task import TuningTask
from cuts.tests.frontends.strategies import GraphBuilder as GraphMaker
from cuts.tests.fuzz.chance import Chance
from cuts.tests.fuzz.checking import Bench

REGISTRY = Registry.builtin()


def groups(batch: int = 3) -> dict[str, Group]:
    """Return two chained products by weights, and a sum with the input."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.random((64, 64), np.float32), "u": rng.random((64, 64), np.float32)}
    types = {
        t: TensorType(DType.F32, (64, 64) if t in weights else (batch, 64)) for t in ("x", "w", "u", "h", "k", "y")
    }
    nodes = (
        Node("a", "matmul", ("x", "w"), ("h",), {}),
        Node("b", "matmul", ("h", "u"), ("k",), {}),
        Node("c", "add", ("k", "x"), ("y",), {}),
    )
    graph = Graph("net", ("x",), ("y",), types, nodes, weights)
    shop = GroupBuilder(find_views(build_programs(graph, REGISTRY)), Policy())
    return {unit: shop.single(unit) for unit in shop.units}


def fixed_tensors(group: Group) -> set[str]:
    """Return the graph tensors that a group considers constant."""
    return {group.tensors[tensor] for tensor in group.form.fixed}


def test_weights_are_fixed_and_results_of_kernels_not() -> None:
    found = [fixed_tensors(group) for group in groups().values()]
    assert found == [{"w"}, {"u"}, set()]


def test_equal_groups_may_differ_in_it() -> None:
    form = next(iter(groups().values())).form
    other = evolve(form, fixed=())
    assert form.fixed and form == other and form_key(form) == form_key(other)


def test_parts_and_what_shares_a_launch_keep_it() -> None:
    form = next(iter(groups().values())).form
    divided = split_reduction(form, 4)
    assert divided is not None
    parts, rest = divided
    assert len(parts.fixed) == 1 and not rest.fixed
    both = join_forms([form, form])
    assert len(both.fixed) == 2 and set(both.fixed) <= set(both.inputs)


def test_small_results_of_kernels_arewarm_inputs() -> None:
    form, target = next(iter(groups().values())).form, find_target("cuda:h100")
    (left,) = set(form.inputs) - set(form.fixed)
    nbytes = form.tensors[left].nbytes
    for l2_bytes, wanted in (
        (int(nbytes / MAX_WARM_L2_SHARE), [("place", nbytes)]),
        (int(nbytes / MAX_WARM_L2_SHARE) - 8, []),
    ):
        problem = TuningTask(form, {}, evolve(target, l2_bytes=l2_bytes), {})
        assert warm_inputs(problem, {left: "place"}) == wanted  # type: ignore[dict-item]


def test_weights_of_what_cancels_are_no_inputs() -> None:
    """Windows whose sum is zero need no weight."""
    make = GraphMaker(0)
    x = make.input((4, 1, 3, 17))
    nothing = make.node("sub", x, x)
    inner = make.node("relu", make.node("conv", nothing, make.constant((1, 1, 1, 3)), pads=(0, 1, 0, 1)))
    graph = make.graph(make.node("conv", inner, make.input((1, 1, 1, 3)), pads=(0, 1, 0, 1)))
    chance = Chance(Bench("opencl").wide(0), launched=False)
    context = chance.context(REGISTRY, chance.target, CompileOptions(), emit)
    groups = next(found for stage, found in stage_results(graph, context) if stage == "partition").groups
    assert all(set(group.form.fixed) <= set(group.form.inputs) for group in groups)
