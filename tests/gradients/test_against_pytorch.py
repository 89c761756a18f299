"""Derived gradients equal those of PyTorch's autograd on the same inputs, where the two could differ: ties, padding, reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuts.ir.graph import Graph, Node
from cuts.ops.gradients import Gradients
from cuts.ops.reference import evaluate_graph
from cuts.passes.gradient import differentiate_graph
from cuts.tests.operations import REGISTRY, Use, i64, uses

torch = pytest.importorskip("torch")
F = torch.nn.functional

CASES: dict[str, tuple[Use, Callable[..., Any]]] = {
    "conv": (uses("conv", (2, 4, 7, 6), (6, 2, 3, 3), (6,), strides=(2, 1), pads=(1, 0, 1, 0), groups=2),
             lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=(1, 0), groups=2)),
    "conv_transpose": (uses("conv_transpose", (2, 4, 5), (4, 3, 3), (3,), strides=(2,), pads=(1, 1)),
                       lambda x, w, b: F.conv_transpose1d(x, w, b, stride=2, padding=1)),
    "max_pool": (uses("max_pool", (1, 2, 8, 8), kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
                 lambda x: F.max_pool2d(x, 3, 2, 1)),
    "average_pool": (uses("average_pool", (1, 2, 7, 7), kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), count_include_pad=True),
                     lambda x: F.avg_pool2d(x, 3, 2, 1)),
    "layer_norm": (uses("layer_norm", (4, 6), (6,), (6,)), lambda x, s, b: F.layer_norm(x, (6,), s, b)),
    "group_norm": (uses("group_norm", (2, 4, 3), (4,), (4,), num_groups=2), lambda x, s, b: F.group_norm(x, 2, s, b)),
    "softmax": (uses("softmax", (4, 6), axis=0), lambda x: torch.softmax(x, 0)),
    "log_softmax": (uses("log_softmax", (4, 6)), lambda x: torch.log_softmax(x, 1)),
    "gelu": (uses("gelu", (4, 6), approximate="tanh"), lambda x: F.gelu(x, approximate="tanh")),
    "softplus": (uses("softplus", (4, 6)), F.softplus),
    "relu": (uses("relu", (4, 6)), F.relu),
    "abs": (uses("abs", (4, 6)), torch.abs),
    "gather": (uses("gather", (5, 3), i64(2, 4), classes=5), lambda x, i: x[i]),
    "cross_entropy": (uses("cross_entropy", (4, 3, 2), i64(4, 2), (3,), classes=3, low=0.2, ignore_index=1),
                      lambda x, t, w: F.cross_entropy(x, t, w.detach(), ignore_index=1)),
    "bce_with_logits": (uses("bce_with_logits", (4, 3), (4, 3)), F.binary_cross_entropy_with_logits),
    "reduce_prod": (uses("reduce_prod", (3, 4), axes=(1,), keepdims=False), lambda x: x.prod(1)),
    "resize_linear": (uses("resize_linear", (1, 2, 3, 4), sizes=(1, 2, 6, 8)),
                      lambda x: F.interpolate(x, size=(6, 8), mode="bilinear", align_corners=False)),
}  # fmt: skip


def ours(use: Use, values: dict[str, Any], seed: Any) -> dict[str, Any]:
    """Return the gradients of `sum(result * seed)` through a graph of one operation."""
    instance = use.instance
    names = tuple(values)
    types = {n: t for n, t in zip(instance.inputs, use.types, strict=False) if n is not None and t is not None}
    result = instance.outputs[0]
    types |= {result: instance.output_types[0], "seed": instance.output_types[0], "product": instance.output_types[0]}
    nodes = [Node("op", use.op, names, (result,), dict(use.attributes)), Node("mul", "mul", (result, "seed"), ("product",))]
    nodes.append(Node("loss", "reduce_sum", ("product",), ("loss",), {"keepdims": False}))
    types["loss"] = REGISTRY["reduce_sum"].instantiate([types["product"]], {"keepdims": False}).output_types[0]
    graph = Graph("g", (*names, "seed"), ("loss",), types, tuple(nodes))
    gradients = Gradients(REGISTRY)
    wrt = [n for n in names if types[n].dtype.is_float and n != "weight"]
    found = differentiate_graph(graph, gradients, "loss", wrt)
    outputs = tuple(found.gradients.values())
    whole = Graph("g", graph.inputs, outputs, found.graph.types, found.graph.nodes, found.graph.constants)
    results = evaluate_graph(whole, gradients.registry, {**values, "seed": seed})
    return {name: results[gradient] for name, gradient in found.gradients.items()}


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_gradient_equals_autograd(name: str, ties: bool) -> None:
    use, oracle = CASES[name]
    values = use.values()
    if ties:  # many equal values, zeros among them
        values = {n: np.round(v * 2) / 2 if v.dtype.kind == "f" else v for n, v in values.items()}
    tensors = [torch.tensor(v, requires_grad=v.dtype.kind == "f") for v in values.values()]
    result = oracle(*tensors)
    seed = np.random.default_rng(2).standard_normal(tuple(result.shape))
    result.backward(torch.tensor(seed))
    found = ours(use, values, seed)
    for tensor, operand in zip(tensors, values, strict=True):
        if operand in found:
            np.testing.assert_allclose(found[operand], tensor.grad.numpy(), rtol=1e-6, atol=1e-9, err_msg=operand)
