"""bfloat16 in models, callers' arrays, files and results."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuts.compile.build import build
from cuts.compile.opening import load
from cuts.frontends.graph_json import load_graph, save_graph
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.ops.reference import evaluate_graph
from cuts.tests.needs import needs_opencl

BF16 = np.dtype(ml_dtypes.bfloat16)
W = np.linspace(-2, 2, 32).reshape(8, 4).astype(BF16)


def product_graph() -> Graph:
    """Return `x @ w` of bfloat16."""
    kinds = {
        "x": TensorType(DType.BF16, (3, 8)),
        "w": TensorType(DType.BF16, (8, 4)),
        "y": TensorType(DType.BF16, (3, 4)),
    }
    return Graph("halves", ("x",), ("y",), kinds, (Node("n", "matmul", ("x", "w"), ("y",)),), {"w": W})


def numbers() -> Any:
    return np.random.default_rng(0).standard_normal((3, 8)).astype(BF16)


def reference(x: Any) -> Any:
    return x.astype(np.float64) @ W.astype(np.float64)


def through_a_file(x: Any) -> Any:
    """Return an array after a round trip through a file.

    NumPy has lost the name of its type then.
    """
    file = io.BytesIO()
    np.save(file, x)
    file.seek(0)
    return np.load(file)


def as_tensor(x: Any) -> Any:
    torch = pytest.importorskip("torch")
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)


INPUT_FORMS = {
    "NumPy": lambda x: x,
    "bits": lambda x: x.view(np.uint16),
    "a file": through_a_file,
    "DLPack": as_tensor,
    "a list": lambda x: x.astype(np.float64).tolist(),
}


@needs_opencl
@pytest.mark.parametrize("way", INPUT_FORMS)
def test_a_plan_takes_bfloat16_however_it_comes(way: str, tmp_path: Path) -> None:
    build(product_graph(), "opencl").save(tmp_path / "halves.plan")
    x = numbers()
    found = load(tmp_path / "halves.plan").run({"x": INPUT_FORMS[way](x)})["y"]
    assert found.dtype == BF16
    np.testing.assert_allclose(found.astype(np.float64), reference(x), rtol=2**-8, atol=1e-2)


def test_a_graph_of_bfloat16_is_written_and_read(tmp_path: Path) -> None:
    save_graph(product_graph(), tmp_path / "halves.json")
    found = load_graph(tmp_path / "halves.json")
    assert found.types == product_graph().types
    np.testing.assert_array_equal(found.constants["w"].view(np.uint16), W.view(np.uint16))


def test_an_onnx_model_of_bfloat16() -> None:
    onnx = pytest.importorskip("onnx")
    from cuts.frontends.onnx.load import load_onnx  # onnx is optional

    helper, kind = onnx.helper, onnx.TensorProto.BFLOAT16
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=kind),
        helper.make_node("MatMul", ["h", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("Cast", ["r"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (3, 8))]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (3, 4))]
    weights = [onnx.numpy_helper.from_array(W, "w")]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, weights), opset_imports=[helper.make_opsetid("", 18)]
    )
    graph = load_onnx(proto)
    assert DType.BF16 in {t.dtype for t in graph.types.values()}
    x = numbers().astype(np.float32) * 1.001
    found = evaluate_graph(graph, Registry.builtin(), {"x": x})["y"]
    np.testing.assert_allclose(found, np.maximum(reference(x.astype(BF16)), 0), rtol=1e-6, atol=1e-6)


@needs_opencl
@pytest.mark.filterwarnings("ignore")  # tracing warns about PyTorch's own insides
def test_torch_compile_takes_a_precision_policy() -> None:
    torch = pytest.importorskip("torch")
    from cuts.compile.torch_backend import cuts_backend

    torch.manual_seed(0)
    module, x = torch.nn.Linear(64, 16).eval(), torch.randn(3, 64)
    with torch.no_grad():
        compiled = torch.compile(module, backend=cuts_backend, options={"precision": "bf16"})
        found, exact = compiled(x), module(x)
    error = float((found - exact).abs().max() / exact.abs().max())
    assert found.dtype is torch.float32 and 1e-5 < error < 2e-2


@needs_opencl
@pytest.mark.filterwarnings("ignore")  # tracing warns about PyTorch's own insides
def test_a_module_of_bfloat16_under_torch_compile() -> None:
    torch = pytest.importorskip("torch")
    from cuts.compile.torch_backend import cuts_backend

    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    )
    module = module.to(torch.bfloat16).eval()
    x = torch.randn(3, 8).to(torch.bfloat16)
    with torch.no_grad():
        found, wide = torch.compile(module, backend=cuts_backend)(x), module.double()(x.double())
    assert found.dtype is torch.bfloat16
    assert float((found.double() - wide).abs().max()) <= 8 * 2**-8 * float(wide.abs().max())
