"""Options of several commands, and the formats of their values."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..backends import choose_target
from ..frontends import WEIGHT_FORMATS
from ..ir import POLICIES, PRECISIONS, PRUNING_RULES, UsageError, attribute_of
from .output import console

#: A parser, or a group of its options.
Options: TypeAlias = argparse.ArgumentParser | argparse._ArgumentGroup


#: Dim on the command line: a size, a range, or a name.
_DIM = re.compile(r"\d+|\d+\.\.\d+|(\d+\*)?[A-Za-z_][\w.]*([+-]\d+)?|[A-Za-z_][\w.]*:\d+\.\.\d+")


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Return an input's name and shape from `--shape`.

    Another text is a usage error.
    """
    name, equals, extents = text.rpartition("=")
    try:
        shape = tuple(int(part) for part in extents.replace(",", "x").split("x")) if extents else ()
    except ValueError:
        shape = (-1,)
    if not equals or not name or any(extent < 0 for extent in shape):
        raise argparse.ArgumentTypeError(f"expected NAME=1x3x224x224, found '{text}'")
    return name, shape


def symbolic_shape(text: str) -> tuple[str, tuple[int | str, ...]]:
    """Return an input's name and shape from `--shape`; sizes may vary.

    A dim is a size, a range (`1..64`), or a name whose range `--dynamic` gives. Dims are separated by x, or by commas
    where a name has an x.

    Raises `ArgumentTypeError` for another text.
    """
    name, equals, extents = text.rpartition("=")
    parts = extents.split("," if "," in extents else "x") if extents else []
    if not equals or not name or not all(_DIM.fullmatch(part) for part in parts):
        raise argparse.ArgumentTypeError(f"expected NAME=1x3x224x224, or 1..64x3x224x224, found '{text}'")
    return name, tuple(int(part) if part.isdigit() else part for part in parts)


def dim_range(text: str) -> tuple[str, str]:
    """Return a dim's name and range from `--dynamic`.

    Raises `ArgumentTypeError` for another text.
    """
    name, equals, sizes = text.rpartition("=")
    if not equals or not name or not re.fullmatch(r"\d+\.\.\d+", sizes):
        raise argparse.ArgumentTypeError(f"expected NAME=1..64, found '{text}'")
    return name, sizes


def bucket_sizes(text: str) -> tuple[str, tuple[int, ...]]:
    """Return a dim's name and the ends of its buckets.

    Raises `ArgumentTypeError` for another text.
    """
    name, equals, sizes = text.rpartition("=")
    if not equals or not name or not re.fullmatch(r"\d+(,\d+)*", sizes):
        raise argparse.ArgumentTypeError(f"expected NAME=8,32,64, found '{text}'")
    return name, tuple(map(int, sizes.split(",")))


def attribute(text: str) -> tuple[str, Any]:
    """Return an attribute's name and value from `--attr`.

    A value that is no JSON is text.

    Raises `ArgumentTypeError` without a name or a value.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found '{text}'")
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        return name, value
    try:
        return name, attribute_of(read)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"attribute '{name}': {error}") from error


def positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    """Return a reader of numbers above 0."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = -1
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"expected a number above 0, found '{text}'")
        return value

    return parse


def percentage(text: str) -> float:
    """Read a share in percent, such as 1% or 0.5."""
    return positive(float)(text.removesuffix("%"))


def count(text: str) -> int:
    """Read a whole number from 0."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a whole number, found '{text}'")
    return int(text)


def add_seed(parser: Options) -> None:
    """Add the options of inputs."""
    parser.add_argument("--seed", type=count, default=0, metavar="N", help="seed of random inputs (default 0)")
    parser.add_argument("--input", metavar="X.npz", help="arrays by input name; missing ones are random")


def add_verbosity(parser: argparse.ArgumentParser) -> None:
    """Add the options of messages besides results."""
    loudness = parser.add_mutually_exclusive_group()
    loudness.add_argument("-v", "--verbose", action="store_true", help="say more on standard error")
    loudness.add_argument("-q", "--quiet", action="store_true", help="say nothing but results and errors")


def set_defaults(arguments: argparse.Namespace) -> None:
    """Fill in default options of compilation.

    Until then None means that an option was not given. Without a target it is that of the machine; a GPU is announced.
    """
    if not arguments.target:
        choice = choose_target()
        arguments.target = choice.name
        if choice.note:
            console.note(choice.note)
    arguments.mode = arguments.mode or "mixed"
    arguments.precision = arguments.precision or "fp32"
    arguments.policy = arguments.policy or "fastest"


def refuse(arguments: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Raise a `UsageError` for the first given option of these."""
    for name in names:
        if getattr(arguments, name.replace("-", "_")) not in (None, False, []):
            raise UsageError(f"--{name} does nothing here: {why}", hint="leave it out")


