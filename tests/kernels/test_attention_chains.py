"""Chained contractions.

A product, rows of its results and a product of those in one kernel. Legal points compute the reference, without races,
for every type, length, mask, group of heads and order. Other groups report the reason.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.compilers.cubins import compile_kernels
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph import Graph, Node
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.ir.types import DType, TensorType
from cuts.ir.verify.segment import verify_group
from cuts.ops import Registry
from cuts.passes.costs import analytic_cost
from cuts.passes.costs.analytic_cost import AnalyticCost
from cuts.passes.costs.evaluators import Roofline
from cuts.passes.fusion.grouping.convex_merge import convex_merge_candidates, merge_candidate
from cuts.passes.fusion.grouping.group_builder import GroupBuilder
from cuts.passes.fusion.grouping.groups import Group
from cuts.passes.fusion.grouping.partition import partition
from cuts.passes.fusion.grouping.partitioner import Partitioner
from cuts.passes.fusion.interpret import interpret
from cuts.passes.fusion.legality import Policy
from cuts.passes.fusion.normalise import Illegal
from cuts.passes.fusion.programs import build_programs
from cuts.passes.fusion.sums.deferred_normalisation import defer_normalisation
from cuts.passes.fusion.views import find_views
from cuts.passes.geometry import schedule_of
from cuts.passes.geometry.row_sharing import can_stream_rows
from cuts.passes.lowering import check_barriers
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.model import features_of
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.passes.schedule.selection.choose import choose, first_points
from cuts.passes.schedule.selection.enumerate import columns_at, evaluate
from cuts.passes.schedule.space import make_space
from cuts.search.tasks import oracle
from cuts.tests.emission import emit

from ..needs import needs_opencl, needs_toolchain
from .cases import arrays
from .test_points import SMALL_GPU, _device, check

GPU = find_target("cuda:h200")
SMALL_TARGET = evolve(SMALL_GPU, MAX_thread=64, MAX_shared=32768)
REGISTRY = Registry.builtin()


def find_chain(graph: Graph) -> Group | Illegal:
    """Return the first hull of a graph's units as one group."""
    shop = GroupBuilder(find_views(defer_normalisation(build_programs(graph, REGISTRY))), Policy())
    parts = Partitioner(shop, Roofline(GPU))
    groups = parts.singletons()
    found = list(convex_merge_candidates(parts, groups, parts.owners(groups)))
    return merge_candidate(shop, found[0]) if found else Illegal("there is no hull")


def attention(
    shape: tuple[int, ...], dtype: DType = DType.F32, mask: TensorType | None = None, **attributes: Any
) -> Graph:
    """Attention of (batch, heads, groups, queries, keys, width, width of values)."""
    b, h, g, m, n, e, f = shape
    shapes = {"q": (b, h, m, e), "k": (b, g, n, e), "v": (b, g, n, f), "y": (b, h, m, f)}
    types = {name: TensorType(dtype, dims) for name, dims in shapes.items()}
    inputs = ("q", "k", "v") if mask is None else ("q", "k", "v", "mask")
    types |= {} if mask is None else {"mask": mask}
    return Graph("attention", inputs, ("y",), types, (Node("a", "attention", inputs, ("y",), attributes),))


def group_of(graph: Graph) -> FusedGroup:
    """Return the form of a graph that is one chain."""
    found = find_chain(graph)
    assert isinstance(found, Group), found
    verify_group(found.form)
    return found.form


