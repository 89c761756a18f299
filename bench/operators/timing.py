"""Times contenders side by side: cold caches, CUDA graphs, alternating rounds.

Each contender runs on several sets of tensors in turn, together at least four times the size of the L2 cache: at twice
the size, a cache with random replacement serves a fifth of the accesses, at four times 2 %. A round over all sets is
one graph; rounds of the contenders alternate, so that clock drift affects all of them.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attrs import define, frozen
from cuts.backends.device import Device, Launch, Timing

#: Most sets of tensors.
MAX_SETS = 128
#: Seconds that a round of calls takes about, where calls are short.
ROUND_SECONDS = 0.01


@define
class Turns:
    """Turns of processes on one device, by a lock in a folder.

    There are `count` processes; without a folder there is one.
    """

    folder: Path | None = None
    count: int = 1
    held: bool = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the device alone, also within a turn."""
        if self.folder is None or self.held:
            yield
            return
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.held = True
            try:
                yield
            finally:
                self.held = False

    def come(self, number: int) -> None:
        """Say that a process is here."""
        if self.folder is not None:
            (self.folder / f"{number}.here").touch()

    def wait(self, seconds: float) -> None:
        """Wait until all processes are here, at most some seconds."""
        end = time.monotonic() + seconds
        while self.folder is not None and time.monotonic() < end:
            if len([*self.folder.glob("*.here")]) >= self.count:
                break
            time.sleep(0.2)


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
    return max(1, min(MAX_SETS, -(-4 * cache // max(1, nbytes))))


def in_order(launches: Sequence[Launch]) -> Launch:
    """Return one launch of several, in their order."""

    def run() -> None:
        for launch in launches:
            launch()

    return run


def set_precision(torch: Any, precision: str = "fp32") -> None:
    """Let PyTorch multiply f32 strictly or as TF32, with cuDNN's fastest algorithms."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True


def capture_graph(torch: Any, calls: Sequence[Callable[[], object]]) -> Callable[[], None]:
    """Return the replay of PyTorch's calls as one captured CUDA graph.

    Results are kept, so that each call has results of its own.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        results = [call() for call in calls]

    def replay(keep: object = (results, calls)) -> None:
        graph.replay()

    return replay


def by_torch(device: Device, torch: Any, name: str, calls: Sequence[Callable[[], object]]) -> Contender:
    """Record PyTorch's calls, one for each set of tensors.

    Calls that wait for the device, and cannot be recorded, are repeated.
    """
    stream = torch.cuda.ExternalStream(device.stream_handle)
    recorded: Callable[[], object] = lambda: [call() for call in calls]  # noqa: E731
    with suppress(RuntimeError):
        recorded = capture_graph(torch, calls)

    def replay() -> None:
        with torch.cuda.stream(stream):
            recorded()

    return Contender(name, replay, len(calls))


def time_round(torch: Any, call: Callable[[], object], repeats: int) -> float:
    """Return GPU seconds of a call among repeated ones."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3 / repeats


def time_calls(torch: Any, call: Callable[[], object]) -> Timing:
    """Time calls that follow one another, between events on the GPU.

    There are seven rounds, of about 10 ms where calls are short.
    """
    first = time_round(torch, call, 1)
    fewest, filled = (10, ROUND_SECONDS) if first < ROUND_SECONDS else (1, 4 * ROUND_SECONDS)
    repeats = max(fewest, int(filled / max(first, 1e-6)))
    return Timing(tuple(time_round(torch, call, repeats) for _ in range(7)))


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
