"""Convolutions and pools of random shapes against ONNX Runtime.

Strides, pads, dilations and groups are random, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import frozen
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.ops.reference import evaluate
from hypothesis import given, settings
from hypothesis import strategies as st

helper = pytest.importorskip("onnx.helper")
runtime = pytest.importorskip("onnxruntime")
REGISTRY = Registry.builtin()
PROPERTY = settings(deadline=None, max_examples=60)


@frozen
class Windows:
    """Spatial sizes, windows and their movement.

    The first window fits, and pads stay below the window.
    """

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    moves: dict[str, tuple[int, ...]]


@st.composite
def windows(draw: st.DrawFn) -> Windows:
    rank = draw(st.sampled_from((1, 2, 2, 3)))

    def draw_each(low: int, high: int, count: int = rank) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(count))

    kernel, dilations = draw_each(1, 4), draw_each(1, 3)
    sizes = tuple((k - 1) * d + 1 + extra for k, d, extra in zip(kernel, dilations, draw_each(0, 6), strict=True))
    pads = tuple(draw(st.integers(0, k // 2)) for k in kernel * 2)
    return Windows(sizes, kernel, {"strides": draw_each(1, 4), "dilations": dilations, "pads": pads})


def ours(op: str, operands: list[np.ndarray], **attributes: Any) -> np.ndarray:
    instance = REGISTRY[op].instantiate([TensorType(DType.F32, x.shape) for x in operands], attributes)
    return evaluate(instance.program, dict(zip(instance.inputs, operands, strict=False)))["y"]


def theirs(op: str, operands: list[np.ndarray], **attributes: Any) -> np.ndarray:
    names = [f"x{n}" for n in range(len(operands))]
    inputs = [helper.make_tensor_value_info(n, 1, x.shape) for n, x in zip(names, operands, strict=True)]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)], "g", inputs, [helper.make_tensor_value_info("y", 1, None)]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return runtime.InferenceSession(model.SerializeToString()).run(None, dict(zip(names, operands, strict=True)))[0]


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def assert_close(a: np.ndarray, b: np.ndarray) -> None:
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@PROPERTY
@given(
    w=windows(),
    groups=st.integers(1, 3),
    into=st.integers(1, 3),
    out=st.integers(1, 3),
    batch=st.integers(1, 2),
    bias=st.booleans(),
)
def test_convolution(w: Windows, groups: int, into: int, out: int, batch: int, bias: bool) -> None:
    operands = [
        values(batch, groups * into, *w.sizes),
        values(groups * out, into, *w.kernel),
        *([values(groups * out)] if bias else []),
    ]
    assert_close(ours("conv", operands, groups=groups, **w.moves), theirs("Conv", operands, group=groups, **w.moves))


@PROPERTY
@given(w=windows(), ceil_mode=st.booleans())
def test_max_pool(w: Windows, ceil_mode: bool) -> None:
    operands, attributes = [values(1, 2, *w.sizes)], {"kernel_shape": w.kernel, "ceil_mode": int(ceil_mode), **w.moves}
    assert_close(ours("max_pool", operands, **attributes), theirs("MaxPool", operands, **attributes))


@PROPERTY
@given(w=windows(), ceil_mode=st.booleans(), count_include_pad=st.booleans())
def test_average_pool(w: Windows, ceil_mode: bool, count_include_pad: bool) -> None:
    operands, attributes = [values(1, 2, *w.sizes)], {"kernel_shape": w.kernel, "ceil_mode": int(ceil_mode), **w.moves}
    attributes["count_include_pad"] = int(count_include_pad)
    assert_close(ours("average_pool", operands, **attributes), theirs("AveragePool", operands, **attributes))


@PROPERTY
@given(w=windows(), groups=st.integers(1, 2), into=st.integers(1, 2), out=st.integers(1, 3))
def test_transposed_convolution(w: Windows, groups: int, into: int, out: int) -> None:
    operands = [values(1, groups * into, *w.sizes), values(groups * into, out, *w.kernel), values(groups * out)]
    assert_close(
        ours("conv_transpose", operands, groups=groups, **w.moves),
        theirs("ConvTranspose", operands, group=groups, **w.moves),
    )