CASES: dict[str, Graph] = {
    "even": attention((1, 2, 2, 32, 32, 8, 16)),
    "odd": attention((2, 1, 1, 21, 23, 5, 7)),
    "longer than a power of two": attention((1, 1, 1, 9, 65, 4, 8)),
    "halves": attention((1, 2, 2, 16, 24, 8, 16), DType.F16),
    "bf16, odd": attention((1, 2, 1, 17, 19, 8, 6), DType.BF16),
    "groups of heads": attention((1, 4, 2, 16, 16, 8, 8)),
    "one head for all, odd": attention((2, 3, 1, 13, 11, 6, 4)),
    "causal": attention((1, 2, 2, 20, 20, 8, 8), causal=True),
    "causal after others": attention((1, 1, 1, 12, 20, 8, 8), causal=True, offset=8),
    "rows of nothing": attention((1, 1, 1, 12, 20, 8, 8), causal=True, offset=-4),
    "softcap": attention((1, 1, 1, 16, 16, 8, 8), softcap=5.0),
    "a bias": attention((1, 2, 2, 16, 24, 8, 8), mask=TensorType(DType.F32, (1, 2, 16, 24))),
    "a mask": attention((2, 2, 2, 16, 24, 8, 8), mask=TensorType(DType.BOOL, (2, 1, 16, 24))),
    "masked keys": attention((2, 2, 1, 8, 20, 8, 8), mask=TensorType(DType.BOOL, (2, 1, 1, 20))),
    "few keys": attention((1, 1, 1, 32, 20, 8, 8)),
    "many keys": attention((1, 1, 1, 8, 300, 4, 8)),
    "one query": attention((2, 2, 2, 1, 24, 8, 8)),
}
#: Rows that come in parts.
LONG_GRAPHS: dict[str, Graph] = {
    "long": attention((1, 1, 1, 16, 192, 8, 16)),
    "long, odd": attention((1, 2, 1, 19, 201, 6, 9)),
    "long, causal": attention((1, 1, 1, 160, 160, 8, 8), causal=True),
    "long rows of nothing": attention((1, 1, 1, 150, 150, 4, 8), causal=True, offset=-70),
    "long, in groups, masked": attention((2, 4, 2, 16, 140, 8, 8), mask=TensorType(DType.BOOL, (2, 1, 1, 140))),
    "long, one query": attention((2, 2, 2, 1, 192, 8, 8)),
    "long, a bias": attention((1, 1, 1, 16, 150, 8, 8), mask=TensorType(DType.F32, (16, 150))),
}


def points_of(group: FusedGroup, count: int) -> list[Schedule]:
    """Return some of the best points of a small machine."""
    return [candidate.schedule for candidate in choose(group, SMALL_TARGET, count=count)]


def points_in_parts(group: FusedGroup, count: int) -> list[Schedule]:
    """Return legal points with streamed rows.

    They are among random ones of the thinned space.
    """
    space, found = make_space(group, SMALL_TARGET, coarse=True), []
    for structure in space.templates:
        numbers = np.random.default_rng(5).integers(0, structure.size, size=1 << 15)
        columns = columns_at(structure, numbers)
        legal = evaluate(space, structure, columns, 0, numbers).legal & (np.asarray(columns["s1.part"]) > 0)
        for n in np.flatnonzero(legal)[:count]:
            values = {name: int(np.broadcast_to(column, numbers.shape)[n]) for name, column in columns.items()}
            found.append(schedule_of(group, structure, values, SMALL_TARGET.warp_size))
    return found


@needs_opencl
@pytest.mark.parametrize("name", CASES)
def test_points_compute_the_reference(name: str) -> None:
    group = group_of(CASES[name])
    assert len(group.segments) == 3
    for schedule in points_of(group, 6):
        compute(group, schedule)


@needs_opencl
@pytest.mark.parametrize("name", LONG_GRAPHS)
def test_rows_in_parts_compute_the_reference(name: str) -> None:
    group = group_of(LONG_GRAPHS[name])
    points = points_in_parts(group, 1)
    assert points
    for schedule in points:
        compute(group, schedule)


def compute(group: FusedGroup, schedule: Schedule) -> None:
    """Assert that a point is legal, race-free, and computes its group."""
    assert check_schedule(group, schedule, SMALL_TARGET) == []
    assert check_barriers(lower(group, schedule, {}, SMALL_TARGET)) == ()
    check(_device("opencl"), SMALL_TARGET, group, schedule)


@pytest.mark.parametrize("name", [*CASES, *LONG_GRAPHS])
def test_shared_memory_is_what_was_counted(name: str) -> None:
    group = group_of({**CASES, **LONG_GRAPHS}[name])
    points = [*points_of(group, 4), *(c.schedule for c in choose(group, GPU, count=4))]
    for schedule in [*points, *(points_in_parts(group, 1) if name in LONG_GRAPHS else ())]:
        counted = sum(buffer.nbytes for buffer in lower(group, schedule, {}, GPU).shared)
        assert int(features_of(group, schedule, GPU).shared) == counted


def test_halves_that_divide_rows_come_whole() -> None:
    assert not can_stream_rows(group_of(CASES["halves"]))
    assert can_stream_rows(group_of(CASES["odd"]))


