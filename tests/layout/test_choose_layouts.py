"""Dim orders of tensors: the choice, and unchanged results."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts import build, load
from cuts.backends.devices import find_target
from cuts.compile.driver import compile_model
from cuts.compile.loading import load_spec
from cuts.ir.affine import as_index
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph import Graph
from cuts.ir.machine import PRECISIONS, Target
from cuts.ir.types import DType, TensorType
from cuts.numerics.comparison import compare_outputs
from cuts.ops.reference import evaluate_graph
from cuts.passes.costs.evaluators import Roofline
from cuts.passes.fusion.grouping.group_builder import GroupBuilder
from cuts.passes.fusion.grouping.partition import partition
from cuts.passes.fusion.grouping.partitioner import Partitioner
from cuts.passes.fusion.legality import Policy
from cuts.passes.fusion.programs import Programs, build_programs
from cuts.passes.fusion.reorder import graph_layout
from cuts.passes.fusion.views import find_views
from cuts.passes.inspection.verify import verify_programs
from cuts.passes.layout import choose_layouts
from cuts.passes.partitioning.algorithm_graphs import replace_node
from cuts.tests.amounts import NIGHTLY, examples
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ..fusion.build import REGISTRY, Line, graph, op, random_inputs, run_groups
from ..needs import needs_opencl

GPU = find_target("cuda:sm_90")
CHANNELS_LAST, IMAGES = (0, 2, 3, 1), (1, 2, 3, 0)


def half(*shape: int) -> TensorType:
    """A tensor of f16."""
    return TensorType(DType.F16, shape)


def laid_out(made: Graph, math: str = "", target: Target = GPU) -> Programs:
    """The programs of a graph with their layouts."""
    return choose_layouts(build_programs(made, REGISTRY), target, math)


def with_constants(made: Graph, *names: str) -> Graph:
    """A graph some of whose inputs are constants."""
    rng = np.random.default_rng(3)
    arrays = {n: rng.standard_normal(made.types[n].shape).astype(made.types[n].dtype.numpy) for n in names}
    return evolve(made, inputs=tuple(n for n in made.inputs if n not in names), constants=arrays)


def chain(size: int = 14, batch: int = 2, kind: DType = DType.F16) -> Graph:
    """Return two convolutions with taps and one without, and other layers.

    These are a residual, a pool and a dense layer.
    """
    pads = {"pads": (1, 1, 1, 1)}
    lines = (
        op("a", "conv", "x", "u", **pads), op("b", "relu", "a"), op("c", "conv", "b", "v", **pads),
        op("d", "add", "c", "a"), op("e", "relu", "d"), op("f", "conv", "e", "w"),
        op("g", "max_pool", "f", kernel_shape=(2, 2), strides=(2, 2)),
        op("h", "reduce_mean", "g", axes=(2, 3), keepdims=False), op("y", "gemm", "h", "m"),
    )  # fmt: skip
    inputs = {"x": (batch, 3, size, size), "u": (16, 3, 3, 3), "v": (16, 16, 3, 3), "w": (24, 16, 1, 1), "m": (24, 10)}
    return with_constants(graph({n: TensorType(kind, s) for n, s in inputs.items()}, *lines, out="y"), *"uvwm")


def test_convolutions_with_taps_have_their_channels_innermost() -> None:
    programs = laid_out(chain())
    verify_programs(programs)
    assert {t for t in "abcdefg" if programs.orders.get(t) == CHANNELS_LAST} == set("abcdefg")
    assert {"x", "y"}.isdisjoint(programs.orders)


def test_reduced_axes_and_constants_follow_the_image() -> None:
    programs = laid_out(chain())
    units = {u.node: u for u in programs.units}
    first, second = (next(s for s in units[n].statements if s.combine) for n in ("n0", "n2"))
    assert [v.extent for v in first.reduce] == [3, 3, 3] and "u" in units["n0"].reads
    assert [v.extent for v in second.reduce] == [3, 3, 16]
    assert programs.graph.constants["v in order 0, 2, 3, 1"].shape == (16, 3, 3, 16)
    assert "v in order 0, 2, 3, 1" in units["n2"].reads


def test_reduced_axes_follow_the_image_of_large_filters() -> None:
    pads = {"pads": (1, 1, 1, 1)}
    lines = op("a", "conv", "x", "v", **pads), op("b", "relu", "a"), op("y", "conv", "b", "w", **pads)
    made = graph({"x": half(1, 64, 7, 7), "v": half(64, 64, 3, 3), "w": half(64, 64, 3, 3)}, *lines, out="y")
    (unit,) = (u for u in laid_out(with_constants(made, "v", "w")).units if "y" in u.writes)
    (product,) = (s for s in unit.statements if s.combine)
    assert [v.extent for v in product.reduce] == [3, 3, 64]
    assert "w in order 0, 2, 3, 1" in unit.reads


def test_rows_are_numbered_as_their_results_lie() -> None:
    """A factor along k loads in any order of its rows."""
    lines = (
        op("c", "transpose", "x", perm=(0, 3, 1, 2)), op("a", "conv", "c", "v"), op("b", "relu", "a"),
        op("d", "conv", "b", "w", pads=(1, 1, 1, 1), groups=32), op("y", "transpose", "d", perm=(0, 2, 3, 1)),
    )  # fmt: skip
    made = graph({"x": half(64, 56, 56, 256), "v": half(128, 256, 1, 1), "w": half(128, 4, 3, 3)}, *lines, out="y")
    programs = laid_out(with_constants(made, "v", "w"))
    (unit,) = (u for u in programs.units if "a" in u.writes)
    (product,) = (s for s in unit.statements if s.combine)
    last = programs.orders.get("a", (0, 1, 2, 3))[-1]
    assert product.axes[-1] in {v for v, _ in product.write[-1].terms}, f"dim {last} is innermost"


@pytest.mark.parametrize("batch", [1, 2])
def test_a_transposed_outputs_source_has_its_layout(batch: int) -> None:
    lines = (
        op("c", "transpose", "x", perm=(0, 3, 1, 2)), op("a", "conv", "c", "w", pads=(1, 1, 1, 1)),
        op("b", "relu", "a"), op("y", "transpose", "b", perm=(0, 2, 3, 1)),
    )  # fmt: skip
    made = graph({"x": half(batch, 14, 14, 32), "w": half(64, 32, 3, 3)}, *lines, out="y")
    programs = laid_out(with_constants(made, "w"))
    verify_programs(programs)
    assert programs.orders["a"] == programs.orders["b"] == CHANNELS_LAST
    copy = next(s for u in programs.units for s in u.statements if s.target == "y")
    assert [r.indices for r in copy.reads] == [copy.write]
    shared = graph({"x": half(batch, 32, 14, 14), "w": half(64, 32, 3, 3)}, op("a", "conv", "x", "w"),
                   op("y", "transpose", "a", perm=(0, 2, 3, 1)), op("z", "relu", "a"), out="y z")  # fmt: skip
    assert laid_out(with_constants(shared, "w")).orders["a"] == CHANNELS_LAST


@pytest.mark.parametrize("size", [7, 14, 35])
def test_without_atoms_images_lie_beside_their_pixels(size: int) -> None:
    made = chain(size, batch=8, kind=DType.F32)
    programs = laid_out(made)
    verify_programs(programs)
    assert all(programs.orders[t] == IMAGES for t in "abcdefg"), "taps, strides and odd rows leave no other dim wide"
    assert {"x", "y"}.isdisjoint(programs.orders)
    assert laid_out(made, "tf32").orders["b"] == CHANNELS_LAST


def test_a_single_image_stays_without_matrix_instructions() -> None:
    programs = build_programs(chain(batch=1, kind=DType.F32), REGISTRY)
    assert choose_layouts(programs, GPU) is programs


def test_reduced_axes_are_outer_without_matrix_instructions() -> None:
    made = graph({"x": TensorType(DType.F32, (8, 16, 7, 7)), "w": TensorType(DType.F32, (16, 16, 3, 3))},
                 op("a", "relu", "x"), op("b", "conv", "a", "w"), op("c", "relu", "b"),
                 op("y", "reduce_mean", "c", axes=(0, 2, 3), keepdims=False), out="y")  # fmt: skip
    assert not laid_out(made).orders, "a sum over images, as a norm in training has"


@pytest.mark.parametrize("changes", [{"lockstep": False}, {"on_host": True}])
def test_nothing_changes_without_coalesced_lanes(changes: dict[str, bool]) -> None:
    programs = build_programs(chain(batch=8), REGISTRY)
    assert choose_layouts(programs, evolve(GPU, atoms=(), **changes)) is programs


def test_without_windows_nothing_changes_without_atoms() -> None:
    made = graph({"x": TensorType(DType.F32, (64, 12)), "w": TensorType(DType.F32, (12, 16))},
                 op("a", "matmul", "x", "w"), op("b", "relu", "a"), op("y", "softmax", "b"), out="y")  # fmt: skip
    programs = build_programs(made, REGISTRY)
    assert choose_layouts(programs, GPU) is programs


def test_products_of_matrices_stay_as_they_are() -> None:
    made = graph({"x": half(4, 32, 64), "w": half(64, 96), "b": half(96), "v": half(96, 64)},
                 op("a", "matmul", "x", "w"), op("c", "add", "a", "b"), op("d", "gelu", "c"),
                 op("y", "matmul", "d", "v"), out="y")  # fmt: skip
    assert not laid_out(made).orders


@pytest.mark.parametrize("heads", [2, 12])
def test_odd_products_keep_their_batch_outermost(heads: int) -> None:
    """Rows of an odd length lie innermost: a block has one batch."""
    lines = (
        op("a", "matmul", "x", "u"), op("b", "softmax", "a", axis=-1), op("y", "matmul", "b", "v"),
    )  # fmt: skip
    inputs = {"x": half(32, heads, 197, 64), "u": half(32, heads, 64, 197), "v": half(32, heads, 197, 64)}
    programs = laid_out(graph(inputs, *lines, out="y"))
    assert {programs.orders.get(t, (0, 1, 2, 3))[-1] for t in "ab"} <= {2, 3}


def test_scores_of_odd_length_lie_along_their_rows() -> None:
    lines = (
        op("s", "matmul", "q", "k"), op("z", "mul", "s", "c"), op("p", "softmax", "z"), op("o", "matmul", "p", "v"),
        op("y", "relu", "o"),
    )  # fmt: skip
    shapes = {"q": (32, 12, 197, 64), "k": (32, 12, 64, 197), "v": (32, 12, 197, 64), "c": (32, 12, 197, 197)}
    programs = laid_out(graph({n: half(*s) for n, s in shapes.items()}, *lines, out="y"))
    # Images side by side would move 16 bytes at once in the softmax, and each score alone in both products.
    assert programs.orders == {}


def test_numbers_of_reduced_rows_stay_neighbours() -> None:
    """A softmax is one kernel, though neighbouring heads would be wider."""
    lines = (
        op("t", "transpose", "k", perm=(0, 1, 3, 2)), op("s", "matmul", "q", "t"), op("z", "relu", "s"),
        op("m", "reduce_max", "z", axes=(3,), keepdims=True), op("d", "sub", "z", "m"), op("e", "exp", "d"),
        op("n", "reduce_sum", "e", axes=(3,), keepdims=True), op("y", "div", "e", "n"),
    )  # fmt: skip
    shapes = {"q": (32, 12, 197, 64), "k": (32, 12, 197, 64)}
    programs = laid_out(graph({n: TensorType(DType.F32, s) for n, s in shapes.items()}, *lines, out="y"))
    assert not programs.orders.keys() & {"z", "d", "e"}


@pytest.mark.parametrize("batch", [1, 4])
def test_heads_that_join_are_neighbours(batch: int) -> None:
    """Results of attention lie as the next product reads them."""
    lines = (
        op("o", "matmul", "p", "v"), op("t", "transpose", "o", perm=(0, 2, 1, 3)),
        op("r", "reshape", "t", shape=(batch * 128, 512)), op("y", "matmul", "r", "w"),
    )  # fmt: skip
    shapes = {"p": (batch, 8, 128, 128), "v": (batch, 8, 128, 64), "w": (512, 256)}
    programs = laid_out(graph({n: half(*s) for n, s in shapes.items()}, *lines, out="y"))
    assert programs.orders["o"] == (0, 2, 1, 3)


def test_a_view_has_its_sources_order() -> None:
    made = graph({"x": half(4, 32, 64), "w": half(64, 64)}, op("k", "matmul", "x", "w"),
                 op("t", "transpose", "k", perm=(0, 2, 1)), op("y", "matmul", "x", "t"), out="y")  # fmt: skip
    programs = laid_out(made)
    assert programs.orders == {"t": (0, 2, 1)}
    assert find_views(programs).storage("t").strides == (32 * 64, 64, 1)


def test_a_view_has_the_order_of_its_result() -> None:
    """No strides over the product's operand describe heads of three parts."""
    lines = (
        op("s", "mul", "x", "x"), op("p", "transpose", "s", perm=(1, 3, 0, 2, 4)),
        op("r", "reshape", "p", shape=(96, 192)), op("t", "transpose", "r", perm=(1, 0)), op("y", "matmul", "t", "v"),
    )  # fmt: skip
    made = graph({"x": half(3, 6, 4, 16, 16), "v": half(96, 64)}, *lines, out="y")
    assert laid_out(made).orders["t"] == (1, 0)


