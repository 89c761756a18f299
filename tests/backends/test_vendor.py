"""Library steps: they compute the group through the library's own conventions, and travel as kernels do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.cuda.compile import compile_kernels
from cuts.backends.device import Pointer
from cuts.backends.devices import find_target
from cuts.backends.library import routine as vendor
from cuts.backends.library.contraction import Matrix, find_convolution
from cuts.backends.library.cublas import CuBLAS, layout
from cuts.backends.library.cudnn import CuDNN
from cuts.backends.library.routine import Request
from cuts.bench.shapes import single
from cuts.bench.tuned import group_of
from cuts.ir.compiled import CompiledGraph, Step
from cuts.ir.errors import BackendError
from cuts.ir.graph import Graph
from cuts.ir.launch import Storage
from cuts.ir.segment import FusedGroup
from cuts.runtime.executor import Session
from cuts.runtime.plan import make_plan
from cuts.runtime.plan_file import load_plan, save_plan
from cuts.tests.backends import hosts
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture(autouse=True)
def cublas(monkeypatch: pytest.MonkeyPatch) -> CuBLAS:
    library = CuBLAS(hosts.HostCuBLAS())
    monkeypatch.setattr(vendor, "require_library", lambda name: {"cublas": library}[name])
    monkeypatch.setattr(vendor, "libraries", lambda: (library,))
    return library


def matmul(a: tuple[int, ...], b: tuple[int, ...], turned: bool = False) -> FusedGroup:
    op, attributes = ("gemm", {"trans_b": True}) if turned else ("matmul", {})
    group = group_of(single("gemm", "m", 1, op, (a, b), attributes))
    assert group is not None
    return group


def run(group: FusedGroup, storages: dict[str, Storage]) -> tuple[np.ndarray, np.ndarray]:
    """Compute a product through its library step and with NumPy, both as the tensor y."""
    device = hosts.HostDevice()
    (kernel,) = vendor.library_kernels(Request(group, storages))
    (loaded,) = device.build([kernel])
    generator = np.random.default_rng(0)
    places, arrays = {}, {}
    for argument in kernel.arguments:
        type_ = group.tensors[argument.tensor]
        storage = storages.get(argument.tensor, Storage(argument.tensor, 0, type_.strides))
        reach = 1 + sum((n - 1) * s for n, s in zip(type_.shape, storage.strides, strict=True))
        content = generator.standard_normal(reach).astype(np.float32)
        places[argument.tensor] = Pointer(device.allocate(4 * reach + 64), 64)
        device.upload(places[argument.tensor], content)
        arrays[argument.tensor] = (content, type_.shape, [4 * s for s in storage.strides])
    device.bind(loaded, kernel, [places[a.tensor] for a in kernel.arguments])()
    x0, x1 = (np.lib.stride_tricks.as_strided(*arrays[t]) for t in ("x0", "x1"))
    result = np.empty(arrays["y"][0].size, np.float32)
    device.download(result, places["y"])
    return np.lib.stride_tricks.as_strided(result, *arrays["y"][1:]), x0 @ (
        x1.T if x1.shape[-2] != x0.shape[-1] else x1
    )


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(2, 5),
    st.integers(6, 8),
    st.integers(9, 12),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_a_product_is_computed_where_its_tensors_live(
    batch: int, m: int, n: int, k: int, left: bool, right: bool, result: bool
) -> None:
    group = matmul((batch, m, k), (batch, k, n)) if batch > 1 else matmul((m, k), (k, n))
    head = 1 if batch > 1 else 0

    def place(tensor: str, rows: int, columns: int, turned: bool) -> Storage:
        inner = (1, rows + 3) if turned else (columns + 3, 1)  # rows of a wider buffer
        return Storage(tensor, 0, ((rows + 3) * (columns + 3),) * head + inner)

    storages = {"x0": place("x0", m, k, left), "x1": place("x1", k, n, right), "y": place("y", m, n, result)}
    found, wanted = run(group, storages)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("a", "b", "turned"),
    [((1, 7), (7, 5), False), ((4, 7), (5, 7), True), ((2, 3, 7), (7, 5), False), ((6, 7), (7, 1), False)],
)
def test_vectors_and_shared_operands(a: tuple[int, ...], b: tuple[int, ...], turned: bool) -> None:
    found, wanted = run(matmul(a, b, turned), {})
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_matrix_without_contiguous_rows_or_columns_is_refused(cublas: CuBLAS) -> None:
    request = Request(matmul((6, 7), (7, 5)), {"x0": Storage("x0", 0, (14, 2))})
    assert not cublas.supports(request)
    assert vendor.library_kernels(request) == []


def test_the_handle_runs_on_our_stream_in_strict_precision() -> None:
    bindings = hosts.HostCuBLAS()
    device = hosts.HostDevice()
    group = matmul((6, 7), (7, 5))
    places = {t: Pointer(device.allocate(4096)) for t in ("x0", "x1", "y")}
    CuBLAS(bindings).prepare(device, Request(group), places)
    calls = dict(bindings.calls)
    assert calls["set_stream"] == (1, 7)
    assert calls["set_math_mode"] == (1, 2)


def test_a_damaged_step_is_explained() -> None:
    (kernel,) = vendor.library_kernels(Request(matmul((6, 7), (7, 5))))
    with pytest.raises(BackendError, match="cannot be read"):
        vendor.Routine(evolve(kernel, source="{}"))


# ---- cuDNN


def test_the_fastest_plan_that_builds_is_taken() -> None:
    device = hosts.HostDevice()
    frontend = hosts.HostCuDNN(device)
    group = group_of(
        single("conv", "c", 2, "conv", ((2, 8, 14, 14), (16, 8, 3, 3)), {"strides": (2, 2), "pads": (1, 1, 1, 1)})
    )
    assert group is not None
    library = CuDNN(frontend)
    assert library.supports(Request(group))
    places = {t: Pointer(device.allocate(4096), 64) for t in ("x0", "x1", "y")}
    library.prepare(device, Request(group), places)()
    (graph,) = frontend.graphs
    index, pack, workspace = graph.ran[-1]
    assert index == 1
    assert set(pack.values()) == {int(p.buffer.handle) + 64 for p in places.values()}
    assert workspace != 0
    assert graph.barred == ["tensor core", "down convert"]
    asked = {k: v for k, v in graph.convolution.items() if k in ("pre_padding", "post_padding", "stride", "dilation")}
    assert asked == {"pre_padding": [1, 1], "post_padding": [0, 0], "stride": [2, 2], "dilation": [1, 1]}


def test_a_constant_filter_is_copied_into_the_order_that_cudnn_knows() -> None:
    device = hosts.HostDevice()
    frontend = hosts.HostCuDNN(device)
    group = group_of(single("conv", "c", 1, "conv", ((1, 2, 8, 8), (4, 2, 3, 3)), {}))
    assert group is not None
    packed = {"x1": Storage("x1", 0, (1, 36, 12, 4))}  # [c, r, s, k]
    places = {t: Pointer(device.allocate(4096)) for t in ("x0", "x1", "y")}
    weights = np.arange(72, dtype=np.float32)
    device.upload(places["x1"], weights)
    CuDNN(frontend).prepare(device, Request(group, packed, {"x1"}), places)()
    (graph,) = frontend.graphs
    _, pack, _ = graph.ran[-1]
    (address,) = [a for tensor, a in pack.items() if tensor.facts.get("name") == "x1"]
    np.testing.assert_array_equal(
        hosts.at(address, 72).reshape(4, 2, 3, 3), weights.reshape(2, 3, 3, 4).transpose(3, 0, 1, 2)
    )
    assert graph.convolution["weight"].facts["stride"] == [18, 9, 3, 1]


def test_a_convolution_of_one_dim_gets_a_second_one() -> None:
    device = hosts.HostDevice()
    frontend = hosts.HostCuDNN(device)
    group = group_of(single("conv", "c", 1, "conv", ((1, 8, 14), (16, 8, 3)), {"pads": (1, 1)}))
    assert group is not None
    found = find_convolution(group)
    assert found is not None
    CuDNN(frontend).plans(device, found, {t: Pointer(device.allocate(4096)) for t in ("x0", "x1", "y")})
    assert frontend.graphs[0].convolution["image"].facts["dim"] == [1, 8, 14, 1]


def test_vectors_fit_any_layout() -> None:
    assert layout(1, 7, Matrix("x", 0, 0, 0, 3)) is not None
    assert layout(4, 7, Matrix("x", 0, 0, 2, 9)) is None


# ---- plans


def test_a_plan_with_a_library_step_is_saved_loaded_and_run(tmp_path: Path) -> None:
    group = matmul((6, 7), (7, 5))
    (kernel,) = vendor.library_kernels(Request(group))
    graph = Graph("product", ("x0", "x1"), ("y",), {t: group.tensors[t] for t in ("x0", "x1", "y")}, ())
    compiled = CompiledGraph(
        graph, (kernel,), (Step(0, tuple(a.tensor for a in kernel.arguments)),), {}, ({"why": "fastest"},)
    )
    (cubin,) = compile_kernels([kernel], "sm_90")
    save_plan(make_plan(compiled, find_target("cuda:h200"), binaries=(cubin.code,)), tmp_path / "plan")
    session = Session(load_plan(tmp_path / "plan"), hosts.HostDevice())
    a, b = (np.random.default_rng(n).standard_normal(s).astype(np.float32) for n, s in enumerate(((6, 7), (7, 5))))
    np.testing.assert_allclose(session.run({"x0": a, "x1": b})["y"], a @ b, rtol=1e-5, atol=1e-5)