def spelled_graph(*between: Node, scores: str = "p") -> Graph:
    """Products and a softmax, with nodes between them."""
    shapes = {"q": (4, 32, 8), "k": (4, 8, 24), "v": (4, 24, 16), "x": (4, 32, 24), "p": (4, 32, 24), "z": (4, 32, 24),
              "w": (4, 32, 24), "y": (4, 32, 16)}  # fmt: skip
    nodes = (
        Node("a", "matmul", ("q", "k"), ("p",), {}),
        *between,
        Node("c", "softmax", (scores,), ("w",), {"axis": -1}),
        Node("e", "matmul", ("w", "v"), ("y",), {}),
    )
    used = {name: TensorType(DType.F32, shape) for name, shape in shapes.items() if between or name not in "xz"}
    return Graph("spelled", tuple(n for n in "qkvx" if n in used), ("y",), used, nodes)


@needs_opencl
def test_spelled_out_graph_is_a_chain_too() -> None:
    for graph in (spelled_graph(), spelled_graph(Node("b", "add", ("p", "x"), ("z",), {}), scores="z")):
        group = group_of(graph)
        for schedule in points_of(group, 2):
            compute(group, schedule)


@needs_opencl
def test_rows_of_any_kind_are_between_products() -> None:
    """Rows divided by the sum of their magnitudes cannot be streamed."""
    shapes = {"q": (2, 16, 8), "k": (2, 8, 24), "v": (2, 24, 16), "p": (2, 16, 24), "a": (2, 16, 24), "s": (2, 16, 1),
              "w": (2, 16, 24), "y": (2, 16, 16)}  # fmt: skip
    nodes = (
        Node("n0", "matmul", ("q", "k"), ("p",), {}),
        Node("n1", "abs", ("p",), ("a",), {}),
        Node("n2", "reduce_sum", ("a",), ("s",), {"axes": (2,), "keepdims": True}),
        Node("n3", "div", ("p", "s"), ("w",), {}),
        Node("n4", "matmul", ("w", "v"), ("y",), {}),
    )
    types = {name: TensorType(DType.F32, shape) for name, shape in shapes.items()}
    group = group_of(Graph("magnitudes", ("q", "k", "v"), ("y",), types, nodes))
    assert not can_stream_rows(group)
    for schedule in points_of(group, 3):
        compute(group, schedule)


def test_scores_that_others_need_are_no_chain() -> None:
    found = find_chain(evolve(spelled_graph(), outputs=("y", "p")))
    assert isinstance(found, Illegal)
    assert "needed outside" in found.reason


def test_sums_over_several_axes_are_no_rows() -> None:
    """Batch norms lie between the convolutions of a training step.

    They are rejected before forms are looked for.
    """
    shapes = {"x": (4, 8, 8, 8), "k": (8, 8, 1, 1), "c": (4, 8, 8, 8), "s": (1, 8, 1, 1), "d": (4, 8, 8, 8),
              "y": (4, 8, 8, 8)}  # fmt: skip
    nodes = (
        Node("n0", "conv", ("x", "k"), ("c",), {}),
        Node("n1", "reduce_sum", ("c",), ("s",), {"axes": (0, 2, 3), "keepdims": True}),
        Node("n2", "sub", ("c", "s"), ("d",), {}),
        Node("n3", "conv", ("d", "k"), ("y",), {}),
    )
    types = {name: TensorType(DType.F32, shape) for name, shape in shapes.items()}
    found = find_chain(Graph("centred", ("x", "k"), ("y",), types, nodes))
    assert isinstance(found, Illegal)
    assert found.reason == "rows of several axes are between two products"


def test_a_partition_takes_the_chain_that_is_faster() -> None:
    short = attention((64, 12, 12, 128, 128, 64, 64))
    views = find_views(defer_normalisation(build_programs(short, REGISTRY)))
    shop = GroupBuilder(views, Policy())
    assert [len(g.parts) for g in partition(Partitioner(shop, AnalyticCost(GPU)), "mixed")] == [3]
    assert [len(g.parts) for g in partition(Partitioner(shop, AnalyticCost(GPU)), "no-fusion")] == [1] * 4
    without = GroupBuilder(views, Policy(shared=False))
    assert all(len(g.parts) == 1 for g in partition(Partitioner(without, AnalyticCost(GPU)), "mixed"))