@pytest.mark.parametrize("kind", [DType.F32, DType.BF16])
def test_a_permuted_inputs_channels_are_columns(kind: DType) -> None:
    """Batch norm of a channels-last input, without contractions."""
    lines = (
        op("c", "transpose", "x", perm=(0, 3, 1, 2)), op("m", "reduce_mean", "c", axes=(0, 2, 3), keepdims=True),
        op("d", "sub", "c", "m"), op("r", "relu", "d"), op("y", "transpose", "r", perm=(0, 2, 3, 1)),
    )  # fmt: skip
    made = graph({"x": TensorType(kind, (4, 8, 8, 16))}, *lines, out="y")
    programs = laid_out(made)
    assert {t for t in "cdr" if programs.orders.get(t) == CHANNELS_LAST} == set("cdr")
    (total,) = (s for u in programs.units for s in u.statements if s.combine == "sum")
    (read,) = total.reads
    assert read.indices[-1] in total.write, "channels are the columns"
    check(made, "mixed")


@pytest.mark.parametrize("last", [True, False])
def test_group_channels_of_a_permuted_input_are_neighbours(last: bool) -> None:
    """Group norm of a channels-last input, to either layout."""
    lines = (op("c", "transpose", "x", perm=(0, 3, 1, 2)),
             op("n" if last else "y", "group_norm", "c", "s", "b", num_groups=2),
             *([op("y", "transpose", "n", perm=(0, 2, 3, 1))] if last else []))  # fmt: skip
    half = DType.BF16
    made = graph({"x": TensorType(half, (4, 6, 7, 16)), "s": TensorType(half, (16,)), "b": TensorType(half, (16,))},
                 *lines, out="y")  # fmt: skip
    programs = laid_out(made)
    rows = [s for u in programs.units for s in u.statements if s.reduce]
    assert rows and all([a.extent for a in s.reduce] == [6, 7, 8] for s in rows)
    views = find_views(programs)
    builder = GroupBuilder(views, Policy())
    groups = [builder.single(u.name).form for u in views.programs.units if not u.free]
    (norm,) = (s for group in groups for s in group.segments if s.reductions)
    assert {r.reduce for r in norm.reductions} == {o.extra for o in norm.outputs}, "a row that threads hold"
    check(made, "mixed")


