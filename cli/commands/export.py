"""`cuts export`: packed plans, alone or for an engine."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from ...compile import CompiledPlan, load
from ...ir import UsageError
from ..export_forms import FORMS
from ..options import add_json
from ..output import console, is_dynamic

#: Suffix of the folder of a plan.
_FOLDER_SUFFIX = ".plan"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `cuts export`."""
    parser.add_argument("plan", metavar="PLAN", help="a plan's folder")
    parser.add_argument(
        "--as",
        dest="form",
        choices=tuple(FORMS),
        default="file",
        help="; ".join(f"{name}: {form.summary}" for name, form in FORMS.items()),
    )
    parser.add_argument("-o", "--output", metavar="PATH", help="file or folder to write (default: name of the plan)")
    add_json(parser)


def command(arguments: Namespace) -> int:
    """Write a plan that runs without Python, and print its files.

    Raises `UsageError` for a plan in stages, or for ranges of sizes.
    """
    plan = load(arguments.plan)
    if is_dynamic(plan):
        raise UsageError(
            f"{arguments.plan} is a plan for ranges of sizes, which needs Python",
            hint="compile the model for one size of each dim",
        )
    if not isinstance(plan, CompiledPlan):
        raise UsageError(
            f"{arguments.plan} is a plan in stages, which needs Python", hint="compile the model with --strict"
        )
    stem, form = Path(arguments.plan).name.removesuffix(_FOLDER_SUFFIX), FORMS[arguments.form]
    target = Path(arguments.output or f"{stem}{form.suffix}")
    try:
        written = form.write(plan, target, stem)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}") from error
    if arguments.json:
        console.print_json({"plan": arguments.plan, "form": arguments.form, "files": [str(path) for path in written]})
    else:
        print("\n".join(map(str, written)))
    return 0
