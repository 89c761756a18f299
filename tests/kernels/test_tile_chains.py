"""Chains of contractions by elementwise results in registers.

Legal points compute the reference, without races, for any mask, length, width and number of contractions.
"""

from __future__ import annotations

import numpy as np
import pytest
from cuts.backends.compilers.cubins import compile_kernels
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.ir import PERSISTENT, Target, TurnPass
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph import Graph, Node
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.ir.types import DType, TensorType
from cuts.ir.verify.kernel import kernel_violations
from cuts.ops import Registry
from cuts.passes.fusion.grouping.group_builder import GroupBuilder
from cuts.passes.fusion.grouping.groups import Group
from cuts.passes.fusion.legality import Policy
from cuts.passes.fusion.programs import build_programs
from cuts.passes.fusion.sums import recompute_contractions
from cuts.passes.fusion.views import find_views
from cuts.passes.geometry import is_register_chain, schedule_of, tile_chain
from cuts.passes.lowering import check_barriers
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.model import features_of
from cuts.passes.schedule import chain_templates
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.passes.schedule.selection.choose import choose
from cuts.passes.schedule.selection.enumerate import columns_at, evaluate
from cuts.passes.schedule.space import make_space
from cuts.tests.emission import emit

from ..needs import needs_cuda, needs_opencl, needs_toolchain
from .test_attention_chains import GPU
from .test_points import _device, check
from .test_register_chains import PERSISTENT_TARGET, WARPGROUP_TARGET


def gradient(
    queries: int, keys: int, width: int = 32, heads: int = 1, values: int = 0, dtype: DType = DType.BF16,
    causal: bool = False, groups: int = 0,
) -> Graph:  # fmt: skip
    """Gradients of attention, of keys and values alone where `groups` share them."""
    values, shared = values or width, groups or heads
    q, k, v = (1, heads, queries, width), (1, shared, keys, width), (1, shared, keys, values)
    scores, rows = (1, heads, queries, keys), (1, heads, queries, values)
    shapes = {"q": q, "k": k, "v": v, "y": rows, "dy": rows, "w": scores, "x": scores, "dq": q}
    shapes |= {"dk": (1, heads, keys, width), "dv": (1, heads, keys, values)}
    types = {name: TensorType(dtype, shape) for name, shape in shapes.items()}
    types |= {"l": TensorType(DType.F32, scores[:3])}
    types |= {t: TensorType(dtype, (1, heads, keys, queries)) for t in ("wt", "xt")}
    operands = ("q", "k", "v", "y", "l", "dy")
    turned = {"perm": (0, 1, 3, 2)}
    nodes = (
        Node("s", "attention_scores_gradient", operands, ("w", "x"), {"causal": causal}),
        Node("tx", "transpose", ("x",), ("xt",), turned),
        Node("tw", "transpose", ("w",), ("wt",), turned),
        Node("k", "matmul", ("xt", "q"), ("dk",)),
        Node("v", "matmul", ("wt", "dy"), ("dv",)),
        *(() if groups else (Node("q", "matmul", ("x", "k"), ("dq",)),)),
    )
    return Graph("gradient", operands, (*(() if groups else ("dq",)), "dk", "dv"), types, nodes)


def gated_layer(rows: int, hidden: int, width: int, dtype: DType = DType.BF16) -> Graph:
    """Return a hidden layer with a gate, and its result."""
    shapes = {"x": (rows, width), "a": (width, hidden), "b": (width, hidden), "c": (hidden, width)}
    shapes |= {"p": (rows, hidden), "g": (rows, hidden), "r": (rows, hidden), "h": (rows, hidden), "y": (rows, width)}
    nodes = (
        Node("p", "matmul", ("x", "a"), ("p",)),
        Node("g", "matmul", ("x", "b"), ("g",)),
        Node("r", "tanh", ("g",), ("r",)),
        Node("h", "mul", ("p", "r"), ("h",)),
        Node("y", "matmul", ("h", "c"), ("y",)),
    )
    types = {name: TensorType(dtype, shape) for name, shape in shapes.items()}
    return Graph("gated", ("x", "a", "b", "c"), ("y",), types, nodes)


def groups_of(graph: Graph) -> list[FusedGroup]:
    """Return the chains of a gradient, one for each side."""
    programs = recompute_contractions(build_programs(graph, Registry.builtin()))
    builder, names = GroupBuilder(find_views(programs), Policy()), [u.name for u in programs.units]
    found = []
    for tiles in (n for n in names if n.endswith(".tiles")):
        group = builder.form(((tiles,), (tiles.replace(".tiles", ".products"),)))
        assert isinstance(group, Group), group
        found.append(group.form)
    return found


def hidden_layer() -> FusedGroup:
    """Return a hidden layer and its result as one group."""
    programs = build_programs(gated_layer(80, 150, 48), Registry.builtin())
    builder = GroupBuilder(find_views(programs), Policy())
    group = builder.form((("p", "g", "r", "h"), ("y",)))
    assert isinstance(group, Group), group
    return group.form


CASES: dict[str, Graph] = {
    "even": gradient(128, 128),
    "odd": gradient(70, 157, width=40),
    "several heads": gradient(64, 96, heads=2),
    "widths": gradient(96, 64, width=32, values=48),
    "causal": gradient(150, 150, causal=True),
    "causal, more keys": gradient(100, 200, causal=True),
    "causal, more queries": gradient(200, 100, causal=True),
    "one part": gradient(50, 50),
}


