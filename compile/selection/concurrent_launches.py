"""Concurrent launches: a plan variant with branches, used where faster.

Concurrent launches fill a machine that one launch leaves half empty. Graphs with branches cost more to launch, and
their buffers share less memory. Measurement decides, where the kernel times leave something to gain.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from ...ir import BackendError
from ...runtime import Plan, launch_dependencies, make_concurrent
from ...search import DecisionRecord, TuningSession, decisions_text
from ..plan import CompiledPlan
from .plan_selection import MIN_TIMED_SECONDS, time_valid_plans
from .plan_validation import PlanValidator

#: Largest share of the total launch time that the critical path may have.
MAX_CRITICAL_PATH_SHARE = 0.9
#: Runs of each step in a timing of the critical path; seconds of opening a plan with branches and timing it, and
#: seconds more for each launch (6 s for 767 launches on a busy host).
CRITICAL_PATH_RUNS, TRIAL_SECONDS, SECONDS_PER_LAUNCH = 3, 1.5, 6e-3


def select_launch_form(
    compiled: CompiledPlan,
    record: DecisionRecord | None,
    session: TuningSession,
    validator: PlanValidator,
    memory: int | None,
) -> CompiledPlan:
    """Return a plan, or its variant with concurrent launches where faster.

    The result is stored with the decision `record` of the graph, and an earlier one is reused. Nothing is timed where
    timing is not allowed, where no time is left, or where branches need more memory than the device has.
    """
    known = None if record is None else record.read()
    noted = None if known is None else known.branched
    if noted is False or session.target.on_host:
        return compiled
    trial = TRIAL_SECONDS + SECONDS_PER_LAUNCH * compiled.plan.launch_count + validator.seconds
    unable = session.tuner.frozen or not session.budget.has(trial)
    if noted is None and unable:
        return compiled
    with session.budget.stage("branches"):
        branched = make_concurrent(compiled.plan)
        if branched is None or (memory is not None and branched.arena > memory):
            return compiled
        other = CompiledPlan(branched, compiled.cubins, compiled.complete)
        faster = noted if noted is not None else _is_faster(other, compiled, session, validator)
        if faster is None:
            return compiled
        if faster is not noted:
            _note(record, session, faster)
        return other if faster else compiled


def _is_faster(
    branched: CompiledPlan, compiled: CompiledPlan, session: TuningSession, agreement: PlanValidator
) -> bool | None:
    """Return whether a plan with branches is faster end to end; None where that cannot be measured."""
    wide = _is_wide(compiled, branched.plan)
    if not wide or not session.budget.has(MIN_TIMED_SECONDS + agreement.seconds):
        return wide and None
    times = time_valid_plans((compiled, branched), session.budget, agreement)
    return None if times is None else times[1] < (1 - session.settings.tie) * times[0]


def _note(record: DecisionRecord | None, session: TuningSession, branched: bool) -> None:
    """Store the faster launch form with the decisions of the graph."""
    known = None if record is None else record.read()
    if known is not None and record is not None:
        session.database.keep_answer(evolve(record, decisions=decisions_text(evolve(known, branched=branched))))


def _is_wide(compiled: CompiledPlan, branched: Plan) -> bool | None:
    """Return whether the critical path is short enough for a trial; None where the device cannot record branches, or
    lacks memory for the timing.
    """
    try:
        if not compiled.session.device.branches:
            return None
        times = [each.typical for each in compiled.session.time_steps(repeats=CRITICAL_PATH_RUNS)]
    except BackendError:
        return None
    return critical_path_share(branched, times) < MAX_CRITICAL_PATH_SHARE


def critical_path_share(plan: Plan, times: Sequence[float]) -> float:
    """Return the critical path's share of the total launch time.

    `times` are the seconds of the plan's steps.
    """
    seconds = [times[step] for step, _ in plan.launches()]
    return launch_dependencies(plan).critical_path(seconds) / max(sum(seconds), 1e-12)
