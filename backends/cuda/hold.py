"""Samples of device time that hold none of the host's.

Events around a launch take down when the device comes by. Where it reaches the first of them before the host has
launched what lies behind, it waits inside of what is timed, and half of 10 us may be the host's. So work in front holds
the device until the host has enqueued everything, and the host asks at once whether the device has got that far
meanwhile. If so the sample is taken again, behind more work.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import define

#: Most pieces of work that hold the device, and how many more samples than are wanted are taken to have them held.
MOST, MORE = 8, 4


@define
class Hold:
    """How many pieces of work hold a device: twice as many from when they were too few."""

    pieces: int = 1

    def samples(self, count: int, sample: Callable[[int], tuple[list[float], bool]]) -> list[list[float]]:
        """Return samples; `sample` takes one behind so many pieces of work and says whether the device waited for the
        host. Where it does all the same, the least of what was taken make up the number: waiting only adds.
        """
        held: list[list[float]] = []
        late: list[list[float]] = []
        while len(held) < count and len(late) < count + MORE:
            taken, waited = sample(self.pieces)
            if waited:
                late.append(taken)
                self.pieces = min(2 * self.pieces, MOST)
            else:
                held.append(taken)
        return [*held, *sorted(late, key=sum)[: count - len(held)]]
