"""The device as the tuner sees it: a child process that owns it
and is replaced when a candidate crashes or hangs it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Protocol, runtime_checkable

from attrs import frozen

from ..backends import trimmed_mean
from ..ir import BackendError, Target
from .build import Built
from .child import START_LIMIT, Child, Lost
from .data import Reference
from .measure import DeviceAnswer, TimingTurns, Verdict
from .problem import Problem

#: Seconds to make the data of a problem and what its outputs must be.
PREPARE_LIMIT = 120.0
#: Seconds that a few runs of a kernel may take which was right.
TIMED_LIMIT = 10.0


@frozen
class Timed:
    """Seconds of repeated runs, or why there are none."""

    samples: tuple[float, ...] = ()
    verdict: Verdict = Verdict("ok")

    @property
    def seconds(self) -> float:
        """What a run takes, infinity where there are none that count."""
        return trimmed_mean(self.samples) if self.verdict.outcome == "ok" and self.samples else inf


class Bench(Protocol):
    """Checks and times built candidates, one after another."""

    def prepare(self, problem: Problem, reference: Reference) -> None:
        """Take note of what the outputs of a problem must be; without it the device's process computes it."""
        ...

    def check(self, problem: Problem, built: Built) -> Verdict:
        """Run a candidate once and compare what it writes;
        the first right one of a problem says what all others must write.
        """
        ...

    def sample(self, problem: Problem, built: Built, repeats: int) -> Timed:
        """Time a candidate that was checked."""
        ...

    def overhead(self) -> float:
        """Return the seconds that timing a kernel alone adds to what it takes in a program."""
        ...

    def close(self) -> None:
        """Give the device back."""
        ...


@runtime_checkable
class SideBench(Bench, Protocol):
    """A bench that checks a candidate while this process does something else, on each device that it has."""

    def free(self, problem: Problem) -> bool:
        """Whether a candidate of a problem would be checked at once."""
        ...

    def begin(self, problem: Problem, built: Built | None, turns: TimingTurns | None = None) -> None:
        """Have a candidate checked, if there is one, and if it is right, kernels of its problem timed in turns; what
        else is asked of its device meanwhile waits until that is done.
        """
        ...

    def ended(self, timeout: float) -> list[tuple[str, DeviceAnswer]]:
        """Return what became of what was begun, each with the key of its problem, since the last call; wait for one,
        but no longer than `timeout`.
        """
        ...


@frozen
class _Checking:
    """What the device's process is told to check and to time, whether the problem's data is made for it, the seconds
    that this may take, and the moment by which it must have answered.
    """

    problem: Problem
    built: Built | None
    new: bool
    limit: float
    deadline: float


