"""Compiled graph written by hand, and its results.

It is in OpenCL C and in CUDA. The runtime is tested without the passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from cuts.backends.devices import find_target
from cuts.ir.compiled import Argument, CompiledGraph, KernelFunction, Step, Storage
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.runtime.plan import Plan, PlannedModel, make_plan

ROWS, COLUMNS = 4, 8
F32 = DType.F32


def f32(*shape: int) -> TensorType:
    """Return an f32 tensor type."""
    return TensorType(F32, shape)


def kernel(dialect: str, name: str, parameters: list[tuple[str, bool]], body: str, **fields: Any) -> KernelFunction:
    """Return a kernel of one thread per element.

    `body` sees `i`, and each parameter as if it began at its tensor.
    """
    if dialect == "opencl":
        params = ", ".join(f"__global float* {p}, int {p}_base" for p, _ in parameters)
        moves = " ".join(f"{p} += {p}_base;" for p, _ in parameters)
        head, index = f"__kernel void {name}({params})", "get_global_id(0)"
    else:
        params = ", ".join(f"float* __restrict__ {p}" for p, _ in parameters)
        moves, head, index = "", f'extern "C" __global__ void {name}({params})', "blockIdx.x * blockDim.x + threadIdx.x"
    source = f"{head} {{ {moves} int i = {index}; {body} }}\n"
    arguments = tuple(Argument(p, F32, written) for p, written in parameters)
    return KernelFunction(name, dialect, source, (ROWS, 1, 1), (COLUMNS, 1, 1), arguments, **fields)


def example(dialect: str = "opencl", x: str = "x", y: str = "y") -> tuple[CompiledGraph, Graph]:
    """Return a concatenation of two sums along the columns.

    It is `y = concat(2 * (x + 3 * w), 2 * x)`. It has a shared kernel and parts of one buffer.
    """
    add = kernel(dialect, "k_add", [("a", False), ("b", False), ("c", True)], "c[i] = a[i] + b[i] * 3.0f;")
    double = kernel(
        dialect,
        "k_double",
        [("a", False), ("c", True)],
        f"c[(i / {COLUMNS}) * {2 * COLUMNS} + i % {COLUMNS}] = a[i] * 2.0f;",
    )
    types = {x: f32(ROWS, COLUMNS), "w": f32(ROWS, COLUMNS), "h": f32(ROWS, COLUMNS), "left": f32(ROWS, COLUMNS)}
    types |= {"right": f32(ROWS, COLUMNS), y: f32(ROWS, 2 * COLUMNS)}
    nodes = (
        Node("scale", "mul", ("w", "w"), ("w3",)),
        Node("add", "add", (x, "w"), ("h",)),
        Node("join", "concat", ("left", "right"), (y,), {"axis": 1}),
    )[1:]
    weights = np.linspace(-1, 1, ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    graph = Graph("hand-made", (x,), (y, "left"), types, nodes, {"w": weights})
    storages = {"left": Storage(y, 0, (2 * COLUMNS, 1)), "right": Storage(y, COLUMNS, (2 * COLUMNS, 1))}
    steps = (Step(0, (x, "w", "h")), Step(1, ("h", "left")), Step(1, (x, "right")))
    groups = (
        {"nodes": ["add"], "level": "register", "bound": 1e-6, "parameters": {"block": 8}},
        {"nodes": ["join"]},
        {"nodes": ["join"]},
    )
    return CompiledGraph(graph, (add, double), steps, storages, groups), graph


def example_plan(dialect: str = "opencl", x: str = "x", y: str = "y") -> Plan:
    """Return the plan of the example, carrying its graph and one declaration."""
    compiled, graph = example(dialect, x, y)
    return make_plan(
        compiled,
        find_target("opencl" if dialect == "opencl" else "cuda:sm_90"),
        PlannedModel(graph, {"my.cuts": "op mine"}),
    )


def expected_outputs(x: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the outputs of the example."""
    weights = example()[1].constants["w"]
    left = 2 * (x + 3 * np.asarray(weights))
    return {"y": np.concatenate([left, 2 * x], axis=1), "left": left}


def random_x(seed: int = 0) -> np.ndarray[Any, Any]:
    """Return an input of the example."""
    return np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)).astype(np.float32)
