"""Gap-free timing: samples of device time without host time.

Events around a launch record the times at which the device reaches them. Where it reaches the first of them before the
host has launched all that follows, it waits within the measured interval, and half of 10 us may be the host's. So
preceding work holds the device until the host has enqueued everything, and the host checks at once whether the device
has reached the first event. If so, the sample is repeated after more work.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import define

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
