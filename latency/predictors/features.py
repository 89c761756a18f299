"""Features for the selection of kernels.

They are the four groups of features of the paper, section III-B: (a) the configuration, (b) sizes of the product, (c)
blocks and elements, (d) the latency that the model of each kernel predicts. Groups (c) and (d) have columns for each
kernel that ran often. The labelled extension adds features of a library's own rules: alignment of channels for vector
loads, ratios of sizes, the number of waves of a tile and the fill of the last one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..convolution import Convolutions, Floats, Ints
from .kernel_model import KernelModel
from .tiles import ceil_div

#: Multiples that channels and pixels are tested for, vectors that channels make, and tiles whose waves are counted.
_ALIGNMENTS = (2, 4, 8, 16, 32, 64)
_VECTORS = (4, 8, 32, 64)
_TILES = ((32, 32), (128, 32), (64, 64), (64, 128), (128, 128), (256, 64), (64, 256), (128, 256))


def selection_features(
    layers: Convolutions, models: Mapping[str, KernelModel], extended: bool = True, multiprocessors: int = 132
) -> Floats:
    """Return the columns for each convolution.

    `extended` adds those that are not of the paper.
    """
    configuration = [*layers.table.T, layers.p, layers.q]
    columns = [*configuration, layers.m, layers.n, layers.k, layers.m_in, layers.m_out]
    for model in models.values():
        columns += [model.tiles.blocks(layers), model.predict(layers)]
    if extended:
        columns += [*_alignment(layers), *_ratios(layers), *_waves(layers, multiprocessors)]
    values = np.stack(columns, axis=1).astype(float)
    return np.where(
        values > 0, np.log2(1 + np.maximum(values, 0)), values
    )  # thresholds are drawn evenly, sizes are not


def _alignment(layers: Convolutions) -> list[Ints]:
    c, k = layers.column("C"), layers.column("K")
    sizes = [c, k, layers.p * layers.q, layers.q, layers.column("W")]
    powers = [np.gcd(size, 4096) for size in (*sizes, layers.m, layers.k)]
    rests = [layers.k % 64, layers.n % 64, layers.m % 256, layers.n % 256, *(each % 16 for each in sizes), c % 64]
    vectors = [*(ceil_div(each, of) for each in (c, k) for of in _VECTORS), ceil_div(k, 128), ceil_div(k, 256)]
    return [*(size % each == 0 for size in sizes for each in _ALIGNMENTS), *powers, *rests, *vectors]


def _ratios(layers: Convolutions) -> list[Floats]:
    c, k, m, depth = (
        np.log2(np.maximum(each, 1)) for each in (layers.column("C"), layers.column("K"), layers.m, layers.k)
    )
    return [c + k, c - k, m + k, m - k, depth - k, m - depth, m + depth, m + k + depth]


def _waves(layers: Convolutions, multiprocessors: int) -> list[Floats]:
    found = []
    for blk_m, blk_n in _TILES:
        waves = ceil_div(layers.m, blk_m) * ceil_div(layers.n, blk_n) / multiprocessors
        found += [waves, np.ceil(waves) / waves, ceil_div(layers.n, blk_n) * blk_n / layers.n]
    return found
