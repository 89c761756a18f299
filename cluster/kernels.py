"""What a run launches: the plans of a block, of the loss and of the optimiser, compiled once for all layers."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from ..backends import find_target
from ..compile import build_graph
from ..ir import CompileOptions, UsageError
from ..runtime import Plan
from .blocks import adam_graph, block_passes, loss_graph, parameter_shapes
from .layer_files import layout
from .plan_file import ClusterPlan

#: Elements that the optimiser takes at a time; a multiple of a page.
CHUNK = 1 << 20


@frozen
class Kernels:
    """The compiled plans of a run."""

    forward: Plan
    backward: Plan | None
    loss: Plan | None
    adam: Plan | None
    rest: Plan | None
    saved: tuple[str, ...]


def check_runnable(plan: ClusterPlan) -> None:
    """Raise `UsageError` where the runner can not run a plan."""
    model, way = plan.model, plan.way
    limits = (
        (model.precision == "single", "precision", '"single": blocks compute in fp32', model.precision),
        (model.vocabulary == 0, "vocabulary", "0: blocks run without an embedding and a head", model.vocabulary),
        (not plan.training or model.optimiser == "adam", "optimiser", "adam", model.optimiser),
        (way.wp == 1, "wp", "1: no layer is split between GPUs when a plan runs", way.wp),
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
    """Compile what a plan's steps launch. Raises `UsageError` for a target that launches no kernels."""
    model, way, machine = plan.model, plan.way, find_target(target)
    if machine.dialect not in ("opencl", "cuda"):
        raise UsageError(f"target '{target}' launches no kernels", hint="use opencl or cuda")
    options = CompileOptions()
    passes = block_passes(model, way.micro, training=plan.training, recompute=way.activations.startswith("recompute"))

    def built(graph: Any, spec: Any) -> Plan:
        return build_graph(graph, spec, machine, options).plan

    forward = built(passes.forward, passes.spec)
    if passes.backward is None:
        return Kernels(forward, None, None, None, None, ())
    whole = layout(parameter_shapes(model)).nbytes // 4
    chunk, rest = min(CHUNK, whole), whole % CHUNK
    elements = model.batch * model.sequence * model.hidden
    return Kernels(
        forward,
        built(passes.backward, passes.spec),
        built(*loss_graph(model, way.micro, elements)),
        built(*adam_graph(chunk)),
        built(*adam_graph(rest)) if rest and rest != chunk else None,
        passes.saved,
    )
