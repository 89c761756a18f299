"""The CUDA device against a driver of NumPy memory.

The calls that PyCUDA gets.
"""

from __future__ import annotations

from threading import get_ident
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.compilers import Cubin
from cuts.backends.compilers import cubins as cuda_compile
from cuts.backends.cuda import device as cuda
from cuts.backends.cuda import driver as cuda_driver
from cuts.backends.cuda import query as cuda_device
from cuts.backends.cuda.pycuda_driver import PycudaDriver
from cuts.backends.devices import find_target
from cuts.ir.errors import BackendError, CutsError
from cuts.runtime.session import Session
from cuts.tests.runtime.handmade import COLUMNS, ROWS, example_plan, expected_outputs, random_x

ADDRESS = 0x7F00_0000_0000
ATTRIBUTES = {"MULTIPROCESSOR_COUNT": 100, "CLOCK_RATE": 2_000_000, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448}


class Memory:
    """Device memory as one NumPy array from `ADDRESS` on.

    It keeps a log of requests.
    """

    def __init__(self) -> None:
        self.bytes = np.full(1 << 20, 0xAB, np.uint8)
        self.used = 0
        self.log: list[str] = []

    def allocate(self, nbytes: int) -> int:
        start = self.used
        self.used += -(-nbytes // 256) * 256
        return ADDRESS + start

    def at(self, address: int, count: int) -> np.ndarray[Any, Any]:
        return self.bytes[address - ADDRESS :][: 4 * count].view(np.float32)


class Function:
    """Kernel of the hand-made example, computed by NumPy.

    It has the calls of PyCUDA's functions.
    """

    def __init__(self, memory: Memory, name: str) -> None:
        self.memory, self.name, self.format = memory, name, ""

    def prepare(self, types: str) -> None:
        self.format = types

    def set_attribute(self, attribute: str, value: int) -> None:
        self.memory.log.append(f"{attribute} = {value}")

    def prepared_async_call(self, grid: Any, block: Any, stream: Any, *addresses: int, shared_size: int = 0) -> None:
        assert (grid, block, stream.handle) == ((ROWS, 1, 1), (COLUMNS, 1, 1), 77)
        assert len(self.format) == len(addresses)
        self.memory.log.append(f"{self.name} shared {shared_size}")
        size = ROWS * COLUMNS
        if self.name == "k_add":
            a, b, c = addresses
            self.memory.at(c, size)[:] = self.memory.at(a, size) + self.memory.at(b, size) * 3
        else:
            a, c = addresses
            rows = np.lib.stride_tricks.as_strided(self.memory.at(c, 2 * size), (ROWS, COLUMNS), (8 * COLUMNS, 4))
            rows[...] = 2 * self.memory.at(a, size).reshape(ROWS, COLUMNS)


class Event:
    """Events that tick every millisecond.

    The device reaches them once all work is launched.
    """

    now = 0.0

    def record(self, stream: Any) -> None:
        Event.now += 1.0
        self.at = Event.now

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        pass

    def time_till(self, other: Event) -> float:
        return other.at - self.at


class DriverError(Exception):
    """Error that PyCUDA raises."""


DEVICE_FACTS = {"name": "Fake GPU"}


def fake_driver(memory: Memory) -> Any:
    """Return the part of `pycuda.driver` that we call."""
    device = SimpleNamespace(
        name=lambda: DEVICE_FACTS["name"],
        compute_capability=lambda: (9, 0),
        get_attribute=ATTRIBUTES.__getitem__,
    )

    def fill(address: int, value: int, count: int) -> None:
        memory.bytes[address - ADDRESS :][:count] = value

    def to_device(address: int, source: np.ndarray[Any, Any]) -> None:
        memory.bytes[address - ADDRESS :][: source.nbytes] = source.reshape(-1).view(np.uint8)

    def to_host(target: np.ndarray[Any, Any], address: int) -> None:
        target.reshape(-1).view(np.uint8)[:] = memory.bytes[address - ADDRESS :][: target.nbytes]

    def copy_on_device(target: int, source: int, count: int, stream: Any) -> None:
        memory.log.append("copy on the device")
        memory.bytes[target - ADDRESS :][:count] = memory.bytes[source - ADDRESS :][:count]

    return SimpleNamespace(
        Error=DriverError,
        Event=Event,
        Stream=lambda: SimpleNamespace(handle=77, synchronize=lambda: None),
        Context=SimpleNamespace(get_device=lambda: device, synchronize=lambda: memory.log.append("wait for all")),
        device_attribute=SimpleNamespace(**{name: name for name in ATTRIBUTES}),
        function_attribute=SimpleNamespace(MAX_DYNAMIC_SHARED_SIZE_BYTES="dynamic shared"),
        mem_alloc=memory.allocate,
        memset_d8=fill,
        memset_d32_async=lambda *_: memory.log.append("flush"),
        memcpy_htod=to_device,
        memcpy_dtoh=to_host,
        memcpy_dtod_async=copy_on_device,
        mem_get_info=lambda: (1, 2),
        get_driver_version=lambda: 13000,
        module_from_buffer=lambda code: SimpleNamespace(get_function=lambda name: Function(memory, name)),
    )


def make_pycuda_driver(calls: Any) -> PycudaDriver:
    """Return PyCUDA's driver with its context current in this thread."""
    driver = PycudaDriver(calls)
    driver._context, driver._device, driver._home = None, calls.Context.get_device(), get_ident()
    return driver


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """Install a fake GPU's memory, without PyCUDA and compilers."""
    memory = Memory()
    driver = make_pycuda_driver(fake_driver(memory))
    for module in (cuda, cuda_device, cuda_driver):
        monkeypatch.setattr(module, "driver", lambda: driver)
    monkeypatch.setattr(cuda_compile, "compile_kernels", lambda kernels, arch: tuple(Cubin(b"code") for _ in kernels))
    return memory


def test_a_plan_runs(memory: Memory) -> None:
    session = Session(example_plan("cuda"))
    x = random_x()
    found = session.run({"x": x})
    for name, want in expected_outputs(x).items():
        np.testing.assert_allclose(found[name], want, rtol=1e-6)
    assert memory.log == ["k_add shared 0", "k_double shared 0", "k_double shared 0"]


@pytest.mark.parametrize("offset", [0, 4])
def test_device_arrays_are_copied_on_the_device(memory: Memory, offset: int) -> None:
    """Kernels see memory of the plan alone.

    A caller's tensor may therefore lie anywhere, also between two vectors.
    """
    session = Session(example_plan("cuda"))
    x = random_x()
    address = memory.allocate(x.nbytes + offset) + offset
    memory.at(address, x.size)[:] = x.reshape(-1)
    interface = {
        "shape": x.shape,
        "typestr": "<f4",
        "data": (address, True),
        "strides": None,
        "stream": 1,
        "version": 3,
    }
    out = session.run({"x": SimpleNamespace(__cuda_array_interface__=interface)}, on_device=True)["y"]
    assert memory.log[:2] == ["wait for all", "copy on the device"]
    described = out.__cuda_array_interface__
    np.testing.assert_allclose(
        memory.at(described["data"][0], 2 * x.size).reshape(ROWS, -1), expected_outputs(x)["y"], rtol=1e-6
    )


def test_outputs_on_the_device_are_their_holders(memory: Memory) -> None:
    session = Session(example_plan("cuda"))
    first = session.run({"x": random_x(1)}, on_device=True)
    address = first["y"].pointer.buffer.handle
    second = session.run({"x": random_x(2)}, on_device=True)
    for found, seed in ((first, 1), (second, 2)):
        start = found["y"].__cuda_array_interface__["data"][0]
        want = expected_outputs(random_x(seed))["y"]
        np.testing.assert_allclose(memory.at(start, want.size).reshape(want.shape), want, rtol=1e-6)
    del first, found
    memory.log.clear()
    third = session.run({"x": random_x(3)}, on_device=True)
    assert third["y"].pointer.buffer.handle == address
    assert "wait for all" in memory.log


def test_another_thread_enters_the_context(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(example_plan("cuda"))
    log: list[str] = []
    context = SimpleNamespace(push=lambda: log.append("push"), pop=lambda: log.append("pop"))
    driver = session.device._driver  # type: ignore[attr-defined]
    monkeypatch.setattr(driver, "_context", context)
    monkeypatch.setattr(driver, "_home", get_ident() + 1)
    session.run({"x": random_x()})
    assert log[0] == "push"
    assert log.count("push") == log.count("pop")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"strides": (4, 16)}, "expected a dense array"),
        ({"shape": (8, 4)}, "expected f32"),
        ({"typestr": "<f8"}, "expected f32"),
    ],
)
def test_wrong_device_arrays_are_named(memory: Memory, change: dict[str, Any], error: str) -> None:
    session = Session(example_plan("cuda"))
    interface = {"shape": (ROWS, COLUMNS), "typestr": "<f4", "data": (ADDRESS, True), "version": 3, **change}
    with pytest.raises(CutsError, match=error):
        session.run({"x": SimpleNamespace(__cuda_array_interface__=interface)})


