"""ONNX's NonZero, Unique and Compress against the standard's evaluator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import cuts
from cuts.cli import main
from cuts.tests.needs import needs_opencl
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

X, K = ("x", TensorProto.FLOAT, [4, 5]), ("k", TensorProto.BOOL, [4])
CONSTANTS = {"w": np.random.default_rng(1).random((5, 3), np.float32)}


def _node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


MODELS: dict[str, tuple[list[Any], list[Any], str]] = {
    "positions": ([X], [_node("NonZero", "x", "y")], "y"),
    "distinct": ([X], [_node("Unique", "x", "y first inverse counts")], "y first inverse counts"),
    "only distinct": ([X], [_node("Unique", "x", "y")], "y"),
    "rows": ([X, K], [_node("Compress", "x k", "y", axis=0)], "y"),
    "elements": ([X, ("k", TensorProto.BOOL, [13])], [_node("Compress", "x k", "y")], "y"),
    "gathered": (
        [X],
        [_node("NonZero", "x", "p"), _node("Transpose", "p", "t"), _node("GatherND", "x t", "g"),
         _node("Mul", "g g", "y"), _node("ReduceSum", "y", "sum", keepdims=0), _node("Shape", "g", "size")],
        "y sum size",
    ),
    "layers": (
        [X, K],
        [_node("Compress", "x k", "c", axis=0), _node("Softmax", "c", "y", axis=0), _node("MatMul", "y w", "z"),
         _node("Relu", "x", "r")],
        "y z r",
    ),
}  # fmt: skip


def _model(name: str) -> Any:
    inputs, nodes, results = MODELS[name]
    graph = helper.make_graph(
        nodes,
        name.replace(" ", "_"),
        [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_value_info(each, onnx.TypeProto()) for each in results.split()],
        [numpy_helper.from_array(array, key) for key, array in CONSTANTS.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _arrays(name: str, share: float) -> dict[str, Any]:
    random = np.random.default_rng(3)
    given = {}
    for key, kind, shape in MODELS[name][0]:
        values = random.integers(-1, 2, shape) * (random.random(shape) < share)
        given[key] = values.astype(np.float32) if kind == TensorProto.FLOAT else random.random(shape) < share
    return given


@pytest.mark.parametrize("name", MODELS)
def test_results_are_the_standards(name: str) -> None:
    _check(name, "reference")


@needs_opencl
@pytest.mark.parametrize("name", MODELS)
def test_kernels_have_the_results(name: str) -> None:
    _check(name, "opencl")


def _check(name: str, target: str) -> None:
    model = _model(name)
    plan = cuts.build(model, target)
    for share in (0.6, 0.0, 1.0):
        given = _arrays(name, share)
        for key, want in zip(plan.outputs, ReferenceEvaluator(model).run(None, given), strict=True):
            found = plan.run(given)[key]
            assert (found.dtype, found.shape) == (want.dtype, want.shape)
            np.testing.assert_allclose(found, want, 1e-5)


def test_the_first_of_computed_rows_are_refused() -> None:
    """Fewer than three rows may be there: no affine extent."""
    nodes = [_node("NonZero", "x", "p"), _node("Slice", "p begin end axis", "y")]
    numbers = [numpy_helper.from_array(np.array([n]), key) for key, n in {"begin": 0, "end": 3, "axis": 1}.items()]
    x, y = helper.make_tensor_value_info(*X), helper.make_value_info("y", onnx.TypeProto())
    graph = helper.make_graph(nodes, "first", [x], [y], numbers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with pytest.raises(cuts.ir.VocabularyError, match="NonZero"):
        cuts.build(model, "reference")


def test_a_model_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, folder, given = tmp_path / "m.onnx", tmp_path / "m.plan", tmp_path / "x.npz"
    onnx.save(_model("layers"), path)
    np.savez(given, **_arrays("layers", 0.6))
    assert main(["compile", str(path), "-o", str(folder), "--target", "reference"]) == 0
    assert main(["run", str(folder), "--input", str(given), "--output", str(tmp_path / "y.npz")]) == 0
    (rows,) = {len(np.load(tmp_path / "y.npz")[name]) for name in ("y", "z")}
    assert rows == int(np.load(given)["k"].sum())
    assert main(["verify", str(folder), "--input", str(given)]) == 0
    assert main(["verify", str(path), "--input", str(given), "--target", "reference"]) == 0
