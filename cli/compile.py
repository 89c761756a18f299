"""`cuts compile`: by the model of the machine, or by measured times where that is asked for."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .compilation import run_compile, run_tuned
from .options import add_compile_options


def add_arguments(parser: ArgumentParser) -> None:
    """Add what `cuts compile` takes."""
    add_compile_options(parser)
    parser.add_argument(
        "--tune", action="store_true", help="let times measured on the target's device decide, as 'cuts tune' does"
    )


def command(arguments: Namespace) -> int:
    """Compile a model and write its plan."""
    return run_tuned(arguments) if arguments.tune or arguments.frozen else run_compile(arguments)
