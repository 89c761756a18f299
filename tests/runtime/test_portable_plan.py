"""Plans are functions and values: called, pickled, copied."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import cuts
import numpy as np
import pytest
from cuts.ir import Graph, GraphError, Node, UsageError
from cuts.tests.needs import opencl_reason
from cuts.tests.runtime.handmade import f32

ON_OPENCL = pytest.param(
    "opencl", marks=(pytest.mark.opencl, pytest.mark.skipif(bool(opencl_reason()), reason=opencl_reason()))
)
TARGETS = pytest.mark.parametrize("target", ["reference", ON_OPENCL])
X, Y = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 2, np.float32)


def graph(*outputs: str) -> Graph:
    """Return s = x + y and p = relu(x)."""
    nodes = (Node("sum", "add", ("x", "y"), ("s",)), Node("act", "relu", ("x",), ("p",)))
    return Graph("two", ("x", "y"), outputs, dict.fromkeys("xysp", f32(2, 3)), nodes)


@TARGETS
def test_a_plan_is_a_function(target: str) -> None:
    one, two = cuts.build(graph("s"), target), cuts.build(graph("s", "p"), target)
    for found in (one(X, Y), one(X, y=Y), one(x=X, y=Y)):
        np.testing.assert_allclose(found, X + Y)
    added, positive = two(X, Y)
    np.testing.assert_allclose(added, X + Y)
    np.testing.assert_allclose(positive, np.maximum(X, 0))


def test_calls_that_do_not_fit_are_errors() -> None:
    plan = cuts.build(graph("s"), "reference")
    with pytest.raises(UsageError, match="expected 2 inputs, found 3; inputs are: 'x', 'y'"):
        plan(X, Y, Y)
    with pytest.raises(UsageError, match="input 'x' is given twice"):
        plan(X, x=X)
    with pytest.raises(UsageError, match="input 'y' is missing"):
        plan(X)


@TARGETS
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))])
def test_plans_are_copied(target: str, copied: Any) -> None:
    plan = cuts.build(graph("s", "p"), target)
    plan(X, Y)
    again = copied(plan)
    assert repr(again) == repr(plan)
    for one, two in zip(again(X, Y), plan(X, Y), strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_copy_has_the_present_state() -> None:
    torch = pytest.importorskip("torch")

    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            self.seen.add_(x)
            return self.seen * 2

    plan = cuts.build(Counter(), (torch.ones(3),), "reference")
    plan(np.ones(3, np.float32))
    again = pickle.loads(pickle.dumps(plan))
    np.testing.assert_array_equal(again.state["seen"], np.ones(3))
    np.testing.assert_array_equal(again(np.ones(3, np.float32)), np.full(3, 4))
    np.testing.assert_array_equal(plan.state["seen"], np.ones(3))


@pytest.mark.filterwarnings("ignore")
def test_plans_in_stages_are_called_and_copied() -> None:
    torch = pytest.importorskip("torch")
    onnx = pytest.importorskip("onnx")
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Softmax(-1))

    class Foreign(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.linalg.qr(module(x).exp())[1].abs().exp()

    x = torch.randn(4, 4)
    nodes = [onnx.helper.make_node("Exp", ["x"], ["e"]), onnx.helper.make_node("NonZero", ["e"], ["n"])]
    value = onnx.helper.make_tensor_value_info
    types = [value("x", onnx.TensorProto.FLOAT, [4, 4])], [value("n", onnx.TensorProto.INT64, [2, 16])]
    proto = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", *types))
    for plan in (cuts.build(Foreign(), (x,), "reference", fallback=True), cuts.build_staged(proto, "reference")):
        found = plan(x.numpy())
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(plan))(x.numpy()), found)


@TARGETS
def test_tensors_that_require_grad_are_inputs(target: str) -> None:
    torch = pytest.importorskip("torch")
    plan = cuts.build(graph("s"), target)
    x = torch.from_numpy(X.copy()).requires_grad_()
    np.testing.assert_allclose(plan(x, torch.from_numpy(Y)), X + Y)
    np.testing.assert_allclose(plan(torch.nn.Parameter(torch.from_numpy(X)), Y), X + Y)


@TARGETS
def test_tensors_in_negated_memory_are_inputs(target: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.view_as_complex(torch.randn(2, 3, 2)).conj().imag
    assert x.is_neg()
    np.testing.assert_allclose(cuts.build(graph("s"), target)(x, Y), x.resolve_neg().numpy() + Y)


def test_swapped_arguments_of_a_node_are_an_error() -> None:
    with pytest.raises(
        GraphError, match=r"expected the name of an operation, found 'layer 1'; the order is Node\(name"
    ):
        Node("relu", "layer 1", ("x",), ("p",))
    with pytest.raises(GraphError, match=r"expected a tuple of inputs, found 'x'; a tuple of one is \('x',\)"):
        Node("act", "relu", "x", ("p",))  # type: ignore[arg-type]
    swapped = Graph("g", ("x",), ("p",), dict.fromkeys("xp", f32(2, 3)), (Node("relu", "act", ("x",), ("p",)),))
    with pytest.raises(GraphError, match=r"node 'relu': unknown op 'act'.* Node\('act', 'relu', ...\)"):
        cuts.build(swapped, "reference")
