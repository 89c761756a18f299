"""PyTorch version of the runner's model.

It is an independent reference in float64.
"""

from __future__ import annotations

from typing import Any

import torch
from cuts.cluster.graphs import initial_weights
from cuts.cluster.plans.descriptions import Transformer


def parameters(model: Transformer, seed: int) -> list[dict[str, Any]]:
    """Return every layer's parameters by name, as leaves with gradients."""
    layers = (initial_weights(model, layer, seed) for layer in range(model.layers))
    return [{n: torch.tensor(a, dtype=torch.float64, requires_grad=True) for n, a in layer.items()} for layer in layers]


def forward(model: Transformer, layers: list[dict[str, Any]], x: Any) -> Any:
    """Return the result of the blocks for [batch, sequence, hidden]."""
    for weights in layers:
        x = _block(model, weights, x)
    return x


def _block(model: Transformer, w: dict[str, Any], x: Any) -> Any:
    def dense(value: Any, name: str) -> Any:
        return value @ w[name] + w.get(f"{name}.bias", 0.0)

    def norm(value: Any, name: str) -> Any:
        if model.gated:
            return value * torch.rsqrt((value * value).mean(-1, keepdim=True) + 1e-5) * w[name]
        return torch.nn.functional.layer_norm(value, value.shape[-1:], w[name], w[f"{name}.bias"])

    def heads(value: Any, count: int) -> Any:
        return value.unflatten(-1, (count, -1)).transpose(1, 2)

    inner = norm(x, "norm1")
    q = heads(dense(inner, "query"), model.heads)
    k, v = (heads(dense(inner, name), model.groups) for name in ("key", "value"))
    if model.gated:
        q, k = _rotate(q), _rotate(k)
    mixed = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=model.groups != model.heads
    )
    middle = x + dense(mixed.transpose(1, 2).flatten(-2), "output")
    inner = norm(middle, "norm2")
    if model.gated:
        return middle + dense(torch.nn.functional.silu(dense(inner, "gate")) * dense(inner, "up"), "down")
    return middle + dense(torch.nn.functional.gelu(dense(inner, "up")), "down")


def _rotate(x: Any) -> Any:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * 10000.0 ** (
        -torch.arange(half, dtype=torch.float64) / half
    )
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)
