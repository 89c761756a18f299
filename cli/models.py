"""Models on the command line: what is outside the vocabulary runs uncompiled, unless `--strict` makes it an error."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from ..backends import Array, find_target
from ..compile import Compile, CompiledPlan, Spec, StagedPlan, build_graph, load, load_model, load_spec, staged_plan
from ..ir import CompileOptions, Graph, Target, VocabularyError, emptied_nodes, quote
from . import console
from .common import AnyPlan, note_uncompiled, read_inputs

#: What the names of models end in.
SUFFIXES = (".onnx", ".json", ".pt2")


def load_graph(arguments: Namespace, spec: Spec) -> Graph | None:
    """Return the model's graph; None where it has to be compiled in parts, around operations outside the vocabulary."""
    try:
        graph = load_model(arguments.model, spec, dict(arguments.shape))
    except VocabularyError:
        if arguments.strict or not arguments.model.lower().endswith(".onnx"):
            raise
        return None
    _note_emptied(graph)
    return graph


def _note_emptied(graph: Graph) -> None:
    """Warn of results without elements, such as that of a window larger than what it moves over."""
    for node, value in emptied_nodes(graph):
        read = ", ".join(f"{quote(v)} is {graph.types[v]}" for v in node.operands)
        result = f"its result {quote(value)} is {graph.types[value]}, which has no elements"
        text = f"node {quote(node.name)} ({node.op}): {result}; {read}"
        console.note(node.span.render(text, severity="warning") if node.span else f"cuts: warning: {text}")


def compile_parts(arguments: Namespace, spec: Spec, target: Target, compile_part: Compile) -> StagedPlan:
    """Compile a model in parts, for the shapes that a run with the given or random inputs gives them; say what stays
    uncompiled.
    """
    plan = staged_plan(arguments.model, spec, target, compile_part, shapes=dict(arguments.shape))
    plan.trace(read_inputs(plan, arguments))
    note_uncompiled(plan)
    return plan


def open_plan(arguments: Namespace) -> tuple[AnyPlan, Mapping[str, Array]]:
    """Open a plan, or compile a model, and return it with its inputs."""
    plan = _built(arguments) if is_model(arguments.plan) else load(arguments.plan)
    inputs = read_inputs(plan, arguments)
    note_uncompiled(plan)
    return plan, inputs


def is_model(path: str) -> bool:
    """Whether an argument names a model rather than the folder of a plan."""
    return path == "-" or (path.lower().endswith(SUFFIXES) and not Path(path).is_dir())


def _built(arguments: Namespace) -> AnyPlan:
    spec, target = load_spec(arguments.spec), find_target(arguments.target)
    arguments.model = arguments.plan
    options = CompileOptions(mode=arguments.mode, debug=arguments.debug)
    graph = load_graph(arguments, spec)

    def compile_part(part: Graph) -> CompiledPlan:
        return build_graph(part, spec, target, options)

    if graph is not None:
        return compile_part(graph)
    return staged_plan(arguments.model, spec, target, compile_part, shapes=dict(arguments.shape))