def add_json(parser: Options) -> None:
    """Add the choice of JSON instead of tables."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def add_spec(parser: Options) -> None:
    """Add files that declare further operations."""
    parser.add_argument(
        "--spec",
        action="append",
        default=[],
        metavar="FILE",
        help="declare further operations (repeatable; a folder means its .cuts files)",
    )


def add_shape(parser: Options, does: str) -> None:
    """Add the option of shapes."""
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        type=shape,
        metavar="NAME=1x3x224x224",
        help=f"{does} (repeatable)",
    )


def add_model_options(parser: Options) -> None:
    """Add the options of a model's compilation."""
    parser.add_argument(
        "--target",
        metavar="TARGET",
        help="opencl, cuda, cuda:sm_90, cuda:h200, reference, ... (default: the GPU of this machine, else opencl)",
    )
    parser.add_argument(
        "--mode",
        choices=("no-fusion", "fusion", "mixed"),
        help="which groups may be fused (default mixed)",
    )
    parser.add_argument(
        "--precision",
        choices=tuple(PRECISIONS),
        help="how values of f32 are stored between kernels and multiplied (default fp32: as they are)",
    )
    parser.add_argument(
        "--policy",
        choices=POLICIES,
        help="batch-invariant: equal rows have equal bits in any batch (default fastest)",
    )
    parser.add_argument(
        "--weights",
        choices=tuple(WEIGHT_FORMATS),
        help="round constant factors of products to this format, and keep them packed (default: as they are)",
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        type=symbolic_shape,
        metavar="NAME=1x3x224x224",
        help="fix an input's shape, or let sizes vary, as in x=1..64x3x224x224 or x=batchx3x224x224 (repeatable)",
    )
    parser.add_argument(
        "--dynamic",
        action="append",
        default=[],
        type=dim_range,
        metavar="DIM=1..64",
        help="let a dim vary: one that --shape names, or a symbol of the model (repeatable)",
    )
    parser.add_argument(
        "--buckets",
        action="append",
        default=[],
        type=bucket_sizes,
        metavar="DIM=8,64",
        help="sizes of a dim with kernels of their own (repeatable; the cost model chooses by default)",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="fail where an operation is outside the vocabulary, instead of running it uncompiled",
    )
    parser.add_argument(
        "--debug", action="store_true", help="let the plan check every index that comes from data, while it runs"
    )
    add_spec(parser)


def _add_looks(parser: Options) -> None:
    """Add the options that show the program between passes."""
    parser.add_argument(
        "--print-after",
        action="append",
        default=[],
        metavar="PASS",
        help="print the program after a pass, or after 'all'",
    )
    parser.add_argument(
        "--stop-after", metavar="PASS", help="stop after a pass and print the program; no plan is written"
    )
    parser.add_argument(
        "--dump", metavar="DIR", help="write the program after each pass, and every kernel, to a folder"
    )


def add_compile_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options of `compile` and `tune`; return the search's group."""
    _add_model(parser)
    compilation = parser.add_argument_group("compilation")
    add_model_options(compilation)
    compilation.add_argument(
        "--memory",
        type=positive(int),
        metavar="BYTES",
        help="of the device at most: compute values again that a backward pass would have kept",
    )
    search = parser.add_argument_group("search")
    _add_search(search)
    results = parser.add_argument_group("results")
    results.add_argument(
        "-o", "--output", metavar="PLAN", help="folder to write (default: the model's name with .plan)"
    )
    results.add_argument("--report", metavar="FILE.html", help="write a self-contained HTML report")
    results.add_argument(
        "--trace", metavar="FILE.json", help="write the course of the compilation, for ui.perfetto.dev"
    )
    add_json(results)
    checks = parser.add_argument_group("checks and times of the plan")
    checks.add_argument(
        "--verify", action="store_true", help="run the plan and compare it with an oracle before it is written"
    )
    checks.add_argument("--time", action="store_true", help="time every group on the device")
    add_seed(checks)
    _add_looks(parser.add_argument_group("program between stages"))
    return search


def _add_model(parser: argparse.ArgumentParser) -> None:
    """Add the model, or the one operation in its place."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="graph.json, an .onnx file, a .pt2 file of torch.export, or - for graph.json on standard input",
    )
    parser.add_argument(
        "--op", metavar="NAME", help="compile one operation instead of a model; --shape gives its operands"
    )
    parser.add_argument(
        "--attr",
        action="append",
        default=[],
        type=attribute,
        metavar="NAME=VALUE",
        help="set an attribute of the operation of --op (repeatable; VALUE as in JSON)",
    )


def _add_search(group: argparse._ArgumentGroup) -> None:
    """Add the options of times that decide."""
    group.add_argument(
        "--budget",
        type=positive(float),
        metavar="SECONDS",
        help="stop searching after this time and keep the best so far (exit code 6)",
    )
    group.add_argument(
        "--frozen", action="store_true", help="use only what the tuning database has; fail where it lacks a kernel"
    )
    group.add_argument(
        "--pruning", choices=tuple(PRUNING_RULES),
        help="which points of schedule spaces to discard: 'bound' those proven slower than the best time (default), "
        "'pul' all but the top ones by DeepCuts' performance upper limit, 'pul-printed' so without its corrections",
    )  # fmt: skip
    group.add_argument(
        "--top", type=percentage, metavar="PERCENT", help="points that --pruning pul keeps (default 1%%)"
    )
    group.add_argument(
        "--no-libraries",
        action="store_true",
        help="where times decide, let cuBLAS and cuDNN, where they are installed, take the place of no kernel",
    )