def test_chains_over_one_iteration_space_share_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (group_of(attention((1, 2, 2, 32, 32, 8, 16), scale=scale)) for scale in (1.0, 0.5))
    asked = list[FusedGroup]()

    def count(group: FusedGroup, *given: Any, **options: Any) -> Any:
        asked.append(group)
        return first_points(group, *given, **options)

    monkeypatch.setattr(analytic_cost, "first_points", count)
    evaluator = AnalyticCost(GPU)
    costs = [evaluator.cost(group) for group in (first, second)]
    assert first != second
    assert asked == [first]
    for group, cost in zip((first, second), costs, strict=True):
        chosen = choose(group, GPU)[0]
        known = evaluator.improve(group, chosen)
        assert known.score == min(cost, chosen.score)
        assert not list(check_schedule(group, known.schedule, GPU))


def test_values_only_last_product_reads_are_computed_there() -> None:
    """Values between the products belong to the second one's own operand.

    They are transposed, or made of others.
    """
    whole = spelled_graph()
    types = {**whole.types, "u": TensorType(DType.F32, (4, 24, 16)), "v": TensorType(DType.F32, (4, 24, 16))}
    nodes = (Node("d", "relu", ("u",), ("v",), {}), *whole.nodes)
    graph = evolve(whole, inputs=("q", "k", "u"), types=types, nodes=nodes)
    chain = find_chain(graph)
    assert isinstance(chain, Group)
    shop = GroupBuilder(find_views(defer_normalisation(build_programs(graph, REGISTRY))), Policy())
    found = shop.fuse(shop.single("d"), chain)
    assert isinstance(found, Group)
    assert "d" in found.parts[2]


@needs_toolchain
@pytest.mark.parametrize("shape", [(64, 12, 12, 128, 128, 64, 64), (2, 12, 12, 777, 777, 64, 64)], ids=str)
def test_what_is_chosen_spills_nothing(shape: tuple[int, ...]) -> None:
    group = group_of(attention(shape))
    best = choose(group, GPU)[0].schedule
    (found,) = compile_kernels([emit(extract(lower(group, best, {}, GPU)), "cuda")], GPU.arch)
    assert found.spill_bytes == 0


@pytest.mark.parametrize("name", ["odd", "groups of heads", "bf16, odd", "a mask"])
def test_samples_of_a_chain_are_its_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "MAX_WHOLE_EVALUATIONS", 0)
    group = group_of(CASES[name])
    values = arrays(group, 3)
    whole = interpret(group, values)
    for tensor, sample in oracle.expected_outputs(group, values, count=64).items():
        np.testing.assert_allclose(sample.values, whole[tensor][sample.places], rtol=1e-6, atol=1e-7)


def layer(batch: int, length: int, width: int, heads: int) -> Graph:
    """Return a transformer layer up to its residual.

    It has projections, heads, attention with a mask, and a projection.
    """
    types: dict[str, TensorType] = {"x": TensorType(DType.F32, (batch, length, width))}
    types |= {f"w{n}": TensorType(DType.F32, (width, width)) for n in "qkvo"}
    types["mask"] = TensorType(DType.BOOL, (batch, 1, 1, length))
    inputs, nodes = tuple(types), []

    def op(result: str, name: str, *operands: str, **attributes: Any) -> str:
        made = REGISTRY[name].instantiate([types[o] for o in operands], attributes)
        types[result] = made.output_types[0]
        nodes.append(Node(f"n {result}", name, operands, (result,), attributes))
        return result

    shape = (batch, length, heads, width // heads)
    parts = [op(f"{n}r", "reshape", op(f"{n}p", "matmul", "x", f"w{n}"), shape=shape) for n in "qkv"]
    mixed = op("a", "attention", *(op(f"{p}t", "transpose", p, perm=(0, 2, 1, 3)) for p in parts), "mask")
    rows = op("ar", "reshape", op("at", "transpose", mixed, perm=(0, 2, 1, 3)), shape=(batch, length, width))
    op("y", "add", op("o", "matmul", rows, "wo"), "x")
    return Graph("layer", inputs, ("y",), types, tuple(nodes))


@needs_opencl
def test_a_layer_with_a_chain_computes_the_reference() -> None:
    plain = evolve(find_target("opencl"), lockstep=True, NUM_SM=8, MAX_thread=64, MAX_shared=32768)
    plan = build_graph(layer(2, 32, 32, 2), load_spec([]), plain, CompileOptions())
    assert [group["level"] for group in plan.plan.groups].count("shared") == 1
    assert all(result.ok for result in plan.verify())
