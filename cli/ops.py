"""`cuts ops`: the vocabulary."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from ..compile import load_spec
from ..ops import entry, manual
from . import console
from .options import add_json, add_spec


def add_arguments(parser: ArgumentParser) -> None:
    """Add what `cuts ops` takes."""
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="show one operation: signature, formula, cost, gradient, algorithms"
    )
    parser.add_argument("--markdown", action="store_true", help="print the manual of all operations")
    add_spec(parser)
    add_json(parser)


def command(arguments: Namespace) -> int:
    """List the operations of the vocabulary, or show one declaration."""
    registry = load_spec(arguments.spec).registry
    if arguments.markdown:
        print(manual(registry), end="")
        return 0
    if arguments.name:
        decl = registry[arguments.name]
        text = decl.text
        values = {
            "name": decl.name,
            "family": decl.family,
            "summary": decl.summary,
            "declared": decl.span.position,
            "text": text,
        }
        if arguments.json:
            console.print_json(values)
        else:
            print(f"{decl.name} ({decl.span.position})\n\n{entry(decl, registry)}")
        return 0
    if arguments.json:
        console.print_json(
            {"ops": [{"name": d.name, "family": d.family, "summary": d.summary} for d in registry.values()]}
        )
        return 0
    rows = [[decl.name, decl.family or "-", decl.summary] for decl in registry.values()]
    console.out().print(console.table(f"{len(rows)} operations", ["op", "family", "summary"], rows))
    return 0
