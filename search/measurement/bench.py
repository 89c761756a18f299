"""Bench: device in a child process, replaced after a crash or hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Protocol

from attrs import define, field, frozen

from ...backends import middle_mean
from ...ir import BackendError, Target
from ..building import BuildResult
from ..processes import START_LIMIT, Child, ChildLost
from ..tasks import Reference, TuningTask
from .verdicts import DeviceAnswer, TimingTurns, Verdict

#: Seconds to make the data of a task and its expected outputs.
PREPARE_LIMIT = 120.0
#: Seconds of a few runs of a correct kernel, at most.
TIMED_LIMIT = 10.0


@frozen
class Timed:
    """Seconds of repeated runs, or the reason for none."""

    samples: tuple[float, ...] = ()
    verdict: Verdict = Verdict("ok")

    @property
    def seconds(self) -> float:
        """Trimmed mean of the runs, infinity without valid ones."""
        return middle_mean(self.samples) if self.verdict.outcome == "ok" and self.samples else inf


class Bench(Protocol):
    """Interface of devices that check and time candidates in the background."""

    def start(self) -> None:
        """Begin to open the devices."""
        ...

    def prepare(self, problem: TuningTask, reference: Reference) -> None:
        """Store the expected outputs of a task, which else the device computes."""
        ...

    def check(self, problem: TuningTask, built: BuildResult) -> Verdict:
        """Run a candidate once and compare its outputs.

        The outputs of the first correct candidate of a task are the reference for all others.
        """
        ...

    def sample(self, problem: TuningTask, built: BuildResult, repeats: int) -> Timed:
        """Time a candidate that was checked."""
        ...

    def overhead(self) -> float:
        """Return the seconds that timing in isolation adds to a kernel."""
        ...

    def close(self) -> None:
        """Release the device."""
        ...

    def is_free(self, problem: TuningTask) -> bool:
        """Return whether a candidate of a task would be checked at once."""
        ...

    def begin(self, problem: TuningTask, built: BuildResult | None, turns: TimingTurns | None = None) -> None:
        """Start to check a candidate and to time kernels in turns.

        Without a candidate, only the turns are timed. Other requests to the device wait until both are done.
        """
        ...

    def take_finished(self, timeout: float) -> list[tuple[str, DeviceAnswer]]:
        """Return finished measurements since the last call, each with its task's key.

        Wait for one, at most `timeout` seconds.
        """
        ...


@define(eq=False)
class ImmediateBench(Bench):
    """Bench in this process: the answer is there when `begin` returns."""

    _checked: dict[tuple[str, str], BuildResult] = field(factory=dict, init=False)
    _answers: list[tuple[str, DeviceAnswer]] = field(factory=list, init=False)

    def start(self) -> None:
        """Open nothing."""

    def prepare(self, problem: TuningTask, reference: Reference) -> None:
        """Store nothing."""

    def is_free(self, problem: TuningTask) -> bool:
        """Return True: a candidate is checked at once."""
        return True

    def begin(self, problem: TuningTask, built: BuildResult | None, turns: TimingTurns | None = None) -> None:
        """Check a candidate and time kernels in turns."""
        verdict = Verdict("ok") if built is None else self.check(problem, built)
        if built is not None and built.kernel is not None:
            self._checked[problem.key, built.kernel.name] = built
        samples, failure = list[tuple[float, ...] | None](), ""
        turns = turns if turns is not None and verdict.outcome == "ok" else TimingTurns((), 0)
        for name in turns.kernels:
            checked = self._checked.get((problem.key, name))
            timed = Timed() if checked is None else self.sample(problem, checked, turns.runs)
            if timed.verdict.outcome != "ok":
                failure = timed.verdict.message
                break
            samples.append(timed.samples or None)
            if len(samples) == 1 and timed.seconds > turns.most:
                break
        self._answers.append((problem.key, DeviceAnswer(verdict, tuple(samples), failure)))

    def take_finished(self, timeout: float) -> list[tuple[str, DeviceAnswer]]:
        """Return the answers since the last call."""
        found, self._answers = self._answers, []
        return found

    def overhead(self) -> float:
        """Return 0: times have no overhead."""
        return 0.0

    def close(self) -> None:
        """Release nothing."""


@frozen
class _Checking:
    """Running request: candidate, whether the task's data is made for it, time limit and deadline."""

    problem: TuningTask
    built: BuildResult | None
    new: bool
    limit: float
    deadline: float


