"""Device pool: several devices of this host in one search.

The candidates of a kernel are checked and timed on one device, at the same time as others' on other devices. A device
that fails or is of another kind is dropped, and the others do its work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from attrs import define

from ...backends import find_target, known_targets
from ...ir import BackendError, Target
from ..building import BuildResult
from ..tasks import Reference, TuningTask
from .bench import Bench, Timed
from .device import MeasuringDevice
from .verdicts import DeviceAnswer, TimingTurns, Verdict

#: Service of one device of a pool.
SERVICE = "cuts.search.measurement.device_pool:NamedDevice"
#: Failures in a row after which a device is tested.
MAX_FAILURES_IN_A_ROW = 3
#: Answer to a request whose device is lost: another device gets the request.
LOST_ANSWER = DeviceAnswer(Verdict("failed", "the device is lost"), lost=True)

T = TypeVar("T")


class NamedDevice(MeasuringDevice):
    """Device of this host by its number among the visible ones.

    Its process sees no other device. Raises `BackendError` where it does not exist or is not the target.
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


class PoolBench(Bench, Protocol):
    """Interface of a bench in a pool."""

    @property
    def works(self) -> bool:
        """True if the device responds."""
        ...


@define(eq=False)
class _Member:
    """Device with the task of its running request, its number of tasks, and its failures in a row."""

    name: str
    bench: PoolBench
    checking: TuningTask | None = None
    problems: int = 0
    failed: int = 0


class DevicePool:
    """Benches of several devices, by name, as one bench.

    A task stays on the device of its first candidate: times of one device are compared, and its data is made once.
    """

    def __init__(self, benches: Mapping[str, PoolBench], notice: Callable[[str], None] = lambda text: None) -> None:
        self._members = [_Member(name, bench) for name, bench in benches.items()]
        self._notice = notice
        self._assignments: dict[str, _Member] = {}
        self._finished: list[tuple[str, DeviceAnswer]] = []

    def start(self) -> None:
        """Begin to open all devices."""
        for member in self._members:
            member.bench.start()

    def prepare(self, problem: TuningTask, reference: Reference) -> None:
        """Store the expected outputs of a task."""
        for member in self._members:
            member.bench.prepare(problem, reference)

    def check(self, problem: TuningTask, built: BuildResult) -> Verdict:
        """Run a candidate once and compare its outputs."""
        while True:
            member, verdict = self._call(problem, lambda bench: bench.check(problem, built))
            if not self._is_dropped_after(member, verdict):
                return verdict

    def is_free(self, problem: TuningTask) -> bool:
        """Return whether the device of a task, or any, is idle."""
        assigned = self._assignments.get(problem.key)
        return any(member.checking is None for member in ([assigned] if assigned else self._members))

    def begin(self, problem: TuningTask, built: BuildResult | None, turns: TimingTurns | None = None) -> None:
        """Have a candidate checked and kernels timed by their task's device."""
        member = self._assign(problem)
        try:
            member.bench.begin(problem, built, turns)
            member.checking = problem
        except BackendError as error:
            self._drop(member, error)
            self._finished.append((problem.key, LOST_ANSWER))

    def take_finished(self, timeout: float) -> list[tuple[str, DeviceAnswer]]:
        """Return finished measurements of all devices."""
        busy = [member for member in self._members if member.checking is not None]
        found, self._finished = self._finished, []
        for member in [*self._members]:
            try:
                finished = member.bench.take_finished(timeout / len(busy) if member in busy and not found else 0.0)
            except BackendError as error:
                self._drop(member, error)
                if member.checking is not None:
                    found.append((member.checking.key, LOST_ANSWER))
                continue
            for key, measured in finished:
                member.checking = None
                found.append((key, LOST_ANSWER if self._is_dropped_after(member, measured.verdict) else measured))
        return found

    def sample(self, problem: TuningTask, built: BuildResult, repeats: int) -> Timed:
        """Time a candidate on the device of its task."""
        return self._call(problem, lambda bench: bench.sample(problem, built, repeats))[1]

    def overhead(self) -> float:
        """Return the seconds that timing adds to a kernel."""
        return next((seconds for member in self._members if (seconds := member.bench.overhead())), 0.0)

    def close(self) -> None:
        """Release all devices."""
        for member in self._members:
            member.bench.close()

    def _call(self, problem: TuningTask, ask: Callable[[PoolBench], T]) -> tuple[_Member, T]:
        """Call the device of a task, or another one where it fails.

        Raises `BackendError` where none is left.
        """
        while True:
            member = self._assign(problem)
            try:
                return member, ask(member.bench)
            except BackendError as error:
                self._drop(member, error)

    def _assign(self, problem: TuningTask) -> _Member:
        """Return the device of a task; a new task gets the idle device, or any device, with the fewest tasks."""
        if problem.key not in self._assignments:
            free = [member for member in self._members if member.checking is None] or self._members
            self._assignments[problem.key] = member = min(free, key=lambda member: member.problems)
            member.problems += 1
        return self._assignments[problem.key]

    def _is_dropped_after(self, member: _Member, verdict: Verdict) -> bool:
        """Store the outcome of a candidate; return whether the device is dropped because of it."""
        member.failed = member.failed + 1 if verdict.outcome in ("failed", "timeout") else 0
        if member.failed < MAX_FAILURES_IN_A_ROW or len(self._members) == 1 or member not in self._members:
            return False
        member.failed = 0
        if member.bench.works:
            return False
        self._drop(member, BackendError(verdict.message))
        return True

    def _drop(self, member: _Member, error: BackendError) -> None:
        """Drop a device.

        Raises `BackendError` where it is the last one.
        """
        if len(self._members) == 1:
            raise error
        self._members.remove(member)
        self._assignments = {key: home for key, home in self._assignments.items() if home is not member}
        member.bench.close()
        self._notice(f"device {member.name} is not used any more: {error.message}")
