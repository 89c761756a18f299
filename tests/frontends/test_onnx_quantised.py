"""Quantised convolutional models in ONNX's form give ONNX Runtime's bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuts.compile.build import build

from ..needs import needs_opencl

onnx = pytest.importorskip("onnx", reason="ONNX is not installed")
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(0)
SHAPE = (2, 32, 7, 7)


def residual_model(zero: Any) -> Any:
    """Return a residual block and a pooling, with quantisations.

    Scales are powers of two.
    """
    filters = {n: RNG.integers(-128, 128, (32, 32, k, k)).astype(np.int8) for n, k in (("v", 3), ("w", 1))}
    scales = {n: np.exp2(RNG.integers(-9, -5, 32)).astype(np.float32) for n in ("vs", "ws")}
    bias = RNG.integers(-8, 8, 32).astype(np.float32) / 8
    values = {"s": np.float32(0.25), "t": np.float32(0.5), "z": zero, "zs": np.zeros(32, np.int8), "b": bias}
    values |= filters | scales

    def rounding(name: str, source: str, scale: str) -> list[Any]:
        quantised = helper.make_node("QuantizeLinear", [source, scale, "z"], [f"{name}q"])
        return [quantised, helper.make_node("DequantizeLinear", [f"{name}q", scale, "z"], [name])]

    nodes = [
        *rounding("d", "x", "s"),
        helper.make_node("DequantizeLinear", ["v", "vs", "zs"], ["vd"], axis=0),
        helper.make_node("DequantizeLinear", ["w", "ws", "zs"], ["wd"], axis=0),
        helper.make_node("Conv", ["d", "vd", "b"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        *rounding("e", "r", "t"),
        helper.make_node("Conv", ["e", "wd"], ["f"], kernel_shape=[1, 1]),
        *rounding("g", "f", "t"),
        helper.make_node("Add", ["g", "d"], ["a"]),
        helper.make_node("Relu", ["a"], ["h"]),
        helper.make_node("MaxPool", ["h"], ["m"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("QuantizeLinear", ["m", "t", "z"], ["y"]),
    ]
    kind = TensorProto.INT8 if np.asarray(zero).dtype == np.int8 else TensorProto.UINT8
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)
    result = helper.make_tensor_value_info("y", kind, None)
    made = helper.make_graph(
        nodes, "g", [given], [result], [numpy_helper.from_array(np.asarray(a), n) for n, a in values.items()]
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@needs_opencl
@pytest.mark.parametrize("zero", [np.int8(0), np.uint8(0), np.uint8(3)])
def test_bytes_are_those_of_onnx_runtime(zero: Any) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    model, x = residual_model(zero), RNG.integers(-64, 64, SHAPE).astype(np.float32) / 8
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    # Its own products of bytes saturate in 16 bits on some processors.
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"x": x})
    found = build(model, target="opencl").run({"x": x})["y"]
    assert found.dtype == want.dtype and np.array_equal(found, want)
    assert len(np.unique(want)) > 8
