"""Small networks as graphs of ours and as equal PyTorch functions.

Both have the same parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import define, field
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType, dtype_of_numpy
from cuts.ops.language import Registry


@define
class Network:
    """Builder of a graph with given value names and inferred types."""

    name: str
    inputs: list[str] = field(factory=list)
    below: dict[str, int] = field(factory=dict)  # the bound of an input of integers
    types: dict[str, TensorType] = field(factory=dict)
    constants: dict[str, Any] = field(factory=dict)
    nodes: list[Node] = field(factory=list)
    rng: np.random.Generator = field(factory=lambda: np.random.default_rng(1))

    def input(self, name: str, *shape: int, dtype: DType = DType.F32, below: int = 2) -> str:
        self.inputs.append(name)
        self.below[name] = below
        self.types[name] = TensorType(dtype, shape)
        return name

    def constant(self, name: str, array: Any) -> str:
        self.constants[name] = array
        self.types[name] = TensorType(dtype_of_numpy(array.dtype), array.shape)
        return name

    def weight(self, name: str, *shape: int, scale: float = 0.3, shift: float = 0.0) -> str:
        return self.constant(name, (self.rng.standard_normal(shape) * scale + shift).astype(np.float32))

    def op(self, op: str, *operands: str | None, out: str = "", **attributes: Any) -> str:
        results = tuple(out.split()) or (f"{op}{len(self.nodes)}",)
        node = Node(f"n{len(self.nodes)}", op, operands, results, attributes)
        types = Registry.builtin().instances.infer(node, [None if o is None else self.types[o] for o in operands])
        self.types.update(zip(results, types, strict=False))
        self.nodes.append(node)
        return results[0]

    def graph(self, *outputs: str) -> Graph:
        return Graph(self.name, tuple(self.inputs), outputs, self.types, tuple(self.nodes), self.constants)


def resnet() -> Network:
    """Small residual network with batch norms in training.

    It has a stem, an identity block, a strided one with a shortcut, pooling, and a classifier.
    """
    net = Network("tiny resnet")
    net.input("x", 2, 3, 8, 8)
    net.input("target", 2, dtype=DType.I64, below=5)
    _normalise(net, "x", "stem", 3, 4)
    net.op("relu", "stem.norm", out="r")
    net.op("max_pool", "r", out="p", kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    for name, features, results in BLOCKS:
        stride = (1, 1) if features == results else (2, 2)
        _normalise(net, "p" if name == "one" else "one", f"{name}.a", features, results, stride)
        net.op("relu", f"{name}.a.norm", out=f"{name}.r")
        shortcut = "p"
        if features != results:
            net.weight(f"{name}.short", results, features, 1, 1)
            shortcut = net.op("conv", "one", f"{name}.short", out=f"{name}.s", strides=stride)
        _normalise(net, f"{name}.r", f"{name}.b", results, results)
        net.op("add", f"{name}.b.norm", shortcut, out=f"{name}.sum")
        net.op("relu", f"{name}.sum", out=name)
    net.op("global_average_pool", "two", out="g")
    net.op("reshape", "g", out="flat", shape=(2, 6))
    classify(net, "flat", 6, 5)
    return net


#: The blocks of the residual network: name, channels in, channels out.
BLOCKS = (("one", 4, 4), ("two", 4, 6))
STATISTICS = {
    f"{conv}.{what}": f"{conv}.new_{what}"
    for conv in ("stem", "one.a", "one.b", "two.a", "two.b")
    for what in ("mean", "var")
}


def _normalise(net: Network, x: str, name: str, features: int, results: int, stride: tuple[int, int] = (1, 1)) -> None:
    """Add a 3x3 convolution and its batch norm."""
    net.weight(name, results, features, 3, 3)
    net.op("conv", x, name, out=f"{name}.y", pads=(1, 1, 1, 1), strides=stride)
    scale, bias = net.weight(f"{name}.scale", results, shift=1.0), net.weight(f"{name}.bias", results)
    mean = net.constant(f"{name}.mean", np.zeros(results, np.float32))
    var = net.constant(f"{name}.var", np.ones(results, np.float32))
    net.op(
        "batch_norm_training",
        f"{name}.y",
        scale,
        bias,
        mean,
        var,
        out=f"{name}.norm {name}.new_mean {name}.new_var",
        unbiased=True,
    )


def classify(net: Network, x: str, features: int, classes: int) -> None:
    """Add a linear layer, and the loss against the input `target`."""
    net.weight("fc", features, classes)
    net.weight("fc.bias", classes)
    net.op("matmul", x, "fc", out="product")
    net.op("add", "product", "fc.bias", out="logits")
    net.op("cross_entropy", "logits", "target", out="loss")


def torch_resnet(p: Mapping[str, Any], x: Any, target: Any) -> Any:
    """PyTorch's batch norm changes the running statistics among the parameters in place."""
    import torch.nn.functional as f

    def conv(value: Any, name: str, stride: int = 1) -> Any:
        y = f.conv2d(value, p[name], padding=1, stride=stride)
        return f.batch_norm(
            y, p[f"{name}.mean"], p[f"{name}.var"], p[f"{name}.scale"], p[f"{name}.bias"], training=True, momentum=0.1
        )

    h = f.max_pool2d(f.relu(conv(x, "stem")), 3, 2, 1)
    for name, features, results in BLOCKS:
        stride = 1 if features == results else 2
        shortcut = h if stride == 1 else f.conv2d(h, p[f"{name}.short"], stride=stride)
        h = f.relu(conv(f.relu(conv(h, f"{name}.a", stride)), f"{name}.b") + shortcut)
    return f.cross_entropy(h.mean((2, 3)) @ p["fc"] + p["fc.bias"], target)


