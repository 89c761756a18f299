"""Command line: `cuts COMMAND`.

Each command is a module of one of `PACKAGES` by its name, with its arguments (`add_arguments`) and its work
(`command`). Only the module of the requested command is imported.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from time import monotonic
from typing import Any, NoReturn

from ..ir import CutsError, InternalError, UsageError
from .options import add_verbosity
from .output import console, fail, logging_to_stderr, report, report_bug

#: Commands: one line each, as `cuts --help` lists them.
COMMANDS: dict[str, str] = {
    "compile": "compile a model to a plan",
    "tune": "compile a model by times measured on the target's device",
    "run": "run a plan",
    "verify": "compare what a plan computes with the float64 reference",
    "explain": "show a plan's groups, their kernels and why they are as they are",
    "export": "write a plan in a form that runs without Python",
    "inspect": "show a model's operations, and which are supported, before anything is compiled",
    "compare": "show the differences of two plans, kernel by kernel",
    "bisect": "find the first node of a model whose kernel is wrong, and write a small model of it",
    "doctor": "show what is installed, what is missing and the commands that bring it, devices and caches",
    "device": "show the devices and compilers of this machine, and the known targets",
    "cache": "show, empty or explain what is kept of earlier compilations and searches",
    "ops": "list the operations, or show one",
    "predict": "predict how long layers or a model take on a GPU that need not be here",
    "latency": "profile layers of this machine for cuts predict",
    "plan": "plan models larger than GPU memory on a cluster, and run them",
}

#: Packages with the modules of some commands; those of the others are in `commands`.
PACKAGES = {
    "machines": ("device", "latency", "plan", "predict"), "inspection": ("inspect", "compare", "bisect"),
}  # fmt: skip
_EXIT_CODES = """exit codes:
  0    done
  2    the command line is not understood, or an option cannot apply
  3    a graph, a model, a declaration or a plan is invalid or not supported
  4    a device or a compiler is missing or refused its work
  5    wrong numbers
  6    the budget ended the search; the best plan so far was written
  130  interrupted
"""


class _Parser(argparse.ArgumentParser):
    """Parser with errors of one line, like every other error, and the exit codes at the end of its help."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, epilog=_EXIT_CODES, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"see '{self.prog} --help'")


class _Version(argparse.Action):
    """Prints the version of the package and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"cuts {import_module(__package__.partition('.')[0]).__version__}")
        parser.exit()


def make_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the command line's parser, with the arguments of `command` only."""
    parser = _Parser(prog="cuts", description="A deep-learning compiler for GPUs.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and end")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for name, summary in COMMANDS.items():
        added = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == command:
            _module(name).add_arguments(added)
            add_verbosity(added)
    return parser


def _module(command: str) -> Any:
    package = next((name for name, commands in PACKAGES.items() if command in commands), "commands")
    return import_module(f".{package}.{command}", __package__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Codes are 0 ok, 2 usage, 3 graph or spec, 4 device, 5 numbers, 6 budget, 130 interrupted.
    """
    entered, given = monotonic(), sys.argv[1:] if argv is None else list(argv)
    as_json = "--json" in given
    console.begin()
    try:
        if not given:
            make_parser().print_help()
            return 0
        arguments = make_parser(next((a for a in given if a in COMMANDS), None)).parse_args(given)
        arguments.given, arguments.entered = given, entered
        with logging_to_stderr(arguments):
            code: int = _module(arguments.command).command(arguments)
        sys.stdout.flush()
        return code
    except InternalError as error:
        return report_bug(error, as_json)
    except CutsError as error:
        return report(error, as_json)
    except KeyboardInterrupt:
        fail("cuts: interrupted")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of the output has closed it
        return 0
    except Exception as error:
        return report_bug(error, as_json)


def main_of_module(argv: Sequence[str]) -> int:
    """Run `python -m cuts.compile`: `cuts compile`, or another command."""
    return main(module_arguments(list(argv)))


def module_arguments(arguments: list[str]) -> list[str]:
    """Return the command line for arguments of `python -m cuts.compile`."""
    if arguments and arguments[0] in COMMANDS and not os.path.isfile(arguments[0]):
        return arguments
    return ["compile", *arguments]
