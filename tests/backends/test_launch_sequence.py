"""Launch sequences.

Launches over external buffers, on a driver in Python and on OpenCL.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.backends import BlockAddress, Copy, KernelCall, SequencePlan, find_target
from cuts.backends.cuda import CudaSequenceLauncher
from cuts.backends.cuda import launch_graph as cuda_graphs
from cuts.ir import BackendError
from cuts.ir.compiled import Argument, KernelFunction
from cuts.ir.types import DType
from cuts.tests.backends.fake_driver import FakeDriver

COUNT = 4


def floats(address: int) -> Any:
    """Return the elements that lie at an address."""
    return np.frombuffer((ctypes.c_float * COUNT).from_address(address), np.float32)


def add(a: int, b: int, c: int) -> None:
    floats(c)[...] = floats(a) + floats(b)


def double(a: int, c: int) -> None:
    floats(c)[...] = 2 * floats(a)


def kernel(name: str, written: str) -> KernelFunction:
    arguments = tuple(Argument(f"t{n}", DType.F32, letter == "w") for n, letter in enumerate(written))
    return KernelFunction(name, "cuda", "", (1, 1, 1), (COUNT, 1, 1), arguments)


#: `out = 2 * (held + x)`, through scratch; and a copy of the scratch to the last block.
PLAN = SequencePlan(
    blocks=(16, 32, 16, 16, 16, 16),
    fixed=3,
    calls=(
        KernelCall(0, ((BlockAddress(2), BlockAddress(3), BlockAddress(1, 16)),)),
        KernelCall(1, ((BlockAddress(1, 16), BlockAddress(4)),)),
    ),
    order=((0, 0), (1, 0)),
    after=(Copy(BlockAddress(1, 16), BlockAddress(5), 16),),
)
KERNELS = (kernel("add", "rrw"), kernel("double", "rw"))


class Memory:
    """Blocks of host memory."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def new(self, *values: float) -> int:
        array = np.array(values or (np.nan,) * 2 * COUNT, np.float32)
        self.kept.append(array)
        return int(array.ctypes.data)


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver({"add": add, "double": double})


@pytest.fixture
def chain(driver: FakeDriver) -> Any:
    chains = CudaSequenceLauncher(find_target("cuda:sm_90"), 0, driver)
    return chains.load(PLAN, KERNELS, (b"one", b"two"))


def fixed_buffers(memory: Memory, *held: float) -> tuple[int, ...]:
    return memory.new(), memory.new(), memory.new(*held)


def test_only_nodes_that_touch_what_moved_are_set(chain: Any, driver: FakeDriver) -> None:
    memory = Memory()
    ours = fixed_buffers(memory, 1, 2, 3, 4)
    x, y, copy = memory.new(1, 1, 1, 1), memory.new(), memory.new()
    for _ in range(3):
        chain.launch(ours, (x, y, copy), 7)
    assert driver.calls["cuGraphInstantiate"] == 1 and driver.calls["cuGraphLaunch"] == 3
    assert "cuGraphExecKernelNodeSetParams" not in driver.calls
    assert floats(y).tolist() == [4, 6, 8, 10] and floats(copy).tolist() == [2, 3, 4, 5]
    other = memory.new()
    chain.launch(ours, (x, other, copy), 7)
    assert driver.calls["cuGraphExecKernelNodeSetParams"] == 1 and "cuGraphExecMemcpyNodeSetParams" not in driver.calls
    assert floats(other).tolist() == [4, 6, 8, 10]
    last = memory.new()
    chain.launch((*ours[:2], memory.new(0, 0, 0, 1)), (memory.new(5, 5, 5, 5), other, last), 7)
    assert driver.calls["cuGraphExecKernelNodeSetParams"] == 2 and driver.calls["cuGraphExecMemcpyNodeSetParams"] == 1
    assert floats(other).tolist() == [10, 10, 10, 12] and floats(last).tolist() == [5, 5, 5, 6]
    assert not driver.contexts, "what was current is current again"


