"""Whole plans against one another, so that no search is regretted: the fastest ships.

Kernels are timed one by one, with caches emptied before each; in a plan they follow one another. So sums tell which
plans are worth to be held against each other, and the clock of the whole decides between them, where they compute the
same (`agreement`).
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

#: How much longer the kernels of a plan may take, one by one, where it might be faster than another as a whole.
NEAR = 1.05
#: Runs of each of two plans that are timed in turns, how often they take turns, and the fewest runs that tell anything.
RUNS, TURNS, LEAST = 10, 3, 3
#: Seconds in which two plans are timed, at least.
SHORT = 0.5
#: Returns the seconds that two compilations take as wholes; nothing where that cannot be said.
Wholes: TypeAlias = "Callable[[Rival, Rival], tuple[float, float] | None]"
#: Returns whether a compilation may ship, by what it computes.
Right: TypeAlias = "Callable[[Rival], bool]"


@frozen(eq=False)
class Rival:
    """A compilation by measured times, what the search then held, and what there is to keep of it."""

    compiled: CompiledGraph
    findings: Findings
    decided: DecidedGraph

    @property
    def seconds(self) -> float:
        """What its kernels take, one by one."""
        return self.decided.seconds

    @property
    def guessed(self) -> bool:
        """Whether some of its kernels were never timed, so that the sum is partly the model's word."""
        return any(choice.seconds is None for choice in self.findings.choices)


def better(first: Rival, second: Rival, wholes: Wholes, tie: float) -> Rival:
    """Return the one that is faster as a whole, the first within a tie. Where wholes cannot be timed, return the one
    that was timed kernel by kernel if the other was not, else the one with the smaller sum.
    """
    times = wholes(first, second)
    if times is None and first.guessed != second.guessed:
        return second if first.guessed else first
    times = times or (first.seconds, second.seconds)
    return second if times[1] < (1 - tie) * times[0] else first


def by_sums(first: Rival, second: Rival) -> None:
    """Time nothing: on a processor, which others use too, sums of kernels say as much."""


def trusted(rival: Rival) -> bool:
    """Take a plan's word for what it computes: none is run."""
    return True


@define(eq=False)
class Plans:
    """The plans that `make` made of rivals, and whole runs of them on the device of the selector's target; `agreement`
    says which of them are right.
    """

    selector: MeasuredSelector
    make: Callable[[CompiledGraph], CompiledPlan]
    agreement: Agreement
    _made: dict[int, tuple[CompiledGraph, CompiledPlan]] = field(factory=dict, init=False)

    def of(self, compiled: CompiledGraph) -> CompiledPlan:
        """Return the plan of a compilation, whose findings the selector holds; it is made once."""
        if id(compiled) not in self._made:
            self._made[id(compiled)] = compiled, self.make(compiled)
        return self._made[id(compiled)][1]

    def wholes(self, first: Rival, second: Rival) -> tuple[float, float] | None:
        """Return the seconds of a run of each, infinity for one that is wrong; nothing where no time is left for it, or
        the device has no room.
        """
        budget, needed = self.selector.budget, SHORT + self.agreement.seconds
        if not budget.has(needed):
            return None
        plans = [self._of(each) for each in (first, second)]
        return times_of_right(plans, budget, self.agreement) if budget.has(needed) else None

    def is_right(self, rival: Rival) -> bool:
        """Whether a rival computes what it should, as far as there is time to tell."""
        plan = self._of(rival)
        with self.selector.budget.stage("agreement"):
            return self.agreement.is_right(plan)

    def _of(self, rival: Rival) -> CompiledPlan:
        self.selector.findings = rival.findings
        return self.of(rival.compiled)


def calling_or_not(plans: Sequence[CompiledPlan], selector: MeasuredSelector, agreement: Agreement) -> CompiledPlan:
    """Return the first of two plans, which calls libraries, unless the second, which calls none, is faster, or the only
    one that is right, or that can be opened. How their wholes compared is kept, so that they are not timed again where
    they are made again.
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
    """Whether a plan can be opened here: a routine may find no room that a kernel needs not."""
    try:
        _ = plan.session
    except BackendError:
        return False
    return True


def _pair_name(plans: Sequence[CompiledPlan], selector: MeasuredSelector) -> str:
    """Return under which name it is kept how the wholes of two plans compare; names of kernels say what they do."""
    kernels = [[plan.kernels[step.kernel] for step in plan.plan.steps] for plan in plans]
    launched = [f"{kernel.name} {kernel.info.get('library', '')}" for each in kernels for kernel in each]
    return f"wholes {cache_key([*launched, repr(sorted(machine_of(selector.target).items()))])}"


def times_of_right(plans: Sequence[CompiledPlan], budget: Budget, agreement: Agreement) -> tuple[float, float] | None:
    """Return the seconds of a run of each of two plans, infinity for one that is wrong; nothing where they cannot be
    timed.
    """
    times = in_turns(plans, budget)
    if times is None:
        return None
    with budget.stage("agreement"):
        first, second = agreement.trusted(plans)
    return times[0] if first else inf, times[1] if second else inf


def in_turns(plans: Sequence[CompiledPlan], budget: Budget) -> tuple[float, float] | None:
    """Return the seconds of a run of each of two plans, timed in turns, with as many runs as there is time for; nothing
    where the device cannot hold or run them.
    """
    try:
        runs = _runs(plans, budget) if budget.limited else RUNS
        times = [[plan.session.time_compute(warmup=2, repeats=runs).typical for plan in plans] for _ in range(TURNS)]
    except BackendError:
        return None
    first, second = (median(column) for column in zip(*times, strict=True))
    return first, second


def _runs(plans: Sequence[CompiledPlan], budget: Budget) -> int:
    """Return how often both plans can be run in each turn until the budget ends."""
    once = sum(plan.session.time_compute(warmup=1, repeats=1).typical for plan in plans)
    left = max(SHORT, budget.seconds - budget.elapsed)
    return max(LEAST, min(RUNS, int(left / (TURNS * once)) - 2)) if once > 0.0 else RUNS
