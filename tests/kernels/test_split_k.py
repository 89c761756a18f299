"""Split-K in two kernels keeps the results.

It pays where there are too few results to fill a machine.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

import cuts
import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.bench.operators.cases import gradient_case
from cuts.bench.operators.shapes import convolution_case, read_convolution
from cuts.bench.operators.tuning import group_of
from cuts.compile.loading import load_spec
from cuts.compile.plan import plan_of
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph import Graph, Node
from cuts.ir.segment import FusedGroup
from cuts.ir.types import DType, TensorType
from cuts.ir.verify.segment import verify_group
from cuts.ops import Registry
from cuts.passes.costs.analytic_cost import AnalyticCost
from cuts.passes.costs.cost_model import KernelsQuery, Questions
from cuts.passes.costs.executor import Workload
from cuts.passes.fusion.grouping.group_builder import GroupBuilder
from cuts.passes.fusion.grouping.groups import form_key
from cuts.passes.fusion.grouping.partitioner import CachedEvaluator
from cuts.passes.fusion.interpret import interpret
from cuts.passes.fusion.legality import Policy
from cuts.passes.fusion.programs import build_programs
from cuts.passes.fusion.views import find_views
from cuts.passes.model.lower_bound import least_seconds
from cuts.passes.schedule import Candidate
from cuts.passes.split.part_counts import candidates
from cuts.passes.split.split_reduction import split_reduction
from cuts.passes.split.splitting import WHOLE, Division, Splitting, split_groups
from cuts.tests.amounts import examples
from cuts.tests.operations import DIFFERENTIABLE, FLAT
from cuts.tests.operations_graph import bench_of
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ..needs import DEVICES, needs_opencl
from .cases import ByModel, arrays, builder, chains, points, unite
from .test_points import SPACES, _device, check

GPU = find_target("cuda:sm_90")

_SUPPRESSED_CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much]


@st.composite
def splits(draw: st.DrawFn) -> tuple[FusedGroup, FusedGroup, FusedGroup]:
    """Draw a group and the two that it is split into."""
    group = draw(chains())
    halves = split_reduction(group, draw(st.integers(2, 9)))
    assume(halves is not None)
    assert halves is not None
    return group, *halves


@settings(
    max_examples=examples(25, 1500),
    deadline=None,
    suppress_health_check=_SUPPRESSED_CHECKS,
)
@given(splits())
def test_the_halves_compute_what_the_group_does(case: tuple[FusedGroup, FusedGroup, FusedGroup]) -> None:
    group, before, after = case
    assert all(before.tensors[t] == after.tensors[t] for t in before.outputs)
    inputs = arrays(group, 1)
    partial = interpret(before, {t: inputs[t] for t in before.inputs})
    assert not any(np.isnan(v).any() for v in partial.values())
    found = interpret(after, {t: (inputs | partial)[t] for t in after.inputs})
    for name, expected in interpret(group, inputs).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-9, atol=1e-9)


def test_reduction_whose_lanes_write_a_row_stays_whole() -> None:
    """As many lanes as there are parts would write it."""
    types = {"x": TensorType(DType.F32, (64, 1 << 18)), "y": TensorType(DType.F32, (64, 1 << 18))}
    node = Node("n", "log_softmax", ("x",), ("y",), {"axis": 1})
    programs = build_programs(Graph("g", ("x",), ("y",), types, (node,)), Registry.builtin())
    shop = GroupBuilder(find_views(programs), Policy())
    forms = [shop.single(unit.name).form for unit in programs.units]
    rows = [form for form in forms if any(o.extra for s in form.segments for o in s.outputs)]
    assert not any(candidates(form, GPU) or split_reduction(form, 4) for form in rows)
    alone = [form for form in forms if form not in rows and form.segments[0].reductions]
    assert all(candidates(form, GPU) for form in alone)


def test_split_halves_read_only_existing_elements() -> None:
    """Parts of unequal lengths.

    Elements beyond the last are not looked up, neither in a condition nor as a position.
    """
    seen = 0
    for use in (*DIFFERENTIABLE, *FLAT):
        bench = bench_of([use])
        shop = GroupBuilder(find_views(build_programs(bench.graph, bench.spec.registry)), Policy())
        for name in (n for n, unit in shop.units.items() if unit.repeat is None and not unit.free and shop.is_used(n)):
            group = shop.single(name).form
            for halves in filter(None, (split_reduction(group, parts) for parts in (2, 3, 4))):
                seen += 1
                positions = {t: np.zeros_like(a) for t, a in arrays(group, 1).items() if a.dtype.kind in "iu"}
                inputs = arrays(group, 1) | positions
                partial = interpret(verify_group(halves[0]), {t: inputs[t] for t in halves[0].inputs})
                found = interpret(verify_group(halves[1]), {t: (inputs | partial)[t] for t in halves[1].inputs})
                for output, expected in interpret(group, inputs).items():
                    np.testing.assert_allclose(found[output], expected, rtol=1e-9, atol=1e-9, err_msg=use.op)
    assert seen > 50


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=18, deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(st.data())
def test_points_of_the_halves(device: str, data: st.DataObject) -> None:
    half = data.draw(st.sampled_from((1, 2)))
    group = data.draw(splits())[half]
    schedule = data.draw(points(group, SPACES[device]))
    assume(schedule is not None)
    check(_device(device), SPACES[device], group, schedule)


def convolution(n: int, c: int, size: int) -> FusedGroup:
    make = builder()
    value = make.node(
        "relu", make.node("conv", make.input(n, c, size, size), make.input(c, c, 3, 3), pads=(1, 1, 1, 1))
    )
    return unite(make.programs(), value)


def test_few_results_are_split_and_many_are_not() -> None:
    splitting = Splitting(AnalyticCost(GPU), AnalyticCost(GPU), GPU)
    small, large = convolution(1, 512, 7), convolution(64, 64, 56)
    seconds, division = splitting.best(small)
    assert division.parts > 1
    doubtful = evolve(splitting, worth=0.99 * seconds / AnalyticCost(GPU).cost(small))
    assert doubtful.best(small)[1] == WHOLE
    assert seconds < AnalyticCost(GPU).cost(small)
    assert not candidates(large, GPU)
    assert splitting.best(large)[1] == WHOLE


def test_parts_that_cannot_pay_are_not_evaluated() -> None:
    make = builder()
    product = make.node("matmul", make.input(1, 4096), make.input(4096, 16384))
    row = unite(make.programs(), product)
    whole = Splitting(AnalyticCost(GPU), AnalyticCost(GPU), GPU, 0.8).best(row)
    costs = CachedEvaluator(AnalyticCost(GPU))
    bounded = Splitting(costs, costs, GPU, 0.8, least=lambda group: least_seconds(group, GPU, 2))
    assert bounded.best(row) == whole and whole[1] == WHOLE
    assert [*costs.costs] == [form_key(row)]
    small = convolution(1, 512, 7)
    assert bounded.best(small) == evolve(bounded, least=None).best(small)


@pytest.mark.parametrize(
    ("size", "batch", "asked", "parts"),
    [
        (112, 16, 64, (16, 4)),  # not 64 of 112 rows: eight of them would be empty
        (112, 16, 1024, (16, 56)),
        (56, 16, 128, (16, 8)),
        (35, 32, 64, (32, 2)),  # one row short
        (17, 32, 128, ()),  # a fifth of the fourth part would be missing, and no axis has as many
        (14, 64, 64, (64,)),
        (56, 20, 32, (28,)),
    ],
)
def test_parts_of_images_and_rows(size: int, batch: int, asked: int, parts: tuple[int, ...]) -> None:
    shape = read_convolution(f"8x{size} 16x1x1")[0]
    group = group_of(gradient_case(convolution_case(shape, batch), 1, "wgrad"))
    assert group is not None
    halves = split_reduction(group, asked)
    shape = halves[0].tensors[halves[0].outputs[0]].shape if halves else (*parts, 0, 0)
    assert shape[: len(parts)] == (parts if halves else ())
    assert len(shape) == len(parts) + 2


def test_small_filter_gradient_has_parts_for_every_processor() -> None:
    """Of 16 images and 864 results.

    Parts of images alone would leave half of the machine idle.
    """
    shape = read_convolution("3x224 32x3x3 /2 +1")[0]
    group = group_of(gradient_case(convolution_case(shape, 16), 1, "wgrad"))
    assert group is not None
    assert max(candidates(group, GPU)) >= 4 * GPU.NUM_SM
    modelled = AnalyticCost(GPU)
    assert Splitting(modelled, modelled, GPU).best(group)[0] < modelled.cost(group) / 2


def test_column_sums_with_short_rows_are_split() -> None:
    def total(rows: int, columns: int, axis: int) -> FusedGroup:
        make = builder()
        value = make.node("reduce_sum", make.input(rows, columns), axes=(axis,), keepdims=False)
        return unite(make.programs(), value)

    assert candidates(total(16384, 1024, 0), GPU)
    assert not candidates(total(1024, 16384, 1), GPU)  # a block for each row fills the machine
    assert not candidates(total(1024, 65536, 0), GPU)


#: A machine with the units of a large GPU, so that splitting pays, whose kernels run here.
GPU_LIKE = evolve(GPU, dialect="opencl", MAX_thread=64, async_copy=False)


def test_column_sums_have_parts_of_two_axes() -> None:
    make = builder()
    value = make.node("reduce_sum", make.input(64, 56, 56, 256), axes=(0, 1, 2), keepdims=False)
    total = unite(make.programs(), value)
    assert max(candidates(total, GPU)) == 512
    halves = split_reduction(total, 512)
    assert halves is not None and [a.extent for a in halves[0].segments[0].axes] == [64, 8, 256]


def long_product() -> Graph:
    """Return a product with few results, a long sum and two functions."""
    shapes = {"a": (5, 4096), "b": (4096, 6), "c": (6,), "y": (5, 6), "z": (5, 6), "u": (5, 6)}
    nodes = (
        Node("m", "matmul", ("a", "b"), ("y",)),
        Node("n", "add", ("y", "c"), ("z",)),
        Node("o", "relu", ("z",), ("u",)),
    )
    return Graph(
        "g", ("a", "b", "c"), ("u",), {name: TensorType(DType.F32, shape) for name, shape in shapes.items()}, nodes
    )


@needs_opencl
def test_a_compiled_graph_with_a_split_reduction() -> None:
    graph = long_product()
    registry = Registry.builtin()
    compiled = ByModel(GPU_LIKE).compile(graph, registry, GPU_LIKE, CompileOptions(), emit)
    plan = plan_of(compiled, graph, load_spec(()), GPU_LIKE)
    assert len(plan.plan.steps) == 2
    assert len(cuts.build(graph, target=GPU_LIKE).plan.steps) == 2  # on the model's word alone, as it sees much to gain
    assert all(result.ok for result in plan.verify())
    inputs = plan.random_inputs()
    assert all(np.array_equal(plan.run(inputs)["u"], plan.run(inputs)["u"]) for _ in range(3))


def test_much_longer_modelled_time_is_no_contender() -> None:
    """A clock decides about split-K where the cost model sees little difference."""
    modelled = AnalyticCost(GPU)
    splitting = Splitting(modelled, modelled, GPU)
    clear, close = convolution(1, 512, 7), convolution(1, 64, 56)
    assert modelled.cost(clear) > 2 * splitting.cost(clear)
    assert clear not in splitting.contenders(clear)
    assert all(half in splitting.contenders(clear) for half in splitting.halves(clear))
    assert close in splitting.contenders(close)


def test_measured_parts_are_found_again_in_launches() -> None:
    """Measured parts of a group are not searched again."""

    asked: list[FusedGroup] = []
    launched: list[FusedGroup] = []

    class Asked(ByModel):
        def measure(self, questions: Callable[[], Questions], share: float, plan: KernelsQuery | None = None) -> bool:
            asked.extend(form for question in questions() for form in question)
            return False

        def schedule(self, workloads: Mapping[Hashable, Workload], share: float = 1.0) -> Mapping[Hashable, Candidate]:
            launched.extend(work.form for work in workloads.values())
            return super().schedule(workloads, share)

    Asked(GPU_LIKE).compile(long_product(), Registry.builtin(), GPU_LIKE, CompileOptions(), emit)
    assert len(launched) == 2
    assert {*map(form_key, launched)} <= {*map(form_key, asked)}


def test_pieces_of_one_tensor_have_own_workspaces() -> None:
    """Parts of several reductions may be computed in one launch.

    No part is added up earlier.
    """
    types = {
        name: TensorType(DType.F32, shape)
        for name, shape in {"x": (1, 32, 9, 9), "w": (32, 4, 4, 3), "y": (1, 4, 20, 19)}.items()
    }
    node = Node("n", "conv_transpose", ("x", "w"), ("y",), {"strides": (2, 2)})
    programs = build_programs(Graph("g", ("x", "w"), ("y",), types, (node,)), Registry.builtin())
    views = find_views(programs)
    shop = GroupBuilder(views, Policy())
    pieces = [shop.single(name) for name, unit in shop.units.items() if not unit.free and shop.is_used(name)]
    assert len(pieces) > 1 and {group.outputs for group in pieces} == {("y",)}
    divisions = [2, 4, 8, 16]
    order = iter(divisions)
    parted, known = split_groups(pieces, views, lambda form: Division(parts=next(order)))
    before, after = parted[0::2], parted[1::2]
    spaces = [group.outputs[0] for group in before]
    assert len({*spaces}) == len(spaces) == len(pieces)
    for group, later, space, parts in zip(before, after, spaces, divisions, strict=False):
        assert space in later.inputs
        assert known.programs.types[space] == group.form.tensors[group.form.outputs[0]]
        assert known.programs.types[space].shape[0] == parts
