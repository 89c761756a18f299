"""PyTorch version of the runner's model.

It is an independent reference in float64.
"""

from __future__ import annotations

from typing import Any

import torch
from attrs import evolve
from cuts.cluster.graphs import initial_weights
from cuts.cluster.plans import Transformer


def parameters(model: Transformer, seed: int) -> list[dict[str, Any]]:
    """Return every layer's parameters by name, as leaves with gradients.

    A tied head has the embedding's table.
    """
    numbers = range(model.layers + 2 * bool(model.vocabulary))
    layers = [initial_weights(model, layer, seed) for layer in numbers]
    found = [
        {n: torch.tensor(a, dtype=torch.float64, requires_grad=True) for n, a in layer.items()} for layer in layers
    ]
    if model.vocabulary and model.has_tied_head:
        found[-1]["table"] = found[0]["table"]
    return found


def forward(model: Transformer, layers: list[dict[str, Any]], x: Any) -> Any:
    """Return the result of the blocks, or the scores of tokens."""
    if not model.vocabulary:
        for weights in layers:
            x = _block(model, weights, x)
        return x
    first, *blocks, last = layers
    x = first["table"][x] + first.get("places", 0.0)
    x = _norm(model, first, x, "norm") if model.post_norm else x
    x = forward(evolve(model, vocabulary=0), blocks, x)
    x = x if model.post_norm else _norm(model, last, x, "norm")
    return x @ last["table"].T


def loss_of(model: Transformer, layers: list[dict[str, Any]], x: Any, target: Any) -> Any:
    """Return the loss of a mini-batch."""
    found = forward(model, layers, x)
    if model.vocabulary:
        return torch.nn.functional.cross_entropy(found.flatten(0, 1), target.flatten())
    return ((found - target) ** 2).mean()


def _norm(model: Transformer, w: dict[str, Any], value: Any, name: str) -> Any:
    if model.has_rms_norms:
        return value * torch.rsqrt((value * value).mean(-1, keepdim=True) + model.epsilon) * w[name]
    return torch.nn.functional.layer_norm(value, value.shape[-1:], w[name], w[f"{name}.bias"], model.epsilon)


_FUNCTIONS = {
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "relu": torch.nn.functional.relu,
    "silu": torch.nn.functional.silu,
}


def _block(model: Transformer, w: dict[str, Any], x: Any) -> Any:
    def dense(value: Any, name: str) -> Any:
        return value @ w[name] + w.get(f"{name}.bias", 0.0)

    def heads(value: Any, count: int) -> Any:
        return value.unflatten(-1, (count, -1)).transpose(1, 2)

    after = model.post_norm
    inner = x if after else _norm(model, w, x, "norm1")
    q = heads(dense(inner, "query"), model.heads)
    k, v = (heads(dense(inner, name), model.groups) for name in ("key", "value"))
    if model.position_kind == "rotary":
        q, k = _rotate(q, model.theta), _rotate(k, model.theta)
    mixed = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=model.causal, enable_gqa=model.groups != model.heads
    )
    middle = x + dense(mixed.transpose(1, 2).flatten(-2), "output")
    middle = _norm(model, w, middle, "norm1") if after else middle
    inner = middle if after else _norm(model, w, middle, "norm2")
    wide = _FUNCTIONS[model.nonlinearity](dense(inner, "gate" if model.gated else "up"))
    found = middle + dense(wide * dense(inner, "up") if model.gated else wide, "down")
    return _norm(model, w, found, "norm2") if after else found


def _rotate(x: Any, theta: float) -> Any:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * theta ** (
        -torch.arange(half, dtype=torch.float64) / half
    )
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)
