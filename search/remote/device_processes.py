"""Several devices of one host: a process for each, which sees no other device and has workers of its own.

Each has several units under way, so that its workers and its device are as busy as those of a search in one process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Hashable, Sequence
from math import inf
from multiprocessing.connection import wait

from attrs import define, field

from ...ir import CutsError, Target
from ..child import START_LIMIT, Child, Lost
from .share_out import UnitAnswer
from .stream import UnitStream
from .unit import KeptParts, SearchUnit, UnitResult

SERVICE = "cuts.search.remote.device_processes:DeviceSearcher"
#: Units that a device has under way: a search waits for its own kernels, so that few would leave cores idle, and what
#: begins last ends last, by itself.
TOGETHER = 24
#: How many times its share of the cores a device has workers: what one leaves idle, as it is done or waits for its
#: last search, others use.
OVER = 2
#: Seconds in which a device answers, with or without results: it then hears what is new.
TURN = 0.25


class DeviceSearcher:
    """What a process hosts: it searches with one device, which is the only one that it and its children see."""

    def __init__(self, device: str, workers: int, target: Target) -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
        parts = KeptParts(target, workers)
        parts.builder()
        self._stream = UnitStream(parts.builder, parts.bench, parts.forget)
        self._search = 0

    def search(self, search: int, units: Sequence[tuple[int, SearchUnit]]) -> list[tuple[int, UnitResult]]:
        """Search on for a while, with further units; those of an earlier search are forgotten."""
        if search != self._search:
            self._stream.drop()
            self._search = search
        for number, unit in units:
            self._stream.add(number, unit)
        return self._stream.step(TURN)


@define
class _Lane:
    """A device's process: until when the units that it has under way must be done, those that it was not told of yet;
    the search that it was asked about, where no answer came so far, and until when one must.
    """

    device: str
    child: Child
    units: dict[int, float] = field(factory=dict)
    new: list[tuple[int, SearchUnit]] = field(factory=list)
    asked: int | None = None
    deadline: float = inf
    lost: int = 0

    @property
    def place(self) -> str:
        """What notices call it."""
        return f"device {self.device}"

    @property
    def room(self) -> int:
        """How many more units it may be given: one at a time behind a loss, to learn which one it was."""
        return max(0, (1 if self.lost else TOGETHER) - len(self.units))

    def give_up(self, reason: str) -> list[UnitAnswer]:
        """Return its units as lost."""
        gone = [UnitAnswer(number, self.place, reason=f"{self.place}: {reason}") for number in self.units]
        self.units.clear()
        self.new.clear()
        self.asked = None
        return gone


class DeviceProcesses:
    """Places that are devices of this host. A device whose process is lost three times in a row is given up."""

    def __init__(self, devices: Sequence[str], workers: int, target: Target, service: str = SERVICE) -> None:
        each = max(1, min(workers, OVER * workers // len(devices)))
        self._lanes = [_Lane(d, Child(service, d, each, target)) for d in devices]
        self._search = 0
        self._gone: list[UnitAnswer] = []
        for lane in self._lanes:
            lane.child.role = lane.place
            lane.child.start()

    @property
    def places(self) -> int:
        """How many devices are in use."""
        return len(self._lanes)

    @property
    def free(self) -> int:
        """How many more units would be begun at once."""
        return sum(lane.room for lane in self._lanes)

    def submit(self, number: int, unit: SearchUnit, limit: float) -> None:
        """Have the device do a unit that has the least to do; it hears of it at the next call of `collect`."""
        lane = min((x for x in self._lanes if x.room), key=lambda x: (x.lost, len(x.units)))
        lane.units[number] = time.monotonic() + limit + START_LIMIT
        lane.new.append((number, unit))

    def collect(self, timeout: float) -> list[UnitAnswer]:
        """Return what was done or lost."""
        found, self._gone = self._gone, []
        for lane in self._lanes:
            if lane.units and lane.asked is None:
                self._ask(lane)
        busy = [lane for lane in self._lanes if lane.asked is not None]
        alive = [lane.child.connection for lane in busy if lane.child.alive]
        if alive and not found:
            wait(alive, timeout)
        return found + [answer for lane in busy if self._over(lane) for answer in self._answers(lane)]

    def exclude(self, place: Hashable) -> None:
        """End the process of a device for good."""
        for lane in [x for x in self._lanes if x.place == place]:
            lane.child.kill()
            self._lanes.remove(lane)
            self._gone += lane.give_up("nothing more is taken from there")

    def drop(self) -> None:
        """Forget what is under way: the devices' processes, which take seconds to start, do so when they are asked for
        something else.
        """
        self._search += 1
        self._gone.clear()
        for lane in self._lanes:
            lane.units.clear()
            lane.new.clear()

    def close(self) -> None:
        """End all processes."""
        for lane in self._lanes:
            lane.child.kill()

    def _ask(self, lane: _Lane) -> None:
        lane.asked, lane.deadline = self._search, min(lane.units.values())
        try:
            lane.child.send("search", self._search, lane.new)
        except Lost:
            lane.deadline = 0.0
        lane.new = []

    @staticmethod
    def _over(lane: _Lane) -> bool:
        try:
            if time.monotonic() > lane.deadline or not lane.child.alive:
                return True
            return lane.child.ready(0) and lane.child.connection.poll(0)
        except (EOFError, OSError):
            return True

    def _answers(self, lane: _Lane) -> list[UnitAnswer]:
        """Return what a device has done, or that it is lost with all that it had."""
        asked, lane.asked = lane.asked, None
        try:
            if not lane.child.alive:
                lane.child.kill()
                raise Lost("its process ended")
            results = lane.child.receive(0.0)
        except (Lost, CutsError) as error:
            lane.child.kill()
            lane.lost += 1
            if lane.lost == 3:
                self._lanes.remove(lane)
            return lane.give_up(str(error))
        lane.lost = 0 if results else lane.lost
        known = [(number, result) for number, result in results if asked == self._search and number in lane.units]
        for number, _ in known:
            del lane.units[number]
        return [UnitAnswer(number, lane.place, result) for number, result in known]
