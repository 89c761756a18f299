"""The finished plan with its launches in branches: one more contender, which ships where its whole is faster.

Launches side by side fill a machine that one of them leaves half empty, but graphs with branches cost more to launch,
and buffers share less memory. So the clock decides, where the times of the kernels say that there is something to win.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from ..ir import BackendError
from ..runtime import Plan, in_branches, waits_of
from ..search import MeasuredSelector, decisions_text
from .agreement import Agreement
from .contest import SHORT, times_of_right
from .plan import CompiledPlan

#: Part of what launches take together that the longest way through them must fall below.
WIDE = 0.9
#: Runs of each step by which that is told, and seconds that opening a plan in branches and a contest take, for each
#: launch besides (the training step of DenseNet-121, 767 launches, took 6 s of a busy host).
RUNS, TRIAL, PER_LAUNCH = 3, 1.5, 6e-3


def chained_or_branched(
    made: CompiledPlan, selector: MeasuredSelector, agreement: Agreement, memory: int | None
) -> CompiledPlan:
    """Return a finished plan, or the same with its launches in branches where that is faster, which is noted with what
    is known of the graph. What was noted before holds; else nothing is timed where nothing may be, where there is no
    time left, or where branches take more memory than there is.
    """
    known = None if selector.answer is None else selector.answer.read()
    noted = None if known is None else known.branched
    if noted is False or selector.target.on_host:
        return made
    trial = TRIAL + PER_LAUNCH * made.plan.launch_count + agreement.seconds
    unable = selector.tuner.frozen or not selector.budget.has(trial)
    if noted is None and unable:
        return made
    with selector.budget.stage("branches"):
        branched = in_branches(made.plan)
        if branched is None or (memory is not None and branched.arena > memory):
            return made
        other = CompiledPlan(branched, made.cubins, made.complete)
        faster = noted if noted is not None else _is_faster(other, made, selector, agreement)
        if faster is None:
            return made
        if faster is not noted:
            _note(selector, faster)
        return other if faster else made


def _is_faster(
    branched: CompiledPlan, made: CompiledPlan, selector: MeasuredSelector, agreement: Agreement
) -> bool | None:
    """Whether a plan in branches is faster as a whole; nothing where that cannot be said."""
    wide = _is_wide(made, branched.plan)
    if not wide or not selector.budget.has(SHORT + agreement.seconds):
        return wide and None
    times = times_of_right((made, branched), selector.budget, agreement)
    return None if times is None else times[1] < (1 - selector.settings.tie) * times[0]


def _note(selector: MeasuredSelector, branched: bool) -> None:
    """Note in what form a plan is faster with what is known of its graph."""
    known = None if selector.answer is None else selector.answer.read()
    if known is not None and selector.answer is not None:
        selector.answer = evolve(selector.answer, decisions=decisions_text(evolve(known, branched=branched)))
        selector.tuner.resources.database.keep_answer(selector.answer)


def _is_wide(made: CompiledPlan, branched: Plan) -> bool | None:
    """Whether launches that do not wait for one another take a part of the time that is worth a trial; nothing where
    the device cannot record them, or has no room to tell.
    """
    try:
        if not made.session.device.branches:
            return None
        times = [each.typical for each in made.session.time_steps(repeats=RUNS)]
    except BackendError:
        return None
    return width(branched, times) < WIDE


def width(plan: Plan, times: Sequence[float]) -> float:
    """Return how long the longest way through a plan in branches takes, as a part of all launches one after another, by
    the seconds of its steps.
    """
    seconds = [times[step] for step, _ in plan.launches()]
    return waits_of(plan).longest(seconds) / max(sum(seconds), 1e-12)
