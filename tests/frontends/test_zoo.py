"""Exported networks of many kinds, against PyTorch and ONNX Runtime.

Each of PyTorch's exporters writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

from cuts.compile.build import build
from cuts.frontends.torch.loading.load import load_torch
from cuts.runtime.onnx_oracle import run_onnxruntime
from cuts.tests.amounts import NIGHTLY
from cuts.tests.frontends.zoo import ZOO
from cuts.tests.needs import needs_opencl

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]  # exporters warn about their own insides
#: Networks whose kernels run in every session; the others do so at night.
KERNELS = ["segmentation", "decoder", "recommender", "windows"]
#: A network as ONNX: its file, and its inputs.
Exported: TypeAlias = tuple[Path, dict[str, Any]]


def make_network(name: str) -> tuple[Any, tuple[Any, ...]]:
    torch.manual_seed(0)
    module = ZOO[name].make().eval()
    for part in module.modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            torch.nn.init.uniform_(part.running_mean, -0.2, 0.2)
            torch.nn.init.uniform_(part.running_var, 0.7, 1.3)
    return module, ZOO[name].inputs()


@pytest.fixture(scope="module")
def export_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    """Write a network as ONNX, once for all tests."""
    return cache(lambda name: write_onnx(name, tmp_path_factory.mktemp(name) / "model.onnx"))


def write_onnx(name: str, path: Path) -> Exported:
    module, inputs = make_network(name)
    names = [f"input{n}" for n in range(len(inputs))]
    network = ZOO[name]
    with torch.no_grad():
        torch.onnx.export(
            module,
            inputs,
            path,
            dynamo=not network.traced,
            opset_version=network.opset,
            input_names=names,
            verbose=False,
        )
    return path, {name: value.numpy() for name, value in zip(names, inputs, strict=True)}


def assert_equal(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for value, wanted in zip(found, expected, strict=True):
        assert (value.shape, value.dtype) == (wanted.shape, wanted.dtype)
        assert np.allclose(value, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ZOO)
def test_an_exported_program_computes_what_pytorch_does(name: str) -> None:
    module, inputs = make_network(name)
    plan = build(load_torch(module, inputs), "reference")
    found = plan.run({name: value.numpy() for name, value in zip(plan.inputs, inputs, strict=True)})
    with torch.no_grad():
        expected = module(*inputs)
    assert_equal(list(found.values()), [v.numpy() for v in (expected if isinstance(expected, tuple) else (expected,))])


@pytest.mark.parametrize("name", ZOO)
def test_an_onnx_file_computes_what_onnxruntime_does(name: str, export_once: Callable[[str], Exported]) -> None:
    path, inputs = export_once(name)
    plan = build(path, "reference")
    expected = run_onnxruntime(path, inputs)
    assert_equal(list(plan.run(inputs).values()), [expected[output] for output in plan.plan.outputs])


@needs_opencl
@pytest.mark.parametrize("name", ZOO if NIGHTLY else KERNELS)
def test_kernels_compute_what_onnxruntime_does(name: str, export_once: Callable[[str], Exported]) -> None:
    path, inputs = export_once(name)
    plan = build(path, "opencl")
    expected = run_onnxruntime(path, inputs)
    assert_equal(list(plan.run(inputs).values()), [expected[output] for output in plan.plan.outputs])
