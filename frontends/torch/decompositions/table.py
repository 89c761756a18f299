"""Table of PyTorch's decompositions for imported graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from attrs import frozen
from torch._decomp import get_decompositions
from torch._prims_common import get_computation_dtype

from .attention_layers import ATTENTION_LAYERS
from .recurrent_layers import RECURRENT
from .tensor_lists import list_operations

aten = torch.ops.aten

#: Operations of the vocabulary that PyTorch would decompose.
WHOLE_OPERATIONS = (
    "scaled_dot_product_attention.default", "silu.default", "mish.default", "pixel_shuffle.default",
    "upsample_bilinear2d.vec", "upsample_nearest2d.vec",
    "hardswish.default", "hardsigmoid.default", "elu.default",
    "softplus.default", "embedding_dense_backward.default", "native_dropout.default",
    "upsample_bilinear2d.default", "upsample_nearest2d.default", "diagonal_scatter.default", "slice_scatter.default",
    "_scaled_dot_product_flash_attention_for_cpu.default", "multilabel_margin_loss_forward.default",
    "upsample_linear1d.vec", "upsample_linear1d.default", "upsample_trilinear3d.vec", "upsample_trilinear3d.default",
    "upsample_bicubic2d.vec", "upsample_bicubic2d.default", "upsample_nearest1d.vec", "upsample_nearest1d.default",
    "upsample_nearest3d.vec", "upsample_nearest3d.default", "_upsample_nearest_exact1d.vec",
    "_upsample_nearest_exact1d.default", "_upsample_nearest_exact2d.vec", "_upsample_nearest_exact2d.default",
    "_upsample_nearest_exact3d.vec", "_upsample_nearest_exact3d.default", "col2im.default", "threshold.default",
    # Decomposed, the derivatives of these are differences of nearly equal numbers.
    "gelu_backward.default", "silu_backward.default", "mish_backward.default", "tanh_backward.default",
    "glu_backward.default",
    # Decomposed, the shift is no maximum that a loop may rescale sums by.
    "logsumexp.default",
)  # fmt: skip


def decompositions() -> dict[Any, Any]:
    """Return PyTorch's decompositions, without operations that stay whole."""
    # Operations can be registered at any time, and PyTorch looks through all of them again whenever it is asked.
    return dict(
        _decomposition_table(*torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd"))
    )


@lru_cache(maxsize=1)
def _decomposition_table(*registered: str) -> Mapping[Any, Any]:
    """Return PyTorch's table, given the names of all composite operations."""
    table: dict[Any, Any] = {**torch.export.default_decompositions()}
    for name in WHOLE_OPERATIONS:
        packet, _, overload = name.partition(".")
        table.pop(getattr(getattr(torch.ops.aten, packet), overload), None)
    return table | dict(RECURRENT) | ATTENTION_LAYERS


def training_decompositions(trained: bool = False) -> dict[Any, Any]:
    """Return the decompositions with those of training operations.

    PyTorch's exporter keeps these whole. Where a graph is `trained`, a softmax or a group norm is two numbers of each
    row and elementwise operations: the backward graph computes its elements again from the operand, which is often a
    half, and these numbers.
    """
    more: list[Any] = [
        aten._native_batch_norm_legit_functional,
        aten.native_batch_norm_backward,
        aten.batch_norm_backward,
    ]
    more += [aten._native_batch_norm_legit.no_stats]
    more += [aten._softmax, aten._log_softmax] if trained else []
    norms = {aten.native_group_norm.default: _group_norm} if trained else {}
    return {**decompositions(), **list_operations(), **get_decompositions(more), **norms}


def _group_norm(
    x: Any, weight: Any, bias: Any, count: int, channels: int, _: int, groups: int, epsilon: float
) -> tuple[Any, Any, Any]:
    """Return a group norm, in the operand's memory format, and its statistics.

    PyTorch's decomposition is `x * a + b`, which cancels digits where the mean is large.
    """
    rows = x.to(get_computation_dtype(x.dtype)).unflatten(1, (groups, channels // groups))
    variance, mean = torch.var_mean(rows, list(range(2, rows.ndim)), correction=0, keepdim=True)
    root = torch.rsqrt(variance + epsilon)
    y = ((rows - mean) * root).flatten(1, 2)
    own = (channels, *(1,) * (x.ndim - 2))
    y = y if weight is None else y * weight.reshape(own)
    y = y if bias is None else y + bias.reshape(own)
    return tuple(each.to(x.dtype) for each in (y, *(part.reshape(count, groups) for part in (mean, root))))


def is_decomposed(operation: Any, table: Mapping[Any, Any]) -> bool:
    """Return whether PyTorch decomposes an operation, given its table.

    It always decomposes a composite one, unless that stays whole.
    """
    made_of_others: bool = operation._can_decompose()
    return operation in table or (made_of_others and str(operation).removeprefix("aten.") not in WHOLE_OPERATIONS)


# ---- calls with a fixed core form, which need no trace for each shape


@frozen
class CoreCall:
    """Call in core form: another operation.

    The call's result is the first of its results where there are `several`.
    """

    target: torch._ops.OpOverload
    arguments: tuple[Any, ...]
    several: bool = False


#: Takes a call's arguments, and returns its core form: a call, or one of the arguments; None where it is not as simple.
Rewrite: TypeAlias = Callable[..., CoreCall | torch.fx.Node | None]


def _convolution(axes: int) -> Rewrite:
    def rewrite(
        x: torch.fx.Node, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
        groups: int = 1,
    ) -> CoreCall | None:  # fmt: skip
        if getattr(x.meta.get("val"), "ndim", None) != axes + 2:
            return None  # without a batch
        stride, padding, dilation = (_number_per_axis(given, axes) for given in (stride, padding, dilation))
        arguments = (x, weight, bias, stride, padding, dilation, False, [0] * axes, groups)
        return CoreCall(aten.convolution.default, arguments)

    return rewrite


def _number_per_axis(given: Any, axes: int) -> list[int]:
    """Return a number for each axis, repeated where one is given."""
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    return listed if len(listed) == axes else listed * axes


def _batch_norm(
    x: Any, scale: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, epsilon: float, _: bool = True
) -> CoreCall | None:
    if training or mean is None or var is None:
        return None
    arguments = (x, scale, bias, mean, var, momentum, epsilon)
    return CoreCall(aten._native_batch_norm_legit_no_training.default, arguments, several=True)


def _dropout(x: torch.fx.Node, ratio: float, training: bool) -> torch.fx.Node | None:
    return None if training else x


REWRITES: dict[torch._ops.OpOverload, Rewrite] = {
    aten.conv1d.default: _convolution(1), aten.conv2d.default: _convolution(2), aten.conv3d.default: _convolution(3),
    aten.batch_norm.default: _batch_norm, aten.dropout.default: _dropout,
}  # fmt: skip
