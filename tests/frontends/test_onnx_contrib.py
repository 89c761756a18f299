"""ONNX Runtime's own operations compute ONNX Runtime's results.

The quantiser and the optimiser write them into models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from cuts.compile.build import build
from cuts.runtime.onnx_oracle import run_onnxruntime
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(0)


def real(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def integers(*shape: int, kind: Any = np.uint8) -> Any:
    return RNG.integers(0 if kind is np.uint8 else -90, 100, shape).astype(kind)


def scale(value: float) -> Any:
    return np.array(value, np.float32)


def zero(value: int, kind: Any = np.uint8) -> Any:
    return np.array(value, kind)


BY_COLUMN = (integers(5, 4, kind=np.int8), real(5) ** 2 + 0.01, np.zeros(5, np.int8), integers(5, kind=np.int32))
A, B = (integers(2, 3, 4, 5), scale(0.02), zero(50)), (integers(5), scale(0.03), zero(40))
Y = (scale(0.05), zero(20))
#: Operation, operands (the first is the input, others constants, None where absent), attributes, number of results.
CASES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], int]] = {
    "sum": ("QLinearAdd", (*A, *B, *Y), {}, 1),
    "product": ("QLinearMul", (*A, *B, *Y), {}, 1),
    "logistic": ("QLinearSigmoid", (*A, scale(1 / 256), zero(0)), {}, 1),
    "leaky": ("QLinearLeakyRelu", (*A, *Y), {"alpha": 0.1}, 1),
    "pool": ("QLinearGlobalAveragePool", (*A, *Y), {}, 1),
    "gemm": (
        "QGemm",
        (
            integers(3, 4),
            scale(0.02),
            zero(50),
            integers(5, 4, kind=np.int8),
            real(5) ** 2 + 0.01,
            np.zeros(5, np.int8),
            integers(5, kind=np.int32),
            *Y,
        ),
        {"transB": 1, "alpha": 1.0},
        1,
    ),
    "gemm to real numbers": (
        "QGemm",
        (integers(3, 4), scale(0.02), zero(50), integers(4, 5), scale(0.01), zero(3), None),
        {"alpha": 0.5},
        1,
    ),
    "real product": (
        "MatMulIntegerToFloat",
        (integers(3, 4), integers(4, 5), scale(0.1), scale(0.2), zero(5), zero(7), real(5)),
        {},
        1,
    ),
    "dynamic product": ("DynamicQuantizeMatMul", (real(3, 4), integers(4, 5), scale(0.2), zero(7), real(5)), {}, 1),
    "gelu": ("Gelu", (real(3, 5),), {}, 1),
    "gelu with a bias": ("BiasGelu", (real(3, 5), real(5)), {}, 1),
    "fast gelu": ("FastGelu", (real(3, 5), real(5)), {}, 1),
    "quick gelu": ("QuickGelu", (real(3, 5),), {"alpha": 1.5}, 1),
    "norm after a branch": (
        "SkipLayerNormalization",
        (real(2, 3, 8), real(2, 3, 8), real(8), real(8), real(8)),
        {"epsilon": 1e-5},
        4,
    ),
    "rms norm after a branch": (
        "SkipSimplifiedLayerNormalization",
        (real(2, 3, 8), real(2, 3, 8), real(8)),
        {"epsilon": 1e-5},
        4,
    ),
    "turned product": ("FusedMatMul", (real(2, 4, 3), real(2, 5, 4)), {"transA": 1, "transB": 1, "alpha": 0.5}, 1),
    "convolution and a function": (
        "FusedConv",
        (real(1, 3, 6, 6), real(4, 3, 3, 3), real(4)),
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "activation": "LeakyRelu", "activation_params": [0.2]},
        1,
    ),
    "joined": (
        "QLinearConcat",
        (None, scale(0.05), zero(3), *A, integers(2, 3, 4, 5), scale(0.1), zero(9)),
        {"axis": 1},
        1,
    ),
}


def model(name: str) -> tuple[Any, dict[str, Any]]:
    op, operands, attributes, results = CASES[name]
    first = next(n for n, operand in enumerate(operands) if operand is not None and np.ndim(operand) > 1)
    names = ["" if operand is None else "x" if n == first else f"c{n}" for n, operand in enumerate(operands)]
    if op == "QLinearConcat":  # its first operands are the scale and the zero point of the result
        names, operands = names[1:], operands[1:]
    outputs = ["y", "", "", "total"][:results]
    constants = [numpy_helper.from_array(a, n) for n, a in zip(names, operands, strict=True) if n not in ("", "x")]
    x = next(a for n, a in zip(names, operands, strict=True) if n == "x")
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, domain="com.microsoft", **attributes)],
        "g",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [
            helper.make_value_info(output, helper.make_tensor_type_proto(kind(op, operands), None))
            for output in outputs
            if output
        ],
        constants,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), {"x": x}


def kind(op: str, operands: tuple[Any, ...]) -> int:
    quantised = op.startswith("QLinear") or (op == "QGemm" and len(operands) > 7)
    return TensorProto.UINT8 if quantised else TensorProto.FLOAT


@pytest.mark.parametrize("name", CASES)
def test_the_reference_computes_what_onnxruntime_does(name: str, tmp_path: Path) -> None:
    proto, inputs = model(name)
    onnx.save(proto, tmp_path / "m.onnx")
    expected = run_onnxruntime(tmp_path / "m.onnx", inputs)
    found = build(tmp_path / "m.onnx", "reference").run(inputs)
    assert list(found) == list(expected)
    for output, value in found.items():
        step = 1 if value.dtype.kind in "iu" else 0.0  # a tie may be rounded to either neighbour
        assert (value.dtype, value.shape) == (expected[output].dtype, expected[output].shape)
        assert np.allclose(value.astype(float), expected[output].astype(float), rtol=1e-4, atol=max(step, 1e-4))


def test_unfoldable_constants_become_operations(tmp_path: Path) -> None:
    """Read a scalar zero point beside a scale of one element.

    ONNX Runtime quantises biases so, in operator set 13.
    """
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["bias"]),
        helper.make_node("QuantizeLinear", ["x", "t", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "t", "zero"], ["r"]),
        helper.make_node("Add", ["r", "bias"], ["y"]),
    ]
    constants = {
        "w": integers(5, kind=np.int32),
        "s": np.array([0.1], np.float32),
        "z": zero(0, np.int32),
        "t": scale(0.02),
        "zero": zero(9),
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 5])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "m.onnx")
    x = {"x": real(3, 5)}
    found = build(tmp_path / "m.onnx", "reference").run(x)["y"]
    assert np.allclose(found, run_onnxruntime(tmp_path / "m.onnx", x)["y"], atol=1e-5)
