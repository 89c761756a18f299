"""`cuts inspect`: a model's operations, supported and not."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ...compile import load_model, load_spec
from ...ir import Graph, VocabularyError
from ..options import add_json, add_shape, add_spec
from ..outline import outline
from ..output import console

#: Suffixes of models whose missing operations run uncompiled, and the package that runs them.
_RUNNERS = {".onnx": "ONNX Runtime", ".pt2": "PyTorch"}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `cuts inspect`."""
    parser.add_argument("model", metavar="MODEL", help="graph.json, an .onnx file, or a .pt2 file of torch.export")
    add_shape(parser, "fix an input's shape")
    add_spec(parser)
    add_json(parser)


def command(arguments: Namespace) -> int:
    """Show the operations of a model, supported and not."""
    spec = load_spec(arguments.spec)
    runner = next((name for suffix, name in _RUNNERS.items() if arguments.model.lower().endswith(suffix)), "")
    try:
        graph = load_model(arguments.model, spec, dict(arguments.shape))
    except VocabularyError as error:
        if not runner:
            raise
        return _show_missing(arguments, error, runner)
    values = _values(graph)
    if arguments.json:
        console.print_json({"model": arguments.model, "supported": True} | values)
        return 0
    operations = values.pop("operations")
    print("\n".join(outline(values)))
    rows = [[name, count, "declared by the user" if name in spec.own else ""] for name, count in operations.items()]
    console.output_console().print(console.table("operations", ["operation", "nodes", ""], rows))
    print("all operations are supported: the model compiles to one plan")
    return 0


def _values(graph: Graph) -> dict[str, Any]:
    """Return the facts of a graph."""
    return {
        "name": graph.name,
        "inputs": {name: str(graph.types[name]) for name in graph.interface.caller_inputs(graph.inputs)},
        "outputs": {name: str(graph.types[name]) for name in graph.interface.caller_outputs(graph.outputs)},
        "state": {name: str(graph.types[tensor.input]) for name, tensor in graph.interface.state.items()},
        "constant_bytes": sum(array.nbytes for array in graph.constants.values()),
        "operations": dict(Counter(node.op for node in graph.nodes).most_common()),
    }


def _show_missing(arguments: Namespace, error: VocabularyError, runner: str) -> int:
    """Show the operations that are not supported, and their effect."""
    problems = [problem.message for problem in error.errors]
    hints: Mapping[str, None] = dict.fromkeys(problem.hint for problem in error.errors if problem.hint)
    if arguments.json:
        values = {"model": arguments.model, "supported": False, "problems": problems, "nodes": error.nodes}
        console.print_json(values | {"runner": runner})
        return 0
    print("\n".join(problems))
    count = console.count(len(error.nodes), "node")
    print(f"{count} would run in {runner}; every other node is compiled, in parts between them (--strict refuses this)")
    for hint in hints:
        console.note(hint)
    return 0
