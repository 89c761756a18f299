"""Operations outside the vocabulary run uncompiled, with one warning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from cuts.compile.build import build, build_staged
from cuts.compile.plan import CompiledPlan
from cuts.frontends.onnx.operators import TABLE
from cuts.frontends.onnx.staged_model import OpaqueWarning  # onnx is optional
from cuts.ir import GraphError
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
        OpaqueWarning, match=r"1 operation .* runs uncompiled \(1 of 7 nodes, 14.3%\): Unique \('distinct'\)"
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


def of_nodes(nodes: list[Any], outputs: list[str], shape: list[int], **weights: Any) -> Any:
    """Return a model with the input x."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_value_info(name, onnx.TypeProto()) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_onnxruntime_runs_its_own_operations() -> None:
    runtime = pytest.importorskip("onnxruntime")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["q"]),
        helper.make_node("Relu", ["q"], ["r"]),
        helper.make_node("Trilu", ["r"], ["a"], name="corner", domain="com.microsoft", upper=1),
        helper.make_node("MatMul", ["a", "w"], ["p"]),
        helper.make_node("Softmax", ["p"], ["y"]),
    ]
    proto = of_nodes(nodes, ["y"], [1, 4, 8], w=np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32))
    with pytest.warns(OpaqueWarning, match=r"\(1 of 5 nodes, 20.0%\): com.microsoft.Trilu \('corner'\)"):
        plan = build_staged(proto, "reference")
    x = {"x": np.random.default_rng(1).standard_normal((1, 4, 8)).astype(np.float32)}
    session = runtime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for _ in range(2):
        assert np.allclose(plan.run(x)["y"], session.run(None, x)[0], rtol=1e-5, atol=1e-6)
    assert plan.foreign_time is not None and 0 < plan.foreign_time < 1
    assert len(plan.parts) == 2


def test_light_nodes_between_foreign_ones_make_no_part() -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Softmax", ["e"], ["s"]),
        helper.make_node("Unique", ["s"], ["u"]),
        helper.make_node("Constant", [], ["form"], value=numpy_helper.from_array(np.array([1, -1]))),
        helper.make_node("Reshape", ["u", "form"], ["row"]),
        helper.make_node("NonZero", ["row"], ["n"]),
        helper.make_node("Cast", ["n"], ["y"], to=TensorProto.FLOAT),
    ]
    proto = of_nodes(nodes, ["y"], [2, 3])
    with pytest.warns(OpaqueWarning, match="2 operations are outside the vocabulary"):
        plan = build_staged(proto, "reference")
    x = {"x": np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)}
    assert np.allclose(plan.run(x)["y"], ReferenceEvaluator(proto).run(None, x)[0])
    assert len(plan.parts) == 1 and set(plan.foreign) == {"Unique", "NonZero"}


def test_build_falls_back_where_it_may() -> None:
    counts = {"max_gram_length": 1, "max_skip_count": 0, "min_gram_length": 1, "mode": "TF", "ngram_counts": [0]}
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Cast", ["r"], ["words"], to=TensorProto.INT64),
        helper.make_node("TfIdfVectorizer", ["words"], ["c"], ngram_indexes=[0, 1], pool_int64s=[1, 3], **counts),
        helper.make_node("Exp", ["c"], ["y"]),
    ]
    proto = of_nodes(nodes, ["y"], [6])
    with pytest.raises(GraphError, match="1 operation is not supported: TfIdfVectorizer"):
        build(proto, "reference")
    with pytest.warns(OpaqueWarning):
        plan = build(proto, "reference", fallback=True)
    assert np.allclose(plan.run({"x": X})["y"], ReferenceEvaluator(proto).run(None, {"x": X})[0])
    readable = of_nodes([helper.make_node("Exp", ["x"], ["y"])], ["y"], [2, 3])
    assert isinstance(build(readable, "reference", fallback=True), CompiledPlan)


def test_a_conversion_that_fails_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(call: Any) -> None:
        raise AssertionError("half way")

    monkeypatch.setitem(TABLE, "Softplus", convert)
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Softmax", ["e"], ["s"]),
        helper.make_node("Softplus", ["s"], ["p"]),
        helper.make_node("Softmax", ["p"], ["y"]),
    ]
    proto = of_nodes(nodes, ["y"], [2, 3])
    plan = build_staged(proto, "reference")
    x = {"x": np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)}
    with pytest.warns(OpaqueWarning, match="Softplus"):
        found = plan.run(x)["y"]
    assert np.allclose(found, ReferenceEvaluator(proto).run(None, x)[0])
    assert len(plan.parts) == 2
