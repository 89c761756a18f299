"""Several devices of this host as one: the points of a kernel are checked and timed on one of them, beside what others
do, so that one search has all cores and all devices.

A device that nothing works on any more, or that is of another kind, is given up; what it was at is done by the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from attrs import define

from ..backends import find_target, known_targets
from ..ir import BackendError, Target
from .bench import SideBench, Timed
from .build import Built
from .data import Reference
from .measure import DeviceAnswer, MeasuringDevice, TimingTurns, Verdict
from .problem import Problem

#: What hosts one of several devices.
SERVICE = "cuts.search.device_pool:NamedDevice"
#: Candidates in a row that a device fails on before it is asked whether it works at all.
DOUBTED = 3

T = TypeVar("T")


class NamedDevice(MeasuringDevice):
    """A device of this host by its number among those that are visible: its process sees no other.

    Raises `BackendError` where it is not there, or is not what the target is.
    """

    def __init__(self, target: Target, device: str) -> None:
        if target.dialect == "cuda":
            visible = [each.strip() for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]
            if visible and int(device) >= len(visible):
                raise BackendError(f"device {device} is not visible: CUDA_VISIBLE_DEVICES names {len(visible)}")
            os.environ["CUDA_VISIBLE_DEVICES"] = visible[int(device)] if visible else device
            found = find_target("cuda:device")
            if found.arch != target.arch or (target.name not in known_targets() and found.name != target.name):
                raise BackendError(f"device {device} is another machine: {found.name}, expected {target.name}")
        super().__init__(target)


class PoolBench(SideBench, Protocol):
    """A bench that can be one of several."""

    def start(self) -> None:
        """Begin to open the device."""
        ...

    @property
    def works(self) -> bool:
        """Whether the device does anything at all."""
        ...


@define(eq=False)
class _Member:
    """A device: what it checks, how many problems it has, and how many candidates in a row failed on it."""

    name: str
    bench: PoolBench
    checking: tuple[Problem, Built | None] | None = None
    problems: int = 0
    failed: int = 0


class DevicePool:
    """Benches of several devices, by their names, as one. A problem stays on the device that had its first candidate:
    times are compared with those of the same device, and its data is made once.
    """

    def __init__(self, benches: Mapping[str, PoolBench], notice: Callable[[str], None] = lambda text: None) -> None:
        self._members = [_Member(name, bench) for name, bench in benches.items()]
        self._notice = notice
        self._homes: dict[str, _Member] = {}
        self._told: list[tuple[str, DeviceAnswer]] = []

    def start(self) -> None:
        """Begin to open all devices."""
        for member in self._members:
            member.bench.start()

    def prepare(self, problem: Problem, reference: Reference) -> None:
        """Take note of what the outputs of a problem must be."""
        for member in self._members:
            member.bench.prepare(problem, reference)

    def check(self, problem: Problem, built: Built) -> Verdict:
        """Run a candidate once and compare what it writes."""
        while True:
            member, verdict = self._asked(problem, lambda bench: bench.check(problem, built))
            if not self._doubted(member, verdict):
                return verdict

    def free(self, problem: Problem) -> bool:
        """Whether the device of a problem, or any where it has none yet, checks nothing."""
        home = self._homes.get(problem.key)
        return any(member.checking is None for member in ([home] if home else self._members))

    def begin(self, problem: Problem, built: Built | None, turns: TimingTurns | None = None) -> None:
        """Have a candidate checked and kernels timed by the device of their problem; where that is lost over it,
        another one checks the candidate at once.
        """
        member = self._home(problem)
        try:
            member.bench.begin(problem, built, turns)
            member.checking = problem, built
        except BackendError as error:
            self._give_up(member, error)
            self._told.append((problem.key, self._again(problem, built)))

    def ended(self, timeout: float) -> list[tuple[str, DeviceAnswer]]:
        """Return what became of what was begun, on all devices."""
        busy = [member for member in self._members if member.checking is not None]
        found, self._told = self._told, []
        for member in [*self._members]:
            try:
                told = member.bench.ended(timeout / len(busy) if member in busy and not found else 0.0)
            except BackendError as error:
                checking = member.checking
                self._give_up(member, error)
                if checking is not None:
                    found.append((checking[0].key, self._again(*checking)))
                continue
            for key, measured in told:
                checking, member.checking = member.checking, None
                if checking is not None and self._doubted(member, measured.verdict):
                    measured = self._again(*checking)
                found.append((key, measured))
        return found

    def sample(self, problem: Problem, built: Built, repeats: int) -> Timed:
        """Time a candidate on the device of its problem."""
        return self._asked(problem, lambda bench: bench.sample(problem, built, repeats))[1]

    def overhead(self) -> float:
        """Return the seconds that timing adds to a kernel, on the first device that says so."""
        return next((seconds for member in self._members if (seconds := member.bench.overhead())), 0.0)

    def close(self) -> None:
        """Give all devices back."""
        for member in self._members:
            member.bench.close()

    def _again(self, problem: Problem, built: Built | None) -> DeviceAnswer:
        """Return what another device says of a candidate, which is timed when that is asked for."""
        return DeviceAnswer(Verdict("ok") if built is None else self.check(problem, built))

    def _asked(self, problem: Problem, ask: Callable[[PoolBench], T]) -> tuple[_Member, T]:
        """Ask the device of a problem; where it cannot be used, another one.

        Raises `BackendError` where none is left.
        """
        while True:
            member = self._home(problem)
            try:
                return member, ask(member.bench)
            except BackendError as error:
                self._give_up(member, error)

    def _home(self, problem: Problem) -> _Member:
        """Return the device of a problem: of those that are free, or of all, the one that has the fewest."""
        if problem.key not in self._homes:
            free = [member for member in self._members if member.checking is None] or self._members
            self._homes[problem.key] = member = min(free, key=lambda member: member.problems)
            member.problems += 1
        return self._homes[problem.key]

    def _doubted(self, member: _Member, verdict: Verdict) -> bool:
        """Take in what became of a candidate; say whether the device is given up because of it."""
        member.failed = member.failed + 1 if verdict.outcome in ("failed", "timeout") else 0
        if member.failed < DOUBTED or len(self._members) == 1 or member not in self._members:
            return False
        member.failed = 0
        if member.bench.works:
            return False
        self._give_up(member, BackendError(verdict.message))
        return True

    def _give_up(self, member: _Member, error: BackendError) -> None:
        """Use a device no more.

        Raises `BackendError` where it is the last one.
        """
        if len(self._members) == 1:
            raise error
        self._members.remove(member)
        self._homes = {key: home for key, home in self._homes.items() if home is not member}
        member.bench.close()
        self._notice(f"device {member.name} is not used any more: {error.message}")