class DeviceBench:
    """Bench in a child process; a crash costs only its candidate.

    Once time is `over`, requests end with `SessionEnded`. The next process starts with the reference kernel of the task
    and reloads a kernel when it is to be timed.
    """

    def __init__(
        self,
        target: Target,
        limit: float = 20.0,
        service: str = "cuts.search.measurement.device:MeasuringDevice",
        over: Callable[[], bool] = lambda: False,
        device: str = "",
    ) -> None:
        self.limit = limit
        self._child = Child(service, target, *([device] if device else []), over=over)
        self._trusted: dict[str, BuildResult] = {}
        self._references: dict[str, Reference] = {}
        self._starts = 0
        self._prepared: set[str] = set()
        self._checking: _Checking | None = None
        self._finished: list[tuple[str, DeviceAnswer]] = []

    def start(self) -> None:
        """Start the process without waiting for it."""
        self._child.start()

    def prepare(self, problem: TuningTask, reference: Reference) -> None:
        """Store the expected outputs of a task."""
        self._references[problem.key] = reference

    def check(self, problem: TuningTask, built: BuildResult) -> Verdict:
        """Run a candidate once and compare its outputs."""
        self._wait()
        before, self._finished = self._finished, []
        self.begin(problem, built)
        self._wait()
        ((_, measured),), self._finished = self._finished, before
        return measured.verdict

    def is_free(self, problem: TuningTask) -> bool:
        """Return whether no candidate is checked now."""
        return self._checking is None

    def begin(self, problem: TuningTask, built: BuildResult | None, turns: TimingTurns | None = None) -> None:
        """Start to check a candidate and to time kernels.

        The task's data is made first where the process has none.
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
        self._finished.clear()  # not requested by the caller
        self._begin(problem, built, turns)

    def take_finished(self, timeout: float) -> list[tuple[str, DeviceAnswer]]:
        """Return finished measurements."""
        checking = self._checking
        if checking is not None and (self._child.answers(timeout) or time.monotonic() > checking.deadline):
            self._wait()
        finished, self._finished = self._finished, []
        return finished

    @property
    def works(self) -> bool:
        """True if the device responds; waits for the start of its process."""
        self._wait()
        try:
            self._child.call(self.limit, "describe")
        except (ChildLost, BackendError):
            return False
        return True

    def sample(self, problem: TuningTask, built: BuildResult, repeats: int) -> Timed:
        """Time a checked candidate; a new process loads it again."""
        assert built.kernel is not None, "only what was built is timed"
        for _ in range(2):
            self._wait()
            try:
                samples = self._child.call(self.limit, "sample", problem.key, built.kernel.name, repeats)
            except ChildLost as lost:
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
        """Return the seconds that timing adds to a kernel, 0 on failure."""
        self._wait()
        try:
            return float(self._child.call(self.limit, "overhead"))
        except (ChildLost, BackendError):
            return 0.0

    def close(self) -> None:
        """End the process."""
        self._checking = None
        self._finished.clear()
        self._child.close()

    def _begin(self, problem: TuningTask, built: BuildResult | None, turns: TimingTurns | None = None) -> None:
        """Send a request to the process."""
        new = built is not None and problem.key not in self._prepared
        data = (problem, self._references.get(problem.key)) if new else ()
        limit = self.limit + (PREPARE_LIMIT if new else 0.0) + TIMED_LIMIT * len(turns.kernels if turns else ())
        self._checking = _Checking(problem, built, new, limit, time.monotonic() + limit + START_LIMIT)
        code = (None, None) if built is None else (built.kernel, built.binary)
        try:
            self._child.send("measure", problem.key, *code, turns, *data)
        except ChildLost as lost:
            self._checking = None
            self._finished.append((problem.key, DeviceAnswer(_verdict(lost))))

    def _prepare(self, problem: TuningTask) -> None:
        """Have only the data of a task made."""
        try:
            self._child.call(PREPARE_LIMIT, "prepare", problem, self._references.get(problem.key))
        except ChildLost as lost:
            raise BackendError(f"the device's process is lost while data is prepared: {lost}") from lost
        self._starts = self._child.starts
        self._prepared.add(problem.key)

    def _wait(self) -> None:
        """Wait for the result of the running request, if any.

        Raises `BackendError` where nothing ever worked: there is no device, and its error says why.
        """
        checking, self._checking = self._checking, None
        if checking is None:
            return
        try:
            measured = self._child.receive(checking.limit)
        except ChildLost as lost:
            if not self._starts:  # distinguishes a bad candidate from a missing device
                self._prepare(checking.problem)
            self._finished.append((checking.problem.key, DeviceAnswer(_verdict(lost))))
            return
        except BackendError as error:
            if not self._starts:
                raise
            self._child.kill()
            self._finished.append(
                (checking.problem.key, DeviceAnswer(Verdict("failed", error.message.splitlines()[0])))
            )
            return
        assert isinstance(measured, DeviceAnswer)
        self._starts = self._child.starts
        self._finished.append((checking.problem.key, measured))
        if checking.new:
            self._prepared.add(checking.problem.key)
        if measured.verdict.outcome == "ok" and checking.built is not None:
            self._trusted.setdefault(checking.problem.key, checking.built)
        failed = measured.failure or measured.verdict.outcome == "failed"
        if failed and checking.problem.target.dialect == "cuda":
            self._child.kill()  # an illegal address corrupts the context, so further calls would fail too


def _verdict(lost: ChildLost) -> Verdict:
    return Verdict("timeout" if lost.hung else "failed", str(lost))
