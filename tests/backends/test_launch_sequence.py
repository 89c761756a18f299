"""Launch sequences.

Launches over external buffers, on a driver in Python and on OpenCL.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.backends import BlockAddress, Copy, KernelCall, SequencePlan, find_target
from cuts.backends.cuda import CudaSequenceLauncher
from cuts.backends.cuda.bindings import BindingsDriver, ModuleFunction
from cuts.backends.cuda.launch_graph import CudaLaunchSequence
from cuts.backends.library import Routine
from cuts.ir import BackendError
from cuts.ir.compiled import Argument, KernelFunction
from cuts.ir.types import DType
from cuts.tests.backends.fake_driver import FakeDriver
from cuts.tests.needs import needs_c_compiler

pytestmark = needs_c_compiler()
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
    assert len(driver.cuda.lines("graph")) == 1 and driver.cuda.lines("run on") == ["run on 0x7"] * 3
    assert driver.cuda.update_count == 0
    assert floats(y).tolist() == [4, 6, 8, 10] and floats(copy).tolist() == [2, 3, 4, 5]
    other = memory.new()
    chain.launch(ours, (x, other, copy), 7)
    assert driver.cuda.update_count == 1
    assert floats(other).tolist() == [4, 6, 8, 10]
    last = memory.new()
    chain.launch((*ours[:2], memory.new(0, 0, 0, 1)), (memory.new(5, 5, 5, 5), other, last), 7)
    assert driver.cuda.update_count == 3, "one kernel and the copy"
    assert floats(other).tolist() == [10, 10, 10, 12] and floats(last).tolist() == [5, 5, 5, 6]


def test_untouched_blocks_may_be_anywhere(driver: FakeDriver) -> None:
    chains, memory = CudaSequenceLauncher(find_target("cuda:sm_90"), 0, driver), Memory()
    made = chains.load(evolve(PLAN, after=()), KERNELS, (b"one", b"two"))
    y = memory.new()
    made.launch(fixed_buffers(memory, 1, 2, 3, 4), (memory.new(1, 1, 1, 1), y, 3), 7)
    assert floats(y).tolist() == [4, 6, 8, 10]


def test_branches_run_between_first_and_last_copies(
    driver: FakeDriver,
) -> None:
    """Two independent sums, and twice the second of them.

    A launch without blocks passes its dependencies on.
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
    driver.functions["nothing"] = driver.cuda.define("nothing", lambda: None, 0)
    chains = CudaSequenceLauncher(find_target("cuda:sm_90"), 0, driver)
    memory, made = Memory(), chains.load(plan, (*KERNELS, nothing), (b"one", b"two", b"none"))
    x, y, copy = memory.new(1, 1, 1, 1), memory.new(), memory.new()
    made.launch(fixed_buffers(memory, 1, 2, 3, 4), (x, y, copy), 7)
    assert driver.cuda.lines("edge") == [
        "edge C add 0", "edge C add 0", "edge add E 0", "edge E double 0", "edge add C 0", "edge double C 0"
    ]  # fmt: skip
    assert floats(x).tolist() == [2, 3, 4, 5] and floats(y).tolist() == [4] * 4 and floats(copy).tolist() == [2] * 4


def test_recorded_launches_have_the_edges_of_a_graph(driver: FakeDriver) -> None:
    """The first one follows the owner's nodes without an early edge."""
    names = {"add": "add_waits", "double": "double_waits"}
    for name, waiting in names.items():
        driver.functions[waiting] = driver.functions[name]
    kernels = tuple(evolve(each, name=names[each.name]) for each in KERNELS)
    chain = CudaSequenceLauncher(find_target("cuda:sm_90"), 0, driver).load(PLAN, kernels, (b"one", b"two"))
    memory = Memory()
    ours, x, y, copy = fixed_buffers(memory, 1, 2, 3, 4), memory.new(1, 1, 1, 1), memory.new(), memory.new()
    chain.launch(ours, (x, y, copy), 7)
    own, external = driver.cuda.edges(), memory.new()
    assert own == {("add", "double"): True, ("double", "C"): False}
    driver.cuda.library.fake_begin(9)
    chain.launch((ours[0], memory.new(), ours[2]), (memory.new(2, 2, 2, 2), external, copy), 9)
    assert np.isnan(floats(external)).all() and len(driver.cuda.lines("run on")) == 1
    assert driver.cuda.library.fake_end() == 1, "one node is left to follow"
    assert driver.cuda.edges() == own | {("E", "add"): False}
    assert floats(external).tolist() == [6, 8, 10, 12]
    chain.launch(ours, (x, external, copy), 7)
    assert len(driver.cuda.lines("graph")) == 1, "the own graph has its own nodes"
    assert floats(external).tolist() == [4, 6, 8, 10]


