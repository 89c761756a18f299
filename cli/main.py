"""The command line: `cuts COMMAND`.

Each command is a module of this package by its name, with its arguments (`add_arguments`) and what it does (`command`).
Only the module of the command that is asked for is imported.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from ..ir import CutsError, ErrorList, UsageError

_DEBUG = "CUTS_DEBUG"

#: The commands: one line each, as `cuts --help` lists them.
COMMANDS: dict[str, str] = {
    "compile": "compile a model to a plan",
    "tune": "compile a model by times measured on the target's device",
    "run": "run a plan",
    "verify": "compare what a plan computes with the float64 reference",
    "explain": "show a plan's groups, their kernels and why they are as they are",
    "device": "show the devices and compilers of this machine, and the known targets",
    "cache": "show, empty or explain what is kept of earlier compilations and searches",
    "ops": "list the operations, or show one",
}


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"see '{self.prog} --help'")


def make_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line; of the commands, only `command` has its arguments."""
    parser = _Parser(prog="cuts", description="A deep-learning compiler for GPUs.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for name, summary in COMMANDS.items():
        added = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == command:
            _module(name).add_arguments(added)
    return parser


def _module(command: str) -> Any:
    return import_module(f".{command}", __package__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 ok, 2 usage, 3 graph or spec, 4 device, 5 numbers, 6 budget, 130
    interrupted.
    """
    given = sys.argv[1:] if argv is None else list(argv)
    try:
        arguments = make_parser(next((a for a in given if a in COMMANDS), None)).parse_args(given)
        code: int = _module(arguments.command).command(arguments)
        sys.stdout.flush()
        return code
    except CutsError as error:
        errors = error.errors if isinstance(error, ErrorList) else (error,)
        _report("\n".join(f"cuts: error: {each}" for each in errors))
        return error.exit_code
    except KeyboardInterrupt:
        _report("cuts: interrupted")
        return 130
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # whoever read our output left: nothing more to say
        return 0
    except Exception as error:
        _report(f"cuts: internal error: {type(error).__name__}: {error}; set {_DEBUG}=1 for a traceback and report it")
        return 1


def _report(line: str) -> None:
    if os.environ.get(_DEBUG, "0") not in ("", "0"):
        traceback.print_exc()
    print(line, file=sys.stderr)


def main_of_module(argv: Sequence[str]) -> int:
    """`python -m cuts.compile`: `cuts compile`, or another command, unless a model has its name."""
    return main(module_arguments(list(argv)))


def module_arguments(arguments: list[str]) -> list[str]:
    """Return the command line that the arguments of `python -m cuts.compile` stand for."""
    if arguments and arguments[0] in COMMANDS and not os.path.isfile(arguments[0]):
        return arguments
    return ["compile", *arguments]
