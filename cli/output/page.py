"""`--report` and `--trace`: a page and a trace of a compilation."""

from __future__ import annotations

import json
import platform
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ...backends import Timing
from ...ir import Budget, parse_ir
from ...numerics import Comparison
from ...passes.model import group_work
from ...runtime import versions_of
from ...runtime.report import CandidateOutcome, Evidence, StepCurve, html_page, html_section
from ...search import HERE, Measurement, TuningSession, measured_candidates, trace_events
from .common import AnyPlan, write_text
from .times import shares

#: Packages whose versions affect compiled code and its speed.
PACKAGES = ("numpy", "pyopencl", "pocl-binary-distribution", "pycuda", "cuda-bindings", "nvidia-cuda-nvrtc")
#: Number of a kernel's candidates on the page.
MAX_CANDIDATES = 12
#: A group in a record of groups.
_GROUP = re.compile(r".*?^}$", re.DOTALL | re.MULTILINE)


def write_page(
    path: str,
    plan: AnyPlan,
    command: Sequence[str],
    results: tuple[Comparison, ...],
    times: Sequence[tuple[Timing, ...]],
    session: TuningSession | None,
    budget: Budget,
) -> None:
    """Write a page of all parts of a plan.

    `command` made the plan within a `budget`.
    """
    searched = Evidence() if session is None else evidence(session, budget)
    sections = []
    for number, (part, timings) in enumerate(zip(plan.parts, times, strict=True)):
        known = Evidence(
            tuple(result for result in results if result.tensor in part.plan.outputs),
            timings,
            {k: cubin.report for k, cubin in enumerate(part.cubins)},
            searched.curve if number == 0 else (),
            searched.trials,
            searched.search if number == 0 else {},
            tuple(_work(group) for group in part.plan.groups),
        )
        heading = f"{part.plan.name} for {part.plan.target.name}" if len(plan.parts) > 1 else ""
        sections.append(html_section(part.plan, known, f"part{number}", heading))
    title = f"{plan.name} for {plan.target.name}"
    write_text(Path(path), html_page(title, dict(_environment(plan, command)), sections))


def write_trace(path: str, session: TuningSession | None, budget: Budget) -> None:
    """Write the course of a compilation as trace events."""
    searches = () if session is None else session.tuner.statistics.searches
    write_text(Path(path), json.dumps(trace_events(budget, searches, HERE.done)))


def _work(group: Mapping[str, object]) -> tuple[float, float] | None:
    """Return the operations and distinct bytes of a launch's groups, None where it has no text of them."""
    found = [group_work(parse_ir(text)) for text in _GROUP.findall(str(group.get("form", "")))]
    return (sum(each[0] for each in found), sum(each[1] for each in found)) if found else None


def evidence(session: TuningSession, budget: Budget) -> Evidence:
    """Return a search's curves, candidates of each kernel, and time by stage."""
    tuner = session.tuner
    curves = [
        StepCurve(f"search {number + 1}", [(elapsed, 1e3 * taken) for elapsed, taken in search.points()])
        for number, search in enumerate(tuner.statistics.searches)
    ]
    candidates = {
        key: [_candidate_row(trial) for trial in trials[:MAX_CANDIDATES]]
        for key, trials in measured_candidates(session).items()
    }
    spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds, _ in shares(budget))
    search = {"time": f"{budget.elapsed:.1f} s: {spent}", **tuner.statistics.record()}
    search |= {"not compared": "; ".join(session.outcome.uncompared)} if session.outcome.uncompared else {}
    return Evidence(curve=curves, trials=candidates, search=search)


def _candidate_row(trial: Measurement) -> CandidateOutcome:
    return CandidateOutcome(trial.schedule, trial.message or trial.outcome, trial.seconds if trial.ok else None)


def _environment(plan: AnyPlan, command: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield "made", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    yield "by", shlex.join(["cuts", *command])
    yield "device", f"{plan.target.name} ({plan.target.arch or plan.target.dialect})"
    yield "cuts", plan.parts[0].plan.cuts
    yield "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "packages", ", ".join(f"{name} {version}" for name, version in versions_of(PACKAGES).items())
