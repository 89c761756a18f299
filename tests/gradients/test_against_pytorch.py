"""Results and derived gradients against PyTorch's.

Inputs include those where the two could differ: ties, padding, reductions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuts.ops.reference import evaluate_graph
from cuts.tests.operations import DIFFERENTIABLE, SCALAR, Use, i64, uses
from cuts.tests.operations_graph import bench_of

from .oracles import ORACLES, WITHOUT, torch


def has_oracle(use: Use) -> bool:
    """Return whether PyTorch has this use.

    PyTorch's GRU knows one order of reset and product, its plain recurrence sequences of one length.
    """
    if use.op == "gru":
        return "linear_before_reset" in use.attributes
    return use.op in ORACLES and (use.op != "rnn" or len(use.types) == 3)


POOL_ATTRIBUTES = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
TIED_USES = [
    uses("conv", (2, 4, 7, 6), (6, 2, 3, 3), (6,), strides=(2, 1), pads=(1, 0, 1, 0), groups=2),
    uses("conv_transpose", (2, 4, 5), (4, 3, 3), (3,), strides=(2,), pads=(1, 1)),
    uses("max_pool", (1, 2, 8, 8), **POOL_ATTRIBUTES),
    uses("average_pool", (1, 2, 7, 7), **POOL_ATTRIBUTES, count_include_pad=True),
    uses("layer_norm", (4, 6), (6,), (6,)),
    uses("group_norm", (2, 4, 3), (4,), (4,), num_groups=2),
    uses("softmax", (4, 6), axis=0),
    uses("log_softmax", (4, 6)),
    uses("gelu", (4, 6), approximate="tanh"),
    *(uses(op, (4, 6)) for op in ("softplus", "relu", "abs")),
    uses("gather", (5, 3), i64(2, 4), classes=5),
    uses("cross_entropy", (4, 3, 2), i64(4, 2), (3,), classes=3, low=0.2, ignore_index=1),
    uses("bce_with_logits", (4, 3), (4, 3)),
    uses("reduce_prod", (3, 4), axes=(1,), keepdims=False),
    uses("resize_linear", (1, 2, 3, 4), sizes=(1, 2, 6, 8)),
]


def compute_results(use: Use, values: dict[str, Any], seeds: dict[str, Any]) -> dict[str, Any]:
    """Return declared results by name, and derived gradients by operand."""
    bench, mark = bench_of([use], backward=True), f"{use.op} 0."
    given = {mark + name: value for name, value in values.items()} | {
        f"{mark}d{name}": seed for name, seed in seeds.items()
    }
    results = evaluate_graph(bench.graph, bench.spec.registry, given)
    return {name.removeprefix(mark).removeprefix("gradient.d"): value for name, value in results.items()}


def check(use: Use, values: dict[str, Any]) -> None:
    """Compare the results and gradients of a use, given random result gradients."""
    tensors = {name: torch.tensor(value, requires_grad=value.dtype.kind == "f") for name, value in values.items()}
    absent = [None if type_ is None else name for name, type_ in zip(use.instance.inputs, use.types, strict=False)]
    results = ORACLES[use.op](use.attributes, *(None if name is None else tensors[name] for name in absent))
    results = results if isinstance(results, tuple) else (results,)
    names = [n for n, t in zip(use.instance.outputs, use.instance.output_types, strict=True) if t.dtype.is_float]
    rng = np.random.default_rng(2)
    seeds = {name: rng.standard_normal(tuple(result.shape)) for name, result in zip(names, results, strict=True)}
    torch.autograd.backward(results, [torch.tensor(seed) for seed in seeds.values()])
    found = compute_results(use, values, seeds)
    for name, result in zip(names, results, strict=True):
        np.testing.assert_allclose(found[name], result.detach().numpy(), rtol=1e-6, atol=1e-9, err_msg=name)
    for name, tensor in tensors.items():
        if tensor.grad is not None:  # PyTorch has none of a weight of classes, nor of given statistics
            np.testing.assert_allclose(found[name], tensor.grad.numpy(), rtol=1e-6, atol=1e-9, err_msg=name)


def test_differentiable_operations_are_compared_or_give_reasons() -> None:
    compared = {use.op for use in (*DIFFERENTIABLE, *SCALAR) if has_oracle(use)}
    assert compared & WITHOUT.keys() == set()
    assert compared | WITHOUT.keys() == {use.op for use in (*DIFFERENTIABLE, *SCALAR)}


@pytest.mark.parametrize("use", [use for use in (*DIFFERENTIABLE, *SCALAR) if has_oracle(use)], ids=lambda use: use.op)
def test_gradient_equals_autograd(use: Use) -> None:
    check(use, use.values())


@pytest.mark.parametrize("use", TIED_USES, ids=lambda use: use.op)
def test_gradient_equals_autograd_where_many_values_are_equal(use: Use) -> None:
    check(use, {name: np.round(v * 2) / 2 if v.dtype.kind == "f" else v for name, v in use.values().items()})
