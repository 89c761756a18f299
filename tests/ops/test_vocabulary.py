"""Operations without tests in ONNX's suite, against plain NumPy.

The reference and kernels are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from cuts.compile.build import build
from cuts.frontends.graph_json import infer_types
from cuts.ir.errors import CutsError
from cuts.ir.graph import Graph, Node
from cuts.ir.types import TensorType, dtype_of_numpy
from cuts.ops import Registry
from cuts.ops.reference import evaluate_graph
from cuts.tests.needs import DEVICES, needs_opencl
from hypothesis import given, settings
from hypothesis import strategies as st

Arrays = Mapping[str, Any]
TARGETS = ["reference", *DEVICES]
DRAW = np.random.default_rng(0)


def graph_of(op: str, inputs: Arrays, results: int = 1, **attributes: Any) -> Graph:
    """Return a graph of one operation; an input of None is absent."""
    given_ = {name: np.asarray(a) for name, a in inputs.items() if a is not None}
    types: dict[str, TensorType] = {}
    for name, array in given_.items():
        dtype = dtype_of_numpy(array.dtype)
        assert dtype is not None
        types[name] = TensorType(dtype, array.shape)
    outputs = tuple(f"y{n}" for n in range(results))
    node = Node("n", op, tuple(name if a is not None else None for name, a in inputs.items()), outputs, attributes)
    bare = Graph("g", tuple(given_), outputs, types, (node,))
    return Graph("g", bare.inputs, outputs, infer_types(bare, Registry.builtin().instances.infer), bare.nodes)


def run(op: str, inputs: Arrays, results: int = 1, target: str = "reference", **attributes: Any) -> list[Any]:
    graph = graph_of(op, inputs, results, **attributes)
    arrays = {name: np.asarray(inputs[name]) for name in graph.inputs}
    found = (
        evaluate_graph(graph, Registry.builtin(), arrays)
        if target == "reference"
        else build(graph, target=target).run(arrays)
    )
    return [found[name] for name in graph.outputs]


def real(*shape: int) -> Any:
    return DRAW.standard_normal(shape).astype(np.float32)


def softmax(z: Any) -> Any:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(q: Any, k: Any, v: Any, mask: Any, causal: bool) -> Any:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat(groups, 1), v.repeat(groups, 1)
    z = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if mask is not None:
        z = z + (np.where(mask, 0, -np.inf) if mask.dtype == bool else mask)
    if causal:
        z = np.where(np.tri(*z.shape[-2:], dtype=bool), z, -np.inf)
    return softmax(z) @ v


def octave(high: Any, low: Any, hh: Any, lh: Any, hl: Any, ll: Any) -> list[Any]:
    def conv(x: Any, w: Any) -> Any:
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        return np.einsum("nchwrs,kcrs->nkhw", windows, w)

    pooled = high.reshape(*high.shape[:2], low.shape[2], 2, low.shape[3], 2).mean((3, 5))
    return [conv(high, hh) + conv(low, lh).repeat(2, 2).repeat(2, 3), conv(low, ll) + conv(pooled, hl)]


def complex_parts(z: Any) -> Any:
    return np.stack([z.real, z.imag], -1)


ROWS = np.array([1, 2, 2])
Q, K, V = real(2, 4, 3, 8), real(2, 2, 5, 8), real(2, 2, 5, 6)
EYE, BIAS = np.eye(3, 5, dtype=bool), real(5)
TABLE, BAGS, WEIGHTS = real(7, 4), DRAW.integers(0, 7, (3, 5)), real(3, 5)
ENDS = np.array([2, 5, 1])
PLANES, SPECTRA = real(2, 6, 7), np.fft.rfft2(real(2, 6, 8))
FEATURES, PAIRS = real(2, 4, 3), np.tril_indices(4, -1)
OCTAVE = {
    "high": real(1, 2, 4, 6),
    "low": real(1, 3, 2, 3),
    "hh": real(2, 2, 3, 3),
    "lh": real(2, 3, 3, 3),
    "hl": real(3, 2, 3, 3),
    "ll": real(3, 3, 3, 3),
}
VALID = np.arange(5) < ENDS[:, None]

#: name: (operation, operands, attributes, expected result)
CASES: dict[str, tuple[str, Arrays, dict[str, Any], Callable[[], Any]]] = {
    "attention": ("attention", {"q": Q, "k": K, "v": V}, {}, lambda: attention(Q, K, V, None, False)),
    "attention, causal": ("attention", {"q": Q, "k": K, "v": V}, {"causal": True},
                          lambda: attention(Q, K, V, None, True)),
    "attention, boolean mask": (
        "attention", {"q": Q, "k": K, "v": V, "mask": EYE}, {}, lambda: attention(Q, K, V, EYE, False),
    ),
    "attention, added mask": ("attention", {"q": Q, "k": K, "v": V, "mask": BIAS}, {},
                              lambda: attention(Q, K, V, BIAS, False)),
    "bags, summed": ("embedding_bag", {"table": TABLE, "indices": BAGS}, {}, lambda: TABLE[BAGS].sum(1)),
    "bags, weighted": (
        "embedding_bag", {"table": TABLE, "indices": BAGS, "weights": WEIGHTS}, {},
        lambda: (TABLE[BAGS] * WEIGHTS[..., None]).sum(1),
    ),
    "bags, mean of those that end early": (
        "embedding_bag", {"table": TABLE, "indices": BAGS, "weights": None, "lengths": ENDS}, {"mode": "mean"},
        lambda: (TABLE[BAGS] * VALID[..., None]).sum(1) / ENDS[:, None],
    ),
    "bags, greatest": ("embedding_bag", {"table": TABLE, "indices": BAGS}, {"mode": "max"}, lambda: TABLE[BAGS].max(1)),
    "interaction": (
        "interaction", {"x": FEATURES, "first": PAIRS[0], "second": PAIRS[1]}, {},
        lambda: np.einsum("nie,nje->nij", FEATURES, FEATURES)[:, PAIRS[0], PAIRS[1]],
    ),
    "rfft2": ("rfft2", {"x": PLANES}, {}, lambda: complex_parts(np.fft.rfft2(PLANES))),
    "irfft2": ("irfft2", {"x": complex_parts(SPECTRA).astype(np.float32)}, {}, lambda: np.fft.irfft2(SPECTRA)),
    "irfft2 of odd width": (
        "irfft2", {"x": complex_parts(np.fft.rfft2(PLANES)).astype(np.float32)}, {"width": 7}, lambda: PLANES,
    ),
    "frames": (
        "frames", {"x": PLANES[..., None]}, {"length": 3, "step": 2},
        lambda: np.lib.stride_tricks.sliding_window_view(PLANES, 3, -1)[..., ::2, :, None],
    ),
}  # fmt: skip


def close(found: Any, expected: Any) -> bool:
    return np.shape(found) == np.shape(expected) and np.allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_reference_computes_what_numpy_does(name: str) -> None:
    op, inputs, attributes, expected = CASES[name]
    assert close(run(op, inputs, **attributes)[0], expected())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "name", ["attention, causal", "bags, mean of those that end early", "interaction", "rfft2", "irfft2"]
)
def test_kernels_compute_what_numpy_does(name: str, device: str) -> None:
    op, inputs, attributes, expected = CASES[name]
    assert close(run(op, inputs, target=device, **attributes)[0], expected())


@pytest.mark.parametrize("target", TARGETS)
def test_octave_convolution_is_two_kernels_at_most(target: str) -> None:
    found = run("octave_conv", OCTAVE, 2, target)
    assert all(close(a, b) for a, b in zip(found, octave(**OCTAVE), strict=True))
    if target != "reference":
        assert len(build(graph_of("octave_conv", OCTAVE, 2), target=target).kernels) <= 2  # GPUs may launch both as one


def test_octave_convolution_is_one_launch_on_gpus() -> None:
    images = {"high": (1, 64, 56, 56), "low": (1, 64, 28, 28)}
    operands = images | dict.fromkeys(("hh", "lh", "hl", "ll"), (64, 64, 3, 3))
    graph = graph_of("octave_conv", {name: np.zeros(shape, np.float32) for name, shape in operands.items()}, 2)
    assert build(graph, target="cuda:h200").plan.launch_count == 1


@pytest.mark.parametrize("target", TARGETS)
def test_dropout_depends_on_the_seed_alone(target: str) -> None:
    x = np.ones((64, 64), np.float32)
    y, kept = run("dropout_training", {"x": x, "seed": np.uint32(7)}, 2, target, ratio=0.25)
    assert abs(kept.mean() - 0.75) < 0.03
    assert close(y, np.where(kept, 1 / 0.75, 0))
    again, other = (
        run("dropout_training", {"x": x, "seed": np.uint32(s)}, 2, "reference", ratio=0.25)[1] for s in (7, 8)
    )
    assert (kept == again).all()
    assert abs((again == other).mean() - 0.625) < 0.03


# ---- recurrences


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def lstm(x: Any, w: Any, r: Any, b: Any, lengths: Any, backwards: bool) -> tuple[Any, Any, Any]:
    steps, batch, hidden = len(x), x.shape[1], r.shape[1]
    h, c, y = np.zeros((batch, hidden)), np.zeros((batch, hidden)), np.zeros((steps, batch, hidden))
    for t in reversed(range(steps)) if backwards else range(steps):
        i, o, f, u = np.split(x[t] @ w.T + h @ r.T + b[: len(w)] + b[len(w) :], 4, -1)
        cell = sigmoid(f) * c + sigmoid(i) * np.tanh(u)
        alive = (t < lengths)[:, None]
        c, h = np.where(alive, cell, c), np.where(alive, sigmoid(o) * np.tanh(cell), h)
        y[t] = np.where(alive, h, 0)
    return y, h, c


@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(1, 2), st.data())
def test_sequences_of_any_length_in_both_directions(
    steps: int, batch: int, width: int, hidden: int, directions: int, data: Any
) -> None:
    lengths = np.array(data.draw(st.lists(st.integers(0, steps), min_size=batch, max_size=batch)))
    x, w, r, b = (
        real(steps, batch, width),
        real(directions, 4 * hidden, width),
        real(directions, 4 * hidden, hidden),
        real(directions, 8 * hidden),
    )
    direction = ["forward", "bidirectional"][directions - 1]
    y, h, c = run("lstm", {"x": x, "w": w, "r": r, "b": b, "lengths": lengths}, 3, direction=direction)
    for d in range(directions):
        expected = lstm(x, w[d], r[d], b[d], lengths, d == 1)
        assert all(close(a, e) for a, e in zip((y[:, d], h[d], c[d]), expected, strict=True))


@needs_opencl
def test_the_steps_of_a_recurrence_share_one_kernel() -> None:
    counts = []
    for steps in (6, 12):
        x, w, r = real(steps, 2, 8), real(1, 32, 8), real(1, 32, 8)
        plan = build(graph_of("lstm", {"x": x, "w": w, "r": r}, 3), target="opencl")
        found = plan.run({"x": x, "w": w, "r": r})
        expected = lstm(x, w[0], r[0], np.zeros(64), np.full(2, steps), False)
        assert close(found["y0"][:, 0], expected[0])
        counts.append((len(plan.kernels), len(plan.plan.steps), plan.plan.launch_count))
    (few, groups, short), (same, again, long) = counts
    assert (same, again) == (few, groups)
    assert long - short == 6


def test_wrong_shapes_of_a_state_are_explained() -> None:
    with pytest.raises(CutsError, match="operand 'h0': expected N = 2, found 3"):
        run(
            "lstm",
            {
                "x": real(4, 2, 8),
                "w": real(1, 32, 8),
                "r": real(1, 32, 8),
                "b": None,
                "lengths": None,
                "h0": real(1, 3, 8),
            },
            3,
        )
    with pytest.raises(CutsError, match=r"expected 32 rows per direction \(4 gates\), found 24"):
        run("lstm", {"x": real(4, 2, 8), "w": real(1, 24, 8), "r": real(1, 24, 8)}, 3)
