"""Decompositions of fused layers of attention, which PyTorch runs without gradients.

`nn.MultiheadAttention` and `nn.TransformerEncoderLayer` call them in evaluation (ATen, native/transformers).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

aten = torch.ops.aten

#: Values of `mask_type`: a mask of (query, key), of (batch, key); otherwise of (batch, head, query, key).
_QUERY_KEY, _BATCH_KEY = 0, 1


def _attention_layer(
    query: Any, key: Any, value: Any, embed_dim: int, num_head: int, qkv_weight: Any, qkv_bias: Any,
    proj_weight: Any, proj_bias: Any, mask: Any = None, need_weights: bool = True, average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Return a multi-head attention of (batch, position, channel) tensors, and its weights, empty where not needed."""
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    projected = (
        functional.linear(x, w, b).unflatten(-1, (num_head, -1)).transpose(1, 2)
        for x, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    q, k, v = projected
    hidden = _hides(mask, mask_type)
    if need_weights:
        scores = (q * (embed_dim // num_head) ** -0.5) @ k.transpose(2, 3)
        scores = scores if hidden is None else scores.masked_fill(hidden, -torch.inf)
        shares = scores.softmax(-1)
        result, shares = shares @ v, shares.mean(1) if average_attn_weights else shares
    else:
        shown = None if hidden is None else ~hidden
        result, shares = functional.scaled_dot_product_attention(q, k, v, shown), query.new_empty(0)
    return functional.linear(result.transpose(1, 2).flatten(2), proj_weight, proj_bias), shares


def _hides(mask: Any, mask_type: int | None) -> Any:
    """Return which scores count as -inf, None for none; any number but 0 hides one."""
    if mask is None:
        return None
    mask = mask.bool()
    if mask_type == _QUERY_KEY:
        return mask[None, None]
    return mask[:, None, None] if mask_type == _BATCH_KEY else mask


def _encoder_layer(
    src: Any, embed_dim: int, num_heads: int, qkv_weight: Any, qkv_bias: Any, proj_weight: Any, proj_bias: Any,
    use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Any, norm_bias_1: Any, norm_weight_2: Any,
    norm_bias_2: Any, ffn_weight_1: Any, ffn_bias_1: Any, ffn_weight_2: Any, ffn_bias_2: Any, mask: Any = None,
    mask_type: int | None = None,
) -> Any:  # fmt: skip
    """Return a layer of a transformer's encoder, of (batch, position, channel) tensors."""
    norms = (norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2)

    def attend(x: Any) -> Any:
        layer = embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask
        return _attention_layer(x, x, x, *layer, need_weights=False, mask_type=mask_type)[0]

    def feed_forward(x: Any) -> Any:
        inner = functional.linear(x, ffn_weight_1, ffn_bias_1)
        inner = functional.gelu(inner) if use_gelu else functional.relu(inner)
        return functional.linear(inner, ffn_weight_2, ffn_bias_2)

    x = src
    for part, (weight, bias) in zip((attend, feed_forward), norms, strict=True):
        if norm_first:
            x = x + part(functional.layer_norm(x, (embed_dim,), weight, bias, eps))
        else:
            x = functional.layer_norm(x + part(x), (embed_dim,), weight, bias, eps)
    return x


#: Decomposition of each operation.
ATTENTION_LAYERS = {
    aten._native_multi_head_attention.default: _attention_layer,
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
}
