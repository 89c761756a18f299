"""PyTorch models as graphs: `load_torch(module, (example,))`, or `graph_of_export(program)` for a `torch.export`
program.

A program is decomposed to PyTorch's core operations and walked once (`walk`); what each of them means in our vocabulary
is in the tables of `operators`. Parameters and buffers become constants.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch._decomp import get_decompositions

from ...ir import Graph, GraphError, Infer, quote, verify_graph
from ...ops.language import Registry
from .captured import Captured, captured_graph
from .operators import Chosen, Complex
from .reader import Reader, read_graph
from .walk import define, results, walk

#: Operations that PyTorch would take apart and our vocabulary has whole.
WHOLE = (
    "lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input", "scaled_dot_product_attention.default",
    "silu.default", "mish.default", "pixel_shuffle.default", "upsample_bilinear2d.vec", "upsample_nearest2d.vec",
    "hardswish.default", "hardsigmoid.default", "elu.default",
    "softplus.default", "embedding_dense_backward.default", "native_dropout.default",
    "upsample_bilinear2d.default", "upsample_nearest2d.default", "diagonal_scatter.default", "slice_scatter.default",
    "_scaled_dot_product_flash_attention_for_cpu.default", "multilabel_margin_loss_forward.default",
    "upsample_linear1d.vec", "upsample_linear1d.default", "upsample_trilinear3d.vec", "upsample_trilinear3d.default",
    "upsample_bicubic2d.vec", "upsample_bicubic2d.default", "upsample_nearest1d.vec", "upsample_nearest1d.default",
    "upsample_nearest3d.vec", "upsample_nearest3d.default", "_upsample_nearest_exact1d.vec",
    "_upsample_nearest_exact1d.default", "_upsample_nearest_exact2d.vec", "_upsample_nearest_exact2d.default",
    "_upsample_nearest_exact3d.vec", "_upsample_nearest_exact3d.default", "col2im.default",
)  # fmt: skip


def load_torch(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, infer: Infer | None = None
) -> Graph:
    """Return the graph of a module for example arguments, which fix the shapes; weights are constants.

    Raises `GraphError` where `torch.export` cannot trace the module.
    """
    try:
        program = torch.export.export(module, tuple(args), dict(kwargs or {}))
    except Exception as error:  # whatever tracing meets in the module's own code
        raise GraphError(f"torch.export cannot trace {type(module).__name__}: {error}") from error
    return graph_of_export(program, infer)


def graph_of_export(program: torch.export.ExportedProgram, infer: Infer | None = None, name: str = "torch") -> Graph:
    """Return the graph of an exported program."""
    derive = infer or Registry.builtin().instances.infer
    with warnings.catch_warnings():  # PyTorch warns of its own insides, which nobody who calls this can change
        warnings.simplefilter("ignore", FutureWarning)
        program = program.run_decompositions(training_decompositions())
    reader = Reader(derive)
    inputs = _placeholders(program, reader)
    walk(program.graph, reader)
    specs = program.graph_signature.output_specs
    wanted = [n for n, spec in enumerate(specs) if spec.kind.name == "USER_OUTPUT"]
    found = results(program.graph)
    outputs = tuple(_output(reader, found[n], specs[n].arg.name) for n in wanted)
    return verify_graph(read_graph(reader, name, inputs, outputs), derive)


def _output(reader: Reader, node: torch.fx.Node, name: str) -> str:
    value = reader.value(node)
    if isinstance(value, Complex):
        raise GraphError(f"output {quote(name)}: it is complex", hint="return torch.view_as_real of it")
    if isinstance(value, Chosen):
        raise GraphError(
            f"output {quote(name)}: its shape depends on values", hint="return a tensor of all elements, and the mask"
        )
    return reader.output(value, name)


def graph_of_nodes(
    graph: torch.fx.Graph,
    constants: Mapping[int, torch.Tensor] | None = None,
    as_they_lie: Collection[int] = (),
) -> Captured:
    """Return a captured graph of core operations; backward operations become derived gradients.

    Every placeholder is an input, but those whose numbers `constants` has. Those of the numbers `as_they_lie` have
    their axes in the order in which the examples have them in memory.
    """
    reader = Reader(Registry.builtin().instances.infer)
    places = [node for node in graph.nodes if node.op == "placeholder"]
    frozen = {places[n]: tensor for n, tensor in (constants or {}).items()}
    for number, node in enumerate(places):
        if node in frozen:
            define(node, frozen[node], reader)
        elif isinstance(node.meta.get("val"), (int, float)):
            reader.values[node] = node.meta["val"]  # an extent that Dynamo passes by itself; graphs are for one each
        elif node.users or "val" in node.meta:
            reader.define_input(node, number in as_they_lie)
    walk(graph, reader)
    names = ["" if node in frozen else node.name for node in places]
    return captured_graph(reader, "torch", names, [_result(reader, n) for n in results(graph)])


def _result(reader: Reader, node: object) -> str | int | float | None:
    """Return the name of a result, or the number that it is in this graph."""
    if not isinstance(node, torch.fx.Node):
        return node if isinstance(node, (int, float)) else None
    value = reader.value(node)
    return value if isinstance(value, (int, float)) else _output(reader, node, node.name)


def decompositions() -> dict[Any, Any]:
    """Return how PyTorch takes operations apart, without those that stay whole."""
    # Operations can be registered at any time, and PyTorch looks through all of them again whenever it is asked.
    return dict(_taken_apart(*torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")))


@lru_cache(maxsize=1)
def _taken_apart(*registered: str) -> Mapping[Any, Any]:
    """Return PyTorch's table, given the names of all operations that are made of others."""
    table: dict[Any, Any] = {**torch.export.default_decompositions()}
    for name in WHOLE:
        packet, _, overload = name.partition(".")
        table.pop(getattr(getattr(torch.ops.aten, packet), overload), None)
    return table


def training_decompositions() -> dict[Any, Any]:
    """Return how PyTorch takes apart what occurs in training only and is one operation for its exporter."""
    aten = torch.ops.aten
    more: list[Any] = [
        aten._native_batch_norm_legit_functional,
        aten.native_batch_norm_backward,
        aten.batch_norm_backward,
    ]
    more += [aten._native_batch_norm_legit.no_stats]
    return {**decompositions(), **get_decompositions(more)}


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
            target = targets[node.name]
            if target is not None:  # the order of effects is a value that is no tensor
                define(node, held[target], reader)
        elif node.users or isinstance(node.meta.get("val"), torch.Tensor):
            reader.define_input(node)
            inputs.append(node.name)
    return tuple(inputs)
