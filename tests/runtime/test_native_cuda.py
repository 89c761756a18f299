"""CUDA form of the C library, on a driver in C."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
from collections.abc import Iterator, Sequence
from ctypes import c_uint64, c_void_p
from pathlib import Path
from time import perf_counter
from typing import Any

import cuts
import numpy as np
import pytest
from attrs import evolve
from cuts.backends.native import compile_c, pack_sequence
from cuts.ir import DType, Graph, Node, TensorMap, TensorType, verify_graph
from cuts.runtime import Plan, make_concurrent
from cuts.runtime.native import pack_plan
from cuts.runtime.native.runner_layout import MIN_SWAPPED_BYTES, layout_of
from cuts.tests.backends.fake_cuda import FakeCuda, fake_path
from cuts.tests.backends.test_launch_sequence import KERNELS, PLAN
from cuts.tests.needs import needs_c_compiler

from .handmade import COLUMNS, ROWS, example_plan, expected_outputs, random_x
from .native_runner import NativeError, NativePlan, OptionsStruct, aligned_copy, tensor_list
from .test_state import ONES, running_sum

pytestmark = needs_c_compiler()
C_FOLDER = Path(__file__).parent / "native_c"
CUDA = 2
#: Calls of the driver that open a plan and a session, and that record and launch.
OPENING_CALLS = (
    "cuInit", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuMemAlloc_v2", "cuMemsetD8_v2", "cuMemcpyHtoD_v2",
    "cuModuleLoadData", "cuModuleGetFunction",
)  # fmt: skip
LAUNCHING_CALLS = (
    "cuGraphCreate", "cuGraphAddKernelNode", "cuGraphAddMemcpyNode", "cuGraphInstantiateWithFlags", "cuGraphLaunch",
)  # fmt: skip


@pytest.fixture
def driver() -> FakeCuda:
    return FakeCuda()


def with_cubins(plan: Plan) -> Plan:
    """Return a plan with a cubin for each kernel, by number."""
    return evolve(plan, binaries=tuple(f"cubin {n:02}".encode() for n in range(len(plan.kernels))))


def cuda_example() -> Plan:
    return with_cubins(example_plan("cuda"))


def open_on(plan: Plan) -> NativePlan:
    options = OptionsStruct(ctypes.sizeof(OptionsStruct), 0, str(fake_path()).encode())
    return NativePlan(pack_plan(plan), options)


def run(native: NativePlan, inputs: Sequence[Any], outputs: Sequence[Any], stream: int = 0) -> None:
    """Run on arrays as memory of the GPU."""
    given, results = tensor_list(inputs, CUDA), tensor_list(outputs, CUDA)
    session, count = native.session, (len(inputs), len(outputs))
    native.check(native.library.cuts_session_run(session, given, count[0], results, count[1], c_void_p(stream)))


def memory(*shape: int) -> Any:
    return aligned_copy(np.zeros(shape, np.float32))


def test_a_graph_is_recorded_once_and_updated(driver: FakeCuda) -> None:
    native = open_on(driver.declare(cuda_example()) and cuda_example())
    outputs = memory(ROWS, 2 * COLUMNS), memory(ROWS, COLUMNS)
    first, second = aligned_copy(random_x(1)), aligned_copy(random_x(2))
    for x in (first, first, second):
        run(native, [x], outputs, stream=7)
        for found, name in zip(outputs, ("y", "left"), strict=True):
            np.testing.assert_array_equal(found, expected_outputs(x)[name])
    assert driver.lines("graph") == ["graph of 4 nodes"]  # three kernels, and the copy of `left`
    assert driver.lines("module") == ["module cubin 00", "module cubin 01"]
    assert driver.lines("run on") == ["run on 0x7"] * 3
    assert driver.update_count == 2  # of the kernels that read `x`
    native.close()
    assert driver.live == 0


def test_concurrent_launches_wait_for_their_dependencies(driver: FakeCuda) -> None:
    plan = make_concurrent(cuda_example())
    assert plan is not None
    native = open_on(driver.declare(plan) and plan)
    x, outputs = aligned_copy(random_x(3)), (memory(ROWS, 2 * COLUMNS), memory(ROWS, COLUMNS))
    run(native, [x], outputs)
    np.testing.assert_array_equal(outputs[0], expected_outputs(x)["y"])
    np.testing.assert_array_equal(outputs[1], expected_outputs(x)["left"])
    assert driver.lines("launch")[0].startswith("launch k_double")  # it waits for nothing
    native.close()


def perceptron() -> Graph:
    """Return a product with a bias, and a row reduction."""
    sizes = {"x": (64, 256), "w": (256, 128), "h": (64, 128), "y": (64, 128)}
    types = {name: TensorType(DType.F32, shape) for name, shape in sizes.items()}
    nodes = (Node("dense", "matmul", ("x", "w"), ("h",)), Node("rows", "softmax", ("h",), ("y",)))
    weights = {"w": np.ones(sizes["w"], np.float32)}
    return verify_graph(Graph("perceptron", ("x",), ("y",), types, nodes, weights))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_launches_are_those_of_the_plan(arch: str, driver: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuts.backends.compilers.toolchains", lambda: ())  # no kernel is compiled
    plan = with_cubins(cuts.build(perceptron(), f"cuda:{arch}", precision="bf16").plan)
    driver.declare(plan).set(int(arch[-2:]))
    native = open_on(plan)
    x, y = memory(64, 256), memory(64, 128)
    run(native, [x], [y])
    sequence = layout_of(plan).placed.sequence
    found = [line.split() for line in driver.lines("launch")]
    begins: dict[int, int] = {}
    for (call, turn), (_, name, grid, block, shared, *addresses) in zip(sequence.order, found, strict=True):
        kernel = plan.kernels[sequence.calls[call].kernel]
        shape = [",".join(map(str, extents)) for extents in (kernel.grid, kernel.block)]
        assert [name, grid, block, shared] == [kernel.name, *shape, str(kernel.dynamic_shared)]
        for text, place in zip(addresses, sequence.calls[call].iterations[turn], strict=True):
            assert begins.setdefault(place.block, int(text, 16) - place.offset) == int(text, 16) - place.offset
    assert {x.ctypes.data, y.ctypes.data} <= set(begins.values())
    assert all(kernel.name.endswith("_waits") for kernel in plan.kernels)
    assert len(driver.lines("early edge")) == (len(sequence.order) - 1 if arch == "sm_90" else 0)
    assert len(driver.lines("map")) == sum(a.map is not None for k in plan.kernels for a in k.arguments)
    assert len(driver.lines("window")) == sum(call.evict_first is not None for call in sequence.calls)
    native.close()
    assert driver.live == 0


def test_tensor_maps_are_encoded_again_where_memory_moves(driver: FakeCuda) -> None:
    plan = cuda_example()
    box = TensorMap("m", "a", DType.F32, (COLUMNS, ROWS), (4 * COLUMNS,), (COLUMNS, 2), swizzle=32)
    first, *others = plan.kernels[0].arguments
    kernel = evolve(plan.kernels[0], arguments=(evolve(first, map=box), *others))
    plan = evolve(plan, kernels=(kernel, plan.kernels[1]))
    native = open_on(driver.declare(plan) and plan)
    outputs = memory(ROWS, 2 * COLUMNS), memory(ROWS, COLUMNS)
    for x in (aligned_copy(random_x(1)), aligned_copy(random_x(2))):
        run(native, [x], outputs)
        np.testing.assert_array_equal(outputs[0], expected_outputs(x)["y"])
    assert driver.lines("map") == ["map type 7 swizzle 1 promotion 2 0 0 dims 8/0/8/1 4/32/2/1"] * 2
    native.close()


def test_maps_that_walk_are_encoded(driver: FakeCuda) -> None:
    plan = cuda_example()
    walk = {"pixels": (COLUMNS,), "starts": (-1,), "steps": (2,)}
    box = TensorMap("m", "a", DType.F32, (4, 4, 1), (16, 64), (4, 2), **walk)
    first, *others = plan.kernels[0].arguments
    kernel = evolve(plan.kernels[0], arguments=(evolve(first, map=box), *others))
    plan = evolve(plan, kernels=(kernel, plan.kernels[1]))
    native = open_on(driver.declare(plan) and plan)
    run(native, [aligned_copy(random_x(1))], (memory(ROWS, 2 * COLUMNS), memory(ROWS, COLUMNS)))
    ends = 2 * COLUMNS - 6
    assert driver.lines("map") == [f"map type 7 swizzle 0 promotion 2 0 0 walks 4 2 4/0/1 4/16/2 1/64/1 -1..{ends}"]
    native.close()


def state_plan(size: int = 4) -> Plan:
    """Return the plan of a running sum, not updated in place."""
    with pytest.MonkeyPatch.context() as patch:
        updates = importlib.import_module("cuts.passes.partitioning.update_inputs")
        patch.setattr(updates, "is_safe_update", lambda *_: False)
        plan = cuts.build(running_sum(size), "opencl").plan
    kernel = evolve(plan.kernels[0], name="k_sum", dialect="cuda")
    return with_cubins(evolve(plan, target=example_plan("cuda").target, kernels=(kernel, *plan.kernels[1:])))


def test_state_stays_on_the_device(driver: FakeCuda) -> None:
    plan = state_plan()
    native = open_on(driver.declare(plan) and plan)
    assert native.state(0).tolist() == [0.5] * 4
    y = memory(4)
    for _ in range(3):
        run(native, [aligned_copy(ONES)], [y])
    native.set_state(0, ONES * 7)
    assert native.state(0).tolist() == [7] * 4
    native.reset_state()
    assert native.state(0).tolist() == [0.5] * 4
    assert len(driver.lines("copy 1 x 16")) == 3  # the new sum to the state, in each run
    native.close()
    assert driver.live == 0


def run_once(native: NativePlan) -> None:
    """Run the example and check its result."""
    x, outputs = aligned_copy(random_x()), (memory(ROWS, 2 * COLUMNS), memory(ROWS, COLUMNS))
    run(native, [x], outputs)
    np.testing.assert_array_equal(outputs[0], expected_outputs(x)["y"])


def test_large_state_takes_turns_between_two_blocks(driver: FakeCuda) -> None:
    size = MIN_SWAPPED_BYTES // 4
    plan = state_plan(size)
    native = open_on(driver.declare(plan) and plan)
    x, y = memory(size), memory(size)
    for _ in range(3):
        run(native, [x], [y])
    addresses = [line.split()[5:] for line in driver.lines("launch")]
    assert addresses[0] == addresses[2] != addresses[1] and sorted(addresses[0]) == sorted(addresses[1])
    assert driver.lines("copy") == [] and driver.lines("graph") == [f"graph of {len(plan.steps)} nodes"]
    native.close()
    assert driver.live == 0


def test_a_recording_repeats_no_turns(driver: FakeCuda) -> None:
    plan = state_plan(MIN_SWAPPED_BYTES // 4)
    native = open_on(driver.declare(plan) and plan)
    x, y = memory(MIN_SWAPPED_BYTES // 4), memory(MIN_SWAPPED_BYTES // 4)
    driver.library.fake_begin(c_void_p(9))
    with pytest.raises(NativeError, match=r"CUTS_ERROR_ARGUMENT: state '.*' takes turns between two blocks"):
        run(native, [x], [y], stream=9)
    driver.library.fake_end()
    native.close()


def test_missing_functions_and_graphs_are_named(driver: FakeCuda) -> None:
    content = pack_sequence(PLAN, KERNELS, (False, True), "sm_90")
    options = OptionsStruct(ctypes.sizeof(OptionsStruct), 0, str(fake_path()).encode())
    with pytest.raises(NativeError, match="CUTS_ERROR_ARGUMENT: kernel add has no program"):
        NativePlan(content, options)
    functions = (c_void_p * 1)(driver.library.fake_declare(b"add", b"PPP"))
    options.functions = ctypes.cast(functions, c_void_p)
    native = NativePlan(content, options)
    with pytest.raises(NativeError, match="launch 0 of 2 is no graph of the caller's"):
        native.check(native.library.cuts_session_set_graph(native.session, 0, c_void_p(1)))
    blocks = [memory(8) for _ in PLAN.blocks]
    pointers, sizes = (c_void_p * 6)(*(b.ctypes.data for b in blocks)), (c_uint64 * 6)(*PLAN.blocks)
    with pytest.raises(NativeError, match="launch 1 is a graph of the caller's: cuts_session_set_graph gave none"):
        native.check(native.library.cuts_session_run_pointers(native.session, None, None, 0, pointers, sizes, 6, None))
    native.close()
    assert driver.live == 0


@pytest.mark.parametrize("call", OPENING_CALLS)
def test_a_plan_that_fails_to_open_leaks_nothing(call: str, driver: FakeCuda) -> None:
    driver.declare(cuda_example()).set(failing=call)
    with pytest.raises(NativeError, match=r"CUTS_ERROR_DRIVER: CUDA: \w+: CUDA_ERROR_UNKNOWN \(999\)"):
        open_on(cuda_example())
    assert driver.live == 0


@pytest.mark.parametrize("call", LAUNCHING_CALLS)
def test_a_run_after_a_failed_one_begins_anew(call: str, driver: FakeCuda) -> None:
    driver.declare(cuda_example())
    native = open_on(cuda_example())
    driver.set(failing=call)
    with pytest.raises(NativeError, match=r"CUTS_ERROR_DRIVER: CUDA: \w+: CUDA_ERROR_UNKNOWN \(999\)"):
        run_once(native)
    driver.set()
    run_once(native)
    native.close()
    assert driver.live == 0


@pytest.mark.parametrize(("capability", "is_right"), [(80, False), (86, False), (100, False), (90, True)])
def test_another_architecture_is_refused(capability: int, is_right: bool, driver: FakeCuda) -> None:
    driver.declare(cuda_example()).set(capability)
    if is_right:
        open_on(cuda_example()).close()
        return
    with pytest.raises(
        NativeError, match=rf"CUTS_ERROR_ARCHITECTURE: the plan is for sm_90 .*Fake GPU is sm_{capability}"
    ):
        open_on(cuda_example())
    assert driver.live == 0


def test_host_memory_and_large_plans_are_refused(driver: FakeCuda) -> None:
    native = open_on(driver.declare(cuda_example()) and cuda_example())
    with pytest.raises(
        NativeError, match="CUTS_ERROR_TENSOR: a tensor lies on a device of DLPack's type 1, expected 2"
    ):
        native.run({"x": random_x()})
    native.close()
    plan = cuda_example()
    kernel = evolve(plan.kernels[0], dynamic_shared=1 << 20)
    with pytest.raises(NativeError, match="CUTS_ERROR_ARCHITECTURE: kernel k_add needs 1048576 bytes of shared memory"):
        open_on(evolve(plan, kernels=(kernel, plan.kernels[1])))


def test_a_call_takes_little_time_of_the_host(driver: FakeCuda, announce: Any) -> None:
    native = open_on(driver.declare(cuda_example()) and cuda_example())
    x, y, left = aligned_copy(random_x()), memory(ROWS, 2 * COLUMNS), memory(ROWS, COLUMNS)
    run(native, [x], [y, left])
    driver.set(idle=True)
    seconds = time_runs(native, [x], [y, left])
    announce(f"a call of the C library takes {1e6 * seconds:.2f} us of the host beside the driver, ctypes included")
    native.close()


def time_runs(native: NativePlan, inputs: Sequence[Any], outputs: Sequence[Any], count: int = 2000) -> float:
    """Return the least seconds of a call by pointers, with ctypes."""
    pointers = [(c_void_p * len(part))(*(a.ctypes.data for a in part)) for part in (inputs, outputs)]
    sizes = [(c_uint64 * len(part))(*(a.nbytes for a in part)) for part in (inputs, outputs)]
    call, session = native.library.cuts_session_run_pointers, native.session
    best = float("inf")
    for _ in range(count):
        start = perf_counter()
        call(session, pointers[0], sizes[0], len(inputs), pointers[1], sizes[1], len(outputs), None)
        best = min(best, perf_counter() - start)
    return best


def toolkit_headers() -> Iterator[Path]:
    """Yield folders with cuda.h."""
    folders = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    if (nvcc := shutil.which("nvcc")) is not None:
        folders.append(str(Path(os.path.realpath(nvcc)).parents[1]))
    yield from (
        Path(folder) / "include" for folder in folders if folder and (Path(folder) / "include/cuda.h").is_file()
    )


def test_structs_are_those_of_the_toolkit(tmp_path: Path) -> None:
    include = next(toolkit_headers(), None)
    if include is None:
        pytest.skip("no CUDA toolkit is installed")
    compile_c(tmp_path / "layouts", [C_FOLDER / "cuda_layouts.c"], [f"-I{include}"])


def test_tensors_are_those_of_dlpack(tmp_path: Path) -> None:
    found = importlib.util.find_spec("torch")
    header = Path(found.origin).parent / "include/ATen/dlpack.h" if found and found.origin else None
    if header is None or not header.is_file():
        pytest.skip("PyTorch's copy of DLPack is not installed")
    compile_c(tmp_path / "layouts", [C_FOLDER / "dlpack_layouts.c"], [f'-DDLPACK_HEADER="{header}"'])
