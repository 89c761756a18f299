"""Timeline of this process and its children: busy seconds by slice.

Every child sends its activity since the last answer with each answer, by a clock that all processes of a host share.
The parent can then tell whether cores, devices or decisions limited the search.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf

from attrs import define, field

#: Seconds of a slice.
SLICE_SECONDS = 0.5


@define
class Busy:
    """Activity of one kind: busy seconds and completions by slice."""

    seconds: dict[int, float] = field(factory=dict)
    counts: dict[int, int] = field(factory=dict)
    first: float = inf
    last: float = 0.0

    def note(self, begin: float, end: float) -> None:
        """Add an interval."""
        last = int(end // SLICE_SECONDS)
        for number in range(int(begin // SLICE_SECONDS), last + 1):
            taken = min(end, (number + 1) * SLICE_SECONDS) - max(begin, number * SLICE_SECONDS)
            self.seconds[number] = self.seconds.get(number, 0.0) + taken
        self.counts[last] = self.counts.get(last, 0) + 1
        self.first, self.last = min(self.first, begin), max(self.last, end)

    def merge(self, other: Busy) -> None:
        """Add the activity of another process."""
        for number, seconds in other.seconds.items():
            self.seconds[number] = self.seconds.get(number, 0.0) + seconds
        for number, count in other.counts.items():
            self.counts[number] = self.counts.get(number, 0) + count
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)


@define
class Timeline:
    """Activity so far, by kind."""

    done: dict[str, Busy] = field(factory=dict)

    def note(self, kind: str, begin: float, end: float) -> None:
        """Add an interval of one kind."""
        self.done.setdefault(kind, Busy()).note(begin, end)

    def merge(self, done: Mapping[str, Busy], whose: str) -> None:
        """Add the activity of another process."""
        for kind, busy in done.items():
            self.done.setdefault(f"{whose} {kind}", Busy()).merge(busy)

    def take(self) -> Mapping[str, Busy]:
        """Return all activity and clear it."""
        done, self.done = self.done, {}
        return done

    @contextmanager
    def recording(self, kind: str, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
        """Record the time of a block."""
        begin = clock()
        try:
            yield
        finally:
            self.note(kind, begin, clock())


#: Timeline of this process.
HERE = Timeline()
