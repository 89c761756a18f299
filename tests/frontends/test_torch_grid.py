"""Sampling at NaN, infinite and distant grid points, against eager PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cuts.frontends.torch.loading.load import graph_of_nodes
from cuts.ops.reference import evaluate_graph
from torch.fx.experimental.proxy_tensor import make_fx

BEYOND = [float("nan"), float("inf"), -float("inf"), 3e7 + 5, -3e7 - 5, 3e8, -3e8, 1e10, 1e20, -1e20]
INSIDE = [-1.0, 1.0, 0.1, 0.0, -0.7, 1.3, -2.6, 5.2]


def found_for(call: Any, *tensors: Any) -> list[Any]:
    """Return the reference's results of a traced call, in the tensors' precision."""
    captured = graph_of_nodes(make_fx(call, tracing_mode="fake")(*tensors).graph)
    given = {name: t.numpy() for name, t in zip(captured.inputs, tensors, strict=True) if name is not None}
    with np.errstate(all="ignore"):
        kind = tensors[0].numpy().dtype
        results = evaluate_graph(captured.graph, captured.registry, given, dtype=kind)
    return [results[name] for name in captured.results if isinstance(name, str)]


def grid_of(places: list[float], rank: int, kind: Any, generator: np.random.Generator) -> Any:
    """Return a grid with each position along each axis.

    Positions along the other axes are inside.
    """
    count = len(places)
    grid = generator.uniform(-1.5, 1.5, (1, *[1] * (rank - 1), count * rank, rank))
    for axis in range(rank):
        grid[..., axis * count : (axis + 1) * count, axis] = places
    return torch.from_numpy(grid).to(kind)


def sampling(operation: Any, *given: Any) -> Callable[..., Any]:
    """Return a function of tensors alone, as tracing takes it."""
    return lambda *tensors: operation(*tensors, *given)


@pytest.mark.parametrize("extents", [(4, 3), (5, 7), (4, 3, 2), (5, 3, 4)])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_places_beyond_numbers(extents: tuple[int, ...], kind: Any) -> None:
    rank, generator = len(extents), np.random.default_rng(sum(extents))
    names = (f"grid_sampler_{rank}d", f"grid_sampler_{rank}d_backward")
    forward, backward = (getattr(torch.ops.aten, name).default for name in names)
    x = torch.from_numpy(generator.integers(-9, 9, (1, 2, *extents))).to(kind)
    x[0, 0, 0, -1] = float("inf")  # must not meet a weight of 0
    for mode, padding, corners in itertools.product((0, 1, 2)[: 5 - rank], (0, 1, 2), (False, True)):
        case = f"mode {mode}, padding {padding}, corners {corners}"
        # Single precision has no fraction beyond 2^24, where PyTorch's vector code reflects by rounded quotients.
        rounded = padding == 2 and rank == 2 and kind is torch.float32
        places = [v for v in BEYOND if not rounded or not 1e7 < abs(v) < 1e30] + INSIDE
        tolerance = 2e-4 if kind is torch.float32 else 1e-9  # of places of up to 16 with the rounding of such
        close = {"rtol": tolerance, "atol": tolerance, "equal_nan": True, "err_msg": case}
        grid = grid_of(places, rank, kind, generator)
        (found,) = found_for(sampling(forward, mode, padding, corners), x, grid)
        np.testing.assert_allclose(found, forward(x, grid, mode, padding, corners).numpy(), **close)
        if padding:  # PyTorch's backward kernels read outside of the tensor at NaN
            grid = grid_of([v for v in places if np.isfinite(v)], rank, kind, generator)
        finite = torch.nan_to_num(x, posinf=8.0)
        dy = torch.from_numpy(generator.integers(1, 9, (1, 2, *grid.shape[1:-1]))).to(kind)
        expected = backward(dy, finite, grid, mode, padding, corners, [True, True])
        found = found_for(sampling(backward, mode, padding, corners, [True, True]), dy, finite, grid)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), **close)
