"""Plans for ranges of sizes: buckets, entry points, errors, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cuts
import numpy as np
import pytest
from cuts.compile.dynamic import read_shapes
from cuts.ir import Dim, DType, Graph, GraphError, Node, TensorType, UsageError
from cuts.tests.amounts import examples
from cuts.tests.ops.symbolic_graphs import SizedGraph, padded_inputs, present, sized_graphs
from hypothesis import given, settings

F32 = DType.F32


def _head(rows: int = 4) -> Graph:
    """Return `softmax(x w)` and its mean over the rows."""
    types = {
        "x": TensorType(F32, (rows, 8)), "w": TensorType(F32, (8, 6)), "h": TensorType(F32, (rows, 6)),
        "y": TensorType(F32, (rows, 6)), "m": TensorType(F32, (6,)),
    }  # fmt: skip
    nodes = (
        Node("product", "matmul", ("x", "w"), ("h",)),
        Node("weights", "softmax", ("h",), ("y",)),
        Node("mean", "reduce_mean", ("y",), ("m",), {"axes": [0], "keepdims": False}),
    )
    return Graph("head", ("x", "w"), ("y", "m"), types, nodes)


def _reference_values(x: Any, w: Any) -> tuple[Any, Any]:
    h = x.astype(np.float64) @ w
    e = np.exp(h - h.max(axis=1, keepdims=True))
    y = e / e.sum(axis=1, keepdims=True)
    return y, y.mean(axis=0)


@pytest.fixture(scope="module")
def plan() -> Any:
    return cuts.build(_head(), shapes={"x": ("rows", 8)}, dims={"rows": (1, 13)}, buckets={"rows": [5]})


def test_every_size_of_the_range_is_right(plan: Any) -> None:
    generator = np.random.default_rng(0)
    w = generator.standard_normal((8, 6)).astype(np.float32)
    assert [bucket.sizes for bucket in plan.buckets] == [{"rows": 5}, {"rows": 13}]
    for rows in [13, 1, 5, 2, 6, 3, 11, 12, 7]:  # rows of earlier calls stay in memory
        x = generator.standard_normal((rows, 8)).astype(np.float32) * rows
        found = plan.run({"x": x, "w": w})
        y, mean = _reference_values(x, w)
        np.testing.assert_allclose(found["y"], y, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found["m"], mean, rtol=1e-4, atol=1e-6)
    assert all(result.ok for result in plan.verify())


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((14, 8), r"input 'x': dim 0 \(rows\): expected a size of 1..13, found 14; the plan is for rows in 1..13"),
        ((0, 8), r"input 'x': dim 0 \(rows\): expected a size of 1..13, found 0"),
        ((3, 7), r"input 'x': expected f32\[rows, 8\] with rows=3, which is \[3, 8\], found \[3, 7\]"),
        ((3,), r"input 'x': expected f32\[rows, 8\], found shape \[3\]"),
    ],
)
def test_a_size_out_of_range_is_one_error(plan: Any, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan.run({"x": np.zeros(shape, np.float32), "w": np.zeros((8, 6), np.float32)})


def test_a_folder_holds_all_buckets(plan: Any, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan")
    opened = cuts.load(tmp_path / "plan")
    assert repr(opened) == repr(plan) and isinstance(opened, cuts.DynamicPlan)
    inputs = plan.random_inputs(sizes={"rows": 7})
    assert np.array_equal(opened.run(inputs)["y"], plan.run(inputs)["y"])


def test_buckets_share_constants() -> None:
    graph = _head()
    w = np.ones((8, 6), np.float32)
    held = Graph("g", ("x",), graph.outputs, graph.types, graph.nodes, {"w": w})
    plan = cuts.build(held, shapes={"x": ("1..9", 8)}, dims={}, buckets={"x.0": [3, 9]})
    first, second = (part.plan.constants for part in plan.parts)
    assert first and all(first[name] is second[name] for name in first.keys() & second.keys())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": {"rows": (5, 2)}}, "dim 'rows': expected a range of sizes from 1, found 5..2"),
        ({"dims": {"rows": (0, 2)}}, "expected a range of sizes from 1, found 0..2"),
        ({"dims": {"rows": "many"}}, "dim 'rows': expected its least and greatest size, found 'many'"),
        ({"shapes": {"x": ("rows", 8)}}, "input 'x': dim 'rows' has no range"),
        ({"dims": {"rows": (1, 4)}}, "no input has a dim 'rows'"),
        ({"shapes": {"x": ("1..4", 8)}, "buckets": {"n": [2]}}, "buckets of dim 'n', which the model does not have"),
        ({"shapes": {"x": ("1..4", 8)}, "buckets": {"x.0": [9]}}, "bucket 9 of dim 'x.0': expected a size of 1..4"),
        ({"buckets": {"n": [2]}}, "'buckets' without a dim that varies"),
    ],
)
def test_bad_ranges_are_one_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cuts.build(_head(), target="reference", **options)


def test_shapes_of_callers() -> None:
    request = read_shapes({"x": ("b", "32*h", "1..4", Dim("c", 2, 3), 5)}, {"b": (1, 2), "h": "1..7"})
    assert [str(extent) for extent in request.inputs["x"]] == ["b", "32*h", "x.2", "c", "5"]
    assert [str(dim) for dim in request.dims.values()] == ["b in 1..2", "h in 1..7", "x.2 in 1..4", "c in 2..3"]


def test_state_has_one_size() -> None:
    torch = pytest.importorskip("torch")

    class Counter(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(8))

        def forward(self, x: Any) -> Any:
            self.seen.add_(x.sum(0))
            return x + self.seen

    with pytest.raises(GraphError, match="keeps state"):
        cuts.build(Counter(), (torch.zeros(4, 8),), "reference", shapes={"x": ("1..8", 8)}, dims={})


@settings(max_examples=examples(6, 200))
@given(graph=sized_graphs(["n", "m"]))
def test_kernels_of_random_graphs(graph: SizedGraph) -> None:
    dims = (Dim("n", 1, 7), Dim("m", 1, 5))
    bounded = graph.graph_of_range(dims)
    plan = cuts.build(bounded.graph)
    for sizes in [{"n": 7, "m": 5}, {"n": 1, "m": 5}, {"n": 5, "m": 1}, {"n": 3, "m": 2}]:
        arrays = graph.random_inputs(sizes)
        found = plan.run(padded_inputs(bounded, arrays, sizes))
        expected = cuts.build(graph.at(sizes), target="reference").run(arrays)
        for name, value in expected.items():
            got = present(bounded, name, found[name], sizes)
            np.testing.assert_allclose(got, value, rtol=2e-3, atol=1e-4, err_msg=f"{name} at {sizes}")
