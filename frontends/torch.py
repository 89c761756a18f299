"""PyTorch models as graphs: `load_torch(module, (example,))`, or `graph_of_export(program)` for a `torch.export` program.

A program is decomposed to PyTorch's core operations and walked once; what each of them means in our vocabulary is in the tables of
`torch_elementwise`, `torch_movement`, `torch_layers` and `torch_recurrent`. Parameters and buffers become constants. Only these files
import `torch`.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..ir.errors import CutsError, GraphError, raise_all
from ..ir.graph import Graph
from ..ir.verify_graph import Infer, quote, verify_graph
from ..ops.inference import default_inference
from . import torch_elementwise, torch_layers, torch_movement, torch_recurrent
from .torch_reader import Convert, Reader, array_of, live_graph

TABLE: dict[str, Convert] = {**torch_elementwise.TABLE, **torch_movement.TABLE, **torch_layers.TABLE, **torch_recurrent.TABLE}
#: Operations that PyTorch would take apart and our vocabulary has whole.
WHOLE = (
    "lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input", "scaled_dot_product_attention.default", "silu.default", "mish.default",
    "pixel_shuffle.default", "upsample_bilinear2d.vec", "upsample_nearest2d.vec", "hardswish.default", "hardsigmoid.default", "elu.default",
    "softplus.default",
)  # fmt: skip


def load_torch(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, infer: Infer | None = None) -> Graph:
    """Return the graph of a module for example arguments, which fix the shapes; weights are constants."""
    try:
        program = torch.export.export(module, tuple(args), dict(kwargs or {}))
    except Exception as error:  # whatever tracing meets in the module's own code
        raise GraphError(f"torch.export cannot trace {type(module).__name__}: {error}") from error
    return graph_of_export(program, infer)


def graph_of_export(program: torch.export.ExportedProgram, infer: Infer | None = None, name: str = "torch") -> Graph:
    """Return the graph of an exported program."""
    derive = infer or default_inference()
    program = program.run_decompositions(decompositions())
    reader = Reader(derive)
    inputs = _placeholders(program, reader)
    _walk(program.graph, reader)
    specs = program.graph_signature.output_specs
    wanted = [n for n, spec in enumerate(specs) if spec.kind.name == "USER_OUTPUT"]
    found = _results(program.graph)
    outputs = tuple(reader.output(reader.value(found[n]), specs[n].arg.name) for n in wanted)
    return verify_graph(live_graph(reader, name, inputs, outputs), derive)


def graph_of_nodes(graph: torch.fx.Graph, infer: Infer | None = None) -> tuple[Graph, list[str | None]]:
    """Return a captured graph of core operations, every placeholder an input, and the name behind each result (None where it is none)."""
    derive = infer or default_inference()
    reader = Reader(derive)
    for node in graph.nodes:
        if node.op == "placeholder":
            reader.define_input(node)
    _walk(graph, reader)
    inputs = tuple(node.name for node in graph.nodes if node.op == "placeholder")
    names: list[str | None] = []
    for node in _results(graph):
        known = isinstance(node, torch.fx.Node)
        names.append(reader.output(reader.value(node), node.name) if known else None)
    outputs = tuple(dict.fromkeys(name for name in names if name is not None))
    return verify_graph(live_graph(reader, "torch", inputs, outputs), derive), names


def _results(graph: torch.fx.Graph) -> list[Any]:
    found = next(node for node in graph.nodes if node.op == "output").args[0]
    return list(found) if isinstance(found, (list, tuple)) else [found]


def _walk(graph: torch.fx.Graph, reader: Reader) -> None:
    """Convert every call, and raise all that went wrong at once."""
    errors: list[CutsError] = []
    unsupported: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.op == "call_function" and not any(n in reader.unknown for n in node.all_input_nodes):
            _convert(node, reader, errors, unsupported)
        elif node.op == "call_function":
            reader.unknown.add(node)
    raise_all(_faults(unsupported) + errors)


def decompositions() -> dict[Any, Any]:
    """Return how PyTorch takes operations apart, without those that stay whole."""
    table: dict[Any, Any] = {**torch.export.default_decompositions()}
    for name in WHOLE:
        packet, _, overload = name.partition(".")
        table.pop(getattr(getattr(torch.ops.aten, packet), overload), None)
    return table


def _placeholders(program: torch.export.ExportedProgram, reader: Reader) -> tuple[str, ...]:
    """Define inputs, and parameters and buffers as constants; return the inputs."""
    signature = program.graph_signature
    held = {**program.state_dict, **program.constants}
    targets = {spec.arg.name: spec.target for spec in signature.input_specs if spec.kind.name != "USER_INPUT"}
    inputs = []
    for node in program.graph.nodes:
        if node.op != "placeholder":
            continue
        if node.name in targets:
            reader.define_constant(node, array_of(held[targets[node.name]]))
        else:
            reader.define_input(node)
            inputs.append(node.name)
    return tuple(inputs)


def _convert(node: torch.fx.Node, reader: Reader, errors: list[CutsError], unsupported: dict[str, list[str]]) -> None:
    if node.target is operator.getitem:
        reader.values[node] = reader.values[node.args[0]][node.args[1]]  # type: ignore[index]
        return
    name = str(node.target)
    convert = TABLE.get(name) or TABLE.get(name.rpartition(".")[0])
    if convert is None:
        unsupported.setdefault(name, []).append(node.name)
        reader.unknown.add(node)
        return
    try:
        arguments = [reader.argument(a) for a in node.args]
        keywords = {k: reader.argument(v) for k, v in node.kwargs.items()}
        reader.origin = node.name
        reader.values[node] = convert(reader, *arguments, **keywords)
    except CutsError as error:
        reader.unknown.add(node)
        errors.append(GraphError(f"node {quote(node.name)} ({name}): {error.message}", hint=error.hint))
    except TypeError as error:
        reader.unknown.add(node)
        errors.append(GraphError(f"node {quote(node.name)} ({name}): an argument is not supported ({error})"))


def _faults(unsupported: Mapping[str, Sequence[str]]) -> list[CutsError]:
    if not unsupported:
        return []
    parts = [f"{op} (node{'s' * (len(names) > 1)} {', '.join(map(quote, names[:4]))})" for op, names in sorted(unsupported.items())]
    count = len(parts)
    return [GraphError(f"{count} operation{'s are' if count > 1 else ' is'} not supported: {'; '.join(parts)}")]
