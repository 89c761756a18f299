"""Plans run through NVIDIA's bindings as they do through PyCUDA.

The driver is in Python here.
"""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuts.backends.compilers import Cubin
from cuts.backends.compilers import cubins as cuda_compile
from cuts.backends.cuda import driver as cuda_driver
from cuts.backends.cuda import query
from cuts.backends.cuda.bindings import BindingsDriver
from cuts.backends.cuda.transfers import CudaTransfers
from cuts.backends.device import Pointer
from cuts.backends.devices import find_target, open_device
from cuts.backends.native import library
from cuts.ir.errors import BackendError
from cuts.runtime.session import Session
from cuts.tests.needs import needs_c_compiler
from cuts.tests.runtime.handmade import COLUMNS, ROWS, example_plan, expected_outputs, random_x

from .fake_bindings import OTHER, FakeBindings
from .fake_driver import FakeDriver

pytestmark = needs_c_compiler()
SIZE = ROWS * COLUMNS
ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 100,
    "CLOCK_RATE": 2_000_000,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
}


def floats(address: int, count: int) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


def add(a: int, b: int, c: int) -> None:
    floats(c, SIZE)[:] = floats(a, SIZE) + floats(b, SIZE) * 3


def double(a: int, c: int) -> None:
    rows = np.lib.stride_tricks.as_strided(floats(c, 2 * SIZE), (ROWS, COLUMNS), (8 * COLUMNS, 4))
    rows[...] = 2 * floats(a, SIZE).reshape(ROWS, COLUMNS)


KERNELS: Mapping[str, Callable[..., None]] = {"k_add": add, "k_double": double}
CACHED_FUNCTIONS = (cuda_driver.driver, query.query_target)


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """Install a driver in Python as the bindings, where PyCUDA is missing."""
    fake = FakeDriver(KERNELS, ATTRIBUTES)
    found = BindingsDriver(fake)
    monkeypatch.setattr(cuda_driver, "import_driver", lambda: found)
    monkeypatch.setattr(cuda_compile, "compile_kernels", lambda kernels, arch: tuple(Cubin(b"code") for _ in kernels))
    for each in CACHED_FUNCTIONS:
        each.cache_clear()
    yield fake
    gc.collect()
    for each in CACHED_FUNCTIONS:
        each.cache_clear()


def missing(name: str) -> Any:
    """Import nothing."""
    raise ImportError(f"No module named '{name}'")


def run(session: Session, seed: int) -> None:
    x = random_x(seed)
    for name, want in expected_outputs(x).items():
        rounding = 2.0**-22 * float(np.abs(want).max())  # two roundings of terms that may cancel
        np.testing.assert_allclose(session.run({"x": x})[name], want, rtol=0, atol=rounding)


def test_sessions_without_the_library_launch_kernel_by_kernel(
    bindings: FakeDriver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "library_origin", lambda: None)
    monkeypatch.setattr("cuts.backends.cuda.device.has_native_library", library.has_native_library.__wrapped__)
    run(Session(example_plan("cuda")), 1)
    assert "launched kernel by kernel" in caplog.text
    assert bindings.calls["cuLaunchKernel"] == 6 and not bindings.cuda.lines("graph")


def test_a_plan_runs_in_any_thread(bindings: FakeDriver) -> None:
    session = Session(example_plan("cuda"))
    run(session, 0)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda seed: run(session, seed), range(9)))
    assert len(bindings.cuda.lines("graph")) == 1 and len(bindings.cuda.lines("run on")) == 20, "two cases a run"


def test_what_is_gone_is_freed(bindings: FakeBindings) -> None:
    device = open_device(find_target("cuda:sm_90"))
    gc.collect()
    before = set(bindings.live)
    buffer, pinned = device.allocate(100), CudaTransfers().allocate_pinned(64)
    assert len(set(bindings.live) - before) == 2
    view = pinned[3:7]
    del buffer, pinned
    gc.collect()
    assert len(set(bindings.live) - before) == 1, "an array keeps the memory that it is a view of"
    del view
    gc.collect()
    assert set(bindings.live) == before


def test_new_memory_is_zero_and_overflow_an_error(bindings: FakeBindings) -> None:
    device = open_device(find_target("cuda:sm_90"))
    found = np.ones(100, np.uint8)
    device.download(found, Pointer(device.allocate(100)))
    assert not found.any()
    with pytest.raises(BackendError, match=r"cannot allocate 4,194,304 bytes on Fake GPU: CUDA_ERROR_OUT_OF_MEMORY"):
        device.allocate(1 << 22)


