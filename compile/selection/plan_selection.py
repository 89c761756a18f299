"""Plan selection: benchmarks candidate plans end to end and returns the fastest.

Kernels are timed one by one with cold caches; in a plan they follow one another. The sum of kernel times therefore
selects the plans that are worth a comparison, and end-to-end time decides between
those whose results agree (`PlanValidator`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from statistics import median
from typing import TypeAlias

from attrs import define, field, frozen

from ...ir import BackendError, Budget, CompiledGraph, ObjectCache
from ...search import DecisionRecord, Findings, TuningSession, machine_of
from ...store import digest_parts
from ..plan import CompiledPlan
from .plan_validation import PlanValidator

#: Largest ratio of kernel-time sums at which a plan may still be faster end to end.
MAX_SUM_RATIO = 1.05
#: Runs of each of two plans per round, rounds, and the fewest runs of a valid timing.
RUNS_PER_ROUND, TIMED_ROUNDS, MIN_TIMED_RUNS = 10, 3, 3
#: Shortest timing of two plans, in seconds.
MIN_TIMED_SECONDS = 0.5
#: Return the end-to-end seconds of two compilations; None where they cannot be timed.
PlanTimer: TypeAlias = "Callable[[CandidatePlan, CandidatePlan], tuple[float, float] | None]"
#: Return whether a compilation may ship, by its results.
PlanCheck: TypeAlias = "Callable[[CandidatePlan], bool]"


@frozen(eq=False)
class CandidatePlan:
    """Candidate plan: a compilation, its search findings and its decision record.

    There is no record where nothing was decided.
    """

    compiled: CompiledGraph
    findings: Findings
    record: DecisionRecord | None = None

    @property
    def decisions(self) -> DecisionRecord:
        """Decision record of a plan that was searched for."""
        assert self.record is not None, "something was decided"
        return self.record

    @property
    def seconds(self) -> float:
        """Sum of its kernel times."""
        return self.decisions.seconds

    @property
    def is_modelled(self) -> bool:
        """Return whether the cost model estimated some kernel times."""
        return self.findings.is_modelled


def faster_candidate(first: CandidatePlan, second: CandidatePlan, time_plans: PlanTimer, tie: float) -> CandidatePlan:
    """Return the candidate that is faster end to end.

    The first wins within a tie.

    Where end-to-end times are missing, a fully measured candidate wins over a partly estimated one, else the smaller
    sum.
    """
    times = time_plans(first, second)
    if times is None and first.is_modelled != second.is_modelled:
        return second if first.is_modelled else first
    times = times or (first.seconds, second.seconds)
    return second if times[1] < (1 - tie) * times[0] else first


def time_nothing(first: CandidatePlan, second: CandidatePlan) -> None:
    """Time nothing.

    On a shared CPU, sums of kernel times are as reliable."""


def accept_plan(rival: CandidatePlan) -> bool:
    """Accept a plan without a run."""
    return True


@define(eq=False)
class CandidatePlans:
    """Plans that `make` makes of candidates, timed on the session's target.

    `validator` validates them.
    """

    session: TuningSession
    make: Callable[[CandidatePlan], CompiledPlan]
    validator: PlanValidator
    _made: ObjectCache[CompiledPlan] = field(factory=ObjectCache, init=False)

    def of(self, rival: CandidatePlan) -> CompiledPlan:
        """Return the plan of a candidate, made once."""
        return self._made.find(rival.compiled, lambda: self.make(rival))

    def time_plans(self, first: CandidatePlan, second: CandidatePlan) -> tuple[float, float] | None:
        """Return the seconds of a run of each candidate.

        An invalid one has infinity. The result is None where no time is left, or the device lacks memory.
        """
        budget, needed = self.session.budget, MIN_TIMED_SECONDS + self.validator.seconds
        if not budget.has(needed):
            return None
        plans = [self.of(each) for each in (first, second)]
        return time_valid_plans(plans, budget, self.validator) if budget.has(needed) else None

    def is_right(self, rival: CandidatePlan) -> bool:
        """Return whether a candidate's results are right, within the time left."""
        plan = self.of(rival)
        with self.session.budget.stage("agreement"):
            return self.validator.is_right(plan)


def select_library_calls(
    plans: Sequence[CompiledPlan], session: TuningSession, validator: PlanValidator
) -> CompiledPlan:
    """Return the valid and faster one of two plans.

    The first calls libraries, the second does not; the first wins unless the second is faster, or the only valid one,
    or the only one that opens. The result is recorded, so that a later compilation does not time them again.
    """
    database, name = session.database, _pair_name(plans, session)
    ratio = database.cost(name)
    if ratio is None and session.budget.has(MIN_TIMED_SECONDS + validator.seconds) and not session.tuner.frozen:
        times = time_valid_plans(plans, session.budget, validator)
        ratio = None if times is None or inf in times else times[1] / times[0]
        if ratio is not None:
            database.keep_cost(name, ratio)
        elif times[0] > times[1] if times is not None else not _opens(plans[0]):
            return plans[1]
    return plans[1] if ratio is not None and ratio < 1 - session.settings.tie else plans[0]


def _opens(plan: CompiledPlan) -> bool:
    """Return whether a plan can be opened here: a library routine may need memory that a kernel does not."""
    try:
        _ = plan.session
    except BackendError:
        return False
    return True


def _pair_name(plans: Sequence[CompiledPlan], session: TuningSession) -> str:
    """Return the key under which the comparison of two plans is cached; digests in names identify kernels."""
    kernels = [[plan.kernels[step.kernel] for step in plan.plan.steps] for plan in plans]
    launched = [f"{kernel.with_label().name} {kernel.info.get('library', '')}" for each in kernels for kernel in each]
    return f"wholes {digest_parts([*launched, repr(sorted(machine_of(session.target).items()))])}"


def time_valid_plans(
    plans: Sequence[CompiledPlan], budget: Budget, validator: PlanValidator
) -> tuple[float, float] | None:
    """Return the seconds of a run of each of two plans.

    An invalid one has infinity. The result is None where they cannot be timed.
    """
    times = time_alternately(plans, budget)
    if times is None:
        return None
    with budget.stage("agreement"):
        first, second = validator.check_plans(plans)
    return times[0] if first else inf, times[1] if second else inf


def time_alternately(plans: Sequence[CompiledPlan], budget: Budget) -> tuple[float, float] | None:
    """Return the seconds of a run of two plans, timed alternately.

    The budget limits the number of runs. The result is None where the device cannot hold or run them.
    """
    try:
        runs = _runs(plans, budget) if budget.is_limited else RUNS_PER_ROUND
        times = [
            [plan.session.time_compute(warmup=2, repeats=runs).typical for plan in plans] for _ in range(TIMED_ROUNDS)
        ]
    except BackendError:
        return None
    first, second = (median(column) for column in zip(*times, strict=True))
    return first, second


def _runs(plans: Sequence[CompiledPlan], budget: Budget) -> int:
    """Return how often both plans can run in each round until the budget ends."""
    once = sum(plan.session.time_compute(warmup=1, repeats=1).typical for plan in plans)
    left = max(MIN_TIMED_SECONDS, budget.seconds - budget.elapsed)
    return (
        max(MIN_TIMED_RUNS, min(RUNS_PER_ROUND, int(left / (TIMED_ROUNDS * once)) - 2))
        if once > 0.0
        else RUNS_PER_ROUND
    )