def points_of(group: FusedGroup, count: int, target: Target = WARPGROUP_TARGET) -> list[Schedule]:
    """Return legal points of a chain."""
    space, found = make_space(group, target, combinations=[*chain_templates(group, target)]), []
    for template in space.templates:
        numbers = np.random.default_rng(3).permutation(template.size)
        columns = columns_at(template, numbers)
        legal = np.flatnonzero(evaluate(space, template, columns, 0, numbers).legal)
        for n in legal[:count]:
            values = {name: int(np.broadcast_to(column, numbers.shape)[n]) for name, column in columns.items()}
            found.append(schedule_of(group, template, values, target.warp_size))
    return found


def compute(group: FusedGroup, schedule: Schedule, target: Target = WARPGROUP_TARGET) -> None:
    """Assert that a point is legal, race-free, and computes its group."""
    assert is_register_chain(schedule.segments)
    assert check_schedule(group, schedule, target) == []
    kernel = lower(group, schedule, {}, target)
    assert check_barriers(kernel) == ()
    assert kernel_violations(kernel) == []
    assert sum(b.nbytes for b in kernel.shared) == int(features_of(group, schedule, target).shared)
    check(_device("opencl"), target, group, schedule)


@needs_opencl
def test_blocks_that_take_several_tiles_compute_the_reference() -> None:
    for group in groups_of(gradient(320, 320, width=64)):
        points = [s for s in points_of(group, 999, PERSISTENT_TARGET) if s.segments[0].reductions[0].tma == PERSISTENT]
        kernels = [(s, lower(group, s, {}, PERSISTENT_TARGET)) for s in points]
        several = [(s, k) for s, k in kernels if k.turn.extent > 1]
        turns = [s for s, k in several if any(isinstance(item, TurnPass) for item in k.items)]
        assert turns
        for schedule in (several[0][0], turns[0]):
            compute(group, schedule, PERSISTENT_TARGET)


def test_blocks_of_masked_sides_take_one_tile() -> None:
    for group in groups_of(gradient(320, 320, width=64, causal=True)):
        points = points_of(group, 999, PERSISTENT_TARGET)
        assert points
        assert all(s.segments[0].reductions[0].tma != PERSISTENT for s in points)


@needs_opencl
@pytest.mark.parametrize("name", CASES)
def test_points_compute_the_reference(name: str) -> None:
    chains = [g for g in groups_of(CASES[name]) if tile_chain(g) is not None]
    assert len(chains) >= 2
    for group in chains:
        for schedule in points_of(group, 3):
            compute(group, schedule)


@needs_opencl
def test_other_factors_are_staged() -> None:
    group = hidden_layer()
    chain = tile_chain(group)
    assert chain is not None and chain.again == (None,)
    for schedule in points_of(group, 3):
        compute(group, schedule)


def test_factors_of_both_segments_are_staged_once() -> None:
    sides = [tile_chain(group) for group in groups_of(CASES["even"])]
    assert [side.again for side in sides if side is not None] == [(0, 1), (0,)]


@needs_opencl
def test_heads_that_share_keys_come_by_bulk_copies() -> None:
    (group,) = (g for g in groups_of(gradient(128, 128, width=64, heads=4, groups=2)) if tile_chain(g) is not None)
    points = [s for s in points_of(group, 99) if s.segments[0].reductions[0].tma]
    assert points
    compute(group, points[0])


@needs_opencl
def test_numbers_of_odd_rows_come_in_bulk() -> None:
    (group,) = (g for g in groups_of(gradient(70, 75, width=64, heads=2)) if len(g.outputs) == 2)
    points = [s for s in points_of(group, 99) if s.segments[0].reductions[0].tma]
    kernel = lower(group, points[0], {}, WARPGROUP_TARGET)
    assert [m.dims for m in kernel.maps if m.name.startswith("numbers")] == [(2 * 70, 1)] * 2
    compute(group, points[0])


def test_scores_that_fit_l2_are_computed_again() -> None:
    """Numbers of rows keep the order of their dims."""
    graph = gradient(197, 197, 64, heads=128)
    plan = build_graph(graph, load_spec(()), GPU, CompileOptions()).plan
    assert not [t for t, kind in plan.types.items() if kind.shape[-2:] == (197, 197)]
    (sums,) = (t for t, kind in plan.types.items() if kind.shape == (1, 128, 197) and t != "l")
    assert plan.storages[sums].strides == (197 * 128, 197, 1)


def test_masks_bound_the_parts_of_both_sides() -> None:
    for group in groups_of(gradient(150, 150, causal=True)):
        kernel = lower(group, points_of(group, 1)[0], {}, WARPGROUP_TARGET)
        assert any(define.var.name == "parts" for define in kernel.defines)


@needs_toolchain
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("width", [64, 128])
def test_chosen_kernels_spill_nothing(width: int, causal: bool) -> None:
    for group in groups_of(gradient(2048, 2048, width, heads=64, causal=causal)):
        best = choose(group, GPU, count=1)[0].schedule
        assert is_register_chain(best.segments)
        kernel = emit(extract(lower(group, best, {}, GPU)), "cuda")
        (cubin,) = compile_kernels([kernel], GPU.arch)
        assert (cubin.spill_bytes, cubin.serialised) == (0, "")


@needs_cuda
def test_odd_rows_compute_the_reference_on_a_gpu() -> None:
    for group in groups_of(gradient(197, 197, width=64, heads=12)):
        points = [s for s in points_of(group, 999, GPU) if s.segments[0].reductions[0].tma]
        for schedule in (choose(group, GPU, count=1)[0].schedule, points[0]):
            check(_device("cuda"), GPU, group, schedule)
