"""Which operations PyTorch takes apart, and how, for graphs that we read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch._decomp import get_decompositions

#: Operations that PyTorch would take apart and our vocabulary has whole.
WHOLE = (
    "lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input", "scaled_dot_product_attention.default",
    "silu.default", "mish.default", "pixel_shuffle.default", "upsample_bilinear2d.vec", "upsample_nearest2d.vec",
    "hardswish.default", "hardsigmoid.default", "elu.default",
    "softplus.default", "embedding_dense_backward.default", "native_dropout.default",
    "upsample_bilinear2d.default", "upsample_nearest2d.default", "diagonal_scatter.default", "slice_scatter.default",
    "_scaled_dot_product_flash_attention_for_cpu.default", "multilabel_margin_loss_forward.default",
    "upsample_linear1d.vec", "upsample_linear1d.default", "upsample_trilinear3d.vec", "upsample_trilinear3d.default",
    "upsample_bicubic2d.vec", "upsample_bicubic2d.default", "upsample_nearest1d.vec", "upsample_nearest1d.default",
    "upsample_nearest3d.vec", "upsample_nearest3d.default", "_upsample_nearest_exact1d.vec",
    "_upsample_nearest_exact1d.default", "_upsample_nearest_exact2d.vec", "_upsample_nearest_exact2d.default",
    "_upsample_nearest_exact3d.vec", "_upsample_nearest_exact3d.default", "col2im.default",
)  # fmt: skip


def decompositions() -> dict[Any, Any]:
    """Return how PyTorch takes operations apart, without those that stay whole."""
    # Operations can be registered at any time, and PyTorch looks through all of them again whenever it is asked.
    return dict(_taken_apart(*torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")))


@lru_cache(maxsize=1)
def _taken_apart(*registered: str) -> Mapping[Any, Any]:
    """Return PyTorch's table, given the names of all operations that are made of others."""
    table: dict[Any, Any] = {**torch.export.default_decompositions()}
    for name in WHOLE:
        packet, _, overload = name.partition(".")
        table.pop(getattr(getattr(torch.ops.aten, packet), overload), None)
    return table


def training_decompositions() -> dict[Any, Any]:
    """Return how PyTorch takes apart what occurs in training only and is one operation for its exporter."""
    aten = torch.ops.aten
    more: list[Any] = [
        aten._native_batch_norm_legit_functional,
        aten.native_batch_norm_backward,
        aten.batch_norm_backward,
    ]
    more += [aten._native_batch_norm_legit.no_stats]
    return {**decompositions(), **get_decompositions(more)}


def is_taken_apart(operation: Any, table: Mapping[Any, Any]) -> bool:
    """Whether PyTorch takes an operation apart, given how it takes those of its table: it always does where one is made
    of others, unless it stays whole.
    """
    made_of_others: bool = operation._can_decompose()
    return operation in table or (made_of_others and str(operation).removeprefix("aten.") not in WHOLE)