def transformer(tokens: int = 5, width: int = 8, heads: int = 2, vocabulary: int = 7) -> Network:
    """Small transformer: embedding, one pre-norm encoder block, mean-token classifier."""
    net = Network("tiny transformer")
    net.input("ids", 2, tokens, dtype=DType.I64, below=vocabulary)
    net.input("target", 2, dtype=DType.I64, below=4)
    net.weight("table", vocabulary, width, scale=1.0)
    net.weight("places", tokens, width)
    net.op("gather", "table", "ids", out="e")
    net.op("add", "e", "places", out="h")
    layer_norm(net, "h", "ln1", width)
    for name in "qkv":
        net.weight(f"w{name}", width, width)
        net.op("matmul", "ln1", f"w{name}", out=f"{name}0")
        net.op("reshape", f"{name}0", out=f"{name}1", shape=(2, tokens, heads, width // heads))
        net.op("transpose", f"{name}1", out=name, perm=(0, 2, 3, 1) if name == "k" else (0, 2, 1, 3))
    net.op("matmul", "q", "k", out="scores")
    net.constant("scale", np.asarray((width // heads) ** -0.5, np.float32))
    net.op("mul", "scores", "scale", out="scaled")
    net.op("softmax", "scaled", out="weights")
    net.op("matmul", "weights", "v", out="mixed")
    net.op("transpose", "mixed", out="m1", perm=(0, 2, 1, 3))
    net.op("reshape", "m1", out="m2", shape=(2, tokens, width))
    net.weight("wo", width, width)
    net.op("matmul", "m2", "wo", out="o")
    net.op("add", "h", "o", out="h1")
    layer_norm(net, "h1", "ln2", width)
    net.weight("up", width, 2 * width)
    net.weight("up.bias", 2 * width)
    net.weight("down", 2 * width, width)
    net.op("matmul", "ln2", "up", out="u0")
    net.op("add", "u0", "up.bias", out="u1")
    net.op("gelu", "u1", out="u")
    net.op("matmul", "u", "down", out="d")
    net.op("add", "h1", "d", out="h2")
    net.op("reduce_mean", "h2", out="token", axes=(1,), keepdims=False)
    classify(net, "token", width, 4)
    return net


def layer_norm(net: Network, x: str, name: str, width: int) -> str:
    """Add a layer norm with parameters of its own."""
    return net.op(
        "layer_norm", x, net.weight(f"{name}.scale", width, shift=1.0), net.weight(f"{name}.bias", width), out=name
    )


def torch_transformer(p: Mapping[str, Any], ids: Any, target: Any, heads: int = 2) -> Any:
    import torch
    import torch.nn.functional as f

    h = p["table"][ids] + p["places"]
    n, tokens, width = h.shape

    def norm(value: Any, name: str) -> Any:
        return f.layer_norm(value, (width,), p[f"{name}.scale"], p[f"{name}.bias"])

    a = norm(h, "ln1")
    q, k, v = ((a @ p[f"w{name}"]).reshape(n, tokens, heads, -1).transpose(1, 2) for name in "qkv")
    weights = torch.softmax(q @ k.transpose(2, 3) * (width // heads) ** -0.5, -1)
    h1 = h + (weights @ v).transpose(1, 2).reshape(n, tokens, width) @ p["wo"]
    h2 = h1 + f.gelu(norm(h1, "ln2") @ p["up"] + p["up.bias"]) @ p["down"]
    return f.cross_entropy(h2.mean(1) @ p["fc"] + p["fc.bias"], target)


def lstm_classifier() -> Network:
    """Small classifier of an LSTM's last state.

    The LSTM reads a short sequence.
    """
    net = Network("tiny lstm")
    net.input("x", 4, 2, 3)
    net.input("target", 2, dtype=DType.I64, below=3)
    net.weight("w", 1, 20, 3)
    net.weight("r", 1, 20, 5)
    net.weight("b", 1, 40)
    net.op("lstm", "x", "w", "r", "b", out="y last cell")
    net.op("reshape", "last", out="flat", shape=(2, 5))
    classify(net, "flat", 5, 3)
    return net


def torch_lstm(p: Mapping[str, Any], x: Any, target: Any) -> Any:
    """PyTorch's LSTM.

    It orders its gates i, f, c, o; ours i, o, f, c.
    """
    import torch
    import torch.nn.functional as f

    order = torch.cat([torch.arange(k * 5, k * 5 + 5) for k in (0, 2, 3, 1)])
    w, r, b = p["w"][0][order], p["r"][0][order], p["b"][0]
    h = c = torch.zeros(2, 5, dtype=x.dtype)
    _, last, _ = torch._VF.lstm(
        x, (h[None], c[None]), [w, r, b[:20][order], b[20:][order]], True, 1, 0.0, True, False, False
    )
    return f.cross_entropy(last[0] @ p["fc"] + p["fc.bias"], target)
