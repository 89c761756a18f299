"""Slices added at indices: exact, and in a fixed order.

The work is not one test of every element for every slice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cuts
import numpy as np
import pytest
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.ops.costs import program_costs
from cuts.tests.gradients.networks import Network
from cuts.tests.needs import needs_opencl, opencl_reason
from cuts.tests.ops.test_empty_tensors import graph
from hypothesis import given, settings
from hypothesis import strategies as st


def draw_slices(
    seed: int, lead: int, rows: int, places: tuple[int, ...], width: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw slices and indices, and return NumPy's sums.

    Some indices are negative, many equal.
    """
    rng = np.random.default_rng(seed)
    dy = rng.standard_normal((lead, *places, width)).astype(np.float32)
    ids = rng.integers(-rows, rows, places)
    expected = np.zeros((lead, rows, width))
    np.add.at(expected, (slice(None), ids.reshape(-1)), dy.reshape(lead, -1, width).astype(np.float64))
    return dy, ids, expected


CASES = st.tuples(
    st.integers(0, 99),
    st.integers(1, 3),
    st.integers(1, 12),
    st.lists(st.integers(1, 9), min_size=1, max_size=2).map(tuple),
    st.integers(1, 9),
)


@given(CASES)
@settings(max_examples=40)
def test_the_gradient_of_gather_adds_what_numpy_adds(case: Any) -> None:
    dy, ids, expected = draw_slices(*case)
    plan = cuts.build(graph("gather_grad", dy, ids, axis=1, size=case[2]), target="reference")
    np.testing.assert_allclose(plan.run({"x0": dy, "x1": ids})["y0"], expected, rtol=1e-6, atol=1e-6)


@needs_opencl
@given(CASES)
@settings(max_examples=5)
def test_kernels_add_the_same(case: Any) -> None:
    dy, ids, expected = draw_slices(*case)
    plan = cuts.build(graph("gather_grad", dy, ids, axis=1, size=case[2]), target="opencl")
    found = [plan.run({"x0": dy, "x1": ids})["y0"] for _ in range(2)]
    np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(*found)  # in the same order, every time


@given(
    st.integers(0, 99),
    st.lists(st.integers(1, 4), min_size=1, max_size=2),
    st.integers(10, 40),
    st.integers(4, 7),
    st.booleans(),
)
@settings(max_examples=20)
def test_slices_scattered_and_added_are_what_numpy_adds(
    seed: int, shape: list[int], slices: int, width: int, kernels: bool
) -> None:
    rng = np.random.default_rng(seed)
    x, updates = (rng.standard_normal((*dims, width)).astype(np.float32) for dims in (shape, [slices]))
    ids = np.stack([rng.integers(-extent, extent, slices) for extent in shape], 1)
    expected = x.astype(np.float64)
    np.add.at(expected, tuple(ids.T), updates.astype(np.float64))
    target = "opencl" if kernels and not opencl_reason() and seed % 4 == 0 else "reference"
    plan = cuts.build(graph("scatter_nd", x, ids, updates, reduction="add"), target=target)
    np.testing.assert_allclose(plan.run({"x0": x, "x1": ids, "x2": updates})["y0"], expected, rtol=1e-5, atol=1e-5)


def test_the_gradient_of_what_was_scattered_is_gathered() -> None:
    ids = np.random.default_rng(0).integers(0, 6, (24, 1))
    net = Network("scattered")
    for name, shape in (("x", (6, 5)), ("updates", (24, 5)), ("weights", (6, 5))):
        net.input(name, *shape)
    net.constant("ids", ids)
    net.op("scatter_nd", "x", "ids", "updates", out="y", reduction="add")
    net.op("mul", "y", "weights", out="weighted")
    net.op("reduce_sum", "weighted", out="loss", keepdims=False)
    training = cuts.grad(net.graph("loss"), wrt=["x", "updates"])
    weights = np.random.default_rng(1).standard_normal((6, 5)).astype(np.float32)
    inputs = {"x": np.zeros((6, 5), np.float32), "updates": np.ones((24, 5), np.float32), "weights": weights}
    found = training.reference(inputs)
    np.testing.assert_allclose(found[training.gradients["x"]], weights, rtol=1e-6)
    np.testing.assert_allclose(found[training.gradients["updates"]], weights[ids[:, 0]], rtol=1e-6)