def test_views_with_dims_of_one_element_change_nothing() -> None:
    """Dims of one element have no order."""
    made = graph({"x": TensorType(DType.F32, (64, 128))}, op("c", "reshape", "x", shape=(64, 128, 1)),
                 op("e", "exp", "c"), op("y", "softmax", "e", axis=1), out="y")  # fmt: skip
    programs = build_programs(made, REGISTRY)
    assert choose_layouts(programs, GPU) is programs


def test_views_of_computed_tensors_alone_change_nothing() -> None:
    made = graph({"x": TensorType(DType.F32, (4, 32, 16))}, op("a", "exp", "x"),
                 op("t", "transpose", "a", perm=(0, 2, 1)), op("y", "softmax", "t"), out="y")  # fmt: skip
    programs = build_programs(made, REGISTRY)
    assert choose_layouts(programs, GPU) is programs


def test_an_output_keeps_its_order() -> None:
    made = chain()
    programs = laid_out(evolve(made, outputs=("b", "y")))
    assert "b" not in programs.orders and programs.orders["e"] == CHANNELS_LAST


def test_a_copied_outputs_source_keeps_its_order() -> None:
    lines = op("a", "conv", "x", "w", pads=(1, 1, 1, 1)), op("y", "reshape", "a", shape=(2, -1))
    programs = laid_out(graph({"x": half(2, 16, 7, 7), "w": half(16, 16, 3, 3)}, *lines, out="y"))
    assert not programs.orders


