"""Comparison of compiled functions with eager PyTorch, graphs evaluated by the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .test_torch_training import Recorder

Function = Callable[..., Any]
reference_backend = Recorder("reference")


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