def test_large_shared_memory_is_asked_for(memory: Memory) -> None:
    plan = example_plan("cuda")
    large = tuple(evolve(kernel, dynamic_shared=100_000) for kernel in plan.kernels)
    Session(evolve(plan, kernels=large)).launch()
    assert memory.log == ["dynamic shared = 100000"] * 2 + [
        "k_add shared 100000",
        "k_double shared 100000",
        "k_double shared 100000",
    ]


def test_plan_with_too_much_shared_memory_is_refused(memory: Memory) -> None:
    plan = example_plan("cuda")
    large = tuple(evolve(kernel, dynamic_shared=300_000) for kernel in plan.kernels)
    with pytest.raises(BackendError, match=r"needs 300,000 bytes of shared memory a block; Fake GPU has 232,448"):
        Session(evolve(plan, kernels=large))


def test_given_cubins_are_loaded_and_not_compiled(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def compile_all(kernels: Any, arch: str) -> tuple[Cubin, ...]:
        asked.append(len(kernels))
        return tuple(Cubin(b"code") for _ in kernels)

    monkeypatch.setattr(cuda_compile, "compile_kernels", compile_all)
    Session(evolve(example_plan("cuda"), binaries=(b"code", None)))
    assert asked == [1]


def test_times_come_from_events(memory: Memory) -> None:
    session = Session(example_plan("cuda"))
    timing = session.device.time(lambda: None, warmup=1, repeats=4, cold=True)
    assert timing.samples == pytest.approx((1e-3,) * 4)
    assert memory.log == ["flush"] * 4


def test_launches_are_timed_between_events_on_busy_device(memory: Memory) -> None:
    session = Session(example_plan("cuda"))
    done: list[int] = []
    runs = [lambda n=n: done.append(n) for n in range(3)]
    times = session.device.time_each(runs, warmup=1, repeats=2)
    assert [t.samples for t in times] == [pytest.approx((1e-3,) * 2)] * 3
    assert done == [0, 1, 2] * 3
    assert memory.log == ["flush"] * 6


def test_a_failing_kernel_says_what_to_do(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(example_plan("cuda"))

    def fail() -> None:
        raise DriverError("an illegal memory access was encountered")

    with pytest.raises(BackendError, match=r"a kernel failed on Fake GPU: an illegal.*start a new process"):
        session.device._check_device(fail)  # type: ignore[attr-defined]


@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_89", "sm_100", "sm_91"])
def test_plans_for_other_architectures_are_refused(memory: Memory, arch: str) -> None:
    plan = example_plan("cuda")
    with pytest.raises(BackendError, match=f"the plan is for {arch}, this machine's Fake GPU is sm_90"):
        Session(evolve(plan, target=evolve(plan.target, arch=arch)))


def test_the_device_is_described_by_what_it_reports(memory: Memory) -> None:
    cuda_device.query_target.cache_clear()
    target = find_target("cuda:device")
    cuda_device.query_target.cache_clear()
    assert (target.name, target.arch, target.NUM_SM, target.clock) == ("Fake GPU", "sm_90", 100, 2e9)
    assert target.PERF_peak == 100 * 128 * 2 * 2e9
    assert target.MAX_shared == find_target("cuda:h200").MAX_shared


@pytest.mark.parametrize(
    ("name", "sms", "bandwidth"),
    [("NVIDIA H200", 132, 8.5e12), ("NVIDIA H100 80GB HBM3", 132, 8.5e12), ("Fake GPU", 100, 64 * 100 * 2e9)],
)
def test_measured_cache_describes_the_device(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, name: str, sms: int, bandwidth: float
) -> None:
    monkeypatch.setitem(DEVICE_FACTS, "name", name)
    monkeypatch.setitem(ATTRIBUTES, "MULTIPROCESSOR_COUNT", sms)
    cuda_device.query_target.cache_clear()
    target = find_target("cuda:device")
    cuda_device.query_target.cache_clear()
    assert (target.name, target.l2_bandwidth) == (name, bandwidth)
