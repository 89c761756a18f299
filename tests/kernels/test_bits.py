"""Reinterpreted bits, in declarations, kernels and PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuts.backends.compilers import compile_kernel, toolchains
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.ir.compiled import CompileOptions
from cuts.ir.expr import Read, call, dtype_of
from cuts.ir.types import DType, TensorType
from cuts.tests.needs import needs_opencl

from ..fusion.build import graph, op
from ..fusion.test_horizontal_fusion import compile_model

CASES = [(DType.F32, DType.I32), (DType.F64, DType.I64)]
#: The next number away from zero, by the bits.
NEXT = """
op following "the next number away from zero" {
  in x: f32[...s]
  out y: f32[...s]
  y = f32_of_bits(bits_of_f32(x) + 1)
}
"""


@pytest.mark.parametrize(("real", "bits"), CASES)
def test_bits_have_the_type_of_equal_size(real: DType, bits: DType) -> None:
    tensors = {"x": TensorType(real, ()), "n": TensorType(bits, ())}
    assert dtype_of(call(f"bits_of_{real}", Read("x", ())), tensors) is bits
    assert dtype_of(call(f"{real}_of_bits", Read("n", ())), tensors) is real


def there_and_back(real: DType, bits: DType) -> Any:
    """Return a graph that negates numbers by their highest bit."""
    return graph(
        {"x": TensorType(real, (6, 40)), "one": TensorType(bits, ())},
        op("n", f"bits_of_{real}", "x"),
        op("m", "bitwise_xor", "n", "one"),
        op("y", f"{real}_of_bits", "m"),
        out="y",
    )


@needs_opencl
@pytest.mark.parametrize(("real", "bits"), CASES)
def test_the_highest_bit_is_the_sign(real: DType, bits: DType) -> None:
    x = np.array([0.0, -0.0, 1.5, -np.pi, np.inf, -1e-40] * 40, real.numpy).reshape(6, 40)
    plan = build_graph(there_and_back(real, bits), load_spec([]), find_target("opencl"), CompileOptions())
    assert len(plan.kernels) == 1, "the bits stay in registers"
    found = plan.run({"x": x, "one": np.array(np.iinfo(bits.numpy).min, bits.numpy)})["y"]
    assert found.tobytes() == (-x).tobytes()


@needs_opencl
def test_declarations_have_the_functions(tmp_path: Path) -> None:
    (tmp_path / "own.cuts").write_text(NEXT)
    spec = load_spec([tmp_path / "own.cuts"])
    x = np.array([1, -1, 1e-40, 3e38], np.float32)
    model = graph({"x": (4,)}, op("y", "abs", "x"), out="y")
    model = type(model)(
        "own", ("x",), ("y",), model.types, (type(model.nodes[0])("n", "following", ("x",), ("y",), {}),)
    )
    found = build_graph(model, spec, find_target("opencl"), CompileOptions()).run({"x": x})["y"]
    np.testing.assert_array_equal(found, np.nextafter(x, np.copysign(np.inf, x).astype(np.float32)))


@pytest.mark.skipif(not toolchains(), reason="neither NVRTC nor nvcc is installed")
@pytest.mark.parametrize(("real", "bits"), CASES)
def test_cuda_kernels_compile(real: DType, bits: DType) -> None:
    for kernel in compile_model(there_and_back(real, bits)).kernels:
        assert f"cuts_bits_of_{real}" in kernel.source and compile_kernel(kernel, "sm_90").code
