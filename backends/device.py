"""What every device can do: memory, kernels, time. OpenCL and CUDA each fill the same small contract."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from ..ir import KernelFunction, Target

Array: TypeAlias = npt.NDArray[Any]
Launch: TypeAlias = Callable[[], None]


@frozen(eq=False)
class Buffer:
    """Device memory: the backend's handle and its size in bytes; freed when nothing refers to it any more."""

    handle: Any = field(repr=False)
    nbytes: int


@frozen(eq=False)
class Pointer:
    """A place inside a buffer, `offset` bytes from its start."""

    buffer: Buffer
    offset: int = 0


def launch_all(launches: Sequence[Launch]) -> None:
    """Launch some things one after another."""
    for launch in launches:
        launch()


#: Bytes of memory: where they begin, and how many they are.
MemoryPart: TypeAlias = tuple[Pointer, int]


def trimmed_mean(samples: Sequence[float]) -> float:
    """Return the mean of the middle two thirds of some samples, one at least.

    It is what kernels are compared by: a clock that counts in steps makes the median of any number of runs jump by one.
    Events of an H200 lie a multiple of 0.16 us apart, which is 5 % of a small kernel.
    """
    ordered, outer = sorted(samples), len(samples) // 6 or len(samples) // 3
    middle = ordered[outer : len(ordered) - outer]
    return middle[0] + fmean(each - middle[0] for each in middle)  # what is always the same is left as it is


@frozen
class Timing:
    """Seconds of repeated runs: all samples in order, and what a report shows of them."""

    samples: tuple[float, ...]

    def percentile(self, percent: float) -> float:
        """Return a percentile of the samples, in seconds."""
        return float(np.percentile(self.samples, percent))

    @property
    def median(self) -> float:
        """The middle sample."""
        return self.percentile(50)

    @property
    def typical(self) -> float:
        """The mean of the middle two thirds: what a timing is compared with others by."""
        return trimmed_mean(self.samples)

    @property
    def spread(self) -> float:
        """The distance from the first to the third quartile, as a fraction of the median."""
        middle = self.median
        return (self.percentile(75) - self.percentile(25)) / middle if middle else 0.0

    @property
    def best(self) -> float:
        """The least sample."""
        return min(self.samples)


class Device(ABC):
    """A device that runs kernels of one dialect, in order, on one queue."""

    name: str
    target: Target
    #: The queue as libraries of the same vendor take it: the number of a CUDA stream, 0 elsewhere.
    stream_handle: int = 0
    #: Whether launches that it records may run side by side.
    branches: bool = False

    @abstractmethod
    def allocate(self, nbytes: int) -> Buffer:
        """Allocate device memory filled with zeros: no kernel ever meets a stray index in it."""

    @abstractmethod
    def upload(self, destination: Pointer, source: Array) -> None:
        """Copy a contiguous host array to the device; the array may be reused on return."""

    @abstractmethod
    def download(self, destination: Array, source: Pointer) -> None:
        """Fill a contiguous host array from the device after everything launched so far."""

    @abstractmethod
    def copy(self, destination: Pointer, source: Pointer, nbytes: int) -> None:
        """Copy between two places of device memory, in launch order."""

    @abstractmethod
    def adopt(self, value: object) -> tuple[Pointer, Any] | None:
        """Return where a device array of another library lives, and its description, or None where it is no array of
        this device.
        """

    @abstractmethod
    def build(self, kernels: Sequence[KernelFunction], binaries: Sequence[bytes | None] = ()) -> tuple[object, ...]:
        """Compile and load kernels (or load `binaries` where given); all errors name the kernel, and the file of its
        source.
        """

    @abstractmethod
    def bind(self, loaded: object, kernel: KernelFunction, pointers: Sequence[Pointer]) -> Launch:
        """Fix the arguments of a loaded kernel and return what launches it."""

    def bind_turns(
        self, loaded: object, kernel: KernelFunction, turns: Sequence[Sequence[Pointer]]
    ) -> tuple[Launch, ...]:
        """Return what launches a loaded kernel at each turn of a loop, whose arguments lie elsewhere each time."""
        return tuple(self.bind(loaded, kernel, pointers) for pointers in turns)

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until everything launched so far has finished."""

    @abstractmethod
    def time(
        self, run: Launch, *, warmup: int = 3, repeats: int = 20, cold: bool = False, warm: Sequence[MemoryPart] = ()
    ) -> Timing:
        """Time `run` alone, `repeats` times after `warmup` runs; `cold` empties the L2 cache before each, of all but
        the `warm` parts of memory.
        """

    def time_each(self, runs: Sequence[Launch], *, warmup: int = 1, repeats: int = 10) -> tuple[Timing, ...]:
        """Time each of several launches in a row, with caches as those before it leave them; here with the host's
        clock.
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
        """Wait until everything on the device has finished, what other libraries launched included."""
        self.synchronize()

    def current(self) -> AbstractContextManager[None]:
        """Return what makes the device usable in the thread that enters it; all calls but this one happen inside."""
        return nullcontext()

    def capture(self, run: Launch) -> Launch:
        """Return something that launches what `run` does, recorded where the device can replay a recording more
        cheaply.
        """
        return run

    def capture_branches(self, launches: Sequence[Launch], waits: Sequence[Sequence[int]]) -> Launch:
        """Return something that launches all of them, each only behind those that it waits for (some before it) where
        the device can record that; here one after another.
        """
        return self.capture(partial(launch_all, launches))

    def passing(self, place: Pointer, nbytes: int) -> AbstractContextManager[None]:
        """Return what tells the cache, of launches that are recorded inside, that the bytes from a place on are read
        once: others need not make room for them.
        """
        return nullcontext()

    def describe(self) -> dict[str, object]:
        """Return what `cuts device` shows."""
        return {"name": self.name, "target": self.target.name, "dialect": self.target.dialect, "arch": self.target.arch}


def time_kernel(
    device: Device, kernel: KernelFunction, pointers: Sequence[Pointer], *, repeats: int = 20, cold: bool = False
) -> Timing:
    """Build one kernel and time it on the given arguments."""
    (loaded,) = device.build([kernel])
    return device.time(device.bind(loaded, kernel, pointers), repeats=repeats, cold=cold)
