"""Operations outside the vocabulary run uncompiled, with one warning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from cuts.compile.build import build_staged
from cuts.frontends.onnx.staged_model import OpaqueWarning  # onnx is optional
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator


def model(outputs: list[str]) -> Any:
    """Return relu -> Unique -> exp beside a compiled branch.

    Both stages read one constant.
    """
    nodes = [
        helper.make_node("Constant", [], ["two"], value=numpy_helper.from_array(np.float32(2))),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Mul", ["r", "two"], ["m"]),
        helper.make_node("Unique", ["m"], ["u", "", "places"], name="distinct"),
        helper.make_node("Exp", ["u"], ["e"]),
        helper.make_node("Div", ["e", "two"], ["y"]),
        helper.make_node("Neg", ["r"], ["n"]),
    ]
    values = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])], values)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


X = np.array([1, -2, 3, 1, 3, 0], np.float32)


def test_what_lies_around_a_foreign_operation_is_compiled() -> None:
    proto = model(["y", "n", "places"])
    with pytest.warns(
        OpaqueWarning, match=r"1 operation is outside the vocabulary and runs uncompiled: Unique \('distinct'\)"
    ):
        split = build_staged(proto, target="reference")
    assert [([n.op_type for n in s.part], [n.op_type for n in s.foreign]) for s in split.stages.stages] == [
        (["Constant", "Relu", "Mul", "Neg"], ["Unique"]),
        (["Constant", "Exp", "Div"], []),
    ]
    found = split.run({"x": X})
    for name, value in zip(("y", "n", "places"), ReferenceEvaluator(proto).run(None, {"x": X}), strict=True):
        assert np.allclose(found[name], value)


def test_parts_recompile_for_other_foreign_shapes() -> None:
    with pytest.warns(OpaqueWarning):
        split = build_staged(model(["y"]), target="reference")
    assert split.run({"x": X})["y"].shape == (3,)
    assert split.run({"x": np.arange(6, dtype=np.float32)})["y"].shape == (6,)
    assert split.run({"x": X})["y"].shape == (3,)
    assert len(split.parts) == 3


def test_callers_function_replaces_an_operation() -> None:
    with pytest.warns(OpaqueWarning):
        split = build_staged(model(["y"]), target="reference", functions={"Unique": lambda x, **_: x[:2]})
    assert np.allclose(split.run({"x": X})["y"], np.exp([2, 0]) / 2)


def test_supported_model_is_one_part_without_warning() -> None:
    split = build_staged(model(["n"]), target="reference")
    assert split.foreign == {}
    assert len(split.stages.stages) == 1
    assert np.allclose(split.run({"x": X})["n"], -np.maximum(X, 0))
