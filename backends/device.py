"""Common interface of devices: memory, kernels, time."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import fsum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from ..ir import KernelFunction, Target

Array: TypeAlias = npt.NDArray[Any]
Launch: TypeAlias = Callable[[], None]


@frozen(eq=False)
class Buffer:
    """Device memory: the backend's handle and its size in bytes.

    It is freed with the last reference.
    """

    handle: Any = field(repr=False)
    nbytes: int


@frozen(eq=False)
class Pointer:
    """Address in a buffer, `offset` bytes from its start."""

    buffer: Buffer
    offset: int = 0

    @property
    def address(self) -> int:
        """The number of the address, where handles of buffers are numbers."""
        return int(self.buffer.handle) + self.offset


def launch_all(launches: Sequence[Launch]) -> None:
    """Run launches one after another."""
    for launch in launches:
        launch()


def owning_launch(owners: object, call: Callable[..., object], *arguments: object) -> Launch:
    """Return a launch that keeps the owners of its memory alive."""

    def launch(owners: object = owners) -> None:
        del owners
        call(*arguments)

    return launch


#: Part of memory: its beginning, and its number of bytes.
MemoryPart: TypeAlias = tuple[Pointer, int]


def middle_mean(samples: Sequence[float]) -> float:
    """Return the mean of the middle two thirds of some samples.

    Kernels are compared by it: a clock that counts in steps makes the median of any number of runs jump by one step.
    Events of an H200 have steps of 0.16 us, which is 5 % of a small kernel.
    """
    ordered, outer = sorted(samples), len(samples) // 6 or len(samples) // 3
    middle = ordered[outer : len(ordered) - outer]
    offsets = fsum(each - middle[0] for each in middle)  # equal samples have exactly their value as mean
    return middle[0] + offsets / len(middle)


@frozen
class Timing:
    """Seconds of repeated runs, with the statistics of reports."""

    samples: tuple[float, ...]

    def percentile(self, percent: float) -> float:
        """Return a percentile of the samples, in seconds."""
        return float(np.percentile(self.samples, percent))

    @property
    def median(self) -> float:
        """Median of the samples."""
        return self.percentile(50)

    @property
    def typical(self) -> float:
        """Mean of the middle two thirds, by which timings are compared."""
        return middle_mean(self.samples)

    @property
    def spread(self) -> float:
        """Interquartile range as a fraction of the median."""
        middle = self.median
        return (self.percentile(75) - self.percentile(25)) / middle if middle else 0.0

    @property
    def best(self) -> float:
        """Minimum of the samples."""
        return min(self.samples)


class Device(ABC):
    """Device that runs kernels of one dialect in order on one queue."""

    name: str
    target: Target
    #: Queue for libraries of the same vendor: the number of a CUDA stream, 0 elsewhere.
    stream_handle: int = 0
    #: True where recorded launches may run concurrently.
    branches: bool = False

    @abstractmethod
    def allocate(self, nbytes: int) -> Buffer:
        """Allocate device memory filled with zeros.

        So no kernel reads an arbitrary index from it.
        """

    @abstractmethod
    def upload(self, destination: Pointer, source: Array) -> None:
        """Copy a contiguous host array, reusable on return, to the device."""

    @abstractmethod
    def download(self, destination: Array, source: Pointer) -> None:
        """Fill a contiguous host array from the device after all earlier launches."""

    @abstractmethod
    def copy(self, destination: Pointer, source: Pointer, nbytes: int) -> None:
        """Copy between two places of device memory, in launch order."""

    @abstractmethod
    def adopt(self, value: object) -> tuple[Pointer, Any] | None:
        """Return the address and description of another library's device array.

        None where it is no array of this device.
        """

    @abstractmethod
    def build(self, kernels: Sequence[KernelFunction], binaries: Sequence[bytes | None] = ()) -> tuple[object, ...]:
        """Compile and load kernels, or load `binaries` where given.

        All errors name the kernel, and the file of its source.
        """

    def binaries(self, kernels: Sequence[KernelFunction]) -> tuple[bytes | None, ...]:
        """Compile kernels to binaries of this device, which `build` takes.

        One of several kernels has that of all, and other ones None.
        """
        return (None,) * len(kernels)

    @abstractmethod
    def bind(self, loaded: object, kernel: KernelFunction, pointers: Sequence[Pointer]) -> Launch:
        """Fix the arguments of a loaded kernel and return its launch."""

    def bind_turns(
        self, loaded: object, kernel: KernelFunction, turns: Sequence[Sequence[Pointer]]
    ) -> tuple[Launch, ...]:
        """Return the launches of a kernel in each iteration of a loop.

        Each iteration has other arguments.
        """
        return tuple(self.bind(loaded, kernel, pointers) for pointers in turns)

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until everything launched so far has finished."""

    @abstractmethod
    def time(
        self, run: Launch, *, warmup: int = 3, repeats: int = 20, cold: bool = False, warm: Sequence[MemoryPart] = ()
    ) -> Timing:
        """Time `run` alone, `repeats` times after `warmup` runs.

        With `cold` the L2 cache is emptied before each, except for the `warm` parts of memory.
        """

    def time_each(self, runs: Sequence[Launch], *, warmup: int = 1, repeats: int = 10) -> tuple[Timing, ...]:
        """Time each of several launches in a row, without cache flushes.

        The default uses the host's clock.
        """
        samples: list[list[float]] = [[] for _ in runs]
        for number in range(warmup + repeats):
            for run, taken in zip(runs, samples, strict=True):
                start = time.perf_counter()
                run()
                self.synchronize()
                taken += [time.perf_counter() - start] if number >= warmup else []
        return tuple(Timing(tuple(taken)) for taken in samples)

    def settle(self) -> None:
        """Wait for all work on the device, other libraries' included."""
        self.synchronize()

    def current(self) -> AbstractContextManager[None]:
        """Context manager that makes the device usable in this thread.

        All other calls happen inside.
        """
        return nullcontext()

    def capture(self, run: Launch) -> Launch:
        """Return a replay of `run`, recorded where the device makes that cheaper."""
        return run

    def record(self, sequence: Any) -> Launch:
        """Return the cheapest launch of a `BoundSequence`, recorded where possible."""
        launch: Launch = sequence.launch
        return launch

    def describe(self) -> dict[str, object]:
        """Return the values that `cuts device` shows."""
        return {"name": self.name, "target": self.target.name, "dialect": self.target.dialect, "arch": self.target.arch}


def time_kernel(
    device: Device, kernel: KernelFunction, pointers: Sequence[Pointer], *, repeats: int = 20, cold: bool = False
) -> Timing:
    """Build one kernel and time it on the given arguments."""
    (loaded,) = device.build([kernel])
    return device.time(device.bind(loaded, kernel, pointers), repeats=repeats, cold=cold)
