"""Latency model of a kernel: equations (2) and (4), with extensions.

    t = g K t_K + m_out t_out + m_in t_in + gamma

The paper's model is linear in the number of blocks. A GPU runs them in waves: while a wave has room, another block
costs nothing. The labelled extension adds the work and the number of whole waves of `multiprocessors * resident` blocks
and separates images from filters in `m_in`; the number of resident blocks is found with the coefficients. Errors are
relative by default (equation 4 has absolute ones).

A persistent kernel launches as many blocks as run at once and gives each several tiles; a split-K kernel launches
several for a tile. Their grids do not show the tile (equation 3 fails), so it is read off the kernel's name; of the two
orientations, the one that explains the times counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from attrs import field, frozen

from ..convolution import Convolutions, Floats, Ints
from .fitting import least_deviations, least_squares
from .tiles import FORMS, MOVES, Tiles, fit_tiles

#: Candidate numbers of blocks of a kernel that a multiprocessor holds at once.
RESIDENT = (1, 2, 3, 4, 5, 6, 8)
#: A tile that explains a smaller part of grids is rejected where the name has another.
_MIN_EXACT = 0.9
#: The part of samples with more tiles than blocks from which on a kernel is persistent.
_MIN_PERSISTENT_PART = 0.05
_TILE_NAME = re.compile(r"(?<![0-9])(16|32|48|64|80|96|128|160|192|256)x(16|32|48|64|80|96|128|160|192|256)(?![0-9])")


@frozen
class KernelModel:
    """Fitted model of one kernel: tiles and coefficients in microseconds.

    There is a coefficient for each column of `columns_of`; `resident` is 0 where time is linear in blocks, as in the
    paper. `most` is the grid of a persistent kernel, whose blocks take tile after tile.
    """

    tiles: Tiles
    coefficients: tuple[float, ...]
    resident: int = 0
    multiprocessors: int = 132
    samples: int = 0
    most: int = 0

    @property
    def at_once(self) -> int:
        """The number of concurrent tiles.

        0 where time is linear in blocks.
        """
        return self.most or self.resident * self.multiprocessors

    @property
    def t_k(self) -> float:
        """Microseconds of a tile per term of its sums."""
        return self.coefficients[0]

    @property
    def gamma(self) -> float:
        """Microseconds that every launch takes."""
        return self.coefficients[3]

    def predict(self, layers: Convolutions) -> Floats:
        """Return microseconds, equation (2)."""
        columns = columns_of(layers, self.tiles.blocks(layers), self.at_once)
        return np.asarray(columns[:, : len(self.coefficients)] @ np.array(self.coefficients))


def columns_of(layers: Convolutions, blocks: Ints, at_once: int) -> Floats:
    """Return the columns of the coefficients.

    They are the four of equation (2), then elements of filters, work of whole waves, and waves.
    """
    depth = layers.k.astype(float)
    paper = [blocks * depth, layers.m_out.astype(float), layers.m_in.astype(float), np.ones(len(layers))]
    waves = np.ceil(blocks / at_once) if at_once else np.zeros(len(layers))
    return np.stack([*paper, (layers.column("K") * layers.k).astype(float), waves * depth, waves], axis=1)


def has_tile(name: str) -> bool:
    """Return whether a kernel's name may have a tile.

    True for products, and for kernels that are not known by name.
    """
    return not name or _TILE_NAME.search(name) is not None


@frozen
class KernelFit:
    """Options of a kernel's fit.

    It uses waves or the paper's form, relative or absolute errors, and at most `most` samples.
    """

    waves: bool = True
    relative: bool = True
    named: bool = True
    multiprocessors: int = 132
    most: int = 400
    forms: tuple[str, ...] = field(default=FORMS)

    def kernel(self, layers: Convolutions, blocks: Ints, us: Floats, name: str = "") -> KernelModel:
        """Return the model of one kernel from its layers, grids and times."""
        chosen = _spread_indices(len(layers), self.most)
        layers, blocks, us = layers[chosen], blocks[chosen], us[chosen]
        weights = 1 / us if self.relative else np.ones(len(us))
        most = self._persistent(layers, blocks, name)
        at_once = [each * self.multiprocessors for each in self._residents(name)] if self.waves and not most else [most]
        choices = [(tiles, each) for tiles in self._tiles(layers, blocks, name) for each in at_once]
        tiles, best = choices[0]
        if len(choices) > 1:
            tiles, best = min(choices, key=lambda each: self._loss(layers, us, weights, *each))
        found = least_deviations(self._columns(layers, tiles, best), us, weights)
        resident = 0 if most else best // self.multiprocessors
        coefficients = tuple(float(value) for value in found)
        return KernelModel(tiles, coefficients, resident, self.multiprocessors, len(us), most)

    def _residents(self, name: str) -> tuple[int, ...]:
        return RESIDENT if has_tile(name) else RESIDENT[-1:]

    def _persistent(self, layers: Convolutions, blocks: Ints, name: str) -> int:
        """Return the largest grid of a kernel that never launches more blocks than there are multiprocessors though it
        has more tiles, else 0.
        """
        named_tile, most = _TILE_NAME.search(name), int(blocks.max())
        if not (self.waves and self.named) or named_tile is None or most > self.multiprocessors:
            return 0
        tiles = Tiles(int(named_tile[1]), int(named_tile[2])).blocks(layers)
        return most if np.mean(tiles > most) >= _MIN_PERSISTENT_PART else 0

    def _tiles(self, layers: Convolutions, blocks: Ints, name: str) -> Iterator[Tiles]:
        """Yield the candidate tiles of a kernel: from its grids, or where these fail, from its name."""
        named_tile = _TILE_NAME.search(name)
        seen = fit_tiles(layers, blocks, self.forms if named_tile or not self.named else (*self.forms, *MOVES))
        if not self.named or named_tile is None or seen.exact >= _MIN_EXACT:
            yield seen
            return
        high, wide = int(named_tile[1]), int(named_tile[2])
        for form in self.forms[:2]:
            for blk_m, blk_n in dict.fromkeys(((high, wide), (wide, high))):
                yield Tiles(blk_m, blk_n, form, 0.0)

    def _columns(self, layers: Convolutions, tiles: Tiles, at_once: int) -> Floats:
        columns = columns_of(layers, tiles.blocks(layers), at_once)
        return columns if self.waves else columns[:, :4]

    def _loss(self, layers: Convolutions, us: Floats, weights: Floats, tiles: Tiles, at_once: int) -> float:
        columns = self._columns(layers, tiles, at_once)
        return float((weights * np.abs(columns @ least_squares(columns, us, weights) - us)).sum())


def _spread_indices(count: int, most: int) -> Ints:
    """Return indices of at most so many samples, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))