def test_branches_run_between_first_and_last_copies(
    driver: FakeDriver,
) -> None:
    """Two independent sums, and twice the second of them.

    A launch without nodes passes its dependencies on.
    """
    first = KernelCall(0, ((BlockAddress(2), BlockAddress(1), BlockAddress(3)),))
    second = KernelCall(0, ((BlockAddress(1), BlockAddress(1), BlockAddress(1, 16)),))
    plan = evolve(
        PLAN,
        calls=(first, second, KernelCall(2, ((),)), KernelCall(1, ((BlockAddress(1, 16), BlockAddress(4)),))),
        order=((0, 0), (1, 0), (2, 0), (3, 0)),
        before=(Copy(BlockAddress(3), BlockAddress(1), 16),),
        waits=((), (), (1,), (2,)),
    )
    nothing = KernelFunction("nothing", "cuda", "", (0, 1, 1), (1, 1, 1), ())
    driver.fronts = []
    chains = CudaSequenceLauncher(find_target("cuda:sm_90"), 0, driver)
    memory, made = Memory(), chains.load(plan, (*KERNELS, nothing), (b"one", b"two", b"none"))
    x, y, copy = memory.new(1, 1, 1, 1), memory.new(), memory.new()
    made.launch(fixed_buffers(memory, 1, 2, 3, 4), (x, y, copy), 7)
    assert driver.fronts == [[], [0], [0], [2], [1, 3]]
    assert floats(x).tolist() == [2, 3, 4, 5] and floats(y).tolist() == [4] * 4 and floats(copy).tolist() == [2] * 4


def test_recorded_launch_uses_the_given_memory(chain: Any, driver: FakeDriver) -> None:
    memory = Memory()
    ours, x, y, copy = fixed_buffers(memory, 1, 2, 3, 4), memory.new(1, 1, 1, 1), memory.new(), memory.new()
    chain.launch(ours, (x, y, copy), 0)
    scratch, external = memory.new(), memory.new()
    chain.launch_captured((ours[0], scratch, ours[2]), (memory.new(2, 2, 2, 2), external, copy), 9)
    assert driver.calls["cuGraphLaunch"] == 1 and driver.calls["cuLaunchKernel"] == 2
    assert floats(external).tolist() == [6, 8, 10, 12] and floats(scratch + 16).tolist() == [3, 4, 5, 6]
    chain.launch(ours, (x, y, copy), 0)
    assert "cuGraphExecKernelNodeSetParams" not in driver.calls, "the recording was not touched"
    assert floats(y).tolist() == [4, 6, 8, 10]


class RecordingDriver(FakeDriver):
    """Driver whose stream 9 records a graph, whose last node is `front`.

    `early` has the edges with properties.
    """

    CUgraphDependencyType = SimpleNamespace(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC=1)

    CUDA_VERSION = 13000
    CUgraphEdgeData = SimpleNamespace
    CUstreamUpdateCaptureDependencies_flags = SimpleNamespace(CU_STREAM_SET_CAPTURE_DEPENDENCIES=1)

    def __init__(self) -> None:
        super().__init__({"add": add, "double": double})
        self.recorded: list[Any] = [lambda: None]
        self.front: list[int] = [0]
        self.early: list[tuple[int, int]] = []

    def _cuStreamGetCaptureInfo(self, stream: int) -> tuple[Any, ...]:
        if stream != 9:
            return 0, 0, 0, None, [], [], 0
        return 0, 1, 5, self.recorded, self.front, [], len(self.front)

    def _cuGraphAddDependencies(self, graph: Any, before: Any, after: Any, data: Any, count: int) -> tuple[int]:
        self.early += [(a, b) for a, b in zip(before, after, strict=True)]
        return (0,)

    def _cuStreamUpdateCaptureDependencies(
        self, stream: int, nodes: list[int], edges: list[Any], count: int, flags: int
    ) -> tuple[int]:
        assert (stream, count, flags) == (9, len(nodes), 1)
        self.front = nodes
        return (0,)


