"""Models on the command line, compiled in parts where necessary.

Operations outside the vocabulary run uncompiled, unless `--strict` makes them an error.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..backends import Array, find_target
from ..compile import load
from ..ir import CompileOptions, Graph, Target, UsageError, VocabularyError, with_policy
from .options import refuse, set_defaults
from .output import is_staged, note_uncompiled, read_inputs

if TYPE_CHECKING:
    from ..compile import Compile, Spec, StagedPlan
    from ..compile.dynamic import ModelFamily
    from .output import AnyPlan

#: Suffixes of the names of models.
SUFFIXES = (".onnx", ".json", ".pt2")
#: Options that only affect compilation.
MODEL_OPTIONS = (
    "target", "mode", "precision", "policy", "weights", "shape", "dynamic", "buckets", "strict", "debug", "spec",
)  # fmt: skip


def load_graph(arguments: Namespace, spec: Spec) -> Graph | ModelFamily | None:
    """Return the model's graph; None where it is compiled in parts.

    It is a family of graphs where sizes vary. Parts are separated by operations outside the vocabulary.

    Raises `UsageError` for buckets where no size varies.
    """
    from ..compile import quantise_model
    from ..compile.dynamic import ModelFamily, load_at_sizes, read_shapes
    from .one_op import graph_of_op

    if getattr(arguments, "op", None) is not None:
        refuse(arguments, ["dynamic", "buckets"], "an operation is compiled for one size")
        return graph_of_op(arguments.op, spec.registry, _fixed_shapes(arguments), dict(arguments.attr))
    request = read_shapes(dict(arguments.shape), dict(arguments.dynamic))
    try:
        graph = load_at_sizes(arguments.model, spec, request)
    except VocabularyError:
        if arguments.strict or arguments.weights or not arguments.model.lower().endswith((".onnx", ".pt2")):
            raise
        return None
    if isinstance(graph, ModelFamily):
        refuse(arguments, ["weights"], "weights are rounded where all sizes are fixed")
        return graph
    refuse(arguments, ["buckets"], "no size varies")
    if not arguments.weights:
        return graph
    arguments.exact_graph = graph  # standard input is read once
    return quantise_model(graph, spec, arguments.weights)


def weight_costs(arguments: Namespace, plan: AnyPlan, inputs: Mapping[str, Array]) -> Mapping[str, float]:
    """Return the relative errors that rounded weights cause in the outputs.

    Both are computed in float64; `mean_error` says relative to which size.
    """
    if not arguments.weights or is_staged(plan):
        return {}
    from ..compile import load_spec
    from ..numerics import mean_error, run_reference

    graph: Graph = arguments.exact_graph
    exact, rounded = run_reference(graph, load_spec(arguments.spec).registry, inputs), plan.reference(inputs)
    return {name: mean_error(rounded[name], exact[name]) for name in graph.outputs}


def _fixed_shapes(arguments: Namespace) -> list[tuple[str, tuple[int, ...]]]:
    """Return shapes of the command line, all of whose sizes must be fixed."""
    varying = [name for name, shape in arguments.shape if not all(isinstance(extent, int) for extent in shape)]
    if varying:
        raise UsageError(f"--shape {varying[0]}: expected fixed sizes", hint=f"as in --shape {varying[0]}=1x3x224x224")
    return list(arguments.shape)


def compile_parts(arguments: Namespace, spec: Spec, target: Target, compile_part: Compile) -> StagedPlan:
    """Compile a model in parts; print the uncompiled operations.

    Their shapes are those of a run with the given or random inputs.
    """
    from ..compile import staged_plan

    plan = staged_plan(arguments.model, spec, target, compile_part, shapes=dict(_fixed_shapes(arguments)))
    plan.trace(read_inputs(plan, arguments))
    note_uncompiled(plan)
    return plan


def open_plan(arguments: Namespace) -> tuple[AnyPlan, Mapping[str, Array]]:
    """Return a loaded plan, or a compiled model, with its inputs."""
    if is_model(arguments.plan):
        set_defaults(arguments)
        plan = _build(arguments)
    else:
        refuse(arguments, MODEL_OPTIONS, f"{arguments.plan} is a plan, and is compiled")
        plan = load(arguments.plan)
    inputs = read_inputs(plan, arguments)
    note_uncompiled(plan)
    return plan, inputs


def is_model(path: str) -> bool:
    """Return whether an argument names a model rather than a plan's folder."""
    return path == "-" or (path.lower().endswith(SUFFIXES) and not Path(path).is_dir())


def chosen_target(arguments: Namespace) -> Target:
    """Return the target of a compilation, under its policy."""
    return with_policy(find_target(arguments.target), arguments.policy)


def part_compiler(arguments: Namespace) -> tuple[Spec, Target, Compile]:
    """Return the vocabulary, the target, and the function that compiles a graph."""
    from ..compile import build_graph, load_spec

    spec, target = load_spec(arguments.spec), chosen_target(arguments)
    options = CompileOptions(mode=arguments.mode, debug=arguments.debug, precision=arguments.precision)
    return spec, target, lambda part: build_graph(part, spec, target, options)


def _build(arguments: Namespace) -> AnyPlan:
    from ..compile import staged_plan
    from ..compile.dynamic import ModelFamily, build_dynamic

    spec, target, compile_part = part_compiler(arguments)
    arguments.model = arguments.plan
    graph = load_graph(arguments, spec)
    if isinstance(graph, ModelFamily):
        return build_dynamic(graph, spec, target, compile_part, dict(arguments.buckets))
    if graph is not None:
        return compile_part(graph)
    return staged_plan(arguments.model, spec, target, compile_part, shapes=dict(_fixed_shapes(arguments)))
