"""One graph of many independent uses of operations, compiled at once.

It has their gradients or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import define, evolve, field, frozen
from cuts.compile.loading import Spec
from cuts.ir.graph import Graph, Node
from cuts.ir.types import TensorType
from cuts.ops.gradient.gradients import Gradients
from cuts.tests.operations import REGISTRY, Use


@frozen
class Bench:
    """A graph, its vocabulary and inputs."""

    graph: Graph
    spec: Spec
    inputs: dict[str, Any]


@define
class _Builder:
    gradients: Gradients = field(factory=lambda: Gradients(REGISTRY))
    types: dict[str, TensorType] = field(factory=dict)
    inputs: dict[str, Any] = field(factory=dict)
    outputs: list[str] = field(factory=list)
    nodes: list[Node] = field(factory=list)

    def add(self, use: Use, number: int, backward: bool) -> None:
        """Add a use; its values begin with its operation's name and number."""
        mark, instance, values = f"{use.op} {number}.", use.instance, use.values()
        for name, array in values.items():
            self._input(mark + name, dict(zip(instance.inputs, use.types, strict=False))[name], array)
        operands = tuple(mark + n if n in values else None for n in instance.inputs)
        results = tuple(mark + n for n in instance.outputs)
        self._node(use.op, operands, results, dict(use.attributes))
        if backward:
            self._backward(mark, use)

    def _backward(self, mark: str, use: Use) -> None:
        instance = use.instance
        results = [n for n, t in zip(instance.outputs, instance.output_types, strict=True) if t.dtype.is_float]
        wrt = [n for n in instance.inputs if n and mark + n in self.types and self.types[mark + n].dtype.is_float]
        rng = np.random.default_rng(1)
        for name in results:
            type_ = self.types[mark + name]
            self._input(f"{mark}d{name}", type_, rng.standard_normal(type_.shape))
        made: dict[
            str, str
        ] = {}  # except the operands: one of `softmax_grad` is called `dy`, as the gradient of its `y` is
        for step in self.gradients.steps(instance, wrt, results):
            operands = tuple(None if n is None else made.get(n, mark + n) for n in step.inputs)
            named = {n: f"{mark}gradient.{n}" for n in step.outputs}
            self._node(step.op, operands, tuple(named.values()), dict(step.attributes))
            made |= named

    def _input(self, name: str, type_: TensorType | None, array: Any) -> None:
        assert type_ is not None
        self.types[name] = type_
        self.inputs[name] = np.asarray(array, type_.dtype.numpy)

    def _node(
        self, op: str, operands: tuple[str | None, ...], results: tuple[str, ...], attributes: dict[str, Any]
    ) -> None:
        made = self.gradients.registry[op].instantiate(
            [None if n is None else self.types[n] for n in operands], attributes
        )
        self.types |= dict(zip(results, made.output_types, strict=True))
        self.outputs += results
        self.nodes.append(Node(f"node {len(self.nodes)}", op, operands, results, attributes))


def bench_of(uses: Sequence[Use], backward: bool = False) -> Bench:
    """Return the graph of some uses; all results and gradients are outputs."""
    builder = _Builder()
    for number, use in enumerate(uses):
        builder.add(use, number, backward)
    graph = Graph("uses", tuple(builder.inputs), tuple(builder.outputs), builder.types, tuple(builder.nodes))
    return Bench(graph, Spec(builder.gradients.registry, dict(builder.gradients.texts)), builder.inputs)


def with_constants(bench: Bench) -> Bench:
    """Return a bench with constants for all operands but the first.

    The constants stand for weights.
    """
    data = {node.operands[0] for node in bench.graph.nodes if node.operands}
    constants = {name: array for name, array in bench.inputs.items() if name not in data}
    inputs = {name: array for name, array in bench.inputs.items() if name in data}
    return Bench(evolve(bench.graph, inputs=tuple(inputs), constants=constants), bench.spec, inputs)