def test_recorded_launches_have_the_edges_of_a_graph() -> None:
    """The first one follows the nodes of the graph's owner."""
    driver, memory = RecordingDriver(), Memory()
    chain = CudaSequenceLauncher(find_target("cuda:sm_90"), 0, driver).load(PLAN, KERNELS, (b"one", b"two"))
    ours, x, y, copy = fixed_buffers(memory, 1, 2, 3, 4), memory.new(1, 1, 1, 1), memory.new(), memory.new()
    chain.launch(ours, (x, y, copy), 7)
    external = memory.new()
    chain.launch_captured((ours[0], memory.new(), ours[2]), (memory.new(2, 2, 2, 2), external, copy), 9)
    assert driver.front == [3] and "cuLaunchKernel" not in driver.calls
    assert driver.early == []
    driver._cuGraphLaunch(driver.recorded, 9)
    assert floats(external).tolist() == [6, 8, 10, 12]
    chain.launch(ours, (x, external, copy), 7)
    assert driver.calls["cuGraphExecKernelNodeSetParams"] == 1, "the own graph has its own nodes"
    assert floats(external).tolist() == [4, 6, 8, 10]


def test_streams_without_a_recording_launch_kernels() -> None:
    driver, memory = RecordingDriver(), Memory()
    chain = CudaSequenceLauncher(find_target("cuda:sm_90"), 0, driver).load(PLAN, KERNELS, (b"one", b"two"))
    ours, x, y, copy = fixed_buffers(memory, 1, 2, 3, 4), memory.new(1, 1, 1, 1), memory.new(), memory.new()
    chain.launch(ours, (x, y, copy), 7)
    chain.launch_captured(ours, (memory.new(2, 2, 2, 2), y, copy), 8)
    assert driver.calls["cuLaunchKernel"] == 2 and driver.front == [0]
    assert floats(y).tolist() == [6, 8, 10, 12]


def test_too_long_sequence_launches_in_order(chain: Any, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "MAX_RECORDED_LAUNCHES", 1)
    memory = Memory()
    ours, x, y, copy = fixed_buffers(memory, 1, 2, 3, 4), memory.new(1, 1, 1, 1), memory.new(), memory.new()
    for stream in (7, 7, 8):
        chain.launch(ours, (x, y, copy), stream)
    assert floats(y).tolist() == [4, 6, 8, 10]
    assert driver.calls["cuStreamWaitEvent"] == 1, "another stream waits for the one before"
    assert "cuGraphLaunch" not in driver.calls


def test_modules_of_dropped_chains_are_unloaded(driver: FakeDriver) -> None:
    chains, memory = CudaSequenceLauncher(find_target("cuda:sm_90"), 0, driver), Memory()
    made = chains.load(PLAN, KERNELS, (b"one", b"two"))
    made.launch(fixed_buffers(memory, 1, 2, 3, 4), (memory.new(1, 1, 1, 1), memory.new(), memory.new()), 7)
    chains.settle()
    assert "cuModuleUnload" not in driver.calls
    del made
    assert driver.calls["cuGraphExecDestroy"] == 1
    assert "cuModuleUnload" not in driver.calls, "kernels may still run"
    for _ in range(2):
        CudaSequenceLauncher(find_target("cuda:sm_90"), 0, driver).settle()
    assert driver.calls["cuModuleUnload"] == 2 and not driver.contexts


@pytest.mark.parametrize("call", ["cuGraphLaunch", "cuGraphInstantiate", "cuModuleLoadData"])
def test_driver_error_becomes_one_of_ours(driver: FakeDriver, call: str) -> None:
    memory = Memory()
    driver.fails.add(call)

    def run() -> None:
        chain = CudaSequenceLauncher(find_target("cuda:sm_90"), 0, driver).load(PLAN, KERNELS, (b"one", b"two"))
        chain.launch(fixed_buffers(memory, 1, 2, 3, 4), (memory.new(), memory.new(), memory.new()), 0)

    with pytest.raises(BackendError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        run()
    assert not driver.contexts
