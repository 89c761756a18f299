"""Simulated devices side by side, each with cores and a clock of its own: what shares out a search can be tried without
one. The one that is behind searches on first.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager
from typing import Protocol

from attrs import define, field
from cuts.search.bench import Bench
from cuts.search.build import CandidateBuilder
from cuts.search.remote.device_processes import TOGETHER
from cuts.search.remote.share_out import UnitAnswer
from cuts.search.remote.stream import UnitStream
from cuts.search.remote.unit import SearchUnit


class LaneClock(Protocol):
    """A simulated process's time."""

    now: float

    def __call__(self) -> float:
        """Return the time in seconds."""
        ...

    def until(self, moment: float) -> None:
        """Let time go on to a moment, if that is to come."""
        ...

    def running(self) -> AbstractContextManager[None]:
        """Take a block for what the simulated process does."""
        ...


@define
class Lane:
    """A simulated process that has a device and some cores."""

    name: str
    clock: LaneClock
    workers: CandidateBuilder
    gpu: Bench
    under_way: set[int] = field(factory=set)
    stream: UnitStream = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.stream = UnitStream(lambda: self.workers, lambda: self.gpu, clock=self.clock)


@define
class Lanes:
    """Lanes as the engine of a search that is shared out; `clock` is that of the process that shares."""

    clock: LaneClock
    lanes: list[Lane]

    @property
    def places(self) -> int:
        """How many devices there are."""
        return len(self.lanes)

    @property
    def free(self) -> int:
        """How many more units would be begun at once."""
        return sum(TOGETHER - len(lane.under_way) for lane in self.lanes)

    def submit(self, number: int, unit: SearchUnit, limit: float) -> None:
        """Have the device do a unit that has the least to do."""
        lane = min(self.lanes, key=lambda each: len(each.under_way))
        lane.clock.until(self.clock())
        lane.under_way.add(number)
        with lane.clock.running():
            lane.stream.add(number, unit)

    def collect(self, timeout: float) -> list[UnitAnswer]:
        """Return what the device has done that is behind."""
        lane = min((each for each in self.lanes if each.under_way), key=lambda each: each.clock.now)
        with lane.clock.running():
            found = lane.stream.step(0.25)
        lane.under_way -= {number for number, _ in found}
        self.clock.until(min((each.clock.now for each in self.lanes if each.under_way), default=lane.clock.now))
        return [UnitAnswer(number, lane.name, result) for number, result in found]

    def exclude(self, place: Hashable) -> None:
        """Never done."""

    def drop(self) -> None:
        """Never done."""

    def close(self) -> None:
        """There is nothing to end."""