def test_transfers_of_other_threads_use_their_own_streams(bindings: FakeBindings) -> None:
    device, transfers = open_device(find_target("cuda:sm_90")), CudaTransfers()
    place = Pointer(device.allocate(64), 16)
    source, back = transfers.allocate_pinned(16), transfers.allocate_pinned(16)

    def there_and_back(value: int) -> bool:
        source[:] = value
        transfers.upload(place, source)
        transfers.download(back, place)
        return bool((back == value).all())

    with ThreadPoolExecutor(1) as pool:
        assert all(pool.map(there_and_back, range(5)))
        assert list(bindings.live.values()).count("stream 1") == 1, "one thread, one stream"


def test_times_come_from_events(bindings: FakeBindings) -> None:
    timing = open_device(find_target("cuda:sm_90")).time(lambda: None, warmup=0, repeats=3)
    assert timing.samples == (0.25e-3,) * 3


def test_event_reports_whether_device_has_reached_it(bindings: FakeBindings) -> None:
    open_device(find_target("cuda:sm_90"))
    driver = cuda_driver.driver()
    event = driver.event()
    event.record(driver.stream())
    assert event.query()
    bindings.busy = True
    assert not event.query()
    bindings.faulty = True
    with pytest.raises(driver.Error, match="CUDA_ERROR_OUT_OF_MEMORY"):
        event.query()


def test_the_device_says_what_it_is(bindings: FakeBindings) -> None:
    target = find_target("cuda:device")
    assert (target.name, target.arch, target.NUM_SM, target.MAX_shared) == ("Fake GPU", "sm_90", 100, 232448)
    described = open_device(target).describe()
    assert (described["memory_bytes"], described["memory_free"], described["driver"]) == (1 << 20, 1 << 19, 13000)


def test_missing_packages_are_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (*CACHED_FUNCTIONS, cuda_driver.import_driver):
        each.cache_clear()
    monkeypatch.setattr(cuda_driver, "BindingsDriver", lambda: missing("cuda"))
    monkeypatch.setattr(cuda_driver, "PycudaDriver", lambda: missing("pycuda"))
    with pytest.raises(BackendError, match="neither package is installed") as caught:
        cuda_driver.driver()
    assert caught.value.hint == "pip install 'cuts-compiler[cuda]'"
    cuda_driver.import_driver.cache_clear()


def test_the_bindings_have_what_is_asked_for() -> None:
    cu = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    driver = BindingsDriver(cu)
    texts = [path.read_text() for path in Path(query.__file__).parent.glob("*.py")]
    attributes = {name for text in texts for name in re.findall(r'ask\("(\w+)"|\battribute\("(\w+)"', text)}
    names = {name for pair in attributes for name in pair if name} | {"COMPUTE_CAPABILITY_MAJOR"}
    assert "WARP_SIZE" in names
    for name in names:
        assert getattr(driver.cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}") is not None
    assert driver.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES is not None
    calls = {name for text in texts for name in re.findall(r"\bcu\.(cu[A-Z]\w+)", text)}
    assert len(calls) > 25
    assert not [name for name in calls if not hasattr(cu, name)]


def test_captured_launches_are_replayed(bindings: FakeDriver) -> None:
    device = open_device(find_target("cuda:sm_90"))
    plan = example_plan("cuda")
    (loaded,) = device.build(plan.kernels[:1])
    places = [Pointer(device.allocate(4 * SIZE)) for _ in range(3)]
    device.upload(places[0], np.ones(SIZE, np.float32))
    replay = device.capture(device.bind(loaded, plan.kernels[0], places))
    found = np.ones(SIZE, np.float32)
    device.download(found, places[2])
    assert not found.any()
    replay()
    device.download(found, places[2])
    assert (found == 1).all()


def test_another_current_context_stays_so(bindings: FakeBindings) -> None:
    """The current context is that of PyTorch's current device."""
    bindings.contexts.append(OTHER)
    plan = example_plan("cuda")
    session = Session(plan)
    run(session, 1)
    device = open_device(find_target("cuda"))
    assert device.time(lambda: bindings.log.append(f"in {bindings.contexts[-1]}"), warmup=0, repeats=1).samples
    assert bindings.log[-1] == "in 16"
    assert bindings.contexts == [OTHER]