def test_a_dense_block_is_one_channels_last_buffer() -> None:
    pads = {"pads": (1, 1, 1, 1)}
    shapes = {"x": half(2, 16, 9, 9), "u": half(16, 16, 3, 3), "v": half(16, 32, 3, 3), "w": half(8, 48, 3, 3)}
    made = graph(shapes, op("r", "relu", "x"), op("a", "conv", "r", "u", **pads), op("j", "concat", "r", "a", axis=1),
                 op("b", "conv", "j", "v", **pads), op("k", "concat", "j", "b", axis=1), op("c", "conv", "k", "w"),
                 op("y", "relu", "c"), out="y")  # fmt: skip
    programs = laid_out(made)
    assert {t for t, o in programs.orders.items() if o == CHANNELS_LAST} >= set("rajbk")
    views = find_views(programs)
    assert {views.storage(t).buffer for t in "rajbk"} == {"k"}
    assert views.storage("b").strides == (81 * 48, 9 * 48, 48, 1) and views.storage("b").offset == 32


def first_layer(batch: int) -> Graph:
    """Return a layer over three channels, a pool, and a convolution.

    The layer has large taps.
    """
    given_ = {"x": TensorType(DType.F32, (batch, 3, 64, 64)), "u": half(32, 3, 7, 7), "w": half(32, 32, 3, 3)}
    lines = (op("h", "cast", "x", to="f16"), op("a", "conv", "h", "u", pads=(3, 3, 3, 3), strides=(2, 2)),
             op("b", "relu", "a"), op("p", "max_pool", "b", kernel_shape=(2, 2), strides=(2, 2)),
             op("c", "conv", "p", "w", pads=(1, 1, 1, 1)), op("y", "relu", "c"))  # fmt: skip
    return with_constants(graph(given_, *lines, out="y"), "u", "w")


