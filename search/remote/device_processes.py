"""Several devices of one host: a process for each, which sees no other device and has its share of the cores."""

from __future__ import annotations

import os
import time
from collections.abc import Hashable, Sequence
from math import inf
from multiprocessing.connection import wait

from attrs import define

from ...ir import CutsError
from ..child import START_LIMIT, Child, Lost
from .share_out import UnitAnswer
from .unit import SearchUnit, UnitResult, search_unit

SERVICE = "cuts.search.remote.device_processes:DeviceSearcher"


class DeviceSearcher:
    """What a process hosts: it searches with one device, which is the only one that it and its children see."""

    def __init__(self, device: str, workers: int) -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
        self._workers = workers

    def search(self, unit: SearchUnit) -> UnitResult:
        """Search for one problem."""
        return search_unit(unit, workers=self._workers)


@define
class _Lane:
    device: str
    child: Child
    number: int | None = None
    deadline: float = inf
    lost: int = 0


class DeviceProcesses:
    """Places that are devices of this host. A device whose process is lost three times in a row is given up."""

    def __init__(self, devices: Sequence[str], workers: int, service: str = SERVICE) -> None:
        self._lanes = [_Lane(d, Child(service, d, max(1, workers // len(devices)))) for d in devices]
        for lane in self._lanes:
            lane.child.start()

    @property
    def places(self) -> int:
        """How many devices are in use."""
        return len(self._lanes)

    @property
    def free(self) -> int:
        """How many devices have nothing to do."""
        return sum(lane.number is None for lane in self._lanes)

    def submit(self, number: int, unit: SearchUnit, limit: float) -> None:
        """Have an idle device do a unit."""
        lane = min((x for x in self._lanes if x.number is None), key=lambda x: x.lost)
        lane.number, lane.deadline = number, time.monotonic() + limit + START_LIMIT
        try:
            lane.child.send("search", unit)
        except Lost:
            lane.deadline = 0.0

    def collect(self, timeout: float) -> list[UnitAnswer]:
        """Return what was done or lost."""
        busy = [lane for lane in self._lanes if lane.number is not None]
        alive = [lane.child.connection for lane in busy if lane.child.alive]
        if alive:
            wait(alive, timeout)
        return [self._finish(lane) for lane in busy if self._over(lane)]

    def exclude(self, place: Hashable) -> None:
        """End the process of a device for good."""
        for lane in [x for x in self._lanes if f"device {x.device}" == place]:
            lane.child.kill()
            self._lanes.remove(lane)

    def drop(self) -> None:
        """End what is under way; the processes start again when they are needed."""
        for lane in self._lanes:
            if lane.number is not None:
                lane.child.kill()
                lane.number = None

    def close(self) -> None:
        """End all processes."""
        for lane in self._lanes:
            lane.child.kill()

    @staticmethod
    def _over(lane: _Lane) -> bool:
        try:
            if time.monotonic() > lane.deadline or not lane.child.alive:
                return True
            return lane.child.ready(0) and lane.child.connection.poll(0)
        except (EOFError, OSError):
            return True

    def _finish(self, lane: _Lane) -> UnitAnswer:
        number, lane.number = lane.number, None
        assert number is not None, "a busy lane has a unit"
        place = f"device {lane.device}"
        try:
            if not lane.child.alive:
                lane.child.kill()
                raise Lost("its process ended")
            result = lane.child.receive(0.0)
        except (Lost, CutsError) as error:
            lane.lost += 1
            if lane.lost == 3:
                lane.child.kill()
                self._lanes.remove(lane)
            return UnitAnswer(number, place, reason=f"{place}: {error}")
        lane.lost = 0
        return UnitAnswer(number, place, result)
