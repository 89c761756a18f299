"""Gap-free timing: samples of device time without host time.

Events around a launch record the times at which the device reaches them. Where it reaches the first of them before the
host has launched all that follows, it waits within the measured interval, and half of 10 us may be the host's. So
preceding work holds the device until the host has enqueued everything, and the host checks at once whether the device
has reached the first event. If so, the sample is repeated after more work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from attrs import define

from .device import Launch, MemoryPart, Timing

#: Launches with an event that the host issues during one piece of work that holds the device.
LAUNCHES_PER_PIECE = 2
#: Limits of the pieces of work that hold the device, and of the additional samples for gap-free ones.
MAX_HOLD_PIECES, MAX_EXTRA_SAMPLES = 8, 4


@define
class GapFreeSampler:
    """Pieces of work that hold a device, doubled where too few."""

    pieces: int = 1

    def samples(self, count: int, sample: Callable[[int], tuple[list[float], bool]]) -> list[list[float]]:
        """Return `count` samples, without gaps where possible.

        `sample` takes one after so many pieces of work and returns whether the device waited for the host. Missing ones
        are replaced by the least of the others, as waiting only adds time.
        """
        gap_free: list[list[float]] = []
        late: list[list[float]] = []
        while len(gap_free) < count and len(late) < count + MAX_EXTRA_SAMPLES:
            taken, waited = sample(self.pieces)
            if waited:
                late.append(taken)
                self.pieces = min(2 * self.pieces, MAX_HOLD_PIECES)
            else:
                gap_free.append(taken)
        return [*gap_free, *sorted(late, key=sum)[: count - len(gap_free)]]


class EventTimer:
    """Times launches on a stream by events.

    `check` returns the result of a call that fails where a kernel has failed. `hold` is a piece of work that holds the
    device and empties its cache, `warm` reads a part of memory into the cache again.
    """

    def __init__(
        self,
        stream: Any,
        event: Callable[[], Any],
        check: Callable[[Callable[[], Any]], Any],
        hold: Launch,
        warm: Callable[[MemoryPart], None],
    ) -> None:
        self._stream, self._event, self._check, self._hold, self._warm = stream, event, check, hold, warm
        self._sampler = GapFreeSampler()

    def time(self, run: Launch, warmup: int, repeats: int, warm: Sequence[MemoryPart] | None) -> Timing:
        """Time one launch.

        Unless `warm` is None the device is held before each run, which empties the cache, and the `warm` parts are read
        afterwards.
        """
        for _ in range(warmup):
            run()
        if warm is None:
            return Timing(tuple(self._sample([run], 0)[0][0] for _ in range(repeats)))
        taken = self._sampler.samples(repeats, lambda pieces: self._sample([run], pieces, warm))
        return Timing(tuple(seconds for (seconds,) in taken))

    def time_each(self, runs: Sequence[Launch], warmup: int, repeats: int) -> tuple[Timing, ...]:
        """Time each of several launches in a row, without gaps."""
        least = 1 + len(runs) // LAUNCHES_PER_PIECE
        for _ in range(warmup):
            self._sample(runs, least)
        taken = self._sampler.samples(repeats, lambda pieces: self._sample(runs, least * pieces))
        return tuple(Timing(tuple(samples)) for samples in zip(*taken, strict=True))

    def _sample(self, runs: Sequence[Launch], pieces: int, warm: Sequence[MemoryPart] = ()) -> tuple[list[float], bool]:
        """Return the seconds of launches in a row after pieces of work, and whether the device waited for the host."""
        events = [self._event() for _ in range(len(runs) + 1)]
        for _ in range(pieces):
            self._hold()
        for part in warm:
            self._warm(part)
        events[0].record(self._stream)
        for run, event in zip(runs, events[1:], strict=True):
            run()
            event.record(self._stream)
        waited = bool(self._check(events[0].query))
        self._check(events[-1].synchronize)
        return [1e-3 * before.time_till(after) for before, after in pairwise(events)], waited
