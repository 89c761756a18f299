"""Commands on models whose sizes vary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cuts.tests.cli.conftest import Cuts

onnx = pytest.importorskip("onnx")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """ONNX model of symbolic batch and length."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    weights = onnx.numpy_helper.from_array(np.linspace(-1, 1, 128, dtype=np.float32).reshape(16, 8), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"], axis=1),
        helper.make_node("ReduceMean", ["b"], ["y"], axes=[1], keepdims=0),
    ]
    shapes = {"x": ["batch", "length", 16], "y": ["batch", 8]}
    ends = {name: helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items()}
    graph = helper.make_graph(nodes, "m", [ends["x"]], [ends["y"]], [weights])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), path)
    return path


def test_a_model_is_compiled_for_ranges(cuts: Cuts, model: Path, tmp_path: Path) -> None:
    options = (
        "--dynamic",
        "batch=1..4",
        "--dynamic",
        "length=2..16",
        "--buckets",
        "batch=4",
        "--buckets",
        "length=5,16",
    )
    made = cuts("compile", str(model), "-o", "plan", *options, "--verify", "--json")
    assert made.code == 0, made.err
    assert made.json["dims"] == {"batch": [1, 4], "length": [2, 16]}
    assert [bucket["sizes"] for bucket in made.json["buckets"]] == [{"batch": 4, "length": n} for n in (5, 16)]
    np.savez(tmp_path / "x.npz", x=np.ones((3, 7, 16), np.float32))
    assert cuts("run", "plan", "--input", "x.npz", "--json").json["outputs"]["y"]["shape"] == [3, 8]
    np.savez(tmp_path / "x.npz", x=np.ones((5, 7, 16), np.float32))
    refused = cuts("run", "plan", "--input", "x.npz")
    assert refused.code == 2 and "dim 0 (batch): expected a size of 1..4, found 5" in refused.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--shape", "x=1..x3"), "expected NAME=1x3x224x224, or 1..64x3x224x224, found 'x=1..x3'"),
        (("--dynamic", "batch=4"), "expected NAME=1..64, found 'batch=4'"),
        (("--buckets", "batch"), "expected NAME=8,32,64, found 'batch'"),
        (("--dynamic", "rows=1..4"), "no input has a dim 'rows'"),
        (("--shape", "x=2x3x16", "--buckets", "batch=2"), "--buckets does nothing here: no size varies"),
    ],
)
def test_bad_ranges_are_usage_errors(cuts: Cuts, model: Path, options: tuple[str, ...], message: str) -> None:
    result = cuts("compile", str(model), *options)
    assert result.code == 2 and message in result.err, result.err
