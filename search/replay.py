"""Replaying recorded measurements: a search runs against a database instead of a device, so that strategies are
compared without a GPU.

Points that nobody measured count as failed, so a recording should hold many: that of `cuts tune --strategy random
--trials 2000`, for example. Results are found by what they compute, whatever machine they were recorded on.
"""

from __future__ import annotations

from math import inf

from ..ir import CutsError, Schedule
from .bench import Timed
from .build import Built, Factory
from .data import Reference
from .database import Database, Trial
from .kernels import make_kernel
from .measure import Verdict
from .problem import Problem


class ReplayPrinter(Factory):
    """Prints candidates and compiles none of them."""

    def build(self, problem: Problem, schedule: Schedule, longest: float = inf) -> Built:
        """Return the kernel in source form."""
        try:
            return Built(make_kernel(problem, schedule))
        except CutsError as error:
            return Built(None, outcome="failed", message=error.message.splitlines()[0])

    def refer(self, problem: Problem) -> None:
        """Nothing is checked, so nothing needs to be known."""

    def simple(self, problem: Problem) -> None:
        """Nothing is checked, so no kernel needs to be trusted."""


class ReplayBench:
    """A bench that answers with what a database recorded for a kernel's text."""

    def __init__(self, recorded: Database) -> None:
        self._recorded = recorded
        self._trials: dict[str, dict[str, Trial]] = {}

    def prepare(self, problem: Problem, reference: Reference) -> None:
        """Nothing is computed."""

    def check(self, problem: Problem, built: Built) -> Verdict:
        """Return the recorded outcome."""
        trial = self._trial(problem, built)
        return Verdict("failed", "not recorded") if trial is None else Verdict(trial.outcome, trial.message)

    def sample(self, problem: Problem, built: Built, repeats: int) -> Timed:
        """Return the recorded median, as often as is asked for."""
        trial = self._trial(problem, built)
        if trial is None or trial.seconds is None:
            return Timed(verdict=Verdict("failed", "not recorded"))
        return Timed((trial.seconds,) * repeats)

    def overhead(self) -> float:
        """A recording does not say."""
        return 0.0

    def close(self) -> None:
        """Close the recording."""
        self._recorded.close()

    def _trial(self, problem: Problem, built: Built) -> Trial | None:
        if problem.key not in self._trials:
            self._trials[problem.key] = {t.source: t for t in self._recorded.recorded(problem.work)}
        return self._trials[problem.key].get(built.source)
