"""`cuts ops`: the vocabulary."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from ...compile import load_spec
from ...ir import UsageError
from ...ops import entry, entry_values, manual
from ..options import add_json, add_spec, refuse
from ..output import console


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `cuts ops`."""
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="show one operation: signature, formula, cost, gradient, algorithms"
    )
    parser.add_argument("--markdown", action="store_true", help="print the manual of all operations")
    add_spec(parser)
    add_json(parser)


def command(arguments: Namespace) -> int:
    """List the operations of the vocabulary, or show one declaration.

    Raises `UsageError` for the manual of one operation.
    """
    registry = load_spec(arguments.spec).registry
    if arguments.markdown:
        refuse(arguments, ["json"], "the manual is Markdown")
        if arguments.name:
            raise UsageError("--markdown prints the manual of all operations", hint="leave NAME or --markdown out")
        print(manual(registry), end="")
        return 0
    if arguments.name:
        decl = registry[arguments.name]
        if arguments.json:
            console.print_json(entry_values(decl))
        else:
            print(f"{decl.name} ({decl.span.position})\n\n{entry(decl, registry)}")
        return 0
    if arguments.json:
        console.print_json(
            {"ops": [{"name": d.name, "family": d.family, "summary": d.summary} for d in registry.values()]}
        )
        return 0
    rows = [[decl.name, decl.family or "-", decl.summary] for decl in registry.values()]
    console.output_console().print(console.table(f"{len(rows)} operations", ["op", "family", "summary"], rows))
    return 0
