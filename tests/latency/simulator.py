"""Artificial library of tiled kernels and a heuristic choice.

Its profiles have a known truth.
"""

from __future__ import annotations

import numpy as np
from cuts.latency.convolution import Convolutions
from cuts.latency.predictors.kernel_model import KernelModel
from cuts.latency.predictors.tiles import Tiles

KERNELS = {
    "sgemm_128x128": KernelModel(Tiles(128, 128), (2.0e-4, 1e-6, 5e-7, 3.0)),
    "sgemm_64x64": KernelModel(Tiles(64, 64), (6.0e-5, 1.2e-6, 6e-7, 2.5)),
    "sgemm_128x32": KernelModel(Tiles(128, 32), (7.0e-5, 9e-7, 8e-7, 2.0)),
}
CASES = ((56, 1, 1), (56, 3, 1), (28, 3, 1), (28, 3, 2), (14, 1, 1), (14, 3, 1), (7, 3, 1))


def layers(count: int = 1200, seed: int = 0, batch: int = 16) -> Convolutions:
    """Return convolutions of a few cases with varied channels."""
    draw = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        size, window, stride = CASES[draw.integers(len(CASES))]
        c, k = (int(v) for v in np.exp(draw.uniform(np.log(16), np.log(1024), 2)))
        rows.append((batch, c, size, size, k, window, window, stride, stride, window // 2, window // 2, 1, 1))
    return Convolutions(rows)


def choice(each: Convolutions) -> np.ndarray:
    """Return the library's kernel by a rule on sizes.

    It is not the fastest kernel.
    """
    narrow, small = each.n <= 48, each.m * each.n < 132 * 64 * 64 * 4
    return np.where(narrow, "sgemm_128x32", np.where(small, "sgemm_64x64", "sgemm_128x128"))


def profile(each: Convolutions, noise: float = 0.01, seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the kernel, the blocks and the microseconds of each convolution."""
    names = choice(each)
    blocks, us = np.zeros(len(each), np.int64), np.zeros(len(each))
    for name, model in KERNELS.items():
        own = names == name
        blocks[own], us[own] = model.tiles.blocks(each[own]), model.predict(each[own])
    return names, blocks, us * np.exp(np.random.default_rng(seed).normal(0, noise, len(each)))
