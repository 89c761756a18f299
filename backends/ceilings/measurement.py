"""Measurement of the ceilings that lower bounds divide by.

Each ceiling has a small kernel that uses one resource. The best of several runs counts, because a ceiling is the limit
of the device, and `calibrate_target` adds 3 % on top, so that a bound made of ceilings stays a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ...ir import MMA_INSTRUCTIONS, BackendError, KernelFunction
from ..device import Device, Launch, Pointer
from .kernels import (
    ATOM_WARPS,
    ATOMS,
    FMAS,
    THREADS,
    atom_kernel,
    barrier_kernel,
    chase_kernel,
    clock_kernel,
    copy_kernel,
    empty_kernel,
    fma_kernel,
    read_kernel,
    shared_kernel,
    touch_kernel,
)
from .records import Ceilings

_UNCACHED_BYTES = 1 << 30  # bytes, more than any cache holds
_CHASE = 1 << 28  # bytes of the latency measurement: more than a cache, less than address translation covers
_LAUNCHES = 200
_TOUCH_STRIDE = 1 << 16
_ROUNDS = 7
_ATOM_TRIPS = 256


def measure_ceilings(device: Device) -> Ceilings:
    """Run every microbenchmark, in a few seconds, mostly of compilation."""
    return _Calibrator(device).run()


class _Calibrator:
    """Builds and times the kernels on one device."""

    def __init__(self, device: Device) -> None:
        if device.target.dialect != "cuda":
            raise BackendError(f"{device.name} cannot be calibrated", hint="ceilings are measured on CUDA devices")
        self.device = device
        self.target = device.target
        self.out = Pointer(device.allocate(1 << 16))

    def run(self) -> Ceilings:
        """Measure everything; large buffers are freed after use."""
        clock = self._clock()
        copy, read = self._global()
        launch = self._launch()
        return Ceilings(
            device=self.device.name,
            copy_bandwidth=copy,
            read_bandwidth=read,
            l2_bandwidth=max(self._l2(share) for share in (16, 8, 4)),
            shared_bandwidth=self._shared_bandwidth() / (self.target.NUM_SM * clock),
            fma_rate=max(self._fma(trips) for trips in (64, 1024)),
            clock=clock,
            launch_time=launch,
            barrier_clocks=min(self._barrier(threads) for threads in (64, 128, 256)) * clock,
            dram_latency=self._latency(),
            first_load=max(0.0, self._first_load() - launch),
            atoms={n: self._atom(n) for n, _ in self.target.atoms if not MMA_INSTRUCTIONS[n].reads_shared},
        )

    def _best(self, kernel: KernelFunction, *pointers: Pointer, cold: bool = False) -> float:
        """Return the least seconds of a kernel."""
        (loaded,) = self.device.build([kernel])
        return self.device.time(self.device.bind(loaded, kernel, pointers), warmup=3, repeats=_ROUNDS, cold=cold).best

    def _global(self) -> tuple[float, float]:
        source, destination = (
            Pointer(self.device.allocate(_UNCACHED_BYTES)),
            Pointer(self.device.allocate(_UNCACHED_BYTES)),
        )
        memcpy = self.device.time(
            lambda: self.device.copy(destination, source, _UNCACHED_BYTES), warmup=2, repeats=_ROUNDS
        ).best
        blocks = 16 * self.target.NUM_SM
        copy = min(memcpy, self._best(copy_kernel(_UNCACHED_BYTES, blocks), destination, source))
        return 2 * _UNCACHED_BYTES / copy, _UNCACHED_BYTES / self._best(
            read_kernel("read_global", _UNCACHED_BYTES, 1, blocks), self.out, source
        )

    def _l2(self, share: int) -> float:
        """Return the bandwidth of repeated reads of a part of the cache's capacity, past the L1 caches."""
        nbytes = (self.target.l2_bytes // share) // 4096 * 4096
        passes, blocks = 32, 8 * self.target.NUM_SM
        buffer = Pointer(self.device.allocate(nbytes))
        return passes * nbytes / self._best(read_kernel("read_l2", nbytes, passes, blocks), self.out, buffer)

    def _shared_bandwidth(self) -> float:
        trips, blocks = 4096, 2 * self.target.NUM_SM
        return blocks * 1024 * 16.0 * trips / self._best(shared_kernel(trips, blocks), self.out)

    def _fma(self, trips: int) -> float:
        blocks = 8 * self.target.NUM_SM
        return blocks * THREADS * 2.0 * FMAS * trips / self._best(fma_kernel(trips, blocks), self.out)

    def _atom(self, name: str) -> float:
        """Return the clocks that a matrix instruction occupies a tensor core.

        Clocks are counted on the device, because it slows down where tensor cores draw too much power; the block with
        the fewest counts.
        """
        kernel = atom_kernel(name, _ATOM_TRIPS, self.target.NUM_SM)
        (loaded,) = self.device.build([kernel])
        launch = self.device.bind(loaded, kernel, [self.out])
        fewest = float("inf")
        for _ in range(_ROUNDS):
            launch()
            counts = np.zeros(self.target.NUM_SM, np.int64)
            self.device.download(counts, self.out)
            fewest = min(fewest, float(counts.min()))
        return fewest / (ATOM_WARPS * ATOMS * _ATOM_TRIPS)

    def _launch(self) -> float:
        kernel = empty_kernel()
        (loaded,) = self.device.build([kernel])
        launch = self.device.bind(loaded, kernel, [self.out])
        return (
            self.device.time(self.device.capture(_repeat(launch, _LAUNCHES)), warmup=3, repeats=_ROUNDS).best
            / _LAUNCHES
        )

    def _first_load(self) -> float:
        """Return the seconds of a kernel inside a graph that loads and stores one line, a different one each."""
        kernel = touch_kernel()
        (loaded,) = self.device.build([kernel])
        source = self.device.allocate(_LAUNCHES * _TOUCH_STRIDE)
        launches = [
            self.device.bind(loaded, kernel, [self.out, Pointer(source, k * _TOUCH_STRIDE)]) for k in range(_LAUNCHES)
        ]

        def run() -> None:
            for launch in launches:
                launch()

        return self.device.time(self.device.capture(run), warmup=3, repeats=_ROUNDS, cold=True).best / _LAUNCHES

    def _barrier(self, threads: int) -> float:
        """Return the seconds of one barrier: the difference of two kernels with different numbers of barriers."""
        few, many = 1024, 9216
        return (
            self._best(barrier_kernel(many, threads), self.out) - self._best(barrier_kernel(few, threads), self.out)
        ) / (many - few)

    def _latency(self) -> float:
        few, many = 512, 4608
        buffer = Pointer(self.device.allocate(_CHASE))
        times = [self._best(chase_kernel(steps, _CHASE), self.out, buffer, cold=True) for steps in (few, many)]
        return (times[1] - times[0]) / (many - few)

    def _clock(self) -> float:
        """Return the highest clock in a kernel: its clocks over its nanoseconds."""
        kernel = clock_kernel()
        (loaded,) = self.device.build([kernel])
        launch = self.device.bind(loaded, kernel, [self.out])
        highest = 0.0
        for _ in range(_ROUNDS):
            launch()
            counts = np.zeros(2, np.int64)
            self.device.download(counts, self.out)
            highest = max(highest, counts[0] / max(1, counts[1]) * 1e9)
        return float(highest)


def _repeat(launch: Launch, count: int) -> Launch:
    def run() -> None:
        for _ in range(count):
            launch()

    return run


#: Every kernel once, for compilation without a device.
KERNELS: tuple[Callable[[], KernelFunction], ...] = (
    lambda: copy_kernel(_UNCACHED_BYTES, 132),
    lambda: read_kernel("read_global", _UNCACHED_BYTES, 1, 132),
    lambda: shared_kernel(64, 132),
    lambda: fma_kernel(16, 132),
    empty_kernel,
    touch_kernel,
    lambda: barrier_kernel(1024, 128),
    lambda: chase_kernel(64, _CHASE),
    clock_kernel,
    *(partial(atom_kernel, name, 16, 132) for name, row in MMA_INSTRUCTIONS.items() if not row.reads_shared),
)
