"""Products of PyTorch's packed weights of four bits, and of torchao's layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuts.compile.build import build
from cuts.compile.torch_backend import cuts_backend
from cuts.ir import CutsError
from cuts.tests.frontends.test_packed_models import Buffers, constant_bytes, run
from cuts.tests.needs import needs_opencl

torch = pytest.importorskip("torch")

ATEN = torch.ops.aten


def tiles(numbers: Any, inner: int = 8) -> Any:
    """Return numbers [N, K] as words for lanes of matrix instructions."""
    rows, columns = numbers.shape
    words = torch.zeros(rows // 8, columns // (16 * inner), 32, inner // 2, dtype=torch.int64)
    for tile, outer, lane, word in np.ndindex(*words.shape):
        first = (outer * inner + 2 * word) * 16 + lane % 4 * 2
        for place, column in enumerate((0, 8, 16, 24, 1, 9, 17, 25)):
            number = int(numbers[tile * 8 + lane // 4, first + column])
            words[tile, outer, lane, word] |= number << 4 * place
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def packed_case(name: str, rows: int, columns: int, group: int, kind: Any) -> tuple[Any, Any, Any]:
    """Return a module, an input and its product in f64."""
    chance = torch.Generator().manual_seed(0)
    numbers = torch.randint(0, 16, (rows, columns), generator=chance, dtype=torch.int32)
    steps = torch.rand(columns // group, rows, 2, generator=chance).to(kind)
    x = torch.randn(3, columns, generator=chance).to(kind)
    scale, zero = (steps[..., n].double().T.repeat_interleave(group, 1) for n in range(2))
    packed = tiles(numbers) if name == "tiles" else ATEN._convert_weight_to_int4pack_for_cpu(numbers, 8)
    call = ATEN._weight_int4pack_mm if name == "tiles" else ATEN._weight_int4pack_mm_for_cpu
    module = Buffers(lambda m, x: call(x, m.p, group, m.s), {"p": packed, "s": steps})
    return module, x, x.double() @ ((numbers - 8) * scale + zero).T


@needs_opencl
@pytest.mark.parametrize(("name", "rows", "columns", "group", "kind"), [
    ("tiles", 16, 256, 32, torch.bfloat16), ("blocks", 64, 64, 32, torch.float32),
    ("blocks", 80, 64, 64, torch.bfloat16), ("blocks", 48, 32, 32, torch.float32),
])  # fmt: skip
@pytest.mark.parametrize("freeze", [False, True])
def test_packed_layouts(name: str, rows: int, columns: int, group: int, kind: Any, freeze: bool) -> None:
    module, x, expected = packed_case(name, rows, columns, group, kind)
    bound = (3 + columns / 8) * torch.finfo(kind).eps * expected.abs().max()  # roundings of weights and of the result
    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(module, backend=cuts_backend, options={"freeze": freeze})(x)
    assert (found.double() - expected).abs().max() <= bound
    if freeze and rows % 64 == 0:
        with torch.no_grad():
            plan = build(torch.export.export(module, (x,)))
        assert constant_bytes(plan) <= rows * columns // 2 + module.s.nbytes + 64


def test_groups_that_scales_lack() -> None:
    module, x, _ = packed_case("blocks", 64, 64, 32, torch.float32)
    module.s = module.s[:1]
    with torch.no_grad():
        program = torch.export.export(module, (x,))
    with pytest.raises(CutsError, match=r"expected scales and zeros \[2, 64, 2\] of groups of 32, found \[1, 64, 2\]"):
        build(program)


# ---- torchao


def torchao_case(name: str) -> tuple[Any, Any, int]:
    """Return a quantised layer, an input and bits of a weight."""
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    groups = {"granularity": quantization.PerGroup(32)}
    config, bits = {
        "int8": (lambda: quantization.Int8WeightOnlyConfig(), 8),
        "float8": (lambda: quantization.Float8WeightOnlyConfig(), 8),
        "int4": (lambda: quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4, **groups), 4),
        "dynamic": (lambda: quantization.Int8DynamicActivationInt8WeightConfig(), 8),
    }[name]
    torch.manual_seed(0)
    layers, x = torch.nn.Sequential(torch.nn.Linear(128, 64)).eval(), torch.randn(3, 128)
    quantization.quantize_(layers, config())
    return layers, x, bits


@needs_opencl
@pytest.mark.filterwarnings("ignore")  # torchao's own
@pytest.mark.parametrize("name", ["int8", "float8", "int4", "dynamic"])
def test_torchao_layers(name: str) -> None:
    layers, x, bits = torchao_case(name)
    with torch.no_grad():
        expected = layers(x).numpy()
        plan = build(torch.export.export(layers, (x,)))
    atol = 1e-5 * np.abs(expected).max() if name != "dynamic" else 0.02 * np.abs(expected).max()
    np.testing.assert_allclose(run(plan, x.numpy()), expected, atol=atol)
    assert constant_bytes(plan) <= 64 * 128 * bits // 8 + 64 * (4 * 8 if bits == 4 else 8) + 64 * 4 + 1024
    assert len(plan.plan.kernels) <= 2, "weights are widened in the product"


@needs_opencl
@pytest.mark.parametrize("name", ["tensor", "symmetric", "token"])
def test_dynamic_ranges_of_pt2e(name: str) -> None:
    import torch.ao.quantization.fx._decomposed  # registers the operations

    call = torch.ops.quantized_decomposed

    def function(_: Any, x: Any) -> Any:
        if name == "token":
            steps = call.choose_qparams_per_token(x, torch.int8)
            return call.quantize_per_token(x, *(s.float() for s in steps), -127, 127, torch.int8)
        choose = call.choose_qparams if name == "tensor" else call.choose_qparams_symmetric
        ends = -128, 127
        return call.quantize_per_tensor(x, *choose.tensor(x, *ends, 1e-7, torch.int8), *ends, torch.int8)

    module, x = Buffers(function, {}), torch.randn(5, 33, generator=torch.Generator().manual_seed(0)) + 0.5
    plan = build(torch.export.export(module, (x,)))
    assert np.abs(run(plan, x.numpy()).astype(int) - module(x).numpy().astype(int)).max() <= 1


@needs_opencl
@pytest.mark.skipif(not hasattr(torch.nn.functional, "scaled_mm"), reason="PyTorch has no scaled_mm")
@pytest.mark.parametrize("by_row", [False, True])
def test_scaled_mm_by_recipes(by_row: bool) -> None:
    kind = torch.nn.functional.ScalingType.RowWise if by_row else torch.nn.functional.ScalingType.TensorWise
    scales = (torch.rand(16, 1), torch.rand(1, 32)) if by_row else (torch.tensor(0.5), torch.tensor(0.25))
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)).to(torch.float8_e4m3fn)

    def function(m: Any, x: Any) -> Any:
        a = x.to(torch.float8_e4m3fn)
        return torch.nn.functional.scaled_mm(a, m.w.t(), m.a, kind, m.b, kind, output_dtype=torch.bfloat16).float()

    module, x = Buffers(function, {"w": weight, "a": scales[0], "b": scales[1]}), torch.randn(16, 64)
    found = run(build(torch.export.export(module, (x,))), x.numpy())
    np.testing.assert_allclose(found, module(x).numpy(), rtol=2**-7, atol=2**-7)


@needs_opencl
def test_wrapped_parameters_freeze() -> None:
    layers, _, _ = torchao_case("int8")
    norms = [torch.nn.LayerNorm(128), torch.nn.LayerNorm(64), torch.nn.LayerNorm(64)]
    for norm in norms:
        torch.nn.init.normal_(norm.weight)
    module = torch.nn.Sequential(norms[0], layers[0], norms[1], norms[2]).eval()
    x = torch.randn(3, 128)
    torch._dynamo.reset()
    with torch.no_grad():
        expected = module(x)
        call = torch.compile(module, backend=cuts_backend, options={"freeze": True})
        assert (call(x) - expected).norm() <= 1e-5 * expected.norm()
        norms[2].weight.mul_(2)
        with pytest.warns(UserWarning, match="parameters changed after they had become constants"):
            assert (call(x) - module(x)).norm() <= 1e-5 * expected.norm()


def test_wrapped_parameters_that_are_trained() -> None:
    """They are left to autograd, as gradients are of the wrapper."""
    from cuts.frontends.torch.dynamo_backend.parameters import unwrap_subclasses
    from torch.testing._internal.two_tensor import TwoTensor

    module = torch.fx.symbolic_trace(lambda x, w: x @ w)
    wrapper = TwoTensor(torch.ones(2, 2), torch.ones(2, 2)).requires_grad_()
    found, examples, is_unwrapped = unwrap_subclasses(module, [torch.ones(2, 2), wrapper])
    assert found is module
    assert examples[1] is wrapper
    assert not is_unwrapped


@needs_opencl
def test_zero_points_of_zero_vanish() -> None:
    weight = torch.randint(-8, 8, (64, 128), dtype=torch.int8)
    function = lambda m, x: torch.nn.functional.linear(x, (m.q.float() - m.z.float()[:, None]) * m.s[:, None])  # noqa: E731
    given = {"q": weight, "z": torch.zeros(64, dtype=torch.int8), "s": torch.rand(64)}
    module, x = Buffers(function, given), torch.randn(2, 128)
    plan = build(module, (x,))
    np.testing.assert_allclose(run(plan, x.numpy()), module(x).numpy(), rtol=1e-4, atol=1e-4)
    assert constant_bytes(plan) <= 64 * 64 + 64 * 4
