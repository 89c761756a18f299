"""`cuts compare`: the differences of two plans, by kernel."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter

from ...compile import load
from ..options import add_json
from ..output import console
from .plan_difference import GroupDifference, plan_difference, plan_facts


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `cuts compare`."""
    parser.add_argument("left", metavar="PLAN", help="a plan's folder")
    parser.add_argument("right", metavar="PLAN", help="another one, of the same model")
    parser.add_argument("--all", action="store_true", help="list equal kernels too")
    add_json(parser)


def command(arguments: Namespace) -> int:
    """Show the facts that differ, and the kernels that differ."""
    left, right = load(arguments.left), load(arguments.right)
    facts = [plan_facts(left), plan_facts(right)]
    groups = plan_difference(left, right)
    counts = Counter(group.verdict for group in groups)
    if arguments.json:
        listed = [
            {"nodes": g.nodes, "verdict": g.verdict, "left": g.left, "right": g.right, "changes": g.changes}
            for g in groups
        ]
        console.print_json({"left": facts[0], "right": facts[1], "groups": listed, "counts": counts})
        return 0
    screen = console.output_console()
    rows = [[name, facts[0][name], facts[1][name]] for name in facts[0] if facts[0][name] != facts[1][name]]
    if rows:
        screen.print(console.table("plans", ["", arguments.left, arguments.right], rows))
    shown = [row for g in groups if arguments.all or g.verdict != "equal" for row in _rows(g)]
    if shown:
        screen.print(console.table("kernels", ["nodes", "verdict", "fact", arguments.left, arguments.right], shown))
    named = {"equal": "equal", "changed": "changed", "left": "only left", "right": "only right"}
    print("kernels: " + ", ".join(f"{counts[verdict]} {text}" for verdict, text in named.items()))
    return 0


def _rows(group: GroupDifference) -> list[list[object]]:
    """Return a row for a group's kernel, and one for each fact that differs."""
    rows: list[list[object]] = [[group.nodes, group.verdict, "kernel", group.left or "-", group.right or "-"]]
    return rows + [["", "", name, *pair] for name, pair in group.changes.items()]
