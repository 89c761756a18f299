"""Functions of an ONNX model.

The tests cover defaults of attributes, references, operands, overloads and operator sets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from cuts.frontends.onnx import load_onnx
from cuts.ir.errors import CutsError
from cuts.ops import Registry, evaluate_graph
from onnx import parser

X = np.array([-2, -1, 1, 2], np.float32)
CUBE = np.arange(8, dtype=np.float32).reshape(2, 2, 2)


def model(call: str, functions: str, shape: str = "4", opset: int = 18) -> Any:
    """Return a model that computes y from x by a call."""
    imports = f'["" : {opset}, "l" : 1, "m" : 1]'
    head = f"<ir_version: 10, opset_import: {imports}> g (float[{shape}] x) => (float[{shape}] y) {{ {call} }} "
    return parser.parse_model(head + functions)


def run(proto: Any, x: Any = X) -> Any:
    graph = load_onnx(proto)
    return evaluate_graph(graph, Registry.builtin(), {"x": x})["y"]


def function(signature: str, body: str, opset: int = 18, domain: str = "l") -> str:
    return f'<domain: "{domain}", opset_import: ["" : {opset}, "l" : 1, "m" : 1]> {signature} {{ {body} }} '


def leaky(alpha: float) -> Any:
    return np.where(X < 0, alpha * X, X)


def softmax(x: Any, axes: tuple[int, ...]) -> Any:
    powers = np.exp(x - x.max(axes, keepdims=True))
    return powers / powers.sum(axes, keepdims=True)


H = function("h <k: float = 0.75> (a) => (b)", "b = LeakyRelu<alpha: float = @k>(a)")
IF = """c = Constant<value = bool {1}>()
    b = If (c) <then_branch = t () => (float[4] p) { p = LeakyRelu<alpha: float = @k>(a) },
                else_branch = e () => (float[4] q) { q = l.h<k: float = @k>(a) }>"""


@pytest.mark.parametrize(
    ("call", "functions", "expected"),
    [
        ("y = l.h(x)", H, leaky(0.75)),
        ("y = l.h<k = 0.3>(x)", H, leaky(0.3)),
        ("y = l.f(x)", function("f <k: float = 0.25> (a) => (b)", "b = l.h<k: float = @k>(a)") + H, leaky(0.25)),
        ("y = l.f(x)", function("f <k> (a) => (b)", "b = l.h<k: float = @k>(a)") + H, leaky(0.75)),
        ("y = l.f<k = 0.5>(x)", function("f <k> (a) => (b)", "b = l.h<k: float = @k>(a)") + H, leaky(0.5)),
        ("y = l.f(x)", function("f <k> (a) => (b)", "b = LeakyRelu<alpha: float = @k>(a)"), leaky(0.01)),
        ("y = l.f(x)", function("f <k: float = 0.5> (a) => (b)", IF) + H, leaky(0.5)),
        ("y = l.f<k = 0.3>(x)", function("f <k: float = 0.5> (a) => (b)", IF) + H, leaky(0.3)),
        ("y = l.f(x)", function("f <k: float = 2.0> (a) => (b)",
         "c = Constant<value_float: float = @k>() b = Mul(a, c)"), 2 * X),
        ("y = m.f(x)", function("f (a) => (b)", "b = l.h(a)", domain="m") + H, leaky(0.75)),
        ("t = l.f(x) y = l.f(t)", function("f (a) => (b)", "t = Neg(a) b = Exp(t)"), np.exp(-np.exp(-X))),
        ("y = l.f(x)", function("f (a, low) => (b)", "b = Clip(a, low)"), X),
        ("z = Constant<value = float {0}>() y = l.f(x, z)", function("f (a, low) => (b)", "b = Clip(a, low)"),
         np.maximum(X, 0)),
        ("t, y = l.f(x)", function("f (a) => (a, b)", "b = Neg(a)"), -X),
        ("t, u = l.f(x) y = Add(t, u)", function("f (a) => (a, b)", "b = Neg(a)"), 0 * X),
        ("y, t = l.f(x)", function("f (a) => (b, c)", "b = Neg(a) c = Exp(b)"), -X),
    ],
)  # fmt: skip
def test_calls_equal_their_bodies(call: str, functions: str, expected: Any) -> None:
    np.testing.assert_allclose(run(model(call, functions)), expected, rtol=1e-6, atol=1e-7)


def test_an_overload_is_chosen() -> None:
    proto = model("y = l.f(x)", function("f (a) => (b)", "b = Neg(a)") + function("f (a) => (b)", "b = Exp(a)"))
    proto.functions[1].overload = "second"
    np.testing.assert_allclose(run(proto), -X)
    proto.graph.node[0].overload = "second"
    np.testing.assert_allclose(run(proto), np.exp(X), rtol=1e-6)


@pytest.mark.parametrize("opset", [13, 18, 21])
def test_each_function_has_its_own_operator_set(opset: int) -> None:
    """Read each function by its own operator set.

    Softmax of operator set 12 has one row for all axes from the first one, later it has the last axis.
    """
    old = function("old (a) => (b)", "b = Softmax(a)", 12)
    new = function("new (a) => (b)", "t = l.old(a) b = Softmax(t)", 13)
    proto = model("t = l.new(x) y = Softmax(t)", old + new, "2,2,2", opset)
    expected = softmax(softmax(softmax(CUBE, (1, 2)), (2,)), (2,))
    np.testing.assert_allclose(run(proto, CUBE), expected, rtol=1e-6)


def test_operands_and_attributes_of_older_versions() -> None:
    body = "t = Unsqueeze<axes = [0]>(a) s = ReduceSum<axes = [1], keepdims = 0>(t) b = Add(a, s)"
    np.testing.assert_allclose(run(model("y = l.f(x)", function("f (a) => (b)", body, 11))), X + X.sum())


def test_branches_have_the_version_of_their_function() -> None:
    body = """c = Constant<value = bool {1}>()
        b = If (c) <then_branch = t () => (float[2,2,2] p) { p = Softmax(a) },
                    else_branch = e () => (float[2,2,2] q) { q = Neg(a) }>"""
    proto = model("y = l.f(x)", function("f (a) => (b)", body, 12), "2,2,2")
    np.testing.assert_allclose(run(proto, CUBE), softmax(CUBE, (1, 2)), rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "functions", "message"),
    [
        ("y = l.f(x)", function("f <k> (a) => (b)", "c = Constant<value_float: float = @k>() b = Mul(a, c)"),
         "attribute 'k' has no value: Constant requires it as 'value_float'; give it in the call, or a default"),
        ("y = l.f(x)", function("f <k> (a) => (b)", "b = Cast<to: int = @k>(a)"),
         "node 'y' (function 'f'): attribute 'k' has no value: Cast requires it as 'to'"),
        ("y = l.f(x, x)", function("f (a) => (b)", "b = Neg(a)"), "expected at most 1 operands, found 2"),
        ("y, t = l.f(x)", function("f (a) => (b)", "b = Neg(a)"), "expected at most 1 results, found 2"),
        ("y = l.f(x)", function("f (a) => (b)", "b = Neg(a)", 99), "function 'f': expected an operator set from 1 to"),
        ("y = l.f0(x)", "".join(function(f"f{n} (a) => (b)", f"b = l.f{n + 1}(a)") for n in range(300))
         + function("f300 (a) => (b)", "b = Neg(a)"), "expected at most 100 functions one within another, found 301"),
    ],
)  # fmt: skip
def test_wrong_calls_are_one_error(call: str, functions: str, message: str) -> None:
    with pytest.raises(CutsError) as caught:
        load_onnx(model(call, functions))
    assert message in str(caught.value)
