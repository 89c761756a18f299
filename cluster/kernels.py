"""Kernels of a run, compiled once for all layers.

They are the plans of a block, of the loss and of the optimiser.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from ..backends import find_target
from ..compile import build_graph
from ..ir import CompileOptions, UsageError
from ..runtime import Plan
from .graphs import adam_graph, block_passes, loss_graph, parameter_shapes
from .plans import ClusterPlan
from .prediction import CHUNK_PARAMETERS
from .storage import layout


@frozen
class Kernels:
    """Compiled plans of a run.

    A block has one plan a pass, or one for each half where GPUs share layers, and likewise its values saved for the
    backward pass.
    """

    forward: tuple[Plan, ...]
    backward: tuple[Plan, ...]
    saved: tuple[tuple[str, ...], ...]
    loss: Plan | None
    adam: Plan | None
    rest: Plan | None


def check_runnable(plan: ClusterPlan) -> None:
    """Raise `UsageError` where the runner can not run a plan."""
    model, way = plan.model, plan.way
    limits = (
        (model.vocabulary == 0, "vocabulary", "0: blocks run without an embedding and a head", model.vocabulary),
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
    options = CompileOptions()
    recompute = way.activations.startswith("recompute")
    passes = block_passes(model, way.micro, training=plan.training, recompute=recompute, parts=way.wp)

    def compile_graph(graph: Any, spec: Any) -> Plan:
        return build_graph(graph, spec, machine, options).plan

    forward = tuple(compile_graph(each.forward, each.spec) for each in passes)
    if not plan.training:
        return Kernels(forward, (), tuple(() for _ in passes), None, None, None)
    whole = layout(parameter_shapes(model, way.wp), model.dtype)
    elements = whole.nbytes // model.dtype.size
    chunk, rest = min(CHUNK_PARAMETERS, elements), elements % CHUNK_PARAMETERS
    return Kernels(
        forward,
        tuple(compile_graph(each.backward, each.spec) for each in passes),
        tuple(each.saved for each in passes),
        compile_graph(*loss_graph(model, way.micro, model.batch * model.sequence * model.hidden)),
        compile_graph(*adam_graph(chunk, model.dtype)),
        compile_graph(*adam_graph(rest, model.dtype)) if rest and rest != chunk else None,
    )
