"""`cuts export`: packed plans, alone or with the C sources."""

from __future__ import annotations

import shutil
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ...compile import CompiledPlan, DynamicPlan, load
from ...ir import UsageError
from ...runtime.native import SOURCE_FOLDER, write_packed
from ..options import add_json
from ..output import console

#: Suffix of a packed plan, and the folder of a plan that it takes the place of.
_SUFFIX, _FOLDER_SUFFIX = ".cutsplan", ".plan"
FORMS = ("file", "c")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `cuts export`."""
    parser.add_argument("plan", metavar="PLAN", help="a plan's folder")
    parser.add_argument(
        "--as",
        dest="form",
        choices=FORMS,
        default="file",
        help="file (default): one file that libcuts_run opens; c: a folder with it and the library's sources",
    )
    parser.add_argument("-o", "--output", metavar="PATH", help="file or folder to write (default: name of the plan)")
    add_json(parser)


def command(arguments: Namespace) -> int:
    """Write a plan that runs without Python, and print its files.

    Raises `UsageError` for a plan in stages, or for ranges of sizes.
    """
    plan = load(arguments.plan)
    if isinstance(plan, DynamicPlan):
        raise UsageError(
            f"{arguments.plan} is a plan for ranges of sizes, which needs Python",
            hint="compile the model for one size of each dim",
        )
    if not isinstance(plan, CompiledPlan):
        raise UsageError(
            f"{arguments.plan} is a plan in stages, which needs Python", hint="compile the model with --strict"
        )
    stem = Path(arguments.plan).name.removesuffix(_FOLDER_SUFFIX)
    if arguments.form == "file":
        written = [Path(arguments.output or f"{stem}{_SUFFIX}")]
        write_packed(plan.plan, written[0])
    else:
        written = _write_sources(plan, Path(arguments.output or f"{stem}-c"), stem)
    if arguments.json:
        console.print_json({"plan": arguments.plan, "form": arguments.form, "files": [str(path) for path in written]})
    else:
        print("\n".join(map(str, written)))
    return 0


def _write_sources(plan: CompiledPlan, folder: Path, stem: str) -> list[Path]:
    """Write a packed plan and the library's sources into a folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{stem}{_SUFFIX}"]
        write_packed(plan.plan, paths[0])
        paths += [Path(shutil.copy(source, folder / source.name)) for source in sorted(SOURCE_FOLDER.glob("*.[ch]"))]
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}") from error
    return paths
