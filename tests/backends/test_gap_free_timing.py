"""Gap-free timing on a host that is slow to launch.

Time in which the device waits for the host is no part of a sample.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from cuts.backends.cuda import device as cuda
from cuts.backends.cuda.device import CudaDevice
from cuts.backends.device import Buffer, Pointer
from cuts.backends.devices import find_target
from cuts.backends.gap_free_timing import MAX_EXTRA_SAMPLES, MAX_HOLD_PIECES, GapFreeSampler

#: Milliseconds that the device takes for a flush, a copy and the kernel.
FLUSH, COPY, KERNEL = 40e-3, 2e-3, 5e-3


class Clocks:
    """Host and device, each with a clock in milliseconds.

    A call takes the host `call`. Work that it enqueues begins when the device has done the work enqueued earlier, but
    not earlier than the call.
    """

    def __init__(self, call: float) -> None:
        self.call, self.host, self.device = call, 0.0, 0.0
        self.flushes = 0

    def enqueue(self, taken: float) -> float:
        """Enqueue work, and return the moment at which it is done."""
        self.host += self.call
        self.device = max(self.device, self.host) + taken
        return self.device

    def flush(self, *_: Any) -> None:
        self.flushes += 1
        self.enqueue(FLUSH)

    def copy(self, *_: Any) -> None:
        self.enqueue(COPY)

    def launch(self) -> None:
        self.enqueue(KERNEL)


class Event:
    """A moment of the device."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks, self.at = clocks, 0.0

    def record(self, stream: Any) -> None:
        self.at = self.clocks.enqueue(0.0)

    def query(self) -> bool:
        return self.at <= self.clocks.host

    def synchronize(self) -> None:
        self.clocks.host = max(self.clocks.host, self.clocks.device)

    def time_till(self, other: Event) -> float:
        return other.at - self.at


def device_of(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    """Return a device whose driver enqueues on these clocks."""
    driver = SimpleNamespace(
        Error=RuntimeError,
        name=lambda: "Fake GPU",
        capability=lambda: (9, 0),
        current=nullcontext,
        event=lambda: Event(clocks),
        stream=lambda: SimpleNamespace(handle=77),
        allocate=lambda nbytes: 0,
        zero_words=clocks.flush,
        copy=clocks.copy,
    )
    monkeypatch.setattr(cuda, "driver", lambda: driver)
    return CudaDevice(find_target("cuda:sm_90"))


FIVE = [(Pointer(Buffer(0, 64)), 64)] * 5


@pytest.mark.parametrize("call", [2e-3, 6e-3, 10e-3, 20e-3])
def test_kernel_time_does_not_depend_on_host_speed(call: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launch overhead longer than a flush would be part of a sample.

    Five copies, two events and a launch take longer than a flush where a call takes 10 us: each sample of 5 us then
    held 10 us in which the device waited for the launch.
    """
    clocks = Clocks(call)
    timing = device_of(clocks, monkeypatch).time(clocks.launch, warmup=1, repeats=9, cold=True, warm=FIVE)
    assert timing.samples == pytest.approx([1e-3 * KERNEL] * 9)


def test_a_fast_host_flushes_once_for_each_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(2e-3)
    device_of(clocks, monkeypatch).time(clocks.launch, repeats=9, cold=True, warm=FIVE)
    assert clocks.flushes == 9


def test_hold_is_reused_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(9e-3)
    device = device_of(clocks, monkeypatch)
    device.time(clocks.launch, repeats=3, cold=True, warm=FIVE)
    before = clocks.flushes
    device.time(clocks.launch, repeats=3, cold=True, warm=FIVE)
    assert before == 1 + 2 * 3
    assert clocks.flushes == before + 2 * 3


def test_launches_are_held_until_the_last_is_enqueued(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(20e-3)
    times = device_of(clocks, monkeypatch).time_each([clocks.launch] * 6, repeats=4)
    assert [t.samples for t in times] == [pytest.approx([1e-3 * KERNEL] * 4)] * 6


def test_smallest_samples_count_without_a_hold() -> None:
    """Waiting only adds."""
    asked: list[int] = []

    def sample(pieces: int) -> tuple[list[float], bool]:
        asked.append(pieces)
        return [float(9 - len(asked))], True

    assert GapFreeSampler().samples(3, sample) == [[2.0], [3.0], [4.0]]
    assert asked == [1, 2, 4, MAX_HOLD_PIECES, MAX_HOLD_PIECES, MAX_HOLD_PIECES, MAX_HOLD_PIECES]
    assert len(asked) == 3 + MAX_EXTRA_SAMPLES


def test_interrupted_host_costs_no_sample() -> None:
    taken = iter([1.0, 900.0, 1.0, 1.0, 700.0, 1.0])

    def sample(pieces: int) -> tuple[list[float], bool]:
        seconds = next(taken)
        return [seconds], seconds > 1.0

    assert GapFreeSampler().samples(4, sample) == [[1.0]] * 4
