"""RNN, GRU and LSTM of ONNX, against ONNX Runtime.

The tests draw all combinations of attributes and optional operands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.ir.compiled import CompileOptions
from cuts.ir.errors import CutsError
from cuts.tests.amounts import examples
from cuts.tests.needs import needs_opencl
from hypothesis import given, settings
from hypothesis import strategies as st

helper = pytest.importorskip("onnx.helper")
runtime = pytest.importorskip("onnxruntime")
from cuts.frontends.onnx.load import load_onnx  # onnx is optional
from onnx import TensorProto

GATES = {"RNN": (1, 1), "GRU": (3, 2), "LSTM": (4, 3)}  # rows of weights, activations
PLAIN = ("Sigmoid", "Tanh", "Relu", "Softsign", "Softplus")
WITH = {
    "LeakyRelu": (1, 0),
    "ThresholdedRelu": (1, 0),
    "Elu": (1, 0),
    "Affine": (1, 1),
    "ScaledTanh": (1, 1),
    "HardSigmoid": (1, 1),
}
DIRECTIONS = ("forward", "reverse", "bidirectional")


def layer(op: str, arrays: Mapping[str, Any], attributes: Mapping[str, Any]) -> Any:
    """Return a model of one layer; absent operands are None."""
    outputs = ["Y", "Y_h", "Y_c"][: 3 if op == "LSTM" else 2]
    names = [name if array is not None else "" for name, array in arrays.items()]
    kinds = {"lengths": TensorProto.INT32}
    infos = [
        helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), a.shape)
        for n, a in arrays.items()
        if a is not None
    ]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    graph = helper.make_graph([helper.make_node(op, names, outputs, name="layer", **attributes)], "g", infos, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


@st.composite
def layers(draw: st.DrawFn) -> tuple[str, dict[str, Any], dict[str, Any]]:
    op, direction = draw(st.sampled_from(sorted(GATES))), draw(st.sampled_from(DIRECTIONS))
    rows, count = GATES[op]
    directions = 2 if direction == "bidirectional" else 1
    steps, batch, width, hidden = (draw(st.integers(1, n)) for n in (4, 3, 3, 4))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))

    def real(*shape: int) -> Any:
        return rng.uniform(-0.7, 0.7, shape).astype(np.float32) if shape else None

    arrays: dict[str, Any] = {
        "X": real(steps, batch, width),
        "W": real(directions, rows * hidden, width),
        "R": real(directions, rows * hidden, hidden),
        "B": real(directions, 2 * rows * hidden) if draw(st.booleans()) else None,
        "lengths": rng.integers(1, steps + 1, batch).astype(np.int32) if draw(st.booleans()) else None,
        "h0": real(directions, batch, hidden) if draw(st.booleans()) else None,
    }
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "LSTM":
        arrays["c0"] = real(directions, batch, hidden) if draw(st.booleans()) else None
        arrays["P"] = real(directions, 3 * hidden) if draw(st.booleans()) else None
        attributes["input_forget"] = draw(st.integers(0, 1))
    if op == "GRU":
        attributes["linear_before_reset"] = draw(st.integers(0, 1))
    if draw(st.booleans()):
        attributes["clip"] = draw(st.sampled_from((0.3, 1.0)))
    if draw(st.booleans()):
        names = draw(
            st.lists(st.sampled_from((*PLAIN, *WITH)), min_size=count * directions, max_size=count * directions)
        )
        attributes["activations"] = names
        for place, name, values in ((0, "activation_alpha", (0.25, 0.25)), (1, "activation_beta", (0.5, -0.125))):
            needed = sum(WITH.get(each, (0, 0))[place] for each in names)
            if needed:
                attributes[name] = [values[0] + values[1] * n for n in range(needed)]
    return op, arrays, attributes


def check(target: str, op: str, arrays: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
    model = layer(op, arrays, attributes)
    given_arrays = {name: array for name, array in arrays.items() if array is not None}
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    expected = runtime.InferenceSession(model.SerializeToString(), options).run(None, given_arrays)
    plan = build_graph(load_onnx(model), load_spec(()), find_target(target), CompileOptions())
    found = plan.run(given_arrays)
    for name, value in zip(found, expected, strict=True):
        np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=2e-5, err_msg=f"{name} of {op} {attributes}")


@given(layers())
@settings(max_examples=examples(25, 600))
def test_every_combination_equals_onnx_runtime(drawn: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    check("reference", *drawn)


@needs_opencl
@given(layers())
@settings(max_examples=4)
def test_kernels_compute_the_same(drawn: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    check("opencl", *drawn)


@pytest.mark.parametrize("op", sorted(GATES))
def test_sequence_of_no_steps_keeps_its_state(op: str) -> None:
    rows, _ = GATES[op]
    rng = np.random.default_rng(1)
    shapes = {"X": (3, 2, 2), "W": (2, rows * 4, 2), "R": (2, rows * 4, 4), "h0": (2, 2, 4), "c0": (2, 2, 4)}
    real = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    order = ("X", "W", "R", "B", "lengths", "h0", *(("c0",) if op == "LSTM" else ()))
    arrays = {**dict.fromkeys(order), **{n: real[n] for n in order if n in real}, "lengths": np.array([0, 2], np.int32)}
    graph = load_onnx(layer(op, {n: arrays[n] for n in order}, {"direction": "bidirectional"}))
    found = build_graph(graph, load_spec(()), find_target("reference"), CompileOptions()).run(
        {n: a for n, a in arrays.items() if a is not None}
    )
    assert not found["Y"][:, :, 0].any()
    assert found["Y"][:2, :, 1].all() and not found["Y"][2, :, 1].any()
    np.testing.assert_array_equal(found["Y_h"][:, 0], real["h0"][:, 0])
    if op == "LSTM":
        np.testing.assert_array_equal(found["Y_c"][:, 0], real["c0"][:, 0])


def test_steps_that_none_has_leave_the_state() -> None:
    arrays = {
        "X": np.zeros((0, 2, 3), np.float32),
        "W": np.zeros((1, 4, 3), np.float32),
        "R": np.zeros((1, 4, 4), np.float32),
    }
    arrays |= {"B": None, "lengths": None, "h0": np.ones((1, 2, 4), np.float32)}
    plan = build_graph(load_onnx(layer("RNN", arrays, {})), load_spec(()), find_target("reference"), CompileOptions())
    found = plan.run({n: a for n, a in arrays.items() if a is not None})
    assert found["Y"].shape == (0, 1, 2, 4)
    np.testing.assert_array_equal(found["Y_h"], arrays["h0"])


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        ({"h0": (1, 3, 4)}, {}, "operand 'h0': expected N = 2, found 3 in f32[1, 3, 4]"),
        ({"h0": (1, 2, 5)}, {}, "operand 'h0': expected H = 4, found 5 in f32[1, 2, 5]"),
        ({"h0": (2, 2, 4)}, {}, "operand 'h0': expected D = 1, found 2 in f32[2, 2, 4]"),
        ({"h0": (2, 4)}, {}, "operand 'h0': expected 3 axes, found 2 in f32[2, 4]"),
        ({"B": (1, 12)}, {}, "operand 'b': expected biases of both products, 8 in all, found 12"),
        ({"W": (1, 5, 3)}, {}, "expected G = 5, found 4 in f32[1, 4, 4]"),
        (
            {},
            {"direction": "bidirectional"},
            "operand 'w': expected a first dim that fits direction bidirectional, found 1",
        ),
        ({}, {"hidden_size": 8}, "attribute 'hidden_size': expected 4, the last dim of operand 2 (R), found 8"),
        (
            {},
            {"activations": ["Swish"]},
            "attribute 'activations': expected 1 names for each of 1 directions, found ['Swish']",
        ),
    ],
)
def test_what_does_not_fit_is_explained(
    shapes: dict[str, tuple[int, ...]], attributes: dict[str, Any], message: str
) -> None:
    usual = {"X": (3, 2, 3), "W": (1, 4, 3), "R": (1, 4, 4), "B": None, "lengths": None, "h0": None, **shapes}
    arrays = {name: None if shape is None else np.zeros(shape, np.float32) for name, shape in usual.items()}
    with pytest.raises(CutsError) as caught:
        load_onnx(layer("RNN", arrays, attributes))
    assert "node 'layer' (RNN)" in str(caught.value)
    assert message in str(caught.value)
