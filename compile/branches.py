"""The finished plan with its launches in branches: one more contender, which ships where its whole is faster.

Launches side by side fill a machine that one of them leaves half empty, but graphs with branches cost more to launch,
and buffers share less memory. So the clock decides, where the times of the kernels say that there is something to win.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import BackendError
from ..runtime import Plan, in_branches, waits_of
from ..search import MeasuredSelector
from .agreement import Agreement
from .contest import quickest
from .plan import CompiledPlan

#: Part of what launches take together that the longest way through them must fall below.
WIDE = 0.9
#: Runs of each step by which that is told, and seconds that opening a plan in branches and a contest take.
RUNS, TRIAL = 3, 1.5


def chained_or_branched(
    made: CompiledPlan, selector: MeasuredSelector, agreement: Agreement, memory: int | None
) -> CompiledPlan:
    """Return a finished plan, or the same with its launches in branches where that is faster: nothing is timed where
    nothing may be, where there is no time left, or where branches take more memory than there is.
    """
    if selector.tuner.frozen or selector.target.on_host or not selector.budget.has(TRIAL):
        return made
    with selector.budget.stage("branches"):
        branched = in_branches(made.plan)
        if branched is None or (memory is not None and branched.arena > memory) or not _is_wide(made, branched):
            return made
        return quickest([made, CompiledPlan(branched, made.cubins, made.complete)], selector, agreement)


def _is_wide(made: CompiledPlan, branched: Plan) -> bool:
    """Whether launches that do not wait for one another take a part of the time that is worth a trial."""
    try:
        if not made.session.device.branches:
            return False
        times = [each.median for each in made.session.time_steps(repeats=RUNS)]
    except BackendError:
        return False
    return width(branched, times) < WIDE


def width(plan: Plan, times: Sequence[float]) -> float:
    """Return how long the longest way through a plan in branches takes, as a part of all launches one after another, by
    the seconds of its steps.
    """
    seconds = [times[step] for step, _ in plan.launches()]
    return waits_of(plan).longest(seconds) / max(sum(seconds), 1e-12)