def test_work_grows_less_than_rows_times_slices() -> None:
    rows, slices, width = 4096, 512, 64
    operands = [TensorType(DType.F32, (slices, width)), TensorType(DType.I64, (slices,))]
    instance = Registry.builtin()["gather_grad"].instantiate(operands, {"axis": 0, "size": rows})
    assert program_costs(instance.program).flops < rows * slices * width / 8


#: Rows at places that data names: those outside of the tensor arrive nowhere.
PLACED_ROWS_TEXT = """op placed "twice each row, at its place" {
  in x: f32[I, K], at: i32[I], b: f32[K, N]
  out y: f32[I - 2, N]
  scatter one y[at[i], n] = (sum[k < K] x[i, k] * b[k, n]) * 2 for i < I
}
"""
#: Places of five rows; two arrive nowhere.
PLACES = np.array([2, 7, 0, 3, 1], np.int32)


def placed_rows(tmp_path: Path) -> tuple[Graph, Path]:
    """Return a graph of placed rows, and the file of its declaration."""
    (path := tmp_path / "placed.cuts").write_text(PLACED_ROWS_TEXT)
    shapes = {"x": (5, 4), "b": (4, 6), "y": (3, 6)}
    types = {name: TensorType(DType.F32, shape) for name, shape in shapes.items()}
    types["at"] = TensorType(DType.I32, (5,))
    node = Node("n", "placed", ("x", "at", "b"), ("y",), {})
    return Graph("placed", ("x", "at", "b"), ("y",), types, (node,)), path


@needs_opencl
@pytest.mark.parametrize("target", ["reference", "opencl"])
def test_one_value_arrives_at_each_element(tmp_path: Path, target: str) -> None:
    graph_, path = placed_rows(tmp_path)
    rng = np.random.default_rng(1)
    arrays = {"x": rng.integers(-3, 4, (5, 4)).astype(np.float32), "b": rng.integers(-3, 4, (4, 6)).astype(np.float32)}
    plan = cuts.build(graph_, target=target, spec=[path])
    for at in (PLACES, np.array([1, 0, 3, 2, 9], np.int32)):
        expected, product = np.zeros((3, 6)), 2 * arrays["x"] @ arrays["b"]
        for row, place in enumerate(at):
            if place < 3:
                expected[place] = product[row]
        np.testing.assert_array_equal(plan.run({**arrays, "at": at})["y"], expected)


def test_one_kernel_stores_values_where_they_arrive(tmp_path: Path) -> None:
    graph_, path = placed_rows(tmp_path)
    plan = cuts.build(graph_, target="cuda:sm_90", spec=[path])
    (kernel,) = plan.kernels
    assert "atomic" not in kernel.source


def test_gradients_of_only_arrivals_are_read_there(tmp_path: Path) -> None:
    graph_, path = placed_rows(tmp_path)
    weighted = TensorType(DType.F32, (3, 6))
    types = {**graph_.types, "w": weighted, "weighted": weighted, "loss": TensorType(DType.F32, ())}
    nodes = (*graph_.nodes, Node("m", "mul", ("y", "w"), ("weighted",), {}),
             Node("s", "reduce_sum", ("weighted",), ("loss",), {"keepdims": False}))  # fmt: skip
    training = cuts.grad(Graph("t", ("x", "at", "b", "w"), ("loss",), types, nodes), wrt=["x", "b"], spec=[path])
    rng = np.random.default_rng(1)
    arrays = {name: rng.integers(-3, 4, types[name].shape).astype(np.float32) for name in ("x", "b", "w")}
    found = training.reference({**arrays, "at": PLACES})
    arrived = np.array([2 * arrays["w"][at] if at < 3 else np.zeros(6) for at in PLACES])
    np.testing.assert_array_equal(found[training.gradients["x"]], arrived @ arrays["b"].T)
    np.testing.assert_array_equal(found[training.gradients["b"]], arrays["x"].T @ arrived)
