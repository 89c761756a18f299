"""`cuts bisect`: the first node of a model with a wrong kernel."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from ...frontends import save_graph
from ...ir import NumericsError, UsageError
from ..models import is_model, open_plan, part_compiler
from ..options import add_json, add_model_options, add_seed
from ..output import console, write_arrays
from .wrong_node import WrongNode, find_wrong_node


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `cuts bisect`."""
    parser.add_argument("plan", metavar="MODEL", help="graph.json, an .onnx file, or a .pt2 file of torch.export")
    parser.add_argument(
        "-o", "--output", metavar="SMALL.json", help="the small model (default: the model's name with .wrong.json)"
    )
    add_model_options(parser)
    add_seed(parser)
    add_json(parser)


def command(arguments: Namespace) -> int:
    """Find the first wrong kernel and write a small model.

    The exit code is that of wrong numbers where there is one.

    Raises `UsageError` where the model is none, or the target launches no kernels.
    """
    if not is_model(arguments.plan) or arguments.plan == "-":
        raise UsageError(f"expected the file of a model, found {arguments.plan}", hint="'cuts verify' takes plans")
    plan, inputs = open_plan(arguments)
    if plan.target.dialect == "reference":
        raise UsageError("target 'reference' launches no kernels, so there is none to find")
    _, _, compile_part = part_compiler(arguments)
    notice = console.note
    pairs = plan.part_inputs(inputs)
    found = next((n for part, given in pairs if (n := find_wrong_node(part, given, compile_part, notice))), None)
    if found is None:
        _print(arguments, {"model": arguments.plan, "wrong": None}, "every kernel computes the reference's numbers")
        return 0
    file = Path(arguments.output or f"{Path(arguments.plan).stem}.wrong.json")
    values, text = _write(arguments, found, file)
    _print(arguments, values, text)
    return NumericsError.exit_code


def _write(arguments: Namespace, found: WrongNode, file: Path) -> tuple[dict[str, Any], str]:
    """Write the small model and its inputs; return the result in both forms."""
    save_graph(found.model, file)
    arrays = file.with_suffix(".npz")
    write_arrays(str(arrays), found.inputs)
    words = ["cuts", "verify", str(file), "--input", str(arrays), "--target", arguments.target]
    words += [word for path in arguments.spec for word in ("--spec", path)]
    words += [word for name in ("mode", "precision", "policy") for word in (f"--{name}", getattr(arguments, name))]
    command = shlex.join(words)
    names = [node.name for node in found.model.nodes]
    values = {
        "model": arguments.plan,
        "wrong": {"node": found.node.name, "op": found.node.op, "origin": found.node.origin, "kernel": found.kernel},
        "step": found.step.text,
        "small": {"model": str(file), "inputs": str(arrays), "nodes": names, "wrong_alone": found.alone},
        "command": command,
    }
    alone = "is wrong alone too" if found.alone else "is right alone: only the whole plan's kernel is wrong"
    origin = f", {found.node.origin} of the model" if found.node.origin else ""
    text = (
        f"first wrong node: {found.node.name} ({found.node.op}{origin}), in {found.step.text}\n"
        f"{file} has {console.count(len(names), 'node')} and {alone}\n{command}"
    )
    return values, text


def _print(arguments: Namespace, values: dict[str, Any], text: str) -> None:
    if arguments.json:
        console.print_json(values)
    else:
        print(text)
