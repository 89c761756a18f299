"""`cuts compile`: by the cost model, or by measured times on request."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from ..compilation import run_compile, run_tuned
from ..options import add_compile_options


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `cuts compile`."""
    add_compile_options(parser).add_argument(
        "--tune", action="store_true", help="let times measured on the target's device decide, as 'cuts tune' does"
    )


def command(arguments: Namespace) -> int:
    """Compile a model and write its plan."""
    return run_tuned(arguments) if arguments.tune or arguments.frozen else run_compile(arguments)
