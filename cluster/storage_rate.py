"""Storage bandwidth of each process of a run, under concurrent transfers.

A disk that several processes share gives each a part, and caches and credits of disks make the first moments faster
than the rest. So all processes move at once, for windows of time that begin together, until two consecutive windows
agree; one process alone before that shows whether they share the disk. Shared storage counts with its mean, since a
loss of one process is a gain of another; else the slowest process counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from attrs import evolve, frozen

from .engine import Engine

#: Seconds of a window, their maximum number, and the relative change from one to the next that counts as none.
WINDOW_SECONDS, MAX_WINDOWS, STEADY_CHANGE = 0.75, 6, 0.05
#: Processes share storage where each gets less than this part of the bandwidth of one alone.
SHARED_PART = 0.8


@frozen
class StorageRate:
    """Bytes a second of each process, and of one alone.

    `each` is the rate while all `processes` move; it is `steady` where two windows agreed.
    """

    each: float
    alone: float
    processes: int
    seconds: float
    steady: bool

    @property
    def shared(self) -> bool:
        """Return whether processes share the bandwidth."""
        return self.processes > 1 and self.each < SHARED_PART * self.alone

    def text(self, verb: str) -> str:
        """Return a sentence about the rate."""
        found = f"storage {verb} {self.each / 1e9:.3g} GB/s"
        if self.processes > 1:
            found += f" for each of {self.processes} processes at once, {self.alone / 1e9:.3g} GB/s for one alone"
            found += ": they share it" if self.shared else ": each has its own"
        found += f" (measured for {self.seconds:.1f} s"
        return found + (")" if self.steady else ", not steady: the last windows count)")


def storage_rate(
    engine: Engine, move: Callable[[], int], enough: int, clock: Callable[[], float] = time.perf_counter
) -> StorageRate:
    """Measure the rate of `move`, which returns the bytes moved.

    A window ends after `enough` bytes too. Every process of a run calls this at once.
    """
    move()
    engine.minimum(0)
    begin = clock()
    alone = _window(move, enough, clock) if engine.size > 1 and engine.rank == 0 else 0.0
    alone = engine.total(alone)
    means: list[float] = []
    least = 0.0
    while len(means) < MAX_WINDOWS and not _agree(means):
        rate = _window(move, enough, clock)
        means.append(engine.total(rate) / engine.size)
        least = float(engine.minimum(round(rate)))
    each = sum(means[-2:]) / len(means[-2:])
    found = StorageRate(each, alone or each, engine.size, clock() - begin, _agree(means))
    return found if found.shared else evolve(found, each=min(least, each))


def _agree(means: list[float]) -> bool:
    return len(means) > 1 and abs(means[-1] / means[-2] - 1) <= STEADY_CHANGE


def _window(move: Callable[[], int], enough: int, clock: Callable[[], float]) -> float:
    """Move for a window, and return bytes a second."""
    begin, moved = clock(), 0
    while clock() - begin < WINDOW_SECONDS and moved < enough:
        moved += move()
    return moved / max(clock() - begin, 1e-9)
