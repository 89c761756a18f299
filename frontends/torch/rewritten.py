"""Calls whose core form is known beforehand: of these, each of a network has other shapes, so that tracing all of them
would take long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from attrs import frozen

aten = torch.ops.aten


@frozen
class Rewritten:
    """A call in core form: another operation, of whose results it is the first where there are `several`."""

    target: torch._ops.OpOverload
    arguments: tuple[Any, ...]
    several: bool = False


#: Takes a call's arguments, and returns it in core form: as a call, or as the value among the arguments that it gives;
#: None where it is not as simple.
Rewrite: TypeAlias = Callable[..., Rewritten | torch.fx.Node | None]


def _convolution(axes: int) -> Rewrite:
    def rewrite(
        x: torch.fx.Node, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
        groups: int = 1,
    ) -> Rewritten | None:  # fmt: skip
        if x.meta["val"].dim() != axes + 2:
            return None  # without a batch
        stride, padding, dilation = (_each(given, axes) for given in (stride, padding, dilation))
        arguments = (x, weight, bias, stride, padding, dilation, False, [0] * axes, groups)
        return Rewritten(aten.convolution.default, arguments)

    return rewrite


def _each(given: Any, axes: int) -> list[int]:
    """Return a number for each axis, where one stands for all of them."""
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    return listed if len(listed) == axes else listed * axes


def _batch_norm(
    x: Any, scale: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, epsilon: float, _: bool = True
) -> Rewritten | None:
    if training or mean is None or var is None:
        return None
    arguments = (x, scale, bias, mean, var, momentum, epsilon)
    return Rewritten(aten._native_batch_norm_legit_no_training.default, arguments, several=True)


def _dropout(x: torch.fx.Node, ratio: float, training: bool) -> torch.fx.Node | None:
    return None if training else x


REWRITES: dict[torch._ops.OpOverload, Rewrite] = {
    aten.conv1d.default: _convolution(1), aten.conv2d.default: _convolution(2), aten.conv3d.default: _convolution(3),
    aten.batch_norm.default: _batch_norm, aten.dropout.default: _dropout,
}  # fmt: skip
