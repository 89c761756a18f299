"""Calls of peer libraries in the precision of a case."""

from __future__ import annotations

import sys
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.device import Pointer
from cuts.backends.devices import find_target
from cuts.backends.library.cudnn import CuDNN, Numerics
from cuts.backends.source.emit import emit
from cuts.bench.networks.ledger import parse_workload
from cuts.bench.operators import contenders, ops
from cuts.bench.operators.cases import CLASSES, KINDS, all_cases, gradient_case
from cuts.bench.operators.contenders import (
    PLANS,
    Peers,
    best_product,
    channels_last,
    convolution_of,
    gradient_of,
    is_product,
)
from cuts.bench.operators.shapes import convolution_case, read_convolution, single
from cuts.bench.operators.tuning import tune
from cuts.ir.errors import BackendError
from cuts.ir.types import DType
from cuts.tests.backends.hosts import HostCuDNN, HostDevice

CONVOLUTION = single("conv", "c", 2, "conv", ((2, 8, 9, 7), (16, 8, 3, 3)), {"pads": (1, 1, 1, 1)}, 1)
PRODUCT = single("gemm", "m", 1, "matmul", ((6, 7), (7, 5)), {})
DENSE = single("gemv", "d", 1, "gemm", ((2, 7), (5, 7)), {"trans_b": True}, 1)


class HostMatmul:
    """Matrix product with nvmath's interface on the host, which records its requests."""

    asked: ClassVar[list[tuple[str, Any]]] = []

    def __init__(self, a: Any, b: Any, options: dict[str, Any]) -> None:
        self.operands, self.shapes = (a, b), (a.shape, b.shape)
        self.asked.append(("compute", options["compute_type"].name))

    def plan(self, preferences: dict[str, int]) -> None:
        self.asked.append(("limit", preferences["limit"]))

    def autotune(self, iterations: int) -> None:
        self.asked.append(("autotune", iterations))

    def reset_operands(self, a: Any, b: Any) -> None:
        assert (a.shape, b.shape) == self.shapes
        self.operands = (a, b)

    def execute(self) -> Any:
        return self.operands[0] @ self.operands[1]