def test_old_drivers_record_launch_by_launch() -> None:
    driver, memory = FakeDriver({"add": add, "double": double}, old=True), Memory()
    chain = CudaSequenceLauncher(find_target("cuda:sm_90"), 0, driver).load(PLAN, KERNELS, (b"one", b"two"))
    y = memory.new()
    driver.cuda.library.fake_begin(9)
    chain.launch(fixed_buffers(memory, 1, 2, 3, 4), (memory.new(1, 1, 1, 1), y, memory.new()), 9)
    driver.cuda.library.fake_end()
    assert floats(y).tolist() == [4, 6, 8, 10] and driver.cuda.lines("graph") == []


def test_modules_of_dropped_chains_are_unloaded(driver: FakeDriver) -> None:
    chains, memory = CudaSequenceLauncher(find_target("cuda:sm_90"), 0, driver), Memory()
    made = chains.load(PLAN, KERNELS, (b"one", b"two"))
    made.launch(fixed_buffers(memory, 1, 2, 3, 4), (memory.new(1, 1, 1, 1), memory.new(), memory.new()), 7)
    chains.settle()
    assert "cuModuleUnload" not in driver.calls
    driver.cuda.set(failing="cuCtxSynchronize")  # a stream may be recorded: nothing waits
    del made
    assert driver.cuda.live == 0
    assert "cuModuleUnload" not in driver.calls, "kernels may still run"
    for _ in range(2):
        CudaSequenceLauncher(find_target("cuda:sm_90"), 0, driver).settle()
    assert driver.calls["cuModuleUnload"] == 2 and not driver.contexts


@pytest.mark.parametrize("call", ["cuGraphLaunch", "cuGraphInstantiateWithFlags", "cuModuleLoadData"])
def test_driver_error_becomes_one_of_ours(driver: FakeDriver, call: str) -> None:
    memory = Memory()
    driver.fails.add(call)
    driver.cuda.set(failing=call)

    def run() -> None:
        chain = CudaSequenceLauncher(find_target("cuda:sm_90"), 0, driver).load(PLAN, KERNELS, (b"one", b"two"))
        chain.launch(fixed_buffers(memory, 1, 2, 3, 4), (memory.new(), memory.new(), memory.new()), 0)

    with pytest.raises(BackendError, match="CUDA_ERROR_"):
        run()
    assert not driver.contexts


class FakeRoutine(Routine):
    """Call of a library that adds 1 to a tensor."""

    def __init__(self, cuda: Any) -> None:
        self.cuda, self.bound = cuda, list[int]()
        self.function = cuda.define("increment", lambda a: floats(a).__iadd__(1), 1)
        self.library = SimpleNamespace(name="cublas")

    def bind(self, device: Any, kernel: Any, pointers: Sequence[Any]) -> Any:
        self.bound.append(pointers[0].address)
        return lambda: None


def test_routines_are_recorded_again_where_tensors_move(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library adds 1 between the two kernels."""
    routine, device = FakeRoutine(driver.cuda), SimpleNamespace(stream_handle=7)
    device.current, device.synchronize = nullcontext, lambda: None
    address = lambda: routine.bound[-1]  # noqa: E731
    monkeypatch.setattr(
        BindingsDriver,
        "capture",
        lambda *_: driver.cuda.library.fake_graph_of(ctypes.c_void_p(routine.function), ctypes.c_uint64(address())),
    )
    plan = evolve(
        PLAN,
        calls=(*PLAN.calls, KernelCall(2, ((BlockAddress(1, 16),),), evict_first=(0, 16))),
        order=((0, 0), (2, 0), (1, 0)),
    )
    bindings = BindingsDriver(driver)
    bindings.retain(0)
    loaded = [*(ModuleFunction(driver.functions[each.name], None) for each in KERNELS), routine]
    chain = CudaLaunchSequence(bindings, "sm_90", plan, (*KERNELS, kernel("routine", "w")), loaded, lambda: device)
    memory = Memory()
    ours, x, y, copy = fixed_buffers(memory, 1, 2, 3, 4), memory.new(1, 1, 1, 1), memory.new(), memory.new()
    for _ in range(2):
        chain.launch(ours, (x, y, copy), 7)
        assert floats(y).tolist() == [6, 8, 10, 12]
    chain.launch((ours[0], memory.new(), ours[2]), (x, y, copy), 7)
    assert floats(y).tolist() == [6, 8, 10, 12] and len(routine.bound) == 2
    driver.recorded.add(9)
    with pytest.raises(BackendError, match="the plan calls cublas, which cannot be recorded"):
        chain.launch(ours, (x, y, copy), 9)
