"""Backend of `torch.compile` that evaluates graphs by the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from cuts.frontends.torch.dynamo import dynamo_backend
from cuts.ops.reference import evaluate_graph

Function = Callable[..., Any]


def _compile(captured: Any, device: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    return partial(evaluate_graph, captured.graph, captured.registry)


def reference_backend(module: Any, examples: Any) -> Any:
    """Compile a captured module, forward and backward, to evaluations of its graphs."""
    return dynamo_backend(module, examples, _compile)


def assert_same_as_eager(function: Function, operands: Sequence[Any], tolerance: float = 1e-4) -> None:
    """Compare results, and gradients where a result has them.

    Operands of floats have gradients.
    """
    torch._dynamo.reset()
    wanted = _results_and_gradients(function, operands)
    found = _results_and_gradients(torch.compile(function, backend=reference_backend), operands)
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance / 10, equal_nan=True)


def _results_and_gradients(function: Function, operands: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    leaves = [_leaf(operand) for operand in operands]
    results = torch.utils._pytree.tree_leaves(function(*leaves))
    smooth = [y for y in results if isinstance(y, torch.Tensor) and y.requires_grad]
    if smooth:
        chance = torch.Generator().manual_seed(3)
        torch.autograd.backward(smooth, [torch.randn(y.shape, generator=chance).to(y.dtype) for y in smooth])
    gradients = [leaf.grad for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return [y.detach() if isinstance(y, torch.Tensor) else y for y in results], gradients


def _leaf(operand: Any) -> Any:
    if not isinstance(operand, torch.Tensor) or not operand.is_floating_point():
        return operand
    return operand.clone().requires_grad_(not operand.requires_grad)