def test_first_layers_have_many_images_innermost() -> None:
    programs = laid_out(first_layer(16))
    assert programs.orders["h"] == (1, 2, 3, 0) and programs.orders["b"] == programs.orders["p"] == CHANNELS_LAST
    # Rows are numbered as the images lie, images fastest; their target lies otherwise.
    (conv,) = (s for u in programs.units for s in u.statements if "h" in {r.tensor for r in s.reads})
    assert [a.extent for a in conv.axes] == [32, 32, 16, 32] and conv.write[0] == as_index(conv.axes[2])
    alone = laid_out(first_layer(1))
    assert "h" not in alone.orders and alone.orders["p"] == CHANNELS_LAST


def test_depthwise_convolutions_between_others_take_their_order() -> None:
    made = graph({"x": half(2, 16, 7, 7), "u": half(32, 16, 1, 1), "v": half(32, 1, 3, 3), "w": half(16, 32, 1, 1)},
                 op("a", "conv", "x", "u"), op("b", "conv", "a", "v", pads=(1, 1, 1, 1), groups=32),
                 op("c", "conv", "b", "w"), op("y", "relu", "c"), out="y")  # fmt: skip
    programs = laid_out(made)
    assert programs.orders["a"] == programs.orders["b"] == CHANNELS_LAST


def test_what_loops_touch_keeps_its_order() -> None:
    shapes = {"x": half(40, 4, 16), "w": half(1, 64, 16), "r": half(1, 64, 16)}
    made = graph(shapes, op("h hl cl", "lstm", "x", "w", "r"), op("y", "relu", "h"), out="y")
    programs = laid_out(made)
    assert not any(t in programs.orders for u in programs.units if u.repeat for t in (*u.reads, *u.writes))


# ---- results


