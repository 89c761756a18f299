"""Library steps compute by the library's conventions, and travel like kernels."""

from __future__ import annotations

import math
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.device import Pointer
from cuts.backends.devices import find_target
from cuts.backends.library import routine as vendor
from cuts.backends.library.cublas import CuBLAS, layout
from cuts.backends.library.cudnn import CuDNN
from cuts.backends.library.recognise import Matrix, find_convolution
from cuts.backends.library.routine import Library, Request, RoutineError
from cuts.bench.operators.shapes import single
from cuts.bench.operators.tuning import group_of
from cuts.ir.compiled import CompiledGraph, KernelFunction, Step, Storage
from cuts.ir.errors import BackendError, CutsWarning
from cuts.ir.graph import Graph
from cuts.ir.segment import FusedGroup
from cuts.runtime.fallback_kernels import use_fallback_kernels
from cuts.runtime.files import load_plan, save_plan
from cuts.runtime.plan import Plan, check_plan, make_plan
from cuts.runtime.session import Session
from cuts.search.library_routines import SubstituteRoutine
from cuts.search.library_substitutes import substitute
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
    """Compute a product through its library step and with NumPy.

    Both results are the tensor y.
    """
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


def test_matrix_without_contiguous_rows_or_columns_is_refused(cublas: CuBLAS) -> None:
    request = Request(matmul((6, 7), (7, 5)), {"x0": Storage("x0", 0, (14, 2))})
    assert not cublas.supports(request)
    assert vendor.library_kernels(request) == []


def test_handle_runs_on_our_stream_in_strict_precision() -> None:
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


def test_equal_convolution_steps_share_plans() -> None:
    device = hosts.HostDevice()
    frontend = hosts.HostCuDNN(device)
    library = CuDNN(frontend)
    shapes = {3: ((2, 8, 14, 14), (16, 8, 3, 3)), 1: ((2, 8, 14, 14), (16, 8, 1, 1))}
    groups = [group_of(single("conv", "c", 2, "conv", shapes[size], {})) for size in (3, 3, 1)]
    launches, addresses = [], []
    for group in groups:
        assert group is not None
        places = {t: Pointer(device.allocate(4096), 64) for t in ("x0", "x1", "y")}
        addresses.append({int(p.buffer.handle) + 64 for p in places.values()})
        launches.append(library.prepare(device, Request(group), places))
    first, second = frontend.graphs
    tried = len(first.ran)
    for launch in launches:
        launch()
    ran = [*first.ran[tried:], second.ran[-1]]
    assert [index for index, _, _ in ran] == [1, 1, 1]
    assert [set(pack.values()) for _, pack, _ in ran] == addresses
    assert len({workspace for _, _, workspace in ran}) == 3


def test_other_stream_builds_only_the_chosen_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    device = hosts.HostDevice()
    frontend = hosts.HostCuDNN(device)
    library = CuDNN(frontend)
    group = group_of(single("conv", "c", 2, "conv", ((2, 8, 14, 14), (16, 8, 3, 3)), {}))
    assert group is not None
    places = {t: Pointer(device.allocate(4096)) for t in ("x0", "x1", "y")}

    def ran(stream: int) -> list[int]:
        device.stream_handle = stream
        library.prepare(device, Request(group), places)()
        return [index for index, _, _ in frontend.graphs[-1].ran]

    assert [len(ran(7)) > 1, ran(8)] == [True, [1]]
    monkeypatch.setattr("cuts.tests.backends.hosts._HostGraph.get_plan_name_at_index", lambda self, index: "another")
    assert len(ran(9)) > 1, "what is listed there is another plan"


def test_plans_are_tried_within_the_time_limit() -> None:
    device = hosts.HostDevice()
    library = CuDNN(hosts.HostCuDNN(device))
    group = group_of(single("conv", "c", 2, "conv", ((2, 8, 14, 14), (16, 8, 3, 3)), {}))
    assert group is not None
    found = find_convolution(group)
    assert found is not None
    places = {t: Pointer(device.allocate(4096)) for t in ("x0", "x1", "y")}
    for patience, plans in ((math.inf, 3), (-1.0, 1)):
        assert len(library.plans(device, found, places, patience=patience)) == plans


