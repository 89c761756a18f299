"""Errors of impossible gradients and of senseless requests.

They name the operation and the reason, or the expected request.
"""

from __future__ import annotations

import cuts
import numpy as np
import pytest
from cuts.ir.types import DType

from .networks import Network


def graph_of_op(op: str, **attributes: object) -> cuts.Graph:
    net = Network("g")
    net.input("x", 2, 3)
    net.op(op, "x", out="z", **attributes)
    value = "z"
    if not net.types["z"].dtype.is_float:
        net.op("cast", "z", out="f", to="f32")
        value = "f"
    net.op("reduce_sum", value, out="loss", keepdims=False)
    return net.graph("loss")


def test_an_integer_result_names_the_operation() -> None:
    with pytest.raises(
        cuts.CutsError,
        match=r"with respect to 'x': node 'n0': the result of argmax is of type i64, which has no derivative",
    ):
        cuts.grad(graph_of_op("argmax", axis=1), wrt=["x"])


def test_a_zero_derivative_names_the_operation() -> None:
    with pytest.raises(
        cuts.CutsError, match=r"node 'n0': the derivative of floor with respect to 'x' is zero everywhere"
    ):
        cuts.grad(graph_of_op("floor"), wrt=["x"])


def test_a_condition_has_no_gradient() -> None:
    with pytest.raises(
        cuts.CutsError, match=r"node 'n0': the result of is_nan is of type bool, which has no derivative"
    ):
        cuts.grad(graph_of_op("is_nan"), wrt=["x"])


def test_a_value_beside_the_loss_is_named() -> None:
    net = Network("g")
    net.input("x", 2)
    net.input("other", 2)
    net.op("reduce_sum", "x", out="loss", keepdims=False)
    with pytest.raises(cuts.CutsError, match=r"with respect to 'other': it does not depend on it"):
        cuts.grad(net.graph("loss"), wrt=["other"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": "z", "wrt": ["x"]}, r"loss 'z': expected one element, found f32\[2, 3\]"),
        ({"loss": "nothing", "wrt": ["x"]}, r"graph 'g' has no value 'nothing'; outputs: 'loss'"),
        ({"wrt": ["y"]}, r"graph 'g' has no value 'y'"),
        ({}, r"the loss depends on no constant that could be trained"),
        ({"wrt": ["z"], "optimiser": cuts.SGD()}, r"'z' is computed, no optimiser can change it"),
        (
            {"wrt": ["x"], "updates": {"z": "loss"}},
            r"updates: expected an input or constant and a value, found 'z': 'loss'",
        ),
    ],
)
def test_requests_that_make_no_sense(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(cuts.CutsError, match=message):
        cuts.grad(graph_of_op("exp"), **arguments)  # type: ignore[arg-type]


def test_integers_are_no_parameters() -> None:
    net = Network("g")
    net.input("ids", 3, dtype=DType.I64)
    net.weight("table", 4, 2)
    net.op("gather", "table", "ids", out="rows")
    net.op("reduce_sum", "rows", out="loss", keepdims=False)
    with pytest.raises(cuts.CutsError, match=r"value 'ids': expected a float to differentiate, found i64\[3\]"):
        cuts.grad(net.graph("loss"), wrt=["ids"])


def test_an_empty_batch_changes_nothing() -> None:
    net = Network("g")
    net.input("x", 0, 3)
    net.weight("w", 3, 4)
    net.op("matmul", "x", "w", out="h")
    net.op("relu", "h", out="r")
    net.op("reduce_sum", "r", out="loss", keepdims=False)
    training = cuts.grad(net.graph("loss"), wrt=["w", "x"])
    found = training.reference({"x": np.zeros((0, 3), np.float32), **training.initial})
    np.testing.assert_array_equal(found[training.gradients["w"]], np.zeros((3, 4)))
    assert found[training.gradients["x"]].shape == (0, 3)


def test_two_outputs_need_the_name_of_the_loss() -> None:
    net = Network("g")
    net.input("x", 2)
    net.op("reduce_sum", "x", out="a", keepdims=False)
    net.op("reduce_max", "x", out="b", keepdims=False)
    with pytest.raises(cuts.CutsError, match=r"expected the name of the loss, as there are 2 outputs"):
        cuts.grad(net.graph("a", "b"), wrt=["x"])


def vectors() -> cuts.Graph:
    net = Network("g")
    net.input("x", 3, 2)
    net.input("g", 3, 2)
    net.input("wide", 3, 4)
    net.op("tanh", "x", out="y")
    return net.graph("y")


def test_a_given_gradient_may_have_any_shape() -> None:
    training = cuts.grad(vectors(), loss="y", wrt=["x"], given="g")
    rng = np.random.default_rng(0)
    x, g = rng.standard_normal((2, 3, 2))
    found = training.reference({"x": x, "g": g, "wide": np.zeros((3, 4))})
    np.testing.assert_allclose(found[training.gradients["x"]], g * (1 - np.tanh(x) ** 2), rtol=1e-5)


@pytest.mark.parametrize(("given", "found"), [("wide", r"f32\[3, 4\]"), ("nothing", "none")])
def test_a_given_gradient_has_its_values_type(given: str, found: str) -> None:
    with pytest.raises(cuts.CutsError, match=rf"of type f32\[3, 2\], found {found}"):
        cuts.grad(vectors(), loss="y", wrt=["x"], given=given)