class DeviceBench:
    """A bench in a child process. A crash or a hang ends the process and costs the candidate that caused it.

    Once time is `over`, what is asked for ends with `Ended`. The next process starts with the kernel that the problem's
    others are held against, and reloads a kernel when it is to be timed.
    """

    def __init__(
        self,
        target: Target,
        limit: float = 20.0,
        service: str = "cuts.search.measure:MeasuringDevice",
        over: Callable[[], bool] = lambda: False,
        device: str = "",
    ) -> None:
        self.limit = limit
        self._child = Child(service, target, *([device] if device else []), over=over)
        self._trusted: dict[str, Built] = {}
        self._references: dict[str, Reference] = {}
        self._starts = 0
        self._prepared: set[str] = set()
        self._checking: _Checking | None = None
        self._told: list[tuple[str, DeviceAnswer]] = []

    def start(self) -> None:
        """Start the process, without waiting until it has opened the device."""
        self._child.start()

    def prepare(self, problem: Problem, reference: Reference) -> None:
        """Take note of what the outputs of a problem must be."""
        self._references[problem.key] = reference

    def check(self, problem: Problem, built: Built) -> Verdict:
        """Run a candidate once and compare what it writes."""
        self._wait()
        before, self._told = self._told, []
        self.begin(problem, built)
        self._wait()
        ((_, measured),), self._told = self._told, before
        return measured.verdict

    def free(self, problem: Problem) -> bool:
        """Whether no candidate is checked now."""
        return self._checking is None

    def begin(self, problem: Problem, built: Built | None, turns: TimingTurns | None = None) -> None:
        """Have a candidate checked, which begins with the problem's data where the process has none, and what is timed
        behind it.
        """
        assert built is None or built.kernel is not None, "only what was built is checked"
        self._wait()
        again = self._child.starts != self._starts or not self._child.alive
        if again:
            self._prepared.clear()
        trusted = self._trusted.get(problem.key)
        if again and trusted is not None and trusted is not built:
            self._begin(problem, trusted)
            self._wait()
        self._told.clear()  # nobody asked for it
        self._begin(problem, built, turns)

    def ended(self, timeout: float) -> list[tuple[str, DeviceAnswer]]:
        """Return what became of what was begun, once that is known."""
        checking = self._checking
        if checking is not None and (self._child.answers(timeout) or time.monotonic() > checking.deadline):
            self._wait()
        told, self._told = self._told, []
        return told

    @property
    def works(self) -> bool:
        """Whether the device does anything at all, which takes the seconds that its process takes to start."""
        self._wait()
        try:
            self._child.call(self.limit, "describe")
        except (Lost, BackendError):
            return False
        return True

    def sample(self, problem: Problem, built: Built, repeats: int) -> Timed:
        """Time a candidate that was checked; it is loaded again where the process is a new one."""
        assert built.kernel is not None, "only what was built is timed"
        for _ in range(2):
            self._wait()
            try:
                samples = self._child.call(self.limit, "sample", problem.key, built.kernel.name, repeats)
            except Lost as lost:
                return Timed(verdict=_verdict(lost))
            except BackendError as error:
                self._child.kill()  # the driver's context is lost with it
                return Timed(verdict=Verdict("failed", error.message.splitlines()[0]))
            if samples is not None:
                return Timed(tuple(samples))
            verdict = self.check(problem, built)
            if verdict.outcome != "ok":
                return Timed(verdict=verdict)
        return Timed(verdict=Verdict("failed", "the kernel could not be kept loaded"))

    def overhead(self) -> float:
        """Return the seconds that timing adds to a kernel; nothing where the process is lost over it."""
        self._wait()
        try:
            return float(self._child.call(self.limit, "overhead"))
        except (Lost, BackendError):
            return 0.0

    def close(self) -> None:
        """End the process."""
        self._checking = None
        self._told.clear()
        self._child.close()

    def _begin(self, problem: Problem, built: Built | None, turns: TimingTurns | None = None) -> None:
        """Tell the process what to check and to time."""
        new = built is not None and problem.key not in self._prepared
        data = (problem, self._references.get(problem.key)) if new else ()
        limit = self.limit + (PREPARE_LIMIT if new else 0.0) + TIMED_LIMIT * len(turns.kernels if turns else ())
        self._checking = _Checking(problem, built, new, limit, time.monotonic() + limit + START_LIMIT)
        code = (None, None) if built is None else (built.kernel, built.binary)
        try:
            self._child.send("measure", problem.key, *code, turns, *data)
        except Lost as lost:
            self._checking = None
            self._told.append((problem.key, DeviceAnswer(_verdict(lost))))

    def _prepare(self, problem: Problem) -> None:
        """Have nothing but the data of a problem made."""
        try:
            self._child.call(PREPARE_LIMIT, "prepare", problem, self._references.get(problem.key))
        except Lost as lost:
            raise BackendError(f"the device's process is lost while data is prepared: {lost}") from lost
        self._starts = self._child.starts
        self._prepared.add(problem.key)

    def _wait(self) -> None:
        """Wait for what becomes of the candidate that is checked, if there is one.

        Raises `BackendError` where nothing ever worked: there is no device, and its error says why.
        """
        checking, self._checking = self._checking, None
        if checking is None:
            return
        try:
            measured = self._child.receive(checking.limit)
        except Lost as lost:
            if not self._starts:  # was it the candidate, or is there no device?
                self._prepare(checking.problem)
            self._told.append((checking.problem.key, DeviceAnswer(_verdict(lost))))
            return
        except BackendError as error:
            if not self._starts:
                raise
            self._child.kill()
            self._told.append((checking.problem.key, DeviceAnswer(Verdict("failed", error.message.splitlines()[0]))))
            return
        assert isinstance(measured, DeviceAnswer)
        self._starts = self._child.starts
        self._told.append((checking.problem.key, measured))
        if checking.new:
            self._prepared.add(checking.problem.key)
        if measured.verdict.outcome == "ok" and checking.built is not None:
            self._trusted.setdefault(checking.problem.key, checking.built)
        failed = measured.failure or measured.verdict.outcome == "failed"
        if failed and checking.problem.target.dialect == "cuda":
            self._child.kill()  # an illegal address poisons the context, so what follows would fail too


def _verdict(lost: Lost) -> Verdict:
    return Verdict("timeout" if lost.hung else "failed", str(lost))
