"""The device as the tuner sees it: a child process that owns it
and is replaced when a candidate crashes or hangs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from attrs import frozen

from ..ir import BackendError, Target
from .build import Built
from .child import Child, Lost
from .data import Reference
from .measure import Verdict
from .problem import Problem

#: Seconds to make the data of a problem and what its outputs must be.
PREPARE_LIMIT = 120.0


@frozen
class Timed:
    """Seconds of repeated runs, or why there are none."""

    samples: tuple[float, ...] = ()
    verdict: Verdict = Verdict("ok")


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
    ) -> None:
        self.limit = limit
        self._child = Child(service, target, over=over)
        self._trusted: dict[str, Built] = {}
        self._references: dict[str, Reference] = {}
        self._starts = 0
        self._prepared: set[str] = set()

    def start(self) -> None:
        """Start the process, without waiting until it has opened the device."""
        self._child.start()

    def prepare(self, problem: Problem, reference: Reference) -> None:
        """Take note of what the outputs of a problem must be."""
        self._references[problem.key] = reference

    def check(self, problem: Problem, built: Built) -> Verdict:
        """Run a candidate once and compare what it writes."""
        assert built.kernel is not None, "only what was built is checked"
        try:
            self._renew(problem)
        except BackendError as error:
            if not self._starts:  # nothing ever worked: there is no device, and its error says why
                raise
            return Verdict("failed", error.message.splitlines()[0])
        verdict = self._check(problem, built)
        if verdict.outcome == "ok":
            self._trusted.setdefault(problem.key, built)
        return verdict

    def sample(self, problem: Problem, built: Built, repeats: int) -> Timed:
        """Time a candidate that was checked; it is loaded again where the process is a new one."""
        assert built.kernel is not None, "only what was built is timed"
        for _ in range(2):
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
        try:
            return float(self._child.call(self.limit, "overhead"))
        except (Lost, BackendError):
            return 0.0

    def close(self) -> None:
        """End the process."""
        self._child.close()

    def _renew(self, problem: Problem) -> None:
        """Prepare a problem's data, and in a process that does not know it the kernel that others are held against."""
        if self._child.starts != self._starts or not self._child.alive:
            self._prepared.clear()
        if problem.key in self._prepared:
            return
        try:
            self._child.call(PREPARE_LIMIT, "prepare", problem, self._references.get(problem.key))
        except Lost as lost:
            raise BackendError(f"the device's process is lost while data is prepared: {lost}") from lost
        self._starts = self._child.starts
        self._prepared.add(problem.key)
        if problem.key in self._trusted:
            self._check(problem, self._trusted[problem.key])

    def _check(self, problem: Problem, built: Built) -> Verdict:
        try:
            verdict = self._child.call(self.limit, "check", problem.key, built.kernel, built.binary)
        except Lost as lost:
            return _verdict(lost)
        assert isinstance(verdict, Verdict)
        if verdict.outcome == "failed" and problem.target.dialect == "cuda":
            self._child.kill()  # an illegal address poisons the context, so what follows would fail too
        return verdict


def _verdict(lost: Lost) -> Verdict:
    return Verdict("timeout" if lost.hung else "failed", str(lost))
