"""`cuts explain`: a plan's groups, kernels and the reasons for their choice."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from ..compile import CompiledPlan, load
from ..ir import UsageError, quote
from ..runtime import plain
from . import console
from .common import AnyPlan, note_uncompiled, plan_values
from .options import add_json


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `cuts explain`."""
    parser.add_argument("plan", metavar="PLAN", help="a plan's folder")
    parser.add_argument("group", metavar="GROUP", nargs="?", help="number of a group, or the name of a node in it")
    add_json(parser)


def command(arguments: Namespace) -> int:
    """Show all groups of a plan, or one with its kernel's source."""
    plan = load(arguments.plan)
    if arguments.group is None:
        if arguments.json:
            console.print_json(plan_values(plan))
            return 0
        for part in plan.parts:
            console.out().print(console.group_table(part.plan))
            console.out().print(console.totals(part.plan), markup=False)
        note_uncompiled(plan)
        return 0
    owner, number = _find_group(plan, arguments.group)
    step = owner.plan.steps[number]
    kernel = owner.plan.kernels[step.kernel]
    group = dict(owner.plan.groups[number]) if number < len(owner.plan.groups) else {}
    details = {
        "group": number,
        **group,
        "kernel": kernel.name,
        "grid": kernel.grid,
        "block": kernel.block,
        "tensors": step.tensors,
        "info": kernel.info,
    }
    if arguments.json:
        console.print_json(details | {"source": kernel.source})
        return 0
    for key, value in plain(details).items():
        print(console.detail(key, value))
    print(f"\n{kernel.source}")
    return 0


def _find_group(plan: AnyPlan, wanted: str) -> tuple[CompiledPlan, int]:
    """Return a group by its number, counted through all parts, or by the name of a node in it, with its plan."""
    places = [(part, number) for part in plan.parts for number in range(len(part.plan.steps))]
    if wanted.isdigit() and int(wanted) < len(places):
        return places[int(wanted)]
    for part, number in places:
        members = part.plan.groups[number].get("nodes", ()) if number < len(part.plan.groups) else ()
        if isinstance(members, (list, tuple)) and wanted in members:
            return part, number
    raise UsageError(
        f"the plan has no group {quote(wanted)}", hint=f"expected a number below {len(places)} or the name of a node"
    )
