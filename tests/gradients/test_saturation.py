"""Gradients of saturated functions.

Where the value is constant they are 0 or 1, and no infinities meet zeros on the way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuts.ops.reference import evaluate_graph
from cuts.tests.operations import SCALAR, Use, uses
from cuts.tests.operations_graph import bench_of

#: Far out on both sides, where exponentials overflow in single precision, and in between.
PLACES = np.array([-1e30, -1e4, -100, -89, -30, -1.5, -0.0, 1e-8, 2.5, 30, 89, 100, 1e4, 1e30])
EVERY = [
    *(Use(use.op, uses(use.op, PLACES.shape).types) for use in SCALAR),
    uses("gelu", PLACES.shape, approximate="tanh"),
    *(uses(op, PLACES.shape, PLACES.shape, reduction="none") for op in ("bce_with_logits", "mse_loss", "l1_loss")),
    uses("softmax", PLACES.shape),
    uses("log_softmax", PLACES.shape),
    uses("reduce_log_sum_exp", PLACES.shape, axes=(0,)),
]
#: Functions that recurrences apply to their sums.
KINDS = ("sigmoid", "tanh", "relu", "hard_sigmoid", "elu", "softsign", "softplus", "leaky_relu", "scaled_tanh")


@pytest.mark.parametrize("use", EVERY, ids=lambda use: f"{use.op}{dict(use.attributes) or ''}")
def test_single_precision_gradients_equal_doubles(use: Use) -> None:
    """It applies where single precision has such a number.

    An infinity that meets a zero on the way would be none.
    """
    bench, places = bench_of([use], backward=True), PLACES.astype(np.float32).astype(float)
    given = {n: np.ones(a.shape) if n.split(".")[-1].startswith("d") else places for n, a in bench.inputs.items()}
    given = {name: value[()] if bench.graph.types[name].shape == () else value for name, value in given.items()}
    double, single = (evaluate_graph(bench.graph, bench.spec.registry, given, kind) for kind in (float, np.float32))
    for name in (n for n in double if ".gradient." in n):
        held = np.abs(double[name]) <= np.finfo(np.float32).max
        np.testing.assert_allclose(single[name][held], double[name][held], rtol=1e-5, atol=1e-6, err_msg=name)


def slopes(op: str, gates: int, **attributes: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return one unit's gradient of x, in double and single precision.

    It makes one step with weights of 1.
    """
    count = len(PLACES)
    bench = bench_of([uses(op, (1, count, 1), (1, gates, 1), (1, gates, 1), **attributes)], backward=True)
    given = {name: np.ones(array.shape) for name, array in bench.inputs.items()}
    given[f"{op} 0.x"] = PLACES.astype(np.float32).astype(float).reshape(1, count, 1)
    double, single = (evaluate_graph(bench.graph, bench.spec.registry, given, kind) for kind in (float, np.float32))
    return double[f"{op} 0.gradient.dx"], single[f"{op} 0.gradient.dx"]


@pytest.mark.parametrize("kind", KINDS)
def test_slopes_of_large_sums_equal_doubles(kind: str) -> None:
    double, single = slopes("rnn", 1, activations=(kind,), alpha=(0.5,), beta=(0.25,))
    np.testing.assert_allclose(single, double, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("op", "gates"), [("lstm", 4), ("gru", 3)])
def test_shut_or_open_gates_have_a_gradient(op: str, gates: int) -> None:
    double, single = slopes(op, gates)
    np.testing.assert_allclose(single, double, rtol=1e-5, atol=1e-6)
