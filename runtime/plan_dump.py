"""Inspection of plans by environment variables.

CUTS_DUMP=FOLDER          each plan as a folder, and its report as a page
CUTS_LOGS=plans,kernels   lines on standard error
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ..ir import UsageError, quote
from ..store import digest
from .files import save_plan
from .plan import Plan

DUMP_VARIABLE, LOG_VARIABLE = "CUTS_DUMP", "CUTS_LOGS"
#: Characters of a plan's name in the name of its folder.
MAX_NAME = 40
#: Compiler's figures of each kernel, by its number.
Resources = Mapping[int, Mapping[str, object]]


def show_plan(plan: Plan, resources: Resources) -> None:
    """Write a plan where the environment asks for it.

    Raises `UsageError` for an unknown name in `CUTS_LOGS`, `PlanError` where a folder cannot be written.
    """
    for name in _wanted_logs():
        print("\n".join(LOGS[name](plan)), file=sys.stderr, flush=True)
    if folder := os.environ.get(DUMP_VARIABLE):
        _dump(plan, resources, Path(folder))


def _wanted_logs() -> Sequence[str]:
    names = [name.strip() for name in os.environ.get(LOG_VARIABLE, "").split(",") if name.strip()]
    if unknown := [name for name in names if name not in LOGS]:
        raise UsageError(f"{LOG_VARIABLE}: unknown name {quote(unknown[0])}", hint=f"names are: {', '.join(LOGS)}")
    return names


def _dump(plan: Plan, resources: Resources, folder: Path) -> None:
    from .report import Evidence, html_page, html_section

    stem = re.sub(r"\W+", "-", plan.name)[:MAX_NAME]
    steps = [(plan.kernels[step.kernel].name, *step.tensors) for step in plan.steps]
    target = folder / f"{stem}-{digest(str(steps))[:8]}.plan"
    save_plan(plan, target)
    section = html_section(plan, Evidence(resources=resources))
    page = html_page(f"{plan.name} for {plan.target.name}", {"plan": target.name, "cuts": plan.cuts}, [section])
    target.with_suffix(".html").write_text(page, encoding="utf-8")


def _plan_lines(plan: Plan) -> Iterator[str]:
    """Yield a line about the plan."""
    given, found = (", ".join(f"{name}: {plan.types[name]}" for name in names) for names in (plan.inputs, plan.outputs))
    yield f"cuts: plan {plan.name}: ({given}) -> ({found})"
    nbytes = sum(array.nbytes for array in plan.constants.values())
    yield (
        f"cuts: {plan.launch_count} launches of {plan.distinct_kernels} kernels for {plan.target.name}, "
        f"{plan.arena:,} bytes of memory, {nbytes:,} of them constants"
    )


def _kernel_lines(plan: Plan) -> Iterator[str]:
    """Yield a line for each step: kernel, geometry, expected time and nodes."""
    for number, step in enumerate(plan.steps):
        kernel, group = plan.kernels[step.kernel], plan.groups[number] if number < len(plan.groups) else {}
        seconds = group.get("measured") or group.get("estimate")
        time = f", {1e6 * float(str(seconds)):.2f} us" if seconds else ""
        nodes = ", ".join(map(str, names)) if isinstance(names := group.get("nodes", ()), (list, tuple)) else str(names)
        yield f"cuts: #{number} {kernel.name} {kernel.grid} x {kernel.block}{time}: {nodes}"


def _source_lines(plan: Plan) -> Iterator[str]:
    """Yield the source of each kernel once."""
    yield from dict.fromkeys(plan.kernels[step.kernel].source for step in plan.steps)


#: Lines about a plan by their name in `CUTS_LOGS`.
LOGS: Mapping[str, Callable[[Plan], Iterator[str]]] = {
    "plans": _plan_lines, "kernels": _kernel_lines, "sources": _source_lines,
}  # fmt: skip
