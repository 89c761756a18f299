"""Import of `If` into the graph around it, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

helper = pytest.importorskip("onnx.helper")
runtime = pytest.importorskip("onnxruntime")

from cuts.frontends.onnx.load import load_onnx  # onnx is optional
from cuts.ir.errors import CutsError
from cuts.ops import Registry
from cuts.ops.reference import evaluate_graph
from onnx import TensorProto, numpy_helper

F = TensorProto.FLOAT
node, info = helper.make_node, helper.make_tensor_value_info
X = np.array([1, -2, 3], np.float32)


def model(nodes: list[Any], outputs: dict[str, int], **constants: Any) -> Any:
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(
        nodes, "g", [info("x", F, [3])], [info(n, F, [None] * rank) for n, rank in outputs.items()], tensors
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(proto: Any, *xs: np.ndarray) -> list[str]:
    """Compare with ONNX Runtime; return the operations of the graph."""
    graph = load_onnx(proto)
    session = runtime.InferenceSession(proto.SerializeToString())
    for x in xs or (X,):
        found = evaluate_graph(graph, Registry.builtin(), {"x": x})
        for name, value in zip(graph.outputs, session.run(None, {"x": x}), strict=True):
            assert found[name].shape == value.shape
            np.testing.assert_allclose(found[name], value, rtol=1e-5)
    return [n.op for n in graph.nodes]


def branch(name: str, *nodes: Any) -> Any:
    return helper.make_graph(nodes, name, [], [info(name, F, None)])


CONDITION = [node("ReduceSum", ["x"], ["s"], keepdims=0), node("Greater", ["s", "zero"], ["c"])]


def test_of_a_computed_condition_both_branches_are_computed() -> None:
    twice = branch("a", node("Exp", ["x"], ["t"]), node("Add", ["t", "x"], ["a"]))
    less = branch("b", node("Abs", ["x"], ["t"]), node("Neg", ["t"], ["b"]))  # `t` is another value here
    proto = model(
        [*CONDITION, node("If", ["c"], ["y"], then_branch=twice, else_branch=less)], {"y": 1}, zero=np.float32(0)
    )
    assert "where" in check(proto, X, -X)


def test_branches_of_different_shapes_need_a_constant_condition() -> None:
    total, same = branch("a", node("ReduceSum", ["x"], ["a"])), branch("b", node("Neg", ["x"], ["b"]))
    choice = node("If", ["c"], ["y"], name="choice", then_branch=total, else_branch=same)
    with pytest.raises(
        CutsError, match=r"node 'choice' \(If\): .* found a computed value; its branches cannot both be computed"
    ):
        load_onnx(model([*CONDITION, choice], {"y": 1}, zero=np.float32(0)))
    check(model([choice], {"y": 1}, c=np.bool_(True)))


def test_a_branch_outside_the_vocabulary_is_forgotten() -> None:
    good, bad = (
        branch("a", node("Neg", ["x"], ["a"])),
        branch("b", node("NonZero", ["x"], ["n"]), node("Cast", ["n"], ["b"], to=F)),
    )
    choice = node("If", ["c"], ["y"], name="choice", then_branch=good, else_branch=bad)
    with pytest.raises(CutsError) as caught:
        load_onnx(model([*CONDITION, choice], {"y": 1}, zero=np.float32(0)))
    assert "NonZero" not in str(caught.value)
    assert check(model([choice], {"y": 1}, c=np.bool_(True))) == ["neg", "identity"]
