"""Plans of ONNX and PyTorch models keep packed weights packed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuts.compile.build import build
from cuts.compile.loading import load_spec
from cuts.compile.torch_backend import cuts_backend
from cuts.frontends import find_weight_format, quantise_weights
from cuts.ir import CutsWarning, DType, Graph, Node, TensorType, UsageError
from cuts.tests.needs import needs_opencl

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")

from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(0)


def onnx_model(nodes: list[Any], inputs: tuple[int, ...], constants: dict[str, Any]) -> Any:
    """Return a model of one input `x` and one result `y`."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, inputs)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [a if isinstance(a, onnx.TensorProto) else numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run(plan: Any, x: np.ndarray) -> np.ndarray:
    """Return the result of a plan that computes its reference."""
    (check,) = plan.verify()
    assert check.ok, check.text
    (result,) = plan.run({next(iter(plan.inputs)): x}).values()
    return np.asarray(result)


def constant_bytes(plan: Any) -> int:
    return sum(array.nbytes for array in plan.plan.constants.values())


def unpack(packed: np.ndarray, bits: int, columns: int) -> np.ndarray:
    """Return rows of numbers, low bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = packed.reshape(len(packed), -1, 1) >> shifts & ((1 << bits) - 1)
    return numbers.reshape(len(packed), -1)[:, :columns].astype(np.float64)


# ---- ONNX


@needs_opencl
@pytest.mark.parametrize(("n", "k", "block", "bits", "zeros", "bias"), [
    (64, 128, 32, 4, False, False), (63, 200, 32, 4, True, True), (65, 96, 64, 8, True, False),
    (48, 128, 16, 2, False, True),
])  # fmt: skip
def test_matmul_nbits(n: int, k: int, block: int, bits: int, zeros: bool, bias: bool) -> None:
    blocks = -(-k // block)
    packed = RNG.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
    scales, x = RNG.random(n * blocks).astype(np.float32), RNG.standard_normal((3, k)).astype(np.float32)
    points = RNG.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8)
    shift = RNG.random(n).astype(np.float32)
    names = ["x", "b", "s", "z" if zeros else "", "", "c" if bias else ""]
    given = {"b": packed, "s": scales, **({"z": points.reshape(-1)} if zeros else {}), **({"c": shift} if bias else {})}
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", N=n, K=k, bits=bits, block_size=block)
    plan = build(onnx_model([node], (3, k), given))
    zero = unpack(points, bits, blocks) if zeros else np.full((n, blocks), 1 << (bits - 1))
    weight = unpack(packed.reshape(n, -1), bits, k) - np.repeat(zero, block, 1)[:, :k]
    weight *= np.repeat(scales.reshape(n, blocks), block, 1)[:, :k]
    expected = x @ weight.T + (shift if bias else 0)
    np.testing.assert_allclose(run(plan, x), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    extra = scales.nbytes + blocks * n + shift.nbytes
    assert constant_bytes(plan) <= n * -(-k * bits // 8) + extra


@needs_opencl
@pytest.mark.parametrize("kind", ["int4", "uint4", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize(("axis", "block"), [(None, 0), (1, 0), (0, 32)])
def test_dequantize_linear_before_a_product(kind: str, axis: int | None, block: int) -> None:
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, kind, kind))
    depth, columns = 128, 65
    weight = RNG.integers(0 if kind[0] == "u" else -8, 8, (depth, columns)).astype(dtype)
    shape = () if axis is None else (columns,) if not block else (depth // block, columns)
    scale, x = np.asarray(RNG.random(shape), np.float32), RNG.standard_normal((3, depth)).astype(np.float32)
    at = {} if axis is None else {"axis": axis, **({"block_size": block} if block else {})}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], **at), helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]  # fmt: skip
    plan = build(onnx_model(nodes, (3, depth), {"w": weight, "s": scale}))
    steps = np.repeat(scale, block, 0) if block else scale
    np.testing.assert_allclose(run(plan, x), x @ (weight.astype(np.float64) * steps), rtol=1e-4, atol=1e-3)
    bits = 4 if kind.endswith("4") else 8
    assert constant_bytes(plan) <= depth * (columns + 1) * bits // 8 + scale.nbytes


@needs_opencl
def test_external_integers_of_four_bits(tmp_path: Path) -> None:
    weight = RNG.integers(-8, 8, (96, 51)).astype(np.int8)
    flat = (weight.reshape(-1) & 15).astype(np.uint8)
    (tmp_path / "w.bin").write_bytes(b"pad!" + (flat[::2] | flat[1::2] << 4).tobytes())
    tensor = TensorProto(name="w", data_type=TensorProto.INT4, dims=[96, 51])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "4")):
        tensor.external_data.add(key=key, value=value)
    nodes = [helper.make_node("DequantizeLinear", ["w", "s"], ["d"]), helper.make_node("MatMul", ["x", "d"], ["y"])]
    model = onnx_model(nodes, (2, 96), {"w": tensor, "s": np.asarray(0.5, np.float32)})
    onnx.save(model, tmp_path / "m.onnx")
    x = RNG.standard_normal((2, 96)).astype(np.float32)
    plan = build(tmp_path / "m.onnx")
    np.testing.assert_allclose(run(plan, x), x @ (weight * 0.5), rtol=1e-4, atol=1e-3)
    assert constant_bytes(plan) <= 96 * 26 + 4


# ---- PyTorch

N, K = 72, 128


class Buffers(torch.nn.Module):
    """A function of an input and buffers."""

    def __init__(self, function: Callable[..., Any], buffers: dict[str, Any]) -> None:
        super().__init__()
        self.function = function
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def linear(x: Any, weight: Any) -> Any:
    return torch.nn.functional.linear(x, weight)


def torch_cases() -> dict[str, tuple[Callable[..., Any], dict[str, Any], int]]:
    """Return functions with their buffers, and bits of a weight."""
    import torch.ao.quantization.fx._decomposed  # registers the operations

    call = torch.ops.quantized_decomposed
    chance = torch.Generator().manual_seed(0)
    whole = torch.randint(-127, 128, (N, K), generator=chance, dtype=torch.int8)
    small = torch.randint(-8, 8, (N, K), generator=chance, dtype=torch.int8)
    scale, groups = torch.rand(N, generator=chance), torch.rand(N, K // 32, generator=chance)
    points = torch.randint(-3, 4, (N, K // 32), generator=chance)
    packed = (small[:, ::2] + 8).to(torch.uint8) | (small[:, 1::2] + 8).to(torch.uint8) << 4

    def nibbles(m: Any, x: Any) -> Any:
        low, high = ((part.to(torch.int8) - 8) for part in (m.p & 15, m.p >> 4))
        numbers = torch.stack([low, high], -1).reshape(N, K // 32, 32).float()
        return linear(x, (numbers * m.s.unsqueeze(-1)).reshape(N, K))

    def static(m: Any, x: Any) -> Any:
        ends = (0.02, 3, 0, 255, torch.uint8)
        x = call.dequantize_per_tensor(call.quantize_per_tensor(x, *ends), *ends)
        return linear(x, call.dequantize_per_tensor(m.q, 0.1, 0, -127, 127, torch.int8))

    return {
        "weight only": (lambda m, x: linear(x, m.q.to(x.dtype)) * m.s, {"q": whole, "s": scale}, 8),
        "packed call": (lambda m, x: torch._weight_int8pack_mm(x, m.q, m.s), {"q": whole, "s": scale}, 8),
        "channels": (
            lambda m, x: linear(x, call.dequantize_per_channel(m.q, m.s, m.z, 0, -127, 127, torch.int8)),
            {"q": whole, "s": scale, "z": torch.zeros(N, dtype=torch.int64)}, 8,
        ),
        "groups": (
            lambda m, x: linear(
                x, call.dequantize_per_channel_group(m.q, m.s, m.z, -8, 7, torch.int8, 32, torch.float32)
            ),
            {"q": small, "s": groups, "z": points}, 4,
        ),
        "static": (static, {"q": whole}, 8),
        "nibbles": (nibbles, {"p": packed, "s": groups}, 4),
        "float8": (
            lambda m, x: linear(x, m.q.to(x.dtype) * m.s[:, None]),
            {"q": torch.randn(N, K, generator=chance).to(torch.float8_e4m3fn), "s": scale}, 8,
        ),
    }  # fmt: skip


@needs_opencl
@pytest.mark.parametrize("name", ["weight only", "packed call", "channels", "groups", "static", "nibbles", "float8"])
def test_torch_models(name: str) -> None:
    function, buffers, bits = torch_cases()[name]
    module, x = Buffers(function, buffers), torch.randn(3, K, generator=torch.Generator().manual_seed(1))
    plan = build(module, (x,))
    expected = module(x).numpy()
    atol = 0.1 if name == "static" else 1e-4 * np.abs(expected).max()  # one step of the quantised input may differ
    np.testing.assert_allclose(run(plan, x.numpy()), expected, rtol=1e-4, atol=atol)
    steps = sum(b.numel() * 4 for n, b in buffers.items() if n in "sz")
    assert constant_bytes(plan) <= N * K * bits // 8 + steps + 64


# ---- the compiler's own


@needs_opencl
@pytest.mark.parametrize(("weights", "bits", "error"), [("int8", 8, 0.02), ("int4", 4, 0.2), ("fp8", 8, 0.06)])
def test_weights_are_rounded_to_a_format(weights: Any, bits: int, error: float) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 16, 3),
        torch.nn.Flatten(), torch.nn.Linear(16 * 16, 33),
    ).eval()  # fmt: skip
    x = torch.randn(2, 3, 8, 8)
    full, plan = build(module, (x,)), build(module, (x,), weights=weights)
    expected, found = run(full, x.numpy()), run(plan, x.numpy())
    assert 0 < np.linalg.norm(found - expected) / np.linalg.norm(expected) < error
    assert constant_bytes(plan) < constant_bytes(full) * (bits / 32 + 0.1)


@needs_opencl
def test_frozen_parameters_are_rounded_beside_a_cache() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    linear, x = torch.nn.Linear(64, 64).eval(), torch.randn(3, 1, 64)
    expected, found = torch.zeros(4, 64), torch.zeros(4, 64)

    def step(cache: Any, x: Any, place: Any) -> Any:
        cache.index_copy_(0, place, linear(x))
        return cache.sum(0)

    call = torch.compile(step, backend=cuts_backend, options={"freeze": True, "weights": "int8"})
    with torch.no_grad():
        for number, row in enumerate(x):
            total = step(expected, row, torch.tensor([number]))
            error = (call(found, row, torch.tensor([number])) - total).norm() / total.norm()
            assert 0 < error < 0.02
    assert 0 < (found - expected).norm() / expected.norm() < 0.02
    with pytest.raises(UsageError, match="option 'weights': parameters may change; give freeze=True too"):
        cuts_backend(linear, [x], options={"weights": "int8"})
    torch._dynamo.reset()


def test_transposed_weights_are_rounded() -> None:
    """Transpositions of large constants stay in a graph."""
    weight = RNG.standard_normal((48, 64)).astype(np.float32)
    shapes = {"x": (3, 64), "w": (48, 64), "t": (64, 48), "r": (48, 64), "y": (3, 48)}
    nodes = Node("t", "transpose", ("w",), ("t",), {"perm": [1, 0]}), Node("y", "matmul", ("x", "t"), ("y",))
    rows = Node("r", "relu", ("w",), ("r",))
    types = {name: TensorType(DType.F32, shape) for name, shape in shapes.items()}
    graph = Graph("g", ("x",), ("y", "r"), types, (*nodes, rows), {"w": weight})
    found = quantise_weights(graph, load_spec([]).instances, find_weight_format("int8"))
    assert {array.dtype.name for name, array in found.constants.items() if "int8" in name} == {"int8"}
    x = RNG.standard_normal((3, 64)).astype(np.float32)
    results, exact = build(found, target="reference").run({"x": x}), x @ weight.T
    assert np.array_equal(results["r"], np.maximum(weight, 0)), "another reader has the exact weight"
    assert 0 < np.linalg.norm(results["y"] - exact) / np.linalg.norm(exact) < 0.02


def test_models_without_weights_warn() -> None:
    with pytest.warns(CutsWarning, match="has no weights to quantise"):
        build(torch.nn.ReLU(), (torch.ones(2, 3),), weights="int8")
    with pytest.raises(UsageError, match="unknown weights 'int3'"):
        build(torch.nn.ReLU(), (torch.ones(2, 3),), weights="int3")  # type: ignore[call-overload]


@needs_opencl
def test_the_cost_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from cuts.cli.main import main

    weight = (RNG.standard_normal((64, 48)) / 8).astype(np.float32)
    onnx.save(onnx_model([helper.make_node("MatMul", ["x", "w"], ["y"])], (3, 64), {"w": weight}), tmp_path / "m.onnx")
    given = [str(tmp_path / "m.onnx"), "--weights", "int8", "--json"]
    assert main(["compile", *given, "--verify", "-o", str(tmp_path / "m.plan")]) == 0
    found = json.loads(capsys.readouterr().out)["weights"]
    assert found["format"] == "int8"
    assert 1e-4 < found["error"]["y"] < 0.02
    assert main(["verify", *given]) == 0
    assert json.loads(capsys.readouterr().out)["weights"] == found
    assert main(["verify", str(tmp_path / "m.plan"), "--weights", "int8"]) == 2
