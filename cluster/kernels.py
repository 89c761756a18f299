"""Kernels of a run, compiled once for all layers of a kind.

They are the plans of a block, of the embedding, of the head or the loss, and of the optimiser.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from ..backends import find_target
from ..compile import Spec, build_graph
from ..ir import CompileOptions, Graph, UsageError
from ..runtime import Plan
from .graphs import (
    adam_graph,
    block_passes,
    embedding_graphs,
    head_graph,
    loss_graph,
    parameter_shapes,
    sum_graph,
)
from .plans import ClusterPlan
from .prediction import CHUNK_PARAMETERS
from .storage import layout


@frozen
class Kernels:
    """Compiled plans of a run.

    A block has one plan a pass, or one for each half where GPUs share layers, and likewise its values saved for the
    backward pass. The embedding has a plan a pass, the head one in all. `adam` has plans of a whole chunk and of
    each shorter one, `sums` likewise plans of sums of gradients of tied layers.
    """

    forward: tuple[Plan, ...]
    backward: tuple[Plan, ...]
    saved: tuple[tuple[str, ...], ...]
    loss: Plan | None = None
    adam: tuple[Plan, ...] = ()
    sums: tuple[Plan, ...] = ()
    embedding: tuple[Plan, ...] = ()
    head: Plan | None = None


def check_runnable(plan: ClusterPlan) -> None:
    """Raise `UsageError` where the runner can not run a plan."""
    model, way = plan.model, plan.way
    limits = (
        (way.wp == 1 or not model.post_norm, "wp", "1 for blocks that norm their sums", way.wp),
        (not plan.training or model.optimiser == "adam", "optimiser", "adam", model.optimiser),
        (
            model.groups % way.wp == 0 and model.width % way.wp == 0,
            "wp",
            f"a number that divides {model.groups} heads and {model.width} neurons",
            way.wp,
        ),
        (model.layers % way.p == 0, "p", f"a number that divides {model.layers} layers", way.p),
        (
            model.batch % (way.dp * way.micro) == 0,
            "batch",
            f"a multiple of dp x micro = {way.dp * way.micro}",
            model.batch,
        ),
    )
    for holds, name, expected, found in limits:
        if not holds:
            raise UsageError(f"this plan can be scored but not run: {name}: expected {expected}, found {found}")


def compile_kernels(plan: ClusterPlan, target: str) -> Kernels:
    """Compile the kernels of a plan's steps.

    Raises `UsageError` for a target that launches no kernels.
    """
    model, way, machine = plan.model, plan.way, find_target(target)
    if machine.dialect not in ("opencl", "cuda"):
        raise UsageError(f"target '{target}' launches no kernels", hint="use opencl or cuda")
    recompute = way.activations.startswith("recompute")
    passes = block_passes(model, way.micro, training=plan.training, recompute=recompute, parts=way.wp)

    def compile_graph(graph: Graph, spec: Spec) -> Plan:
        return build_graph(graph, spec, machine, CompileOptions()).plan

    forward = tuple(compile_graph(each.forward, each.spec) for each in passes)
    embedding, head = _compile_ends(plan, compile_graph)
    if not plan.training:
        return Kernels(forward, (), tuple(() for _ in passes), embedding=embedding, head=head)
    elements = model.batch * model.sequence * model.hidden
    words = [model.words] if model.vocabulary and model.has_tied_head else []
    return Kernels(
        forward,
        tuple(compile_graph(each.backward, each.spec) for each in passes if each.backward),
        tuple(each.saved for each in passes),
        None if head else compile_graph(*loss_graph(model, way.micro, elements)),
        tuple(compile_graph(*adam_graph(count, model.dtype)) for count in _chunk_sizes(_layer_elements(plan))),
        tuple(compile_graph(*sum_graph(count, model.dtype)) for count in _chunk_sizes(words)),
        embedding,
        head,
    )


def _compile_ends(
    plan: ClusterPlan, compile_graph: Callable[[Graph, Spec], Plan]
) -> tuple[tuple[Plan, ...], Plan | None]:
    """Compile the embedding and the head of a model with a vocabulary."""
    model, micro = plan.model, plan.way.micro
    if not model.vocabulary:
        return (), None
    embedding = embedding_graphs(model, micro, training=plan.training)
    head = compile_graph(*head_graph(model, micro, training=plan.training))
    return tuple(compile_graph(*each) for each in embedding), head


def _layer_elements(plan: ClusterPlan) -> list[int]:
    """Return the elements of each kind of layer's file."""
    model = plan.model
    kinds = ("block", "embedding", "head") if model.vocabulary else ("block",)
    made = (layout(parameter_shapes(model, plan.way.wp, kind), model.dtype) for kind in kinds)
    return [each.nbytes // model.dtype.size for each in made]


def _chunk_sizes(elements: list[int]) -> list[int]:
    """Return the different sizes of the chunks of some runs of elements, the largest first."""
    sizes = {min(CHUNK_PARAMETERS, count) for count in elements} | {count % CHUNK_PARAMETERS for count in elements}
    return sorted(sizes - {0}, reverse=True)
