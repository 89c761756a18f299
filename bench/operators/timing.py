"""Times contenders side by side: cold caches, CUDA graphs, alternating rounds.

Each contender runs on several sets of tensors in turn, together at least four times the size of the L2 cache: at twice
the size, a cache with random replacement serves a fifth of the accesses, at four times 2 %. A round over all sets is
one graph; rounds of the contenders alternate, so that clock drift affects all of them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen
from cuts.backends.device import Buffer, Device, Launch, Pointer, Timing
from cuts.bench.tools.records import Row, merge_row, row_line, write_rows
from cuts.ir.compiled import KernelFunction
from cuts.ir.machine import Target

#: Fewest and most sets of tensors.
MIN_SETS, MAX_SETS = 1, 128


@define
class SuiteRun:
    """A run of a suite: device, options, and rows so far."""

    options: argparse.Namespace
    target: Target
    device: Device
    torch: Any
    rows: list[Row]
    facts: dict[str, Any]
    begin: float = field(factory=time.monotonic)

    @property
    def remaining_seconds(self) -> float:
        """Seconds until the call should end."""
        return float(self.options.limit) - (time.monotonic() - self.begin)

    def line_of(self, row: Row) -> str:
        """Return a row as a line of text."""
        return row_line(row)

    def keep(self, row: Row) -> None:
        """Write a row to the file and print it."""
        self.rows = merge_row(self.rows, row)
        write_rows(self.options.out, self.rows)
        print(self.line_of(row), flush=True)


@frozen
class Contender:
    """Something that computes a case: `replay` runs it on every set once."""

    name: str
    replay: Launch
    sets: int


def sets_for(nbytes: int, cache: int) -> int:
    """Return the number of tensor sets that keep a cache cold.

    Together they are four times its size.
    """
    return max(MIN_SETS, min(MAX_SETS, -(-4 * cache // max(1, nbytes))))


def in_order(launches: Sequence[Launch]) -> Launch:
    """Return one launch of several, in their order."""

    def run() -> None:
        for launch in launches:
            launch()

    return run


def by_kernel(
    device: Device, function: KernelFunction, code: bytes | None, sets: Sequence[Mapping[str, Any]]
) -> list[Launch]:
    """Return a kernel's launches on each of PyTorch's tensor sets.

    Tensors are bound by argument names; the kernel is built here where there is no `code`.
    """
    (loaded,) = device.build([function], [code])
    launches = []
    for tensors in sets:
        placed = [tensors[argument.tensor] for argument in function.arguments]
        pointers = [Pointer(Buffer(tensor.data_ptr(), tensor.nbytes)) for tensor in placed]
        launches.append(device.bind(loaded, function, pointers))
    return launches


def run_once(device: Device, torch: Any, launch: Launch, result: Any) -> None:
    """Run a launch on a NaN-filled result, which exposes omissions."""
    result.fill_(float("nan"))
    torch.cuda.synchronize()
    launch()
    device.synchronize()


def by_torch(device: Device, torch: Any, name: str, calls: Sequence[Callable[[], object]]) -> Contender:
    """Record PyTorch's calls as CUDA graphs, one for each set.

    They run on the device's stream; their results are kept, so that each set has results of its own.
    """
    stream, side = torch.cuda.ExternalStream(device.stream_handle), torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        results = [call() for call in calls]

    def replay(keep: object = (results, calls)) -> None:
        with torch.cuda.stream(stream):
            graph.replay()

    return Contender(name, replay, len(calls))


def in_turns(device: Device, contenders: list[Contender], rounds: int = 7, least: float = 2e-3) -> Mapping[str, Timing]:
    """Return the seconds of one run of each contender, by turns.

    A sample is a round over all sets, or a few until `least` seconds are full.
    """
    repeats: dict[str, int] = {}
    for each in contenders:
        first = device.time(each.replay, warmup=2, repeats=2).median
        repeats[each.name] = max(1, min(10, int(least / max(first, 1e-7))))
    samples: dict[str, list[float]] = {each.name: [] for each in contenders}
    for _ in range(rounds):
        for each in contenders:
            taken = device.time(each.replay, warmup=0, repeats=repeats[each.name]).samples
            samples[each.name].append(sum(taken) / len(taken) / each.sets)
    return {name: Timing(tuple(values)) for name, values in samples.items()}
