"""Attention stays one operation while autograd traces a graph.

PyTorch's dispatcher chooses between routines of the device by masks, strides and element types, and otherwise
decomposes attention into products of f32. Here it becomes the vocabulary's `attention`, in the types of its operands:

    aten.scaled_dot_product_attention(q, k, v, mask) -> cuts._layer_attention(q, k, v, mask)

Results have the memory layout of the routine that PyTorch would choose: of a fused one, heads within positions.

Where gradients are wanted, attention keeps the logarithms of its sums, and computes its scores again:

    y, l = attention_state(q, k, v);   w, x = attention_scores_gradient(q, k, v, y, l, g)
    gradients:   scale * x k,   scale * x' q,   w' g,   the last two summed over the heads that share keys

Weights of f32 are saved where they are no larger than operands and results: fewer products compute gradients then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import DispatchKey
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..decompositions import layer_operator

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_COMPOSITE = DispatchKey.CompositeImplicitAutograd
_TYPES = (torch.float16, torch.bfloat16, torch.float32)


@contextmanager
def whole_attention(trained: bool) -> Iterator[None]:
    """Keep attention whole while PyTorch traces, also where it is `trained`."""
    kernels = _ATTENTION.py_kernels
    earlier = kernels.get(_COMPOSITE)
    kernels[_COMPOSITE] = _attend_trained if trained else _attend
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
    return _as_pytorch_lays_out(y, torch._fused_sdp_choice(q, k, v, given, dropout, causal, **more))


def _as_pytorch_lays_out(y: Any, chosen: int) -> Any:
    """Return results in the layout of PyTorch's routine: heads within positions, if it is a fused one."""
    return y if chosen == SDPBackend.MATH.value else y.transpose(1, 2).contiguous().transpose(1, 2)


def _attend_trained(
    q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False, **more: Any
) -> Any:
    """Return attention with our gradient, or as PyTorch decomposes it where ours does not fit."""
    grouped, masked = bool(more.get("enable_gqa")), mask is not None and mask.dtype is not torch.bool
    few = _saves_weights(q, k, v)
    if dropout or masked or not _fits(q, k, v, mask, grouped) or (few and (causal or mask is not None)):
        with sdpa_kernel([SDPBackend.MATH]):
            return _ATTENTION._op_dk(_COMPOSITE, q, k, v, mask, dropout, causal, **more)
    chosen = torch._fused_sdp_choice(q, k, v, mask, dropout, causal, **more)
    if few:  # no row is masked whole, which PyTorch's decomposition looks for
        weights = torch.softmax(q @ _for_heads(k, q).transpose(-1, -2) * _scale_of(q, more), -1)
        return _as_pytorch_lays_out(weights @ _for_heads(v, q), chosen)
    apply: Any = _Attention.apply
    return apply(q, k, v, mask, chosen, {"causal": causal, "scale": more.get("scale")})


class _Attention(torch.autograd.Function):
    """Attention that keeps the logarithm of each row's sum, and computes its weights again."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, mask: Any, chosen: int, form: dict[str, Any]) -> Any:
        """Return results in the layout of the `chosen` routine of PyTorch."""
        y, sums = layer_operator("attention_state")(q, k, v, mask, **form)
        y = _as_pytorch_lays_out(y, chosen)
        ctx.save_for_backward(q, k, v, y, sums, mask)
        ctx.form = form
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the gradients of queries, keys and values."""
        q, k, v, y, sums, mask = ctx.saved_tensors
        g, scale = gradients[0], _scale_of(q, ctx.form)
        w, x = layer_operator("attention_scores_gradient")(q, k, v, y, sums, g, mask, **ctx.form)
        keys, values = (_sum_of_heads(t.transpose(-1, -2) @ other, k) for t, other in ((x, q), (w, g)))
        return scale * (x @ _for_heads(k, q)), scale * keys, values, None, None, None


def _scale_of(q: Any, form: Mapping[str, Any]) -> Any:
    """Return the factor of scores."""
    return form.get("scale") or q.shape[-1] ** -0.5


def _saves_weights(q: Any, k: Any, v: Any) -> bool:
    """Return whether attention saves weights: few of f32."""
    rows, columns = q.shape[:-1].numel(), k.shape[-2]
    others = q.numel() + k.numel() + v.numel() + rows * v.shape[-1]
    return q.dtype is torch.float32 and rows * columns <= others


def _for_heads(k: Any, q: Any) -> Any:
    """Return heads of keys for each head of queries."""
    if k.shape[1] == q.shape[1]:
        return k
    groups = (*k.shape[:2], q.shape[1] // k.shape[1], *k.shape[2:])
    return k.unsqueeze(2).expand(groups).reshape(*q.shape[:2], *k.shape[2:])


def _sum_of_heads(gradient: Any, k: Any) -> Any:
    """Return the gradient of heads of keys, of that of each head of queries: masks bound the parts of one head."""
    if k.shape[1] == gradient.shape[1]:
        return gradient
    return gradient.reshape(*k.shape[:2], -1, *gradient.shape[2:]).sum(2)


def _fits(q: Any, k: Any, v: Any, mask: Any, grouped: bool) -> bool:
    """Return whether operands are of one type, and have one batch axis and heads that belong together."""
    same = q.dtype in _TYPES and q.dtype is k.dtype is v.dtype and q.device == k.device == v.device
    if not same or any(x.dim() != 4 or x.is_nested for x in (q, k, v)):
        return False
    if not (q.shape[0] == k.shape[0] == v.shape[0] and k.shape[1] == v.shape[1] and k.shape[2] == v.shape[2]):
        return False
    heads = q.shape[1] % k.shape[1] == 0 if grouped and k.shape[1] else q.shape[1] == k.shape[1]
    return heads and all(x.numel() for x in (q, k, v)) and (mask is None or mask.dim() <= 4)
