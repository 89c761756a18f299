"""Hypothesis strategies for small, well-typed graphs.

They have constants, residual connections and user-chosen names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from cuts.ir.errors import CutsError
from cuts.ir.graph import Array, Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ops.language import Registry
from hypothesis import strategies as st

F32 = DType.F32
_UNARY = ["relu", "sigmoid", "exp", "identity", "dropout", "neg", "abs"]
_KINDS = ["unary", "binary", "scale", "scalar", "constant", "conv", "norm", "reshape", "transpose", "cast", "softmax"]
_BINARY = ["add", "sub", "mul", "max"]


class GraphBuilder:
    """Builder of nodes with derived types, and constants of a generator."""

    def __init__(self, seed: int, rename: Callable[[str], str] = str) -> None:
        self.rng = np.random.default_rng(seed)
        self.rename = rename
        self.types: dict[str, TensorType] = {}
        self.constants: dict[str, Array] = {}
        self.nodes: list[Node] = []
        self.inputs: list[str] = []

    def input(self, shape: tuple[int, ...], dtype: DType = F32) -> str:
        """Add an input."""
        name = self.rename(f"x{len(self.inputs)}")
        self.inputs.append(name)
        self.types[name] = TensorType(dtype, shape)
        return name

    def constant(self, shape: tuple[int, ...]) -> str:
        """Add a constant of random values away from zero.

        So no division overflows.
        """
        name = self.rename(f"c{len(self.constants)}")
        self.constants[name] = self.rng.uniform(0.5, 1.5, shape).astype(np.float32)
        self.types[name] = TensorType(F32, shape)
        return name

    def node(self, op: str, *inputs: str | None, **attributes: Any) -> str:
        """Add a node and return its result."""
        number = len(self.nodes)
        output = self.rename(f"v{number}")
        node = Node(self.rename(f"n{number}"), op, inputs, (output,), attributes)
        (self.types[output],) = Registry.builtin().instances.infer(
            node, [None if v is None else self.types[v] for v in inputs]
        )
        self.nodes.append(node)
        return output

    def graph(self, *outputs: str, name: str = "g") -> Graph:
        """Return the graph."""
        return Graph(name, tuple(self.inputs), outputs, self.types, tuple(self.nodes), self.constants)


def _grow(draw: st.DrawFn, build: GraphBuilder, values: list[str]) -> str:
    """Add one node that reads drawn values."""
    value = draw(st.sampled_from(values))
    shape = build.types[value].shape
    channel = (1, shape[1], *(1,) * (len(shape) - 2)) if len(shape) > 1 else shape
    kind = draw(st.sampled_from(_KINDS))
    if kind == "binary":
        other = draw(st.sampled_from([v for v in values if build.types[v].shape == shape]))
        return build.node(draw(st.sampled_from(_BINARY)), value, other)
    if kind == "scale":
        return build.node(draw(st.sampled_from([*_BINARY, "div"])), value, build.constant(channel))
    if kind == "scalar":
        return build.node(draw(st.sampled_from(_BINARY)), build.constant(()), value)
    if kind == "constant":
        return build.node("add", value, build.node("exp", build.constant(channel)))
    if kind in ("conv", "norm") and len(shape) == 4:
        return _channel_node(draw, build, value, kind)
    if kind == "reshape":
        return build.node("reshape", value, shape=draw(st.sampled_from([(1, -1), (-1,), shape, (0, -1)])))
    if kind == "transpose":
        return build.node("transpose", value, perm=tuple(draw(st.permutations(range(len(shape))))))
    if kind == "cast":
        return build.node("cast", build.node("cast", value, to="f64"), to="f32")
    if kind == "softmax" and shape:
        return build.node("softmax", value)
    return build.node(draw(st.sampled_from(_UNARY)), value)


def _channel_node(draw: st.DrawFn, build: GraphBuilder, value: str, kind: str) -> str:
    channels = build.types[value].shape[1]
    if kind == "norm":
        return build.node("batch_norm", value, *(build.constant((channels,)) for _ in range(4)))
    out = draw(st.integers(1, 4))
    bias = build.constant((out,)) if draw(st.booleans()) else None
    return build.node("conv", value, build.constant((out, channels, 3, 3)), bias, pads=(1, 1, 1, 1))


@st.composite
def graphs(draw: st.DrawFn, rename: Callable[[str], str] = str, max_nodes: int = 8) -> Graph:
    """Draw a graph of elementwise operations, convolutions, norms and data movement."""
    build = GraphBuilder(draw(st.integers(0, 2**16)), rename)
    values = [build.input((1, draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 4))))]
    for _ in range(draw(st.integers(1, max_nodes))):
        try:
            values.append(_grow(draw, build, values))
        except CutsError:
            continue  # a reshape that does not fit this rank
    computed = [v for node in build.nodes for v in node.outputs if v in values]
    chosen = (
        draw(st.lists(st.sampled_from(computed), min_size=1, max_size=2, unique=True))
        if computed
        else [build.node("relu", values[0])]
    )
    return build.graph(*chosen)
