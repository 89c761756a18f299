"""Resizing of PyTorch, forward and backward, by sizes and by factors.

The selected elements are those of eager execution.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cuts.frontends.torch.loading.load import graph_of_nodes
from cuts.ops.reference import evaluate_graph
from torch.fx.experimental.proxy_tensor import make_fx

NEAREST = [f"{name}{rank}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for rank in (1, 2, 3)]
SMOOTH = ["upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"]
ANTIALIAS_OPERATIONS = ["_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"]
FACTORS = (0.6, 0.77, 1.01, 1.05, 1.1, 1.3, 1.5, 2.0, 2.05, 3.15)


def found_for(call: Any, *tensors: Any, device: str = "cpu") -> Any:
    """Return the reference's result of a traced call in memory order."""
    graph = make_fx(call, tracing_mode="fake")(*tensors).graph
    for node in graph.nodes:
        if device != "cpu" and node.op == "placeholder":
            with node.meta["val"].fake_mode:
                node.meta["val"] = torch.empty_like(node.meta["val"], device=device)
    captured = graph_of_nodes(graph)
    given = {name: t.numpy() for name, t in zip(captured.inputs, tensors, strict=True) if name is not None}
    results = evaluate_graph(captured.graph, captured.registry, given)
    return [results[name] for name in captured.graph.outputs]


def random_extents(generator: random.Random, rank: int, least: int) -> tuple[list[int], list[int], list[float | None]]:
    """Return extents of at least `least`, result extents, and factors.

    There is a factor for each axis, or none.
    """
    most = (90, 12, 7)[rank - 1]
    while True:
        extents = [generator.randint(least, most) for _ in range(rank)]
        factors = [generator.choice(FACTORS) for _ in range(rank)]
        sizes = [int(n * f) for n, f in zip(extents, factors, strict=True)]
        if min(sizes) >= least:
            break
    if generator.random() < 0.3:
        return extents, [generator.randint(least, 2 * most) for _ in range(rank)], [None] * rank
    return extents, sizes, list(factors)


def check(name: str, seed: int, tolerance: float) -> None:
    generator, rank = random.Random(f"{name} {seed}"), int(name.removesuffix("_aa")[-2])
    # With antialias, PyTorch's CPU takes the weights of the first row for all rows of one element.
    extents, sizes, factors = random_extents(generator, rank, 2 if name in ANTIALIAS_OPERATIONS else 1)
    kind = torch.float64 if tolerance or generator.random() < 0.3 else torch.float32
    channels = generator.choice((1, 2, 4))
    order = {2: torch.channels_last, 3: torch.channels_last_3d}.get(rank)
    whole = [] if name in NEAREST else [generator.random() < 0.3]
    forward, backward = (getattr(torch.ops.aten, name + end).default for end in ("", "_backward"))
    x = torch.from_numpy(np.random.default_rng(seed).integers(-99, 99, (2, channels, *extents))).to(kind)
    dy = torch.from_numpy(np.random.default_rng(seed).integers(-99, 99, (2, channels, *sizes))).to(kind)
    if order is not None and generator.random() < 0.4:
        x, dy = (t.contiguous(memory_format=order) for t in (x, dy))
    calls = (
        (lambda x: forward(x, sizes, *whole, *factors), x),
        (lambda dy: backward(dy, sizes, list(x.shape), *whole, *factors), dy),
    )
    for call, operand in calls:
        expected, (found,) = call(operand).numpy(), found_for(call, operand)
        case = f"{extents} to {sizes} by {factors}, {channels} channels, {kind}, {whole}, {x.stride()}"
        assert found.shape == expected.shape, case
        # The rounding of coordinates of up to 128, for sums of up to 128 elements of up to 99.
        assert np.abs(found - expected).max() <= tolerance, case


@pytest.mark.parametrize("name", NEAREST)
def test_nearest_elements_are_those_of_eager(name: str) -> None:
    for seed in range(25):
        check(name, seed, 0.0)


@pytest.mark.parametrize("name", [*SMOOTH, *ANTIALIAS_OPERATIONS])
def test_weighted_neighbours_are_those_of_eager(name: str) -> None:
    for seed in range(20):
        check(name, seed, 99 * 128 * 128 * 2.0**-48)


def nearest_on_gpu(size: int, result: int, factor: float, exact: bool, copied: bool) -> list[int]:
    """Return the places of PyTorch's CUDA kernels: single precision throughout."""
    if copied and size == result:
        return list(range(size))
    one = np.float32
    middles = np.arange(result, dtype=one) + one(0.5 if exact else 0)
    return np.minimum(np.floor(middles * one(1 / factor)), size - 1).astype(int).tolist()


def resizing(operation: Any, sizes: Sequence[int], factors: Sequence[float | None]) -> Callable[[Any], Any]:
    """Return a function of a tensor alone, as tracing takes it."""
    return lambda x: operation(x, sizes, *factors)


@pytest.mark.parametrize("name", NEAREST)
def test_nearest_elements_on_a_gpu(name: str) -> None:
    rank, operation = int(name[-2]), getattr(torch.ops.aten, name).default
    for size, factor in ((3, 1.3), (7, 1.1), (4, 2.05), (56, 0.83)):
        for tail in (1, 3):  # the axis before the last keeps its size or does not
            sizes = [*[1] * (rank - 2), *[tail] * (rank > 1), int(size * factor)]
            x = torch.arange(float(size)).expand(1, 1, *[1] * (rank - 1), size).contiguous()
            factors = [*[None] * (rank - 1), factor]
            (found,) = found_for(resizing(operation, sizes, factors), x, device="cuda")
            expected = nearest_on_gpu(size, sizes[-1], factor, "exact" in name, rank == 2)
            assert found.reshape(-1, sizes[-1])[-1].tolist() == expected, (size, factor)


def row_of(name: str, sizes: Sequence[int], factors: Sequence[float], device: str) -> Any:
    """Return the elements of one resized row of 0, 1, 2, ..."""
    operation: Callable[..., Any] = getattr(torch.ops.aten, name).default
    x = torch.arange(9.0, dtype=torch.float64).expand(1, 1, 5, 9).contiguous()
    (found,) = found_for(lambda x: operation(x, sizes, False, *factors), x, device=device)
    return found[0, 0, 0]


@pytest.mark.parametrize("name", ["upsample_bilinear2d", "upsample_bicubic2d", *ANTIALIAS_OPERATIONS])
def test_an_axis_that_keeps_its_size(name: str) -> None:
    def copies(sizes: Sequence[int], factors: Sequence[float], device: str) -> bool:
        return bool(np.allclose(row_of(name, sizes, factors, device), np.arange(9), rtol=0, atol=1e-12))

    on_cpu = name != "upsample_bicubic2d"
    assert copies((6, 9), (1.3, 1.05), "cpu") == on_cpu and not copies((6, 9), (1.3, 1.05), "cuda")
    assert copies((5, 9), (1.05, 1.05), "cpu") == on_cpu
    assert copies((5, 9), (1.05, 1.05), "cuda") == (name not in ANTIALIAS_OPERATIONS)
