"""Times of single layers with the kernels of `cuts`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..backends import find_target
from ..compile import build_graph, load_spec
from ..ir import Attribute, CompileOptions, DType, Graph, Node, TensorType
from ..latency.profiling import LayerTask, TracedKernel

#: Repeated runs of a layer.
REPEATS = 5


def layer_graph(task: LayerTask) -> tuple[Graph, Any]:
    """Return a layer as a graph, with its vocabulary.

    Raises `ValueError` for an operation that such profiles do not have.
    """
    spec = load_spec(())
    shapes, op, attributes = _operation(task)
    inputs = {f"x{number}": TensorType(DType.F32, shape) for number, shape in enumerate(shapes)}
    node = Node("y", op, tuple(inputs), ("y",), attributes)
    (result,) = spec.instances.infer(node, list(inputs.values()))
    return Graph("layer", tuple(inputs), ("y",), {**inputs, "y": result}, (node,), {}), spec


def _operation(task: LayerTask) -> tuple[Sequence[tuple[int, ...]], str, dict[str, Attribute]]:
    if task.op == "conv2d":
        n, c, h, w, k, r, s, sh, sw, ph, pw, dilation, groups = task.shape
        attributes: dict[str, Attribute] = {"strides": (sh, sw), "pads": (ph, pw, ph, pw)}
        attributes |= {"dilations": (dilation, dilation), "groups": groups}
        return ((n, c, h, w), (k, c // groups, r, s)), "conv", attributes
    if task.op == "linear":
        rows, inner, outer = task.shape
        return ((rows, inner), (inner, outer)), "matmul", {}
    if task.op in ("add", "relu"):
        return (task.shape,) * (2 if task.op == "add" else 1), task.op, {}
    raise ValueError(f"operation '{task.op}' is not profiled with kernels of cuts")


def measure_on(name: str) -> tuple[Callable[[LayerTask], list[list[TracedKernel]]], dict[str, Any]]:
    """Return a timer of layers on a target's device, and its facts."""
    target = find_target(name)

    def measure(task: LayerTask) -> list[list[TracedKernel]]:
        plan = build_graph(*layer_graph(task), target, CompileOptions())
        timings = plan.session.time_steps(repeats=REPEATS)
        kernels = [plan.plan.kernels[step.kernel] for step in plan.plan.steps]
        return [
            [
                TracedKernel(kernel_label(task.op, kernel.info), tuple(kernel.grid), tuple(kernel.block), us=us)
                for kernel, us in zip(kernels, times, strict=True)
            ]
            for times in np.array([timing.samples for timing in timings]).T * 1e6
        ]

    facts = {"gpu": target.name, "kernels": "cuts", "python": sys.version.split()[0], "numpy": np.__version__}
    return measure, facts


def kernel_label(op: str, info: Mapping[str, Any]) -> str:
    """Return a kernel's name in a profile.

    It is the tiles of its schedule: rows, columns, depth.
    """
    parameters = info.get("parameters") or {}
    parts = []
    for segment in parameters.get("segments", ()):
        blocks = [tile["block"] for tile in segment["tiles"].values()]
        depth = [int(np.prod(list(each["block_k"].values()))) for each in segment["reductions"]]
        columns, *rows = blocks if len(blocks) > 1 else (1, *blocks)
        parts.append("x".join(map(str, (int(np.prod(rows)), columns, *depth))))
    return f"cuts_{op}_{'_'.join(parts)}" if parts else f"cuts_{op}"
