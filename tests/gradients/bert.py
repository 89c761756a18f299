"""A small BERT.

Embeddings of words, places and segments, encoder layers with norms at their ends, a pooled classifier.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuts.ir.types import DType

from .networks import Network, classify, layer_norm

TOKENS, WIDTH, HEADS, LAYERS, WORDS = 6, 8, 2, 2, 11


def bert() -> Network:
    """Two sequences; a mask hides the end of some."""
    net = Network("tiny bert")
    net.input("ids", 2, TOKENS, dtype=DType.I64, below=WORDS)
    net.input("segments", 2, TOKENS, dtype=DType.I64, below=2)
    net.input("mask", 2, 1, 1, TOKENS, dtype=DType.BOOL, below=2)
    net.input("target", 2, dtype=DType.I64, below=4)
    net.weight("words", WORDS, WIDTH, scale=1.0)
    net.weight("places", TOKENS, WIDTH)
    net.weight("kinds", 2, WIDTH)
    net.op("gather", "words", "ids", out="word")
    net.op("gather", "kinds", "segments", out="kind")
    net.op("sum", "word", "places", "kind", out="embedded")
    h = layer_norm(net, "embedded", "ln", WIDTH)
    for number in range(LAYERS):
        h = _layer(net, h, f"l{number}.")
    net.op("slice", h, out="first", starts=(0,), ends=(1,), axes=(1,))
    net.op("reshape", "first", out="token", shape=(2, WIDTH))
    net.op("tanh", _dense(net, "token", "pool", WIDTH, WIDTH), out="pooled")
    classify(net, "pooled", WIDTH, 4)
    return net


def _dense(net: Network, x: str, name: str, features: int, results: int) -> str:
    net.op("matmul", x, net.weight(name, features, results), out=f"{name}.product")
    return net.op("add", f"{name}.product", net.weight(f"{name}.bias", results), out=f"{name}.sum")


def _layer(net: Network, h: str, mark: str) -> str:
    heads = []
    for name in "qkv":
        net.op(
            "reshape",
            _dense(net, h, mark + name, WIDTH, WIDTH),
            out=f"{mark}{name}.split",
            shape=(2, TOKENS, HEADS, WIDTH // HEADS),
        )
        heads.append(net.op("transpose", f"{mark}{name}.split", out=f"{mark}{name}.heads", perm=(0, 2, 1, 3)))
    net.op("attention", *heads, "mask", out=f"{mark}mixed")
    net.op("transpose", f"{mark}mixed", out=f"{mark}turned", perm=(0, 2, 1, 3))
    net.op("reshape", f"{mark}turned", out=f"{mark}joined", shape=(2, TOKENS, WIDTH))
    net.op("add", h, _dense(net, f"{mark}joined", f"{mark}o", WIDTH, WIDTH), out=f"{mark}seen")
    h = layer_norm(net, f"{mark}seen", f"{mark}ln1", WIDTH)
    net.op("gelu", _dense(net, h, f"{mark}up", WIDTH, 2 * WIDTH), out=f"{mark}gelu")
    net.op("add", h, _dense(net, f"{mark}gelu", f"{mark}down", 2 * WIDTH, WIDTH), out=f"{mark}thought")
    return layer_norm(net, f"{mark}thought", f"{mark}ln2", WIDTH)


def torch_bert(p: Mapping[str, Any], ids: Any, segments: Any, mask: Any, target: Any) -> Any:
    import torch
    import torch.nn.functional as f

    def dense(x: Any, name: str) -> Any:
        return x @ p[name] + p[f"{name}.bias"]

    def norm(x: Any, name: str) -> Any:
        return f.layer_norm(x, (WIDTH,), p[f"{name}.scale"], p[f"{name}.bias"])

    h = norm(p["words"][ids] + p["places"] + p["kinds"][segments], "ln")
    for mark in (f"l{number}." for number in range(LAYERS)):
        q, k, v = (dense(h, mark + name).reshape(2, TOKENS, HEADS, -1).transpose(1, 2) for name in "qkv")
        mixed = f.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).reshape(h.shape)
        h = norm(h + dense(mixed, f"{mark}o"), f"{mark}ln1")
        h = norm(h + dense(f.gelu(dense(h, f"{mark}up")), f"{mark}down"), f"{mark}ln2")
    return f.cross_entropy(dense(torch.tanh(dense(h[:, 0], "pool")), "fc"), target)
