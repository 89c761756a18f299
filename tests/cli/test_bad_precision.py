"""Wrong precisions and element types from a user.

Each is one clear error, or the numbers are right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuts.compile.build import build
from cuts.ir.types import DType, TensorType
from cuts.numerics.tolerance import tolerance
from cuts.tests.cli.conftest import Cuts
from cuts.tests.fusion.build import graph, op
from cuts.tests.needs import needs_opencl


def model(nodes: Sequence[tuple[str, str, Sequence[str], str]], inputs: Mapping[str, tuple[str, list[int]]]) -> str:
    """Return a graph.json; a node is its name, operation, operands and result."""
    return json.dumps({
        "format": "cuts.graph", "version": 1, "name": "small", "outputs": [nodes[-1][-1]],
        "inputs": [{"name": n, "dtype": t, "shape": s} for n, (t, s) in inputs.items()],
        "nodes": [{"name": n, "op": o, "inputs": list(i), "outputs": [y]} for n, o, i, y in nodes],
    })  # fmt: skip


PRODUCTS = model(
    [("m", "matmul", ("x", "w"), "h"), ("e", "exp", ("h",), "e"), ("n", "matmul", ("e", "v"), "y")],
    {"x": ("f32", [4, 16]), "w": ("f32", [16, 8]), "v": ("f32", [8, 4])},
)


def scaled_product(rows: Sequence[int], columns: Sequence[int]) -> str:
    """Return a product of 8-bit floats with scales of these shapes."""
    inputs = {"x": ("f8e4m3", [4, 4]), "w": ("f8e4m3", [4, 6]), "p": ("f32", [*rows]), "q": ("f32", [*columns])}
    return model([("n", "scaled_matmul", ("x", "w", "p", "q"), "y")], inputs)


@pytest.mark.parametrize(
    ("target", "precision", "message"),
    [
        ("opencl", "tf32", "target 'PoCL CPU' has no matrix instructions of TF32, so it cannot follow precision "
         "'tf32'; it can follow: fp32, bf16, fp16"),
        ("cuda:t4", "fp32x3", "target 'NVIDIA T4' has no matrix instructions of TF32, so it cannot follow precision "
         "'fp32x3'; it can follow: fp32, bf16, fp16"),
        ("reference", "fp16", "target 'NumPy reference' has no kernels, so it cannot follow precision 'fp16'; it can "
         "follow: fp32"),
    ],
)  # fmt: skip
def test_an_unsupported_policy_names_the_supported_ones(
    target: str, precision: str, message: str, cuts: Cuts, tmp_path: Path
) -> None:
    (tmp_path / "graph.json").write_text(PRODUCTS)
    result = cuts("compile", "graph.json", "--target", target, "--precision", precision, "-o", "p")
    assert (result.code, result.out) == (2, "")
    assert result.err == f"cuts: error: {message}\n"
    assert not (tmp_path / "p").exists()


@needs_opencl
@pytest.mark.parametrize("mode", ["mixed", "no-fusion"])
def test_verify_names_an_overflow_of_half_types(mode: str, cuts: Cuts, tmp_path: Path) -> None:
    """Overflow in one kernel, without a stored value, and between kernels."""
    (tmp_path / "graph.json").write_text(PRODUCTS)
    arrays = {"x": np.full((4, 16), 1.5), "w": np.full((16, 8), 0.5), "v": np.ones((8, 4))}
    arrays["x"][2] = 1.0
    np.savez(tmp_path / "large.npz", **{name: array.astype(np.float32) for name, array in arrays.items()})
    compiled = cuts("compile", "graph.json", "--target", "opencl", "--precision", "fp16", "--mode", mode, "-o", "p")
    assert compiled.code == 0, compiled.err
    result = cuts("verify", "p", "--input", "large.npz")
    assert result.code == 5
    assert "'e.f16': 24 values outgrow f16 (at most 65504), the first at [0, 0]: 162755" in result.err
    assert result.err.count("outgrow") == 1
    assert cuts("compile", "graph.json", "--target", "opencl", "--precision", "bf16", "-o", "b").code == 0
    assert cuts("verify", "b", "--input", "large.npz").code == 0


@needs_opencl
def test_verify_names_saturated_8_bit_floats(cuts: Cuts, tmp_path: Path) -> None:
    text = json.loads(model([("q", "cast", ("x",), "q"), ("y", "cast", ("q",), "y")], {"x": ("f32", [4, 16])}))
    for node, kind in zip(text["nodes"], ("f8e4m3", "f32"), strict=True):
        node["attributes"] = {"to": kind}
    (tmp_path / "graph.json").write_text(json.dumps(text))
    x = np.full((4, 16), 300.0, np.float32)
    x[2, 3:6] = 600.0
    np.savez(tmp_path / "large.npz", x=x)
    result = cuts("verify", "graph.json", "--target", "opencl", "--input", "large.npz")
    assert result.code == 0, result.err
    assert "'q': 3 of 64 values are the largest of f8e4m3 (448), the first at [2, 3]" in result.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (model([("n", "bitwise_not", ("x",), "y")], {"x": ("bf16", [4])}),
         "op 'bitwise_not': operand 'x': expected element type int, found bf16"),
        (model([("n", "matmul", ("x", "w"), "y")], {"x": ("f16", [4, 8]), "w": ("bf16", [8, 4])}),
         "op 'matmul': operand 'b': expected element type f16, found bf16"),
        (model([("n", "relu", ("x",), "y")], {"x": ("tf32", [4])}), "tf32"),
        (scaled_product((4, 5), (1, 1)), "operand 'a_scale': expected at most [4, 4] scales, found [4, 5]"),
        (scaled_product((4, 1), (8, 2)), "operand 'b_scale': expected at most [4, 6] scales, found [8, 2]"),
        (scaled_product((4,), (1, 1)), "op 'scaled_matmul': operand 'a_scale': expected"),
    ],
)  # fmt: skip
def test_an_error_names_the_disallowed_type(text: str, message: str, cuts: Cuts, tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_text(text)
    result = cuts("compile", "graph.json", "-o", "p")
    assert (result.code, result.out) == (3, "")
    assert message in result.err
    assert "Traceback" not in result.err


def shift_memory(array: Any, nbytes: int) -> Any:
    """Return an equal array at `offset` bytes after a vector's alignment."""
    memory = np.empty(array.nbytes + 64 + nbytes, np.uint8)
    start = -memory.ctypes.data % 64 + nbytes
    view = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


@needs_opencl
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_a_tensor_of_the_caller_may_lie_anywhere(dtype: str) -> None:
    kind = DType(dtype)
    made = graph(dict.fromkeys("xw", TensorType(kind, (64, 64))), op("m", "matmul", "x", "w"), out="m")
    plan = build(made, "opencl")
    generator = np.random.default_rng(0)
    given = {n: generator.standard_normal((64, 64)).astype(kind.numpy) for n in "xw"}
    right = plan.run(given)["m"]
    exact = given["x"].astype(np.float64) @ given["w"].astype(np.float64)
    assert np.abs(right.astype(np.float64) - exact).max() <= 8 * tolerance(kind, 64) * np.abs(exact).max()
    np.testing.assert_array_equal(plan.run({n: shift_memory(a, kind.size) for n, a in given.items()})["m"], right)
    np.testing.assert_array_equal(plan.run({n: np.asfortranarray(a) for n, a in given.items()})["m"], right)
