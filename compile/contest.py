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

from ..backends import cache_key
from ..ir import BackendError, Budget, CompiledGraph
from ..search import DecidedGraph, Findings, MeasuredSelector, machine_of
from .agreement import Agreement
from .plan import CompiledPlan

#: Largest ratio of kernel-time sums at which a plan may still be faster end to end.
NEAR = 1.05
#: Runs of each of two plans per round, rounds, and the fewest runs of a valid timing.
RUNS, TURNS, LEAST = 10, 3, 3
#: Shortest timing of two plans, in seconds.
SHORT = 0.5
#: Return the end-to-end seconds of two compilations; None where they cannot be timed.
Wholes: TypeAlias = "Callable[[Rival, Rival], tuple[float, float] | None]"
#: Return whether a compilation may ship, by its results.
Right: TypeAlias = "Callable[[Rival], bool]"


@frozen(eq=False)
class Rival:
    """Candidate plan: a compilation, its search findings and its decision record."""

    compiled: CompiledGraph
    findings: Findings
    decided: DecidedGraph

    @property
    def seconds(self) -> float:
        """Sum of its kernel times."""
        return self.decided.seconds

    @property
    def guessed(self) -> bool:
        """Return whether the cost model estimated some kernel times.

        Such kernels were never measured.
        """
        return any(choice.seconds is None for choice in self.findings.choices)


def better(first: Rival, second: Rival, wholes: Wholes, tie: float) -> Rival:
    """Return the candidate that is faster end to end.

    The first wins within a tie.

    Where end-to-end times are missing, a fully measured candidate wins over a partly estimated one, else the smaller
    sum.
    """
    times = wholes(first, second)
    if times is None and first.guessed != second.guessed:
        return second if first.guessed else first
    times = times or (first.seconds, second.seconds)
    return second if times[1] < (1 - tie) * times[0] else first


def by_sums(first: Rival, second: Rival) -> None:
    """Time nothing.

    On a shared CPU, sums of kernel times are as reliable."""


def trusted(rival: Rival) -> bool:
    """Accept a plan without a run."""
    return True


@define(eq=False)
class Plans:
    """Plans that `make` makes of candidates, timed on the selector's target.

    `validator` validates them.
    """

    selector: MeasuredSelector
    make: Callable[[CompiledGraph], CompiledPlan]
    agreement: Agreement
    _made: dict[int, tuple[CompiledGraph, CompiledPlan]] = field(factory=dict, init=False)

    def of(self, compiled: CompiledGraph) -> CompiledPlan:
        """Return the plan of a candidate, made once.

        The selector holds the findings of the candidate.
        """
        if id(compiled) not in self._made:
            self._made[id(compiled)] = compiled, self.make(compiled)
        return self._made[id(compiled)][1]

    def wholes(self, first: Rival, second: Rival) -> tuple[float, float] | None:
        """Return the seconds of a run of each candidate.

        An invalid one has infinity. The result is None where no time is left, or the device lacks memory.
        """
        budget, needed = self.selector.budget, SHORT + self.agreement.seconds
        if not budget.has(needed):
            return None
        plans = [self._of(each) for each in (first, second)]
        return times_of_right(plans, budget, self.agreement) if budget.has(needed) else None

    def is_right(self, rival: Rival) -> bool:
        """Return whether a candidate's results are right, within the time left."""
        plan = self._of(rival)
        with self.selector.budget.stage("agreement"):
            return self.agreement.is_right(plan)

    def _of(self, rival: Rival) -> CompiledPlan:
        self.selector.findings = rival.findings
        return self.of(rival.compiled)


def calling_or_not(plans: Sequence[CompiledPlan], selector: MeasuredSelector, agreement: Agreement) -> CompiledPlan:
    """Return the valid and faster one of two plans.

    The first calls libraries, the second does not; the first wins unless the second is faster, or the only valid one,
    or the only one that opens. The result is recorded, so that a later compilation does not time them again.
    """
    database, name = selector.tuner.resources.database, _pair_name(plans, selector)
    ratio = database.cost(name)
    if ratio is None and selector.budget.has(SHORT + agreement.seconds) and not selector.tuner.frozen:
        times = times_of_right(plans, selector.budget, agreement)
        ratio = None if times is None or inf in times else times[1] / times[0]
        if ratio is not None:
            database.keep_cost(name, ratio)
        elif times[0] > times[1] if times is not None else not _opens(plans[0]):
            return plans[1]
    return plans[1] if ratio is not None and ratio < 1 - selector.settings.tie else plans[0]


def _opens(plan: CompiledPlan) -> bool:
    """Return whether a plan can be opened here: a library routine may need memory that a kernel does not."""
    try:
        _ = plan.session
    except BackendError:
        return False
    return True


def _pair_name(plans: Sequence[CompiledPlan], selector: MeasuredSelector) -> str:
    """Return the key under which the comparison of two plans is cached; names of kernels identify their content."""
    kernels = [[plan.kernels[step.kernel] for step in plan.plan.steps] for plan in plans]
    launched = [f"{kernel.name} {kernel.info.get('library', '')}" for each in kernels for kernel in each]
    return f"wholes {cache_key([*launched, repr(sorted(machine_of(selector.target).items()))])}"


def times_of_right(plans: Sequence[CompiledPlan], budget: Budget, agreement: Agreement) -> tuple[float, float] | None:
    """Return the seconds of a run of each of two plans.

    An invalid one has infinity. The result is None where they cannot be timed.
    """
    times = in_turns(plans, budget)
    if times is None:
        return None
    with budget.stage("agreement"):
        first, second = agreement.trusted(plans)
    return times[0] if first else inf, times[1] if second else inf


def in_turns(plans: Sequence[CompiledPlan], budget: Budget) -> tuple[float, float] | None:
    """Return the seconds of a run of two plans, timed alternately.

    The budget limits the number of runs. The result is None where the device cannot hold or run them.
    """
    try:
        runs = _runs(plans, budget) if budget.limited else RUNS
        times = [[plan.session.time_compute(warmup=2, repeats=runs).typical for plan in plans] for _ in range(TURNS)]
    except BackendError:
        return None
    first, second = (median(column) for column in zip(*times, strict=True))
    return first, second


def _runs(plans: Sequence[CompiledPlan], budget: Budget) -> int:
    """Return how often both plans can run in each round until the budget ends."""
    once = sum(plan.session.time_compute(warmup=1, repeats=1).typical for plan in plans)
    left = max(SHORT, budget.seconds - budget.elapsed)
    return max(LEAST, min(RUNS, int(left / (TURNS * once)) - 2)) if once > 0.0 else RUNS