def test_group_without_library_routine_is_refused(cublas: CuBLAS) -> None:
    device = hosts.HostDevice()
    group = matmul((6, 7), (7, 5))
    for library in (cublas, CuDNN(hosts.HostCuDNN(device))):
        with pytest.raises(RoutineError, match="does not compute this group"):
            library.prepare(device, Request(group, {"x0": Storage("x0", 0, (14, 2))}), {})


def test_the_version_is_the_librarys(cublas: CuBLAS) -> None:
    assert cublas.version == "13.2.1"


def test_what_is_installed_is_said_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"nvmath-python": "1.0.0", "nvidia-cublas": "13.2.1"}

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    for there, found in ((True, ("nvmath-python 1.0.0", "nvidia-cublas 13.2.1")), (False, ())):
        vendor.installed_libraries.cache_clear()
        monkeypatch.setattr(vendor, "find_spec", lambda name, there=there: there or None)
        assert vendor.installed_libraries() == found
    vendor.installed_libraries.cache_clear()


def test_constant_filter_is_copied_into_cudnn_order() -> None:
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


def test_one_dimensional_convolution_gets_a_second_dimension() -> None:
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


def product_plan(tmp_path: Path) -> Plan:
    """Return a plan with a library product, written and read.

    It keeps the kernel that the library replaces.
    """
    group = matmul((6, 7), (7, 5))
    (kernel,) = vendor.library_kernels(Request(group))
    graph = Graph("product", ("x0", "x1"), ("y",), {t: group.tensors[t] for t in ("x0", "x1", "y")}, ())
    order = tuple(reversed(kernel.arguments))
    generated = KernelFunction("k", "cuda", "k", (1, 1, 1), (1, 1, 1), order)
    tensors = tuple(a.tensor for a in order)
    alone = CompiledGraph(graph, (generated,), (Step(0, tensors),), {}, ({"why": "fastest"},))
    compiled = substitute(alone, {0: SubstituteRoutine(kernel, 1e-3)})
    plan = make_plan(compiled, find_target("cuda:h200"), binaries=(b"", b"code"))
    save_plan(plan, tmp_path / "plan")
    return load_plan(tmp_path / "plan")


def test_library_plan_is_saved_loaded_and_run(tmp_path: Path) -> None:
    plan = product_plan(tmp_path)
    assert (plan.distinct_kernels, len(plan.kernels)) == (1, 2)
    session = Session(plan, hosts.HostDevice())
    a, b = (np.random.default_rng(n).standard_normal(s).astype(np.float32) for n, s in enumerate(((6, 7), (7, 5))))
    np.testing.assert_allclose(session.run({"x0": a, "x1": b})["y"], a @ b, rtol=1e-5, atol=1e-5)


def missing(name: str) -> Library:
    raise RoutineError(f"{name} cannot be used", hint="install it")


def test_missing_library_runs_the_generated_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = product_plan(tmp_path)
    assert use_fallback_kernels(plan) is plan
    monkeypatch.setattr(vendor, "require_library", missing)
    with pytest.warns(CutsWarning, match="plan 'product' runs generated kernels instead of routines: cublas cann"):
        found = use_fallback_kernels(plan)
    (step,) = found.steps
    kernel = found.kernels[step.kernel]
    assert (kernel.name, found.binaries[step.kernel]) == ("k", b"code")
    assert dict(zip([a.tensor for a in kernel.arguments], step.tensors, strict=True)) == {
        "x0": "x0", "x1": "x1", "y": "y",
    }  # fmt: skip
    assert all(kernel.dialect == "cuda" for kernel in found.kernels)
    check_plan(found)
    with pytest.warns(CutsWarning):
        assert Session(plan, hosts.HostDevice()).plan.kernels == found.kernels


def test_plan_without_fallback_names_the_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = product_plan(tmp_path)
    bare = evolve(plan, kernels=tuple(evolve(kernel, info={}) for kernel in plan.kernels))
    monkeypatch.setattr(vendor, "require_library", missing)
    with pytest.raises(RoutineError, match="cublas cannot be used; install it"):
        Session(bare, hosts.HostDevice())
