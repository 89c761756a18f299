"""Tiles of a kernel, and their fit to observed grids.

Equation 1 gives the number of blocks, equation 3 the best tiles. `flat` is the paper's equation, `g = ceil(NPQ / blk_m)
* ceil(K / blk_n)`. Not every kernel of today's libraries tiles all pixels of a batch as one row: `image` starts a new
tile with each image, `line` with each line of it. The form is found together with the sizes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attrs import frozen

from ..convolution import Convolutions, Ints

#: Sizes of tiles that are tried along either side.
SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512)
FORMS = ("flat", "image", "line")
#: Forms of kernels that only move the image or the filter: tiles of its pixels by its channels.
MOVES = ("input", "filter")


def ceil_div(a: Ints, b: int) -> Ints:
    """Return quotients rounded up."""
    return -(-a // b)


def grid_size(layers: Convolutions, blk_m: int, blk_n: int, form: str = "flat") -> Ints:
    """Return the number of blocks, equation (1), or its variants."""
    return tiles_down(layers, blk_m, form) * tiles_across(layers, blk_n, form)


def tiles_down(layers: Convolutions, blk_m: int, form: str) -> Ints:
    """Return the tiles along the first side: pixels, or those of `MOVES`."""
    if form == "input":
        return layers.column("N") * ceil_div(layers.column("H") * layers.column("W"), blk_m)
    if form == "filter":
        return layers.column("K") * ceil_div(layers.column("R") * layers.column("S"), blk_m)
    if form == "image":
        return layers.column("N") * ceil_div(layers.p * layers.q, blk_m)
    if form == "line":
        return layers.column("N") * layers.p * ceil_div(layers.q, blk_m)
    return ceil_div(layers.m, blk_m)


def tiles_across(layers: Convolutions, blk_n: int, form: str) -> Ints:
    """Return the tiles along the second side: channels."""
    groups, channels = layers.column("groups"), layers.column("C")
    if form == "input":
        return ceil_div(channels, blk_n)
    if form == "filter":
        return ceil_div(channels // groups, blk_n)
    return ceil_div(layers.n, blk_n) * groups


@frozen
class Tiles:
    """Tile of a kernel: rows, columns, and the form of its grid.

    `exact` is the part of samples whose grid it explains exactly, `ties` how many other tiles explain the samples as
    well.
    """

    blk_m: int
    blk_n: int
    form: str = "flat"
    exact: float = 1.0
    ties: int = 0

    def blocks(self, layers: Convolutions) -> Ints:
        """Return the number of blocks of each convolution."""
        return grid_size(layers, self.blk_m, self.blk_n, self.form)


def fit_tiles(layers: Convolutions, blocks: Ints, forms: tuple[str, ...] = FORMS) -> Tiles:
    """Return the tiles with the least error of the grid.

    The error is the sum of |g' - g|, equation (3); all are tried. Among tiles that explain the samples equally well,
    the paper's form and the largest tiles win: a sample smaller than a tile says only that the tile is no smaller than
    it.
    """
    found = sorted(_scores(layers, blocks, forms), key=lambda each: each[0])
    best = found[0][0][0]
    ties = sum(1 for score, _ in found if score[0] == best) - 1
    (_, (blk_m, blk_n, form)) = found[0]
    exact = float(np.mean(grid_size(layers, blk_m, blk_n, form) == blocks))
    return Tiles(blk_m, blk_n, form, exact, ties)


def _scores(
    layers: Convolutions, blocks: Ints, forms: tuple[str, ...]
) -> Iterator[tuple[tuple[float, int, int], tuple[int, int, str]]]:
    for order, form in enumerate(forms):
        down, across = ([count(layers, size, form) for size in SIZES] for count in (tiles_down, tiles_across))
        for blk_m, high in zip(SIZES, down, strict=True):
            errors = np.abs(high * np.stack(across) - blocks).sum(axis=1)
            for blk_n, error in zip(SIZES, errors, strict=True):
                yield (float(error), order, -blk_m * blk_n), (blk_m, blk_n, form)
