"""PyTorch models as graphs: `load_torch(module, (example,))`, `graph_of_export(program)`.

A program is decomposed to PyTorch's core operations and traversed once (`walk`); the tables of `operators` have the
conversion of each. Parameters and buffers become constants, or state where the program writes them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from attrs import evolve

from ....ir import Graph, GraphError, Infer, quote, verify_graph
from ....ops.language import Registry
from ....ops.symbolic import ComputedSizes
from ..calls import updated_inputs
from ..captured_graph import CapturedGraph, captured_graph
from ..dispatch import conversion, convert_graph, define, results
from ..exported import check_memory, program_outputs, rename_results, written_targets
from ..import_context import ImportContext, extract_graph
from ..operators import Complex, MaskedElements
from ..results import result_memory
from .computed_sizes import computed_dims, graph_at_sizes
from .decomposition import CoreProgram, core_program

#: Graph at sizes, names of its inputs, and its state.
_Placed: TypeAlias = tuple[torch.fx.Graph, tuple[str, ...], dict[str, tuple[str, torch.Tensor]]]


def load_torch(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, infer: Infer | None = None
) -> Graph:
    """Return the graph of a module for example arguments.

    The arguments fix the shapes; weights are constants.

    Raises `GraphError` where `torch.export` cannot trace the module.
    """
    return graph_of_export(export_module(module, args, kwargs), infer)


def export_module(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> torch.export.ExportedProgram:
    """Return the exported program of a module for example arguments.

    Raises `GraphError` where `torch.export` cannot trace the module.
    """
    try:
        return torch.export.export(module, tuple(args), dict(kwargs or {}))
    except Exception as error:  # any error of the module's own code
        text = " ".join(str(error).partition("\n\n")[0].split()) or "no reason is known"
        raise GraphError(
            f"torch.export cannot trace {type(module).__name__}: {type(error).__name__}: {text}",
            hint="torch.export.export shows the whole message; torch.compile cuts a model around such parts",
        ) from error


def graph_of_export(
    program: torch.export.ExportedProgram,
    infer: Infer | None = None,
    name: str = "torch",
    computed: ComputedSizes | None = None,
) -> Graph:
    """Return the graph of an exported program.

    Buffers that it writes are state of the graph's interface. With `computed`, results may have numbers of rows that
    depend on values: the graph is the one at a sample of them.

    Raises `GraphError` where it draws random numbers.
    """
    derive = infer or Registry.builtin().instances.infer
    core = core_program(program, lambda name: conversion(name) is not None)
    written = written_targets(core.signature)
    check_memory(core.signature, core.held, written)

    def import_graph(graph: torch.fx.Graph, sizes: ComputedSizes | None) -> tuple[ImportContext, _Placed]:
        ctx = ImportContext(derive, computed=sizes)
        here = core if sizes is None else evolve(core, graph=graph_at_sizes(graph, sizes))
        placed = _placeholders(here, ctx, written)
        convert_graph(here.graph, ctx)
        return ctx, (here.graph, *placed)

    if computed is not None and not computed.bounds:
        computed.bounds = {dim.name: dim.high for dim in computed_dims(core.graph, import_graph, computed.varies)}
    ctx, (graph, inputs, state) = import_graph(core.graph, computed)
    ends = program_outputs(core.signature.output_specs, results(graph), core.names, ctx, state, _output)
    if ctx.seeds:
        raise GraphError("dropout draws random numbers, which nothing gives", hint="export the model for inference")
    found = rename_results(extract_graph(ctx, name, inputs, ends.outputs), ends.names)
    interface = evolve(ends.interface, producers=found.interface.producers)
    return verify_graph(evolve(found, interface=interface), derive)


def _output(ctx: ImportContext, node: torch.fx.Node, name: str) -> str:
    value = ctx.value(node)
    _check_output(value, name)
    return ctx.output(value, name)


def _check_output(value: object, name: str) -> None:
    if isinstance(value, Complex):
        raise GraphError(f"output {quote(name)}: it is complex", hint="return torch.view_as_real of it")
    if isinstance(value, MaskedElements):
        raise GraphError(
            f"output {quote(name)}: its shape depends on values", hint="return a tensor of all elements, and the mask"
        )


def graph_of_nodes(
    graph: torch.fx.Graph,
    constants: Mapping[int, torch.Tensor] | None = None,
    keep_layout: bool = False,
    computed: ComputedSizes | None = None,
) -> CapturedGraph:
    """Return a captured graph of core operations.

    Backward operations become derived gradients. Every placeholder is an input, except those whose numbers `constants`
    has. With `keep_layout`, inputs have their axes in the examples' memory order, and results have the graph's layout;
    otherwise they are dense. `computed` has the sizes of results whose number of rows depends on values.
    """
    graph = graph if computed is None else graph_at_sizes(graph, computed)
    ctx = ImportContext(Registry.builtin().instances.infer, computed=computed)
    places = [node for node in graph.nodes if node.op == "placeholder"]
    define_placeholders(places, ctx, constants or {}, keep_layout)
    convert_graph(graph, ctx)
    names = ["" if number in (constants or {}) else node.name for number, node in enumerate(places)]
    found = [_result(ctx, node) for node in results(graph)]
    nodes = [node for node in found if isinstance(node, torch.fx.Node)]
    memory = result_memory(ctx, nodes, places) if keep_layout else None
    outputs = {node: node.name if memory else ctx.output(ctx.value(node), node.name) for node in nodes}
    given = [outputs[node] if isinstance(node, torch.fx.Node) else node for node in found]
    captured = captured_graph(ctx, "torch", names, given, memory)
    interface = evolve(captured.graph.interface, updates=_separate_updates(captured, updated_inputs(graph)))
    reimport = partial(graph_of_nodes, graph, constants, keep_layout) if constants else None
    return evolve(captured, graph=evolve(captured.graph, interface=interface), reimport=reimport)


def _separate_updates(captured: CapturedGraph, numbers: Sequence[int]) -> dict[str, str]:
    """Return the outputs that alone hold the new value of an input, by input.

    The last results are the new values of the inputs `numbers`.
    """
    ends = captured.signature
    found: dict[str, str] = {}
    for number, result in zip(numbers, ends.results[len(ends.results) - len(numbers) :], strict=True):
        name, view = ends.inputs[number], ends.memory.views.get(str(result))
        if name is None or view is None or view.memory is None or ends.results.count(result) > 1:
            continue
        alone = [other for other in ends.memory.views.values() if other.memory == view.memory] == [view]
        parts = ends.memory.memories[view.memory].parts
        order = ends.orders.get(name) or tuple(range(len(ends.types[name].shape)))
        whole = len(parts) == 1 and (parts[0].form, parts[0].order) == (view.form, order)
        if alone and whole and ends.types[name] == ends.types[parts[0].name]:
            found[name] = parts[0].name
    return found


def define_placeholders(
    places: Sequence[torch.fx.Node], ctx: ImportContext, constants: Mapping[int, torch.Tensor], keep_layout: bool
) -> None:
    """Define the inputs of a captured graph.

    Those of the numbers `constants` become constants.

    Raises `GraphError` where one has no type of ours.
    """
    for number, node in enumerate(places):
        if number in constants:
            define(node, constants[number], ctx)
        elif isinstance(node.meta.get("val"), (int, float)):
            ctx.values[node] = node.meta["val"]  # an extent that Dynamo passes as an argument; a graph is for one value
        elif node.users or "val" in node.meta:
            ctx.define_input(node, keep_layout)


def _result(ctx: ImportContext, node: object) -> torch.fx.Node | int | float | None:
    """Return the node of a tensor result, or the number that it is."""
    if not isinstance(node, torch.fx.Node):
        return node if isinstance(node, (int, float)) else None
    value = ctx.value(node)
    if value is None or isinstance(value, (int, float)):
        return value
    _check_output(value, node.name)
    return node


def _placeholders(
    program: CoreProgram, ctx: ImportContext, written: Collection[str]
) -> tuple[tuple[str, ...], dict[str, tuple[str, torch.Tensor]]]:
    """Define inputs, and parameters and buffers as constants.

    Returns the inputs, and the `written` buffers among them with their values.
    """
    specs = program.signature.input_specs
    targets = {spec.arg.name: spec.target for spec in specs if spec.kind.name != "USER_INPUT"}
    inputs: list[str] = []
    state: dict[str, tuple[str, torch.Tensor]] = {}
    for node in program.graph.nodes:
        if node.op != "placeholder":
            continue
        if node.name in targets:
            target = targets[node.name]
            if target in written:
                ctx.define_input(node)
                inputs.append(node.name)
                state[target] = node.name, program.held[target]
            elif target is not None:  # the order of effects is a value that is no tensor
                define(node, program.held[target], ctx)
        elif node.users or isinstance(node.meta.get("val"), torch.Tensor):
            ctx.define_input(node)
            inputs.append(node.name)
    return tuple(inputs), state
