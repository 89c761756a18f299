"""Gradients of operations as rows.

A row takes the operands of its operation and, unless that is a loss, the gradient of its result; it returns the
gradients of the differentiable operands. The gradients of `cuts` are derived from the declarations, those of PyTorch
are `torch.func.vjp`; either computes the forward values that it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import cuts
from attrs import evolve, frozen
from cuts.bench.vocabulary.operation import Given, Sizes, UserOperation
from cuts.ir.graph import Graph
from cuts.ir.source import Source

torch: Any = import_module("torch")

#: Name of a result's gradient.
RESULT_GRADIENT = "result_gradient"


@frozen(eq=False)
class GradientOperation(UserOperation):
    """Gradient of a function `forward` for its first `moved` operands.

    `given` ends with the gradient of the result, unless the function is a `loss`.
    """

    forward: Callable[..., Any] = abs
    moved: int = 1
    loss: bool = False

    def operands(self, given: tuple[Given, ...]) -> tuple[Given, ...]:
        """Return the function's operands."""
        return given if self.loss else given[:-1]

    def derive(self, graph: Graph) -> tuple[Graph, tuple[Source, ...]]:
        """Return gradients as a graph from the function's graph, and their declarations."""
        names, (result,) = graph.inputs, graph.outputs
        if not self.loss:
            graph = evolve(
                graph, inputs=(*names, RESULT_GRADIENT), types={**graph.types, RESULT_GRADIENT: graph.types[result]}
            )
        training = cuts.grad(graph, loss=result, wrt=names[: self.moved], given=None if self.loss else RESULT_GRADIENT)
        outputs = tuple(training.gradients[name] for name in names[: self.moved])
        texts = tuple(Source(f"{name}.cuts", text) for name, text in training.spec.texts.items())
        return evolve(training.graph, inputs=graph.inputs, outputs=outputs), texts


def gradient(
    name: str,
    tiny: Sizes,
    sizes: tuple[Sizes, ...],
    given: Callable[..., tuple[Given, ...]],
    forward: Callable[..., Any],
    moved: int = 1,
    loss: bool = False,
) -> GradientOperation:
    """Return the gradient of a function.

    The list of `given` has the result's gradient last, where there is one.
    """

    def call(*tensors: Any) -> Any:
        operands = tensors if loss else tensors[:-1]
        value, back = torch.func.vjp(lambda *free: forward(*free, *operands[moved:]), *operands[:moved])
        return back(torch.ones_like(value) if loss else tensors[-1])

    return GradientOperation("gradient", f"gradient of {name}", given, call, tiny, sizes, forward, moved, loss)
