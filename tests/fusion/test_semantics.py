"""Fused groups against their nodes.

Hypothesis draws chains, shapes and partitions; the reference decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.ir.compiled import Mode
from cuts.ir.graph import Graph
from cuts.ir.types import DType, TensorType
from cuts.ops.reference import evaluate_graph
from cuts.passes.fusion.grouping.partition import partition
from hypothesis import given, settings
from hypothesis import strategies as st

from .build import REGISTRY, Line, graph, op, partitioner, random_inputs, run_groups

TARGET = find_target("cuda:sm_90")
SIZES = st.sampled_from([1, 2, 3, 5, 7])
MODES: tuple[Mode, ...] = ("no-fusion", "fusion", "mixed")


def check(made: Graph, mode: Mode) -> int:
    """Compare the partitioned graph with the reference; return its number of kernels."""
    parts = partitioner(made, TARGET)
    groups = partition(parts, mode)
    arrays = random_inputs(made)
    found = run_groups(groups, parts.builder.views, arrays)
    for name, value in evaluate_graph(made, REGISTRY, arrays).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
    return len(groups)


UNARY: list[tuple[str, dict[str, Any]]] = [
    ("relu", {}), ("sigmoid", {}), ("exp", {}), ("softmax", {"axis": 1}), ("log_softmax", {"axis": -1}),
    ("transpose", {}), ("transpose", {"perm": (0, 2, 1)}), ("reduce_mean", {"axes": (1,), "keepdims": True}),
    ("reduce_max", {"axes": (2,), "keepdims": True}), ("reshape", {"shape": (1, -1, 1)}),
    ("reshape", {"shape": (-1, 1, 1)}), ("slice", {"starts": (0,), "ends": (-1,), "axes": (1,)}),
    ("pad", {"pads": (0, 1, 0, 0, 0, 2)}), ("pad", {"pads": (0, 0, 1, 0, 1, 0), "value": 2.5}), ("cumsum", {"axis": 1}),
]  # fmt: skip


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw a graph of up to six nodes over 3-D tensors.

    Chains have branches that join again.
    """
    shape = draw(st.tuples(SIZES, SIZES, SIZES))
    values: list[tuple[str, tuple[int, ...]]] = [("x", shape)]
    lines: list[Line] = []
    for number in range(draw(st.integers(1, 6))):
        name, now = f"v{number}", values[-1][1]
        equal = [v for v, s in values if s == now]
        kind = draw(st.sampled_from(["unary", "unary", "binary", "concat"]))
        if kind == "unary":
            which, attributes = draw(st.sampled_from(UNARY))
            if which == "slice" and now[1] < 2:
                which, attributes = "relu", {}
            lines.append(op(name, which, values[-1][0], **attributes))
        elif kind == "binary":
            lines.append(
                op(name, draw(st.sampled_from(["add", "mul", "sub"])), values[-1][0], draw(st.sampled_from(equal)))
            )
        else:
            lines.append(op(name, "concat", values[-1][0], draw(st.sampled_from(equal)), axis=draw(st.integers(0, 2))))
        made = graph({"x": shape}, *lines, out=name)
        values.append((name, made.types[name].shape))
    outs = draw(st.sets(st.sampled_from([v for v, _ in values[1:]]), max_size=2)) | {values[-1][0]}
    return graph({"x": shape}, *lines, out=" ".join(sorted(outs)))


@settings(max_examples=120, deadline=None)
@given(graphs(), st.sampled_from(MODES))
def test_any_partition_computes_the_reference(made: Graph, mode: Mode) -> None:
    check(made, mode)