@st.composite
def networks(draw: st.DrawFn) -> Graph:
    """Draw a few convolutions with typical operations between them.

    They have any stride, padding, dilation and groups.
    """
    size, batch = draw(st.sampled_from([5, 7, 8, 9])), draw(st.sampled_from([1, 2, 8]))
    channels = draw(st.sampled_from([3, 8, 16]))
    shapes: dict[str, TensorType] = {"x": half(batch, channels, size, size)}
    lines: list[Line] = []
    if draw(st.booleans()):
        shapes["x"] = half(batch, size, size, channels)
        lines.append(op("v0", "transpose", "x", perm=(0, 3, 1, 2)))
    values = [lines[0][0] if lines else "x"]

    def typed_graph() -> Graph:
        return graph(shapes, *lines, out=values[-1])

    for number in range(draw(st.integers(2, 5))):
        name, now = f"w{number}", values[-1]
        shape = typed_graph().types[now].shape
        kind = draw(st.sampled_from(["conv", "conv", "conv", "relu", "add", "pool", "concat", "mean"]))
        same = [v for v in values if typed_graph().types[v].shape == shape]
        if kind == "conv":
            groups = draw(st.sampled_from([1, 1, shape[1]]))
            taps, filters = (
                draw(st.sampled_from([1, 3])),
                groups * draw(st.sampled_from([1, 8, 16]) if groups == 1 else st.just(1)),
            )
            shapes[f"f{number}"] = half(filters, shape[1] // groups, taps, taps)
            stride, pad = draw(st.integers(1, 2)), draw(st.integers(0, 1)) if shape[2] >= taps else 1
            lines.append(op(name, "conv", now, f"f{number}", pads=(pad,) * 4, strides=(stride,) * 2, groups=groups))
        elif kind == "pool" and shape[2] > 1:
            lines.append(op(name, "max_pool", now, kernel_shape=(2, 2), strides=(1, 1)))
        elif kind == "concat":
            lines.append(op(name, "concat", now, draw(st.sampled_from(same)), axis=1))
        elif kind == "mean":
            lines.append(op(name, "reduce_mean", now, axes=(2, 3), keepdims=True))
        else:
            lines.append(op(name, "add", now, draw(st.sampled_from(same))) if kind == "add" else op(name, "relu", now))
        values.append(name)
    end = draw(st.sampled_from(["", "turned", "flat"]))
    if end == "turned":
        lines.append(op("turned", "transpose", values[-1], perm=draw(st.permutations(range(4)).map(tuple))))
        values.append("turned")
    if end == "flat":
        lines.append(op("flat", "reshape", values[-1], shape=(batch, -1)))
        values.append("flat")
    outs = {values[-1]} | draw(st.sets(st.sampled_from(values[1:]), max_size=1))
    made = graph(shapes, *lines, out=" ".join(sorted(outs)))
    return with_constants(made, *draw(st.sets(st.sampled_from([n for n in shapes if n != "x"] or ["x"]))) - {"x"})


def check(made: Graph, mode: Any, math: str = "", target: Target = GPU) -> None:
    """Compare groups with layouts with the float64 reference."""
    programs = laid_out(made, math, target)
    verify_programs(programs)
    views = find_views(programs)
    groups = partition(Partitioner(GroupBuilder(views, Policy()), Roofline(GPU)), mode)
    arrays = random_inputs(made)
    constants = {n: a.astype(np.float64) for n, a in programs.graph.constants.items()}
    stored = {n: a.transpose(programs.orders.get(n, range(a.ndim))) for n, a in arrays.items()}
    found = run_groups(groups, views, {**stored, **constants})
    expected = evaluate_graph(made, REGISTRY, {**arrays, **{n: constants[n] for n in made.constants}})
    for name in made.outputs:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-12, err_msg=name)


