"""8-bit floats at the public interface: PyTorch's scaled products, ONNX's quantised models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuts.ir.evaluation import as_dtype
from cuts.ir.types import DType
from cuts.ops import Registry
from cuts.ops.reference import evaluate_graph

from ..needs import needs_opencl

torch = pytest.importorskip("torch")
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
#: Scales per tensor, per row and column, and per block of 1x128 and 128x128.
SCALES = {"tensor": ((), ()), "row": ((48, 1), (1, 32)), "block": ((48, 2), (2, 1))}


def scaled_product(a: Any, b: Any, a_scale: Any, b_scale: Any) -> Any:
    return torch.ops.aten._scaled_mm(a, b, a_scale, b_scale, None, None, torch.bfloat16)


def repeat_scales(scale: Any, shape: tuple[int, int]) -> Any:
    """Repeat the scales of blocks over a matrix."""
    scale = scale.double() if scale.dim() == 2 else scale.double().reshape(1, 1)
    for axis, extent in enumerate(shape):
        scale = scale.repeat_interleave(extent // scale.shape[axis], axis)
    return scale


@needs_opencl
@pytest.mark.filterwarnings("ignore")  # tracing warns about PyTorch's own insides
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("second", [E4M3, E5M2], ids=str)
def test_scaled_products_of_pytorch(scales: str, second: Any) -> None:
    from cuts.frontends.torch.operators.layers import TABLE

    assert "aten._scaled_mm" in TABLE
    from cuts.compile.torch_backend import cuts_backend

    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(s, generator=generator).to(t) for s, t in (((48, 256), E4M3), ((32, 256), second)))
    sa, sb = (torch.rand(s, generator=generator) + 0.5 for s in SCALES[scales])
    exact = (a.double() * repeat_scales(sa, (48, 256))) @ (b.double().t() * repeat_scales(sb, (256, 32)))
    compiled = torch.compile(scaled_product, backend=cuts_backend, dynamic=False)
    found = compiled(a, b.t(), sa, sb)
    assert found.dtype is torch.bfloat16
    np.testing.assert_allclose(found.double().numpy(), exact.numpy(), rtol=2**-8, atol=1e-2)


@needs_opencl
@pytest.mark.filterwarnings("ignore")  # tracing warns about PyTorch's own insides
def test_the_last_block_of_scales_may_be_shorter() -> None:
    """As for the 576 columns of a DeepSeek-V3 projection, with 5 scales."""
    from cuts.compile.torch_backend import cuts_backend

    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(s, generator=generator).to(E4M3) for s in ((48, 320), (192, 320)))
    sa, sb = (torch.rand(s, generator=generator) + 0.5 for s in ((48, 3), (3, 2)))
    left = a.double() * sa.double().repeat_interleave(128, 1)[:, :320]
    right = b.double().t() * sb.double().repeat_interleave(128, 0)[:320].repeat_interleave(128, 1)[:, :192]
    found = torch.compile(scaled_product, backend=cuts_backend, dynamic=False)(a, b.t(), sa, sb)
    np.testing.assert_allclose(found.double().numpy(), (left @ right).numpy(), rtol=2**-8, atol=1e-2)


@needs_opencl
@pytest.mark.filterwarnings("ignore")
def test_tensors_of_pytorch_pass_in_and_out() -> None:
    from cuts.compile.torch_backend import cuts_backend

    x = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(E4M3)[:120]
    compiled = torch.compile(lambda v: (v.float() * 2).to(E5M2), backend=cuts_backend, dynamic=False)
    found = compiled(x)
    assert found.dtype is E5M2
    assert torch.equal(found.view(torch.uint8), (x.float() * 2).to(E5M2).view(torch.uint8))


@pytest.mark.parametrize("kind", [DType.F8E4M3, DType.F8E5M2], ids=str)
def test_an_onnx_model_quantises(kind: DType) -> None:
    onnx = pytest.importorskip("onnx")
    from cuts.frontends.onnx.load import load_onnx  # onnx is optional

    helper = onnx.helper
    code = {DType.F8E4M3: onnx.TensorProto.FLOAT8E4M3FN, DType.F8E5M2: onnx.TensorProto.FLOAT8E5M2}[kind]
    weights = as_dtype(np.linspace(-2, 2, 32).reshape(8, 4), kind.numpy)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["v"]),
        helper.make_node("MatMul", ["d", "v"], ["m"]),
        helper.make_node("Cast", ["m"], ["y"], to=code),
    ]
    given = [
        onnx.numpy_helper.from_array(np.float32(0.25), "s"),
        helper.make_tensor("z", code, (), [0.0]),
        helper.make_tensor("w", code, (8, 4), weights.astype(np.float32).ravel()),
    ]
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (3, 8))]
    outputs = [helper.make_tensor_value_info("y", code, (3, 4))]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, given), opset_imports=[helper.make_opsetid("", 19)]
    )
    x = (np.random.default_rng(0).standard_normal((3, 8)) * 30).astype(np.float32)
    x[0, 0] = 1e9  # saturates
    found = evaluate_graph(load_onnx(proto), Registry.builtin(), {"x": x})["y"]
    largest = kind.element.largest
    rounded = as_dtype(np.clip(x / np.float32(0.25), -largest, largest), kind.numpy).astype(np.float64) * 0.25
    exact = rounded @ (weights.astype(np.float64) * 0.25)
    expected = as_dtype(np.clip(exact, -largest, largest), kind.numpy).astype(np.float64)
    np.testing.assert_array_equal(np.asarray(found, np.float64), expected)
