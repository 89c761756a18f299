"""The command line: `cuts COMMAND`, and `python -m cuts.compile MODEL` for the first of its commands."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from .ir.errors import CutsError, ErrorList, UsageError

_DEBUG = "CUTS_DEBUG"


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"see '{self.prog} --help'")


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, extents = text.rpartition("=")
    try:
        shape = tuple(int(part) for part in extents.replace(",", "x").split("x")) if extents else ()
    except ValueError:
        shape = (-1,)
    if not equals or not name or any(extent < 0 for extent in shape):
        raise argparse.ArgumentTypeError(f"expected NAME=1x3x224x224, found '{text}'")
    return name, shape


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = -1
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"expected a number above 0, found '{text}'")
        return value

    return parse


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a whole number, found '{text}'")
    return int(text)


def _seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=_count, default=0, metavar="N", help="seed of random inputs (default 0)")
    parser.add_argument("--input", metavar="X.npz", help="arrays by input name; missing ones are random")


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def _spec(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--spec",
        action="append",
        default=[],
        metavar="FILE",
        help="declare further operations (repeatable; a folder means its .cuts files)",
    )


def _compile_parser(parser: argparse.ArgumentParser) -> None:
    _compile_options(parser)
    parser.add_argument("--tune", action="store_true", help="let times measured on the target's device decide, as 'cuts tune' does")


def _tune_parser(parser: argparse.ArgumentParser) -> None:
    _compile_options(parser)
    parser.add_argument("--strategy", default="rank", choices=("rank", "random", "genetic"), help="how to search (default rank)")
    parser.add_argument("--trials", type=_positive(int), metavar="N", help="candidates to try of each kernel at most (default 40)")
    parser.add_argument(
        "--audit", type=_positive(int), metavar="N", help="time N random points of every kernel too: did pruning lose the winner?"
    )
    parser.add_argument("--libraries", action="store_true", help="let cuBLAS and cuDNN take the place of kernels that they beat")
    parser.add_argument("--replay", metavar="FILE", help="search in the results of a tuning database instead of on a device")
    parser.add_argument("--workers", type=_positive(int), metavar="N", help="processes that build candidates (default one per core)")


def _model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target", default="opencl", metavar="TARGET", help="opencl, cuda, cuda:sm_90, cuda:h200, reference, ... (default opencl)"
    )
    parser.add_argument(
        "--mode", default="mixed", choices=("no-fusion", "fusion", "mixed"), help="which groups may be fused (default mixed)"
    )
    parser.add_argument(
        "--shape", action="append", default=[], type=_shape, metavar="NAME=1x3x224x224", help="fix an input's shape (repeatable)"
    )
    parser.add_argument(
        "--strict", action="store_true", help="fail where an operation is outside the vocabulary, instead of running it uncompiled"
    )
    parser.add_argument("--debug", action="store_true", help="let the plan check every index that comes from data, while it runs")
    _spec(parser)


def _compile_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="graph.json, an .onnx file, a .pt2 file of torch.export, or - for graph.json on standard input"
    )
    parser.add_argument("-o", "--output", metavar="PLAN", help="folder to write (default: the model's name with .plan)")
    _model_options(parser)
    parser.add_argument(
        "--budget", type=_positive(float), metavar="SECONDS", help="stop searching after this time and keep the best so far (exit code 6)"
    )
    parser.add_argument("--frozen", action="store_true", help="use only what the tuning database has; fail where it lacks a kernel")
    parser.add_argument("--verify", action="store_true", help="run the plan and compare it with an oracle before it is written")
    parser.add_argument("--time", action="store_true", help="time every group on the device")
    parser.add_argument("--print-after", action="append", default=[], metavar="PASS", help="print the program after a pass, or after 'all'")
    parser.add_argument("--stop-after", metavar="PASS", help="stop after a pass and print the program; no plan is written")
    parser.add_argument("--dump", metavar="DIR", help="write the program after each pass, and every kernel, to a folder")
    parser.add_argument("--report", metavar="FILE.html", help="write a self-contained HTML report")
    _seed(parser)
    _json(parser)


def _run_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "plan", metavar="PLAN", help="a plan's folder, which contains code, so run only plans you trust; or a model, compiled first"
    )
    parser.add_argument("--output", metavar="Y.npz", help="write the outputs")
    parser.add_argument("--warmup", type=_count, default=2, metavar="N", help="runs before those that are timed (default 2)")
    parser.add_argument("--iters", type=_count, default=0, metavar="N", help="timed runs; prints percentiles (default none)")
    _model_options(parser)
    _seed(parser)
    _json(parser)


def _verify_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="a plan's folder, or a model, compiled first")
    parser.add_argument(
        "--onnx", metavar="MODEL.onnx", help="compare with ONNX Runtime on this model as well (an .onnx file given as PLAN is)"
    )
    parser.add_argument("--steps", action="store_true", help="compare what every kernel writes, not only the outputs")
    _model_options(parser)
    _seed(parser)
    _json(parser)


def _explain_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="a plan's folder")
    parser.add_argument("group", metavar="GROUP", nargs="?", help="number of a group, or the name of a node in it")
    _json(parser)


def _device_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", metavar="TARGET", help="show what is known of one target")
    parser.add_argument(
        "--calibrate", action="store_true", help="measure the ceilings of the CUDA device, which bounds are made of, and keep them"
    )
    _json(parser)


def _cache_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("info", "clear", "explain"), help="show or empty the cache, or say what a key stands for")
    parser.add_argument("key", metavar="KEY", nargs="?", help="key of a kernel or a trial in the tuning database, or how it begins")
    _json(parser)


def _ops_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="show one operation: signature, formula, cost, gradient, algorithms")
    parser.add_argument("--markdown", action="store_true", help="print the manual of all operations")
    _spec(parser)
    _json(parser)


_COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "compile": ("compile a model to a plan", _compile_parser),
    "tune": ("compile a model by times measured on the target's device", _tune_parser),
    "run": ("run a plan", _run_parser),
    "verify": ("compare what a plan computes with the float64 reference", _verify_parser),
    "explain": ("show a plan's groups, their kernels and why they are as they are", _explain_parser),
    "device": ("show the devices and compilers of this machine, and the known targets", _device_parser),
    "cache": ("show, empty or explain what is kept of earlier compilations and searches", _cache_parser),
    "ops": ("list the operations, or show one", _ops_parser),
}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = _Parser(prog="cuts", description="A deep-learning compiler for GPUs.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for name, (summary, fill) in _COMMANDS.items():
        fill(commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + "."))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 ok, 2 usage, 3 graph or spec, 4 device, 5 numbers, 6 budget, 130 interrupted."""
    try:
        arguments = make_parser().parse_args(argv)
        code = _run(arguments)
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read our output left: nothing more to say
        return 0
    except Exception as error:
        _report(f"cuts: internal error: {type(error).__name__}: {error}; set {_DEBUG}=1 for a traceback and report it")
        return 1


def _run(arguments: argparse.Namespace) -> int:
    """Run a parsed command; what it imports is not needed to print a usage error."""
    from . import cli_cache, cli_compile, cli_info, cli_run, cli_tune

    functions: dict[str, Callable[[argparse.Namespace], int]] = {
        "compile": cli_compile.compile_command,
        "tune": cli_tune.tune_command,
        "run": cli_run.run_command,
        "verify": cli_run.verify_command,
        "explain": cli_run.explain_command,
        "device": cli_info.device_command,
        "cache": cli_cache.cache_command,
        "ops": cli_info.ops_command,
    }
    return functions[arguments.command](arguments)


def _report(line: str) -> None:
    if os.environ.get(_DEBUG, "0") not in ("", "0"):
        traceback.print_exc()
    print(line, file=sys.stderr)


def _module_arguments(arguments: list[str]) -> list[str]:
    """`python -m cuts.compile` is `cuts compile`; the other commands are understood too, unless a model has such a name."""
    if arguments and arguments[0] in _COMMANDS and not os.path.isfile(arguments[0]):
        return arguments
    return ["compile", *arguments]


if __name__ == "__main__":
    sys.exit(main(_module_arguments(sys.argv[1:])))
