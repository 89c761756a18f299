"""Splits a trace of PyTorch's profiler into the measured calls.

On one stream kernels run in order. Around each measured call a marker kernel runs, so that a trace needs no correlation
with the host: kernels between an odd marker and the next even one belong to one call; the others prepare (they empty
the cache and write inputs).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2s
from math import prod
from statistics import median
from typing import Any

from attrs import field, frozen

#: Part of the name of the marker's kernel.
MARKER = "spin_kernel"
#: Trace categories that take device time.
_DEVICE = ("kernel", "gpu_memset", "gpu_memcpy")


@frozen
class TracedKernel:
    """Executed kernel: name, launch, registers, shared memory bytes, and microseconds.

    Registers are those of a thread.
    """

    name: str
    grid: tuple[int, ...] = (1, 1, 1)
    block: tuple[int, ...] = (1, 1, 1)
    registers: int = 0
    shared: int = 0
    us: float = field(default=0.0, eq=False)


TracedCall = tuple[TracedKernel, ...]


class TraceError(ValueError):
    """Error of a trace without the launched kernels."""


def kernels_of(events: Iterable[Mapping[str, Any]]) -> list[TracedKernel]:
    """Return the device's kernels, in order."""
    found = [event for event in events if event.get("cat") in _DEVICE]
    found.sort(key=lambda event: event["ts"])
    return [_kernel(event) for event in found]


def _kernel(event: Mapping[str, Any]) -> TracedKernel:
    given = event.get("args", {})
    return TracedKernel(
        str(event["name"]),
        tuple(given.get("grid", (1, 1, 1))),
        tuple(given.get("block", (1, 1, 1))),
        int(given.get("registers per thread", 0)),
        int(given.get("shared memory", 0)),
        float(event["dur"]),
    )


def calls_of(kernels: Sequence[TracedKernel], expected: int) -> list[TracedCall]:
    """Return the kernels of each measured call, in order.

    A call may have none.

    Raises `TraceError` where the markers are not two for each expected call.
    """
    marks = [number for number, kernel in enumerate(kernels) if MARKER in kernel.name]
    if len(marks) != 2 * expected:
        raise TraceError(f"expected {2 * expected} markers, found {len(marks)}")
    pairs = zip(marks[::2], marks[1::2], strict=True)
    return [tuple(kernels[begin + 1 : end]) for begin, end in pairs]


def summary(calls: Sequence[TracedCall]) -> dict[str, Any]:
    """Return repeated calls' microseconds: median, least, most, and by kernel.

    The first three are those of all their kernels together.

    Calls that launched other kernels than most are left out; how many is said.
    """
    usual = max(calls, key=calls.count)
    same = [call for call in calls if call == usual]
    totals = sorted(sum(kernel.us for kernel in call) for call in same)
    each = [round(median(call[i].us for call in same), 3) for i in range(len(usual))]
    values = {"us": [round(median(totals), 3), round(totals[0], 3), round(totals[-1], 3)], "each": each}
    return values | ({"odd": len(calls) - len(same)} if len(same) < len(calls) else {})


def digest(kernel: TracedKernel) -> str:
    """Return a short digest of a kernel's name and resources.

    Resources are registers and shared memory. The digest is the same in every run.
    """
    return blake2s(f"{kernel.name}|{kernel.registers}|{kernel.shared}".encode(), digest_size=5).hexdigest()


class KernelDigests:
    """Kernels by their digests in rows, each written once to each file."""

    def __init__(self) -> None:
        self._known: dict[str, TracedKernel] = {}
        self._written: set[tuple[str, str]] = set()

    def launches(self, call: TracedCall) -> list[list[Any]]:
        """Return [digest, grid of 3, threads of a block] of each kernel."""
        self._known |= {digest(kernel): kernel for kernel in call}
        return [[digest(kernel), *kernel.grid, prod(kernel.block)] for kernel in call]

    def fresh(self, file: str) -> list[dict[str, Any]]:
        """Return the lines that define a file's new digests."""
        new = {name: kernel for name, kernel in self._known.items() if (file, name) not in self._written}
        self._written |= {(file, name) for name in new}
        return [{"kernel": n, "name": k.name, "registers": k.registers, "shared": k.shared} for n, k in new.items()]