@settings(max_examples=examples(20, 600), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(networks(), st.sampled_from(["no-fusion", "fusion", "mixed"]))
@example(
    graph({"x": half(1, 3, 5, 5), "f": half(8, 3, 1, 1)}, op("h", "relu", "x"), op("y", "conv", "h", "f"), out="y"),
    "no-fusion",
)
def test_networks_compute_the_reference(made: Graph, mode: Any) -> None:
    check(made, mode)


def single(made: Graph) -> Graph:
    """A graph of f16 in f32."""
    types = {n: TensorType(DType.F32, t.shape) for n, t in made.types.items()}
    return evolve(made, types=types, constants={n: a.astype(np.float32) for n, a in made.constants.items()})


@settings(max_examples=examples(20, 600), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(networks().map(single), st.sampled_from(["no-fusion", "fusion", "mixed"]))
def test_networks_compute_the_reference_without_atoms(made: Graph, mode: Any) -> None:
    check(made, mode)


def test_algorithms_of_a_convolution_compute_the_reference() -> None:
    made, instances = chain(batch=4, kind=DType.F32), REGISTRY.instances
    for name in instances.of_node(made.nodes[2], made).algorithms:
        for math in ("fp32x3", ""):
            check(replace_node(made, made.nodes[2], name, instances), "mixed", math)


def opencl(policy: str) -> Any:
    """OpenCL device with emulated matrix instructions.

    In strict f32 it has warps instead.
    """
    if policy == "fp32":
        return evolve(find_target("opencl"), lockstep=True, on_host=False)
    kind = {"fp16": "m16n8k16_f16", "bf16": "m16n8k16_bf16", "tf32": "m16n8k8_tf32"}[policy]
    return evolve(find_target("opencl"), atoms=((kind, 6.0),))


#: Precisions, each with batches of one image and of two, by day with one of them.
BATCHES = [("fp16", 2), ("bf16", 1), ("tf32", 2), ("fp32", 4), ("fp16", 1), ("bf16", 2), ("tf32", 1)]


@needs_opencl
@pytest.mark.parametrize(("policy", "batch"), BATCHES if NIGHTLY else BATCHES[:4])
def test_a_reopened_plan_equals_the_reference(policy: Any, batch: int, tmp_path: Any) -> None:
    made = chain(size=9, batch=batch, kind=DType.F32)
    plan = build(evolve(made, outputs=("e", "y")), opencl(policy), precision=policy)
    stored = PRECISIONS[policy].stored
    kept = {t: s for t, s in plan.plan.storages.items() if sorted(s.strides, reverse=True) != list(s.strides)}
    assert kept, f"dims lie in another order in some tensor of {stored}"
    assert all(len(plan.plan.types[t].shape) == len(s.strides) for t, s in kept.items())
    given_ = plan.random_inputs()
    assert all(result.ok for result in plan.verify(given_))
    expected, allowed = plan.reference_values(given_), plan.tolerances()
    for _, written in plan.session.trace(given_):
        assert all(
            r.ok
            for r in compare_outputs(written, expected, {t: allowed.get(t, max(allowed.values())) for t in written})
        )
    plan.save(tmp_path / "it.plan")
    opened = load(tmp_path / "it.plan")
    for name, value in plan.run(given_).items():
        np.testing.assert_array_equal(opened.run(given_)[name], value)


def test_convolution_tiles_are_loaded_by_sixteen_bytes() -> None:
    pads = {"pads": (1, 1, 1, 1)}
    shapes = {"x": (8, 64, 28, 28), "u": (64, 64, 3, 3), "v": (128, 64, 3, 3), "w": (64, 128, 1, 1)}
    made = graph(shapes, op("a", "conv", "x", "u", **pads), op("b", "relu", "a"),
                 op("c", "conv", "b", "v", strides=(2, 2), **pads), op("d", "relu", "c"), op("e", "conv", "d", "w"),
                 op("y", "relu", "e"), out="y")  # fmt: skip
    options = CompileOptions(precision="fp16")
    found = compile_model(with_constants(made, *"uvw"), load_spec([]), find_target("cuda:h200"), options)
    products = [k.source[k.source.index("__global__") :] for k in found.kernels if re.search("mma", k.source)]
    assert len(products) == 3
    # The first one may convert the caller's tensor as it fetches it.
    for body in (source for source in products if "const float*" not in source):
        assert re.search(r"cuts_copy16(_cached)?\(|cuts_bulk_copy", body) and not re.search(
            r"cuts_copy[48]\(|(?<!&)\bp[1-9]\d*\[", body
        )


def test_weights_of_one_pixel_are_rows() -> None:
    """No element moves: the caller sees the strides of the graph."""
    made = graph({"x": half(8, 64, 28, 28), "w": half(32, 64, 1, 1)}, op("y", "conv", "x", "w"), out="y")
    programs = laid_out(made)
    verify_programs(programs)
    assert programs.types["w"].shape == (1, 1, 32, 64)
    stored = find_views(programs).storage("w")
    type_, storage = graph_layout(programs.types["w"], stored, programs.orders["w"])
    assert (type_, storage.strides) == (made.types["w"], made.types["w"].strides)
