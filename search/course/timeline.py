"""What this process and those that it started did when: busy seconds by half a second.

Every child says with each answer what it did since the last one, with a clock that all processes of a host share. So
who asks knows at the end whether cores, devices or decisions were waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf

from attrs import define, field

#: Seconds of a slice.
SLICE = 0.5


@define
class Busy:
    """What was done of one kind: seconds by the number of the slice, how often it ended in each, when it first began
    and last ended.
    """

    seconds: dict[int, float] = field(factory=dict)
    counts: dict[int, int] = field(factory=dict)
    first: float = inf
    last: float = 0.0

    def note(self, begin: float, end: float) -> None:
        """Take down that it was done from one moment to another."""
        last = int(end // SLICE)
        for number in range(int(begin // SLICE), last + 1):
            taken = min(end, (number + 1) * SLICE) - max(begin, number * SLICE)
            self.seconds[number] = self.seconds.get(number, 0.0) + taken
        self.counts[last] = self.counts.get(last, 0) + 1
        self.first, self.last = min(self.first, begin), max(self.last, end)

    def join(self, other: Busy) -> None:
        """Take in what another process did of it."""
        for number, seconds in other.seconds.items():
            self.seconds[number] = self.seconds.get(number, 0.0) + seconds
        for number, count in other.counts.items():
            self.counts[number] = self.counts.get(number, 0) + count
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)


@define
class Timeline:
    """What was done so far, by its kind."""

    done: dict[str, Busy] = field(factory=dict)

    def note(self, kind: str, begin: float, end: float) -> None:
        """Take down that something was done from one moment to another."""
        self.done.setdefault(kind, Busy()).note(begin, end)

    def take_in(self, done: Mapping[str, Busy], whose: str) -> None:
        """Take down what another process did."""
        for kind, busy in done.items():
            self.done.setdefault(f"{whose} {kind}", Busy()).join(busy)

    def hand_over(self) -> Mapping[str, Busy]:
        """Return everything, and forget it."""
        done, self.done = self.done, {}
        return done

    @contextmanager
    def noting(self, kind: str, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
        """Take down when a block runs."""
        begin = clock()
        try:
            yield
        finally:
            self.note(kind, begin, clock())


#: That of this process.
HERE = Timeline()
