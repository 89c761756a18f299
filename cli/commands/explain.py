"""`cuts explain`: a plan's groups, kernels and the reasons for their choice."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from difflib import get_close_matches

from ...compile import CompiledPlan, load
from ...ir import FusedGroup, Schedule, Target, UsageError, parse_ir, quote
from ...runtime import plain
from ..options import add_json
from ..output import AnyPlan, console, note_uncompiled, plan_values


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `cuts explain`."""
    parser.add_argument("plan", metavar="PLAN", help="a plan's folder")
    parser.add_argument(
        "group", metavar="GROUP", nargs="?", help="number of a group, or the name of a node of the model"
    )
    add_json(parser)


def command(arguments: Namespace) -> int:
    """Show all groups of a plan, or one with its kernel's source."""
    plan = load(arguments.plan)
    if arguments.group is None:
        if arguments.json:
            console.print_json(plan_values(plan))
            return 0
        for part in plan.parts:
            console.output_console().print(console.group_table(part.plan))
            console.output_console().print(console.totals(part.plan), markup=False)
        note_uncompiled(plan)
        return 0
    found = [_details(owner, number) for owner, number in _find_groups(plan, arguments.group)]
    if arguments.json:
        console.print_json(found[0] if len(found) == 1 else {"groups": found})
        return 0
    for details in found:
        source = details.pop("source")
        for key, value in plain(details).items():
            print(console.detail(key, value))
        print(f"\n{source}")
    return 0


def _details(owner: CompiledPlan, number: int) -> dict[str, object]:
    """Return the facts of a group and its kernel."""
    step = owner.plan.steps[number]
    kernel = owner.plan.kernels[step.kernel]
    group = dict(owner.plan.groups[number]) if number < len(owner.plan.groups) else {}
    group |= _performance_limits(group, owner.plan.target)
    return {
        "group": number,
        **group,
        "kernel": kernel.name,
        "grid": kernel.grid,
        "block": kernel.block,
        "tensors": step.tensors,
        "info": kernel.info,
        "source": kernel.source,
    }


def _performance_limits(group: Mapping[str, object], target: Target) -> dict[str, object]:
    """Return the performance upper limits of a group's point.

    They are shares of peak, empty for a launch of several groups, and for a routine of a library.
    """
    schedule, form = group.get("schedule"), str(group.get("form"))
    if not schedule or not isinstance(schedule, str) or "members" in group:
        return {}
    point, program = parse_ir(schedule), parse_ir(form)
    assert isinstance(point, Schedule), "plans store schedules"
    assert isinstance(program, FusedGroup), "plans store groups"
    from ...passes.schedule import schedule_puls

    found = schedule_puls(program, point, target)
    return {"performance upper limit": {name: round(value, 4) for name, value in found.items()}}


def _find_groups(plan: AnyPlan, wanted: str) -> list[tuple[CompiledPlan, int]]:
    """Return groups, each with its plan: by number, counted through all parts, or by the name of a node.

    The model's own name of a node means all operations that the node became.
    """
    places = [(part, number) for part in plan.parts for number in range(len(part.plan.steps))]
    if wanted.isdigit() and int(wanted) < len(places):
        return [places[int(wanted)]]
    members = [_members(part, number) for part, number in places]
    exact = [place for place, names in zip(places, members, strict=True) if wanted in names]
    parts = (f"{wanted}/", f"{wanted}.")
    found = exact[:1] or [
        p for p, names in zip(places, members, strict=True) if any(n.startswith(parts) for n in names)
    ]
    if found:
        return found
    close = get_close_matches(wanted, [name for names in members for name in names], 3)
    proposal = f"did you mean {' or '.join(map(quote, close))}? " if close else ""
    raise UsageError(
        f"the plan has no group {quote(wanted)}",
        hint=f"{proposal}expected a number below {len(places)} or the name of a node",
    )


def _members(part: CompiledPlan, number: int) -> tuple[str, ...]:
    names = part.plan.groups[number].get("nodes", ()) if number < len(part.plan.groups) else ()
    return tuple(map(str, names)) if isinstance(names, (list, tuple)) else ()