@st.composite
def convolutions(draw: st.DrawFn) -> Graph:
    """Draw a convolution with a prologue and an epilogue."""
    channels, groups = draw(st.sampled_from([(1, 1), (2, 1), (3, 3), (4, 2)]))
    size, window, pad = draw(st.sampled_from([3, 5, 7])), draw(st.sampled_from([1, 3])), draw(st.integers(0, 1))
    lines: list[Line] = []
    value = "x"
    for before in draw(st.lists(st.sampled_from(["relu", "exp", "sigmoid"]), max_size=2)):
        lines.append(op(f"p{len(lines)}", before, value))
        value = f"p{len(lines) - 1}"
    strides = draw(st.sampled_from([(1, 1), (2, 1)]))
    filters = groups * draw(st.integers(1, 2))
    lines.append(op("c", "conv", value, "w", pads=(pad, 0, pad, pad), strides=strides, groups=groups))
    value = "c"
    epilogues: dict[str, Line] = {
        "relu": op("e0", "relu", "c"), "swish": op("e0", "swish", "c"), "bias": op("e0", "add", "c", "b"),
        "flat": op("e0", "reshape", "c", shape=(2, -1)), "shuffle": op("e0", "transpose", "c", perm=(2, 0, 3, 1)),
        "softmax": op("e0", "softmax", "c", axis=1), "pool": op("e0", "reduce_sum", "c", axes=(2, 3)),
        "conv": op("e0", "conv", "c", "v"),
    }  # fmt: skip
    lines.append(epilogues[draw(st.sampled_from(sorted(epilogues)))])
    lines.append(op("y", "sigmoid", "e0"))
    weights = {"w": (filters, channels // groups, window, window), "b": (filters, 1, 1), "v": (3, filters, 1, 1)}
    inputs = {"x": (2, channels, size, size), **weights}
    return graph(inputs, *lines, out=draw(st.sampled_from(["y", "c y", "e0 y"])))


@settings(max_examples=60, deadline=None)
@given(convolutions(), st.sampled_from(MODES))
def test_convolutions_with_prologues_and_epilogues(made: Graph, mode: Mode) -> None:
    check(made, mode)


ROWS = {
    "layer_norm": op("y", "layer_norm", "x", "g", "g"),
    "rms_norm": op("y", "rms_norm", "x", "g"),
    "lp_norm": op("y", "lp_norm", "x"),
    "softmax": op("y", "softmax", "x", axis=0),
    "log_sum_exp": op("y", "reduce_log_sum_exp", "x", axes=(1,)),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_operation_fuses_with_pointwise_neighbours(name: str) -> None:
    made = graph({"u": (3, 5), "g": (5,)}, op("x", "exp", "u"), ROWS[name], op("z", "relu", "y"), out="z")
    assert check(made, "fusion") == 1


def test_group_and_instance_norm_are_one_kernel_each() -> None:
    first = op("a", "group_norm", "x", "s", "s", num_groups=2)
    made = graph({"x": (2, 6, 3, 3), "s": (6,)}, first, op("y", "instance_norm", "a", "s", "s"), out="y")
    assert check(made, "no-fusion") == 2


def _tensor_type(dtype: DType, *shape: int) -> TensorType:
    return TensorType(dtype, shape)


SINGLE: dict[str, tuple[dict[str, tuple[int, ...] | TensorType], Line]] = {
    "transposed convolution": (
        {"x": (1, 2, 4, 3), "w": (2, 3, 3, 2)},
        op("y", "conv_transpose", "x", "w", strides=(2, 2)),
    ),
    "gemm": ({"x": (3, 4), "w": (5, 4), "b": (5,)}, op("y", "gemm", "x", "w", "b", trans_b=True, alpha=0.5)),
    "average pooling that leaves padding out": (
        {"x": (1, 2, 5)},
        op("y", "average_pool", "x", kernel_shape=(3,), pads=(1, 1)),
    ),
    "local response": ({"x": (1, 5, 3, 2)}, op("y", "lrn", "x", size=3)),
    "gather": ({"x": (3, 4), "i": _tensor_type(DType.I64, 2, 2)}, op("y", "gather", "x", "i", axis=1)),
    "gather of elements": ({"x": (3, 4), "i": _tensor_type(DType.I64, 2, 4)}, op("y", "gather_elements", "x", "i")),
    "where": ({"c": _tensor_type(DType.BOOL, 3, 1), "x": (3, 4), "z": (4,)}, op("y", "where", "c", "x", "z")),
    "cast": ({"x": (3, 4)}, op("y", "cast", "x", to="i32")),
    "argmin over two axes": ({"x": (3, 4)}, op("y", "argmin", "x", axis=0)),
    "pixel shuffle": ({"x": (1, 8, 2, 3)}, op("y", "depth_to_space", "x", blocksize=2)),
    "nearest resize": ({"x": (1, 2, 3, 3)}, op("y", "resize_nearest", "x", sizes=(1, 2, 6, 6))),
    "half precision": (
        {"x": _tensor_type(DType.F16, 3, 4), "w": _tensor_type(DType.F16, 4, 2)},
        op("y", "matmul", "x", "w"),
    ),
    "a row of one element": ({"x": (3, 1)}, op("y", "softmax", "x")),
    "everything of extent 1": ({"x": (1, 1, 1, 1), "w": (1, 1, 1, 1)}, op("y", "conv", "x", "w")),
    "a scalar": ({"x": ()}, op("y", "exp", "x")),
}


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_node_computes_the_reference(name: str) -> None:
    inputs, line = SINGLE[name]
    assert check(graph(inputs, line, out="y"), "no-fusion") == 1


def test_a_computed_index_has_to_be_in_memory() -> None:
    made = graph(
        {"x": (3, 4)}, op("i", "argmax", "x", axis=1, keepdims=False), op("y", "gather", "x", "i", axis=1), out="y"
    )
    assert check(made, "fusion") == 2


def test_an_index_is_not_read_outside_its_bounds() -> None:
    picked = op("g", "gather_elements", "x", "i", axis=0)
    made = graph({"x": (3, 4)}, op("i", "argmin", "x", axis=0), picked, op("y", "pad", "g", pads=(0, 2, 0, 1)), out="y")
    assert check(made, "fusion") == 2


def test_sums_of_narrow_integers_wrap() -> None:
    """NumPy adds narrow integers in 64 bits.

    The shift shows the upper bits.
    """
    types = {"x": _tensor_type(DType.I8, 2, 3), "b": _tensor_type(DType.I8, 1)}
    total = op("s", "reduce_sum", "x", axes=(1,))
    made = graph(types, total, op("y", "bit_shift", "s", "b", direction="RIGHT"), out="y")
    arrays = {"x": np.full((2, 3), 100, np.int8), "b": np.ones(1, np.int8)}
    parts = partitioner(made, TARGET)
    found = run_groups(partition(parts, "mixed"), parts.builder.views, arrays)
    assert found["y"].tolist() == [[300 - 256 >> 1]] * 2