@pytest.fixture
def nvmath(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Replace nvmath by host products, and return their requests."""
    names = ("COMPUTE_32F", "COMPUTE_32F_PEDANTIC", "COMPUTE_32F_FAST_TF32")
    kinds = IntEnum("MatmulComputeType", names)
    monkeypatch.setitem(
        sys.modules, "nvmath.linalg.advanced", SimpleNamespace(Matmul=HostMatmul, MatmulComputeType=kinds)
    )
    monkeypatch.setattr(HostMatmul, "asked", [])
    return HostMatmul.asked


@pytest.mark.parametrize(
    ("precision", "compute"),
    [
        ("fp32", "COMPUTE_32F_PEDANTIC"),
        ("fp32x3", "COMPUTE_32F_PEDANTIC"),
        ("tf32", "COMPUTE_32F_FAST_TF32"),
        ("bf16", "COMPUTE_32F"),
        ("fp16", "COMPUTE_32F"),
    ],
)
@pytest.mark.parametrize("case", [PRODUCT, DENSE], ids=lambda case: case.name)
def test_cublaslt_uses_its_fastest_plan_of_the_precision(
    case: Any, precision: str, compute: str, nvmath: list[tuple[str, Any]]
) -> None:
    generator = np.random.default_rng(0)
    first, second = ([generator.standard_normal(s) for s in case.inputs.values()] for _ in range(2))
    run = best_product(evolve(case, precision=precision), first)
    right = second[1] if case is PRODUCT else second[1].T
    np.testing.assert_array_equal(run(*second), second[0] @ right)
    assert nvmath[:2] == [("compute", compute), ("limit", PLANS)]
    assert nvmath[2][0] == "autotune"


def test_without_nvmath_there_is_no_such_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvmath.linalg.advanced", None)
    with pytest.raises(BackendError, match="cuBLASLt cannot be used"):
        best_product(PRODUCT, [np.ones((6, 7)), np.ones((7, 5))])
    assert not is_product(CONVOLUTION)
    peers = Peers(SimpleNamespace(case=PRODUCT), None, None, (), print)  # type: ignore[arg-type]
    assert [name for name, _ in peers.libraries(PRODUCT)] == ["cublaslt"]
    assert [name for name, _ in peers.libraries(CONVOLUTION)] == ["cudnn"]
    assert peers.libraries(single("memory", "r", 1, "relu", ((6, 7),), {})) == []


@pytest.mark.parametrize(
    ("numerics", "kind", "barred"),
    [
        (Numerics(), "float", ["tensor core", "down convert"]),
        (Numerics(tensor_cores=True), "float", ["down convert"]),
        (Numerics(DType.F16), "half", []),
        (Numerics(DType.BF16), "bfloat16", []),
    ],
)
def test_cudnn_computes_in_the_type_that_tensors_have(numerics: Numerics, kind: str, barred: list[str]) -> None:
    device = HostDevice()
    frontend = HostCuDNN(device)
    found = convolution_of(evolve(CONVOLUTION, precision="bf16"))
    assert found is not None
    places = {t: Pointer(device.allocate(1 << 16)) for t in ("x0", "x1", "y")}
    plans = CuDNN(frontend).plans(device, found, places, numerics)
    assert min(plans, key=lambda plan: plan.seconds).name == "plan 1"
    (graph,) = frontend.graphs
    assert (graph.options["io_data_type"], graph.options["compute_data_type"]) == (kind, "float")
    assert graph.convolution["image"].facts["data_type"] == kind
    assert graph.barred == barred


@pytest.mark.parametrize("position", [0, 1])
def test_gradients_have_plans_of_their_own(position: int) -> None:
    """Convolve 2 images of 4 channels with 6 filters.

    Images are 9 by 9, filters 3 by 3, the stride is 2.
    """
    device = HostDevice()
    frontend = HostCuDNN(device)
    case = gradient_case(convolution_case(read_convolution("4x9 6x3x3 /2 +1")[0], 2), position, KINDS[position])
    found, wanted = gradient_of(case)
    places = {t: Pointer(device.allocate(1 << 16)) for t in (*case.inputs, *case.outputs)}
    CuDNN(frontend).plans(device, channels_last(found), places, Numerics(), wanted)
    (graph,) = frontend.graphs
    shapes = {t: graph.convolution[t].facts["dim"] for t in ("image", "filter", "loss") if t in graph.convolution}
    image, weight, result = [2, 4, 9, 9], [6, 4, 3, 3], [2, 6, 5, 5]
    assert graph.kind == KINDS[position]
    assert shapes == ({"filter": weight, "loss": result}, {"image": image, "loss": result})[position]
    assert graph.made.facts["dim"] == (image, weight)[position]
    assert graph.made.facts["stride"] == ([324, 1, 36, 4], [36, 1, 12, 4])[position]
    asked = {k: v for k, v in graph.convolution.items() if k in ("pre_padding", "post_padding", "stride", "dilation")}
    assert asked == {"pre_padding": [1, 1], "post_padding": [1, 1], "stride": [2, 2], "dilation": [1, 1]}
    assert set(graph.ran[-1][1].values()) == {int(place.buffer.handle) for place in places.values()}


def test_channels_are_innermost_in_the_other_layout() -> None:
    found = convolution_of(CONVOLUTION)
    assert found is not None
    turned = channels_last(found)
    assert turned.image.steps == (9 * 7 * 8, 1, 7 * 8, 8)
    assert turned.filter.steps == (3 * 3 * 8, 1, 3 * 8, 8)
    assert turned.result.steps == (9 * 7 * 16, 1, 7 * 16, 16)


def test_the_better_layout_is_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of the second layout are faster here."""
    device = HostDevice()
    asked: list[tuple[Any, Numerics]] = []

    def plans(device: Any, convolution: Any, places: Any, numerics: Numerics, wanted: str) -> list[Any]:
        asked.append((convolution.image.steps, numerics))
        launch = SimpleNamespace(launch_on=lambda places: lambda: None)
        return [SimpleNamespace(seconds=1.0 / len(asked), launch=launch)]

    monkeypatch.setattr(contenders, "require_library", lambda name: SimpleNamespace(plans=plans))
    case = evolve(CONVOLUTION, precision="tf32")
    (tuned,) = tune([case], find_target("cuda:sm_90"), emit, None)
    memory = [contenders.TunedBuffers(tuned, device) for _ in range(2)]
    found = convolution_of(case)
    assert found is not None
    contender = Peers(tuned, device, None, memory, print)._cudnn(found)
    assert (contender.name, contender.sets) == ("cudnn", 2)
    assert [steps for steps, _ in asked] == [found.image.steps, channels_last(found).image.steps]
    assert {numerics for _, numerics in asked} == {Numerics(DType.F32, tensor_cores=True)}


@pytest.mark.parametrize("precision", ["tf32", "fp32x3", "bf16", "fp16"])
def test_cases_are_compiled_in_their_precision(precision: str) -> None:
    case = single("gemm", "m", 1, "matmul", ((1024, 768), (768, 512)), {})
    (tuned,) = tune([evolve(case, precision=precision)], find_target("cuda:sm_90"), emit, None)
    assert any(word in kernel.source for kernel in tuned.kernels for word in ("mma.sync", "wgmma"))
    assert tuned.type_of(tuned.name("x0")).dtype is evolve(case, precision=precision).dtype


@pytest.mark.parametrize(
    ("precision", "kinds"), [("fp32", set(CLASSES)), ("fp16", set(CLASSES)), ("tf32", {"conv", "gemm"})]
)
def test_a_precision_is_measured_where_it_changes_something(precision: str, kinds: set[str]) -> None:
    chosen = ops.select(ops.arguments(["--precision", precision]), [])
    assert {case.kind for case in chosen} == kinds
    assert {case.precision for case in chosen} == {precision}
    assert len(chosen) == sum(case.kind in kinds for case in all_cases())


def test_networks_have_a_precision() -> None:
    assert parse_workload("resnet-50:64:tf32").label == "ResNet-50 b64 tf32"
    assert parse_workload("bert-base:training:bf16=30").label == "BERT-base b32 training bf16"
    for wrong in ("resnet-50", "resnet:1:fp16", "resnet-50:1:fp8", "resnet-50:many"):
        with pytest.raises(SystemExit, match="expected MODEL:BATCH"):
            parse_workload(wrong)
