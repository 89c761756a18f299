"""Sorting of nodes that converters write after their readers.

ONNX Runtime sorts them, and so does the import.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from cuts.frontends.onnx.load import load_onnx  # onnx is optional
from cuts.frontends.onnx.protos.order import sort_graph
from cuts.ir.errors import CutsError
from cuts.ops import Registry
from cuts.ops.reference import evaluate_graph
from cuts.tests.frontends.test_onnx import F, compare, floats, model, node
from onnx import helper


def test_nodes_are_sorted_stably() -> None:
    late = model([node("Relu", "b"), node("Exp", "x", outputs=["a"]), node("Neg", "a", outputs=["b"]),
                  node("Abs", "x", outputs=["z"])],
                 {"x": (3,)}, 13, outputs=("y", "z"))  # fmt: skip
    kept = late.SerializeToString()
    compare(late)
    assert late.SerializeToString() == kept  # the caller's model is the caller's
    assert [each.op_type for each in sort_graph(late.graph).node] == ["Exp", "Neg", "Relu", "Abs"]
    early = model([node("Abs", "x", outputs=["z"]), node("Exp", "x")], {"x": (3,)}, 13, outputs=("y", "z"))
    assert sort_graph(early.graph) is early.graph


def test_sorting_includes_branches_and_their_reads() -> None:
    output = helper.make_tensor_value_info("t", F, (3,))
    branch = helper.make_graph(
        [node("Abs", "u", outputs=["t"]), node("Neg", "a", outputs=["u"])], "branch", [], [output]
    )
    nodes = [node("If", "c", then_branch=branch, else_branch=branch), node("Exp", "x", outputs=["a"])]
    graph = load_onnx(
        model(nodes, {"x": (3,)}, 13, {"c": np.array(True)})
    )  # the standard's checker refuses it, so no comparison
    x = np.array([-1, 0, 1], np.float32)
    np.testing.assert_allclose(evaluate_graph(graph, Registry.builtin(), {"x": x})["y"], np.exp(x), rtol=1e-6)


def test_a_cycle_is_an_error() -> None:
    nodes = [node("Add", "b", "w", outputs=["a"]), node("Exp", "a", outputs=["b"]), node("Relu", "x")]
    with pytest.raises(CutsError, match=r"node 'the Add' \(Add\): reads value 'b' that nothing defines"):
        load_onnx(model(nodes, {"x": (3,)}, 13, {"w": floats(1)}))
