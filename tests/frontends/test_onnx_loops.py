"""Unrolling of loops of known length, and sequences as lists.

Loops of unknown length run uncompiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from cuts.compile.build import build_staged
from cuts.frontends.onnx.load import load_onnx  # onnx is optional
from cuts.frontends.onnx.staged_model import OpaqueWarning
from cuts.ir.errors import VocabularyError
from cuts.ops import Registry
from cuts.ops.reference import evaluate_graph
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

X = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


def unknown(*names: str) -> list[Any]:
    return [helper.make_value_info(name, onnx.TypeProto()) for name in names]


def model(nodes: list[Any], outputs: list[str], constants: dict[str, Any]) -> Any:
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3])], unknown(*outputs), weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def loop(condition: str, outputs: list[str]) -> Any:
    """Return a loop that adds a row of x in every step.

    It ends as `condition` says, and collects its sums.
    """
    body = helper.make_graph(
        [
            helper.make_node("Gather", ["x", "step"], ["row"]),
            helper.make_node("Add", ["sum", "row"], ["more"]),
            helper.make_node("Less", ["step", "last"], ["early"]),
            helper.make_node("ReduceMax", ["more"], ["greatest"], keepdims=0),
            helper.make_node("Less", ["greatest", "bound"], ["small"]),
            helper.make_node("Identity", ["more"], ["seen"]),
        ],
        "body",
        unknown("step", "going", "sum"),
        unknown(condition, "more", "seen"),
    )
    return helper.make_node("Loop", ["most", "true", "start"], outputs, name="rows", body=body)


CONSTANTS = {"most": 4, "true": True, "last": 2, "start": np.zeros(3, np.float32), "bound": np.float32(0.5)}


def assert_right(proto: Any) -> None:
    expected = ReferenceEvaluator(proto).run(None, {"x": X})
    found = evaluate_graph(load_onnx(proto), Registry.builtin(), {"x": X})
    for name, value in zip(found, expected, strict=True):
        assert np.allclose(found[name], value, rtol=1e-5)


def test_loop_of_known_length_is_unrolled() -> None:
    proto = model([loop("early", ["total", "all"])], ["total", "all"], CONSTANTS)
    assert load_onnx(proto).types["all"].shape == (3, 3)
    assert_right(proto)


def test_loop_of_no_steps_collects_empty_tensors() -> None:
    proto = model([loop("early", ["total", "all"])], ["total", "all"], CONSTANTS | {"most": 0})
    with pytest.raises(VocabularyError, match="the shape of result 'all' is not known"):
        load_onnx(proto)
    proto.graph.node[0].attribute[0].g.output[2].CopyFrom(helper.make_tensor_value_info("seen", TensorProto.FLOAT, [3]))
    assert load_onnx(proto).types["all"].shape == (0, 3)


def test_data_dependent_loop_runs_uncompiled() -> None:
    proto = model([loop("small", ["total", "all"]), helper.make_node("Neg", ["total"], ["y"])], ["y", "all"], CONSTANTS)
    with pytest.raises(VocabularyError, match=r"node 'rows' \(Loop\): the condition must be a constant"):
        load_onnx(proto)
    split = build_staged(proto, "reference")
    with pytest.warns(OpaqueWarning, match=r"1 operation .*: Loop \('rows'\)"):
        found = split.run({"x": X})
    for name, value in zip(found, ReferenceEvaluator(proto).run(None, {"x": X}), strict=True):
        assert np.allclose(found[name], value, rtol=1e-5)


def test_sequences_are_lists_of_values() -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x", "sizes"], ["parts"], axis=0),
        helper.make_node("SequenceAt", ["parts", "second"], ["one"]),
        helper.make_node("Exp", ["one"], ["e"]),
        helper.make_node("SequenceInsert", ["parts", "e", "first"], ["more"]),
        helper.make_node("SequenceErase", ["more"], ["fewer"]),
        helper.make_node("SequenceLength", ["fewer"], ["length"]),
        helper.make_node("ConcatFromSequence", ["fewer"], ["y"], axis=0),
        helper.make_node("SplitToSequence", ["x"], ["rows"], axis=0, keepdims=0),
        helper.make_node("ConcatFromSequence", ["rows"], ["z"], axis=1, new_axis=1),
    ]
    assert_right(model(nodes, ["y", "length", "z"], {"sizes": np.array([1, 3]), "first": 0, "second": 1}))


def test_unknown_sequence_stays_with_its_readers() -> None:
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["greatest"], keepdims=0),
        helper.make_node("Cast", ["greatest"], ["sizes"], to=TensorProto.INT64),
        helper.make_node("Max", ["sizes", "one"], ["size"]),
        helper.make_node("SplitToSequence", ["x", "size"], ["parts"], name="cut", axis=0),
        helper.make_node("ConcatFromSequence", ["parts"], ["y"], name="join", axis=0),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    proto = model(nodes, ["z"], {"one": np.int64(1)})
    split = build_staged(proto, "reference")
    with pytest.warns(OpaqueWarning, match=r"ConcatFromSequence \('join'\); SplitToSequence \('cut'\)"):
        assert np.allclose(split.run({"x": X})["z"], np.maximum(X, 0))
