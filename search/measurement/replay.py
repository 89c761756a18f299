"""Replay of recorded measurements from a database instead of a device.

Strategies are compared without a GPU in this way. Candidates without a recorded measurement count as failed, so a
recording should hold many: that of `cuts tune --strategy random --trials 2000`, for example. Results are found by their
computation, for any machine that they were recorded on.
"""

from __future__ import annotations

from math import inf

from ...ir import CutsError, Schedule
from ..building import BuildResult, Factory
from ..database import Database, Measurement
from ..tasks import TuningTask, make_kernel
from .bench import ImmediateBench, Timed
from .verdicts import Verdict


class ReplayPrinter(Factory):
    """Print candidates and compile none of them."""

    def build(self, problem: TuningTask, schedule: Schedule, longest: float = inf) -> BuildResult:
        """Return the kernel in source form."""
        try:
            return BuildResult(make_kernel(problem, schedule))
        except CutsError as error:
            return BuildResult(None, outcome="failed", message=error.message.splitlines()[0])

    def refer(self, problem: TuningTask) -> None:
        """Return no reference: nothing is checked."""

    def simple(self, problem: TuningTask) -> None:
        """Return no simple kernel: nothing is checked."""


class ReplayBench(ImmediateBench):
    """Bench that returns recorded results of a kernel's text."""

    def __init__(self, recorded: Database) -> None:
        super().__init__()
        self._recorded = recorded
        self._measurements: dict[str, dict[str, Measurement]] = {}

    def check(self, problem: TuningTask, built: BuildResult) -> Verdict:
        """Return the recorded outcome."""
        trial = self._measurement(problem, built)
        return Verdict("failed", "not recorded") if trial is None else Verdict(trial.outcome, trial.message)

    def sample(self, problem: TuningTask, built: BuildResult, repeats: int) -> Timed:
        """Return the recorded median `repeats` times."""
        trial = self._measurement(problem, built)
        if trial is None or trial.seconds is None:
            return Timed(verdict=Verdict("failed", "not recorded"))
        return Timed((trial.seconds,) * repeats)

    def close(self) -> None:
        """Close the recording."""
        self._recorded.close()

    def _measurement(self, problem: TuningTask, built: BuildResult) -> Measurement | None:
        if problem.key not in self._measurements:
            self._measurements[problem.key] = {t.source: t for t in self._recorded.measurements_of_work(problem.work)}
        return self._measurements[problem.key].get(built.source)
