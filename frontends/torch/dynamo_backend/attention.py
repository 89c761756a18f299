"""Attention stays one operation while autograd traces a graph without gradients.

PyTorch's dispatcher chooses between routines of the device by masks, strides and element types, and otherwise
decomposes attention into products of f32. Here it becomes the vocabulary's `attention`, in the types of its operands:

    aten.scaled_dot_product_attention(q, k, v, mask) -> cuts._layer_attention(q, k, v, mask)

Results have the memory layout of the routine that PyTorch would choose: of a fused one, heads within positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import DispatchKey
from torch.nn.attention import SDPBackend

from ..recurrent import layer_operator

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_COMPOSITE = DispatchKey.CompositeImplicitAutograd
_TYPES = (torch.float16, torch.bfloat16, torch.float32)


@contextmanager
def whole_attention() -> Iterator[None]:
    """Keep attention whole while PyTorch traces."""
    kernels = _ATTENTION.py_kernels
    earlier = kernels.get(_COMPOSITE)
    kernels[_COMPOSITE] = _attend
    _ATTENTION._dispatch_cache.clear()
    try:
        yield
    finally:
        del kernels[_COMPOSITE]
        if earlier is not None:
            kernels[_COMPOSITE] = earlier
        _ATTENTION._dispatch_cache.clear()


def _attend(q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False, **more: Any) -> Any:
    """Return attention by our operator, or as PyTorch decomposes it where ours does not fit."""
    if dropout or not _fits(q, k, v, mask, bool(more.get("enable_gqa"))):
        return _ATTENTION._op_dk(_COMPOSITE, q, k, v, mask, dropout, causal, **more)
    given = mask
    if mask is not None and mask.dtype is not torch.bool:
        mask = mask.to(q.dtype)
    y = layer_operator("attention")(q, k, v, mask, causal=causal, scale=more.get("scale"))
    chosen = torch._fused_sdp_choice(q, k, v, given, dropout, causal, **more)
    return y if chosen == SDPBackend.MATH.value else y.transpose(1, 2).contiguous().transpose(1, 2)


def _fits(q: Any, k: Any, v: Any, mask: Any, grouped: bool) -> bool:
    """Return whether operands are of one type, and have one batch axis and heads that belong together."""
    same = q.dtype in _TYPES and q.dtype is k.dtype is v.dtype and q.device == k.device == v.device
    if not same or any(x.dim() != 4 or x.is_nested for x in (q, k, v)):
        return False
    if not (q.shape[0] == k.shape[0] == v.shape[0] and k.shape[1] == v.shape[1] and k.shape[2] == v.shape[2]):
        return False
    heads = q.shape[1] % k.shape[1] == 0 if grouped and k.shape[1] else q.shape[1] == k.shape[1]
    return heads and all(x.numel() for x in (q, k, v)) and (mask is None or mask.dim() <= 4)
