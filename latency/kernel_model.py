"""How long a kernel takes: equation (2), its coefficients by equation (4), and what today's kernels need besides.

    t = g K t_K + m_out t_out + m_in t_in + gamma

The paper's model is linear in the number of blocks. A GPU runs them in waves: while a wave has room, another block
costs nothing. The labelled extension adds the work and the number of whole waves of `multiprocessors * resident` blocks
and tells images from filters in `m_in`; how many blocks are resident is found with the coefficients. Errors are
relative unless told otherwise (equation 4 has absolute ones).

A persistent kernel launches as many blocks as run at once and gives each several tiles; one that splits sums launches
several for a tile. Their grids do not show the tile (equation 3 fails), so it is read off the kernel's name; of the two
ways to lay it, the one that explains the times counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from attrs import field, frozen

from .convolution import Convolutions, Floats, Ints
from .fitting import least_deviations, least_squares
from .tiles import FORMS, MOVES, Tiles, fit_tiles

#: Blocks of a kernel that a multiprocessor holds at once: what is tried.
RESIDENT = (1, 2, 3, 4, 5, 6, 8)
#: A tile that explains fewer grids than this is not believed where the name tells another.
_BELIEVED = 0.9
#: The part of samples with more tiles than blocks from which on a kernel is persistent.
_CAPPED = 0.05
_NAMED = re.compile(r"(?<![0-9])(16|32|48|64|80|96|128|160|192|256)x(16|32|48|64|80|96|128|160|192|256)(?![0-9])")


@frozen
class KernelModel:
    """One kernel: tiles, and microseconds for each column of `columns_of`; `resident` is 0 where time is linear in
    blocks, as in the paper. `most` is the grid of a persistent kernel, whose blocks take tile after tile.
    """

    tiles: Tiles
    coefficients: tuple[float, ...]
    resident: int = 0
    multiprocessors: int = 132
    samples: int = 0
    most: int = 0

    @property
    def at_once(self) -> int:
        """How many tiles are computed at once; 0 where time is linear in blocks."""
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
    """Return what coefficients stand at: the four of equation (2), then elements of filters, work of whole waves, and
    waves.
    """
    depth = layers.k.astype(float)
    paper = [blocks * depth, layers.m_out.astype(float), layers.m_in.astype(float), np.ones(len(layers))]
    waves = np.ceil(blocks / at_once) if at_once else np.zeros(len(layers))
    return np.stack([*paper, (layers.column("K") * layers.k).astype(float), waves * depth, waves], axis=1)


def has_tile(name: str) -> bool:
    """Whether a kernel's name tells a tile: that of a product, or one that is not known by its name."""
    return not name or _NAMED.search(name) is not None


@frozen
class KernelFit:
    """How kernels are fitted: with waves or as the paper has it, to relative or to absolute errors; at most `most`
    samples are used.
    """

    waves: bool = True
    relative: bool = True
    named: bool = True
    multiprocessors: int = 132
    most: int = 400
    forms: tuple[str, ...] = field(default=FORMS)

    def kernel(self, layers: Convolutions, blocks: Ints, us: Floats, name: str = "") -> KernelModel:
        """Return the model of one kernel from the layers it was seen with, their grids and times."""
        chosen = _spread(len(layers), self.most)
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
        """Return the largest grid of a kernel that never launches more blocks than there are multiprocessors though its
        tiles would be more, else 0.
        """
        told, most = _NAMED.search(name), int(blocks.max())
        if not (self.waves and self.named) or told is None or most > self.multiprocessors:
            return 0
        tiles = Tiles(int(told[1]), int(told[2])).blocks(layers)
        return most if np.mean(tiles > most) >= _CAPPED else 0

    def _tiles(self, layers: Convolutions, blocks: Ints, name: str) -> Iterator[Tiles]:
        """Yield the tiles that may be a kernel's: what its grids say, or where they say nothing, what its name says."""
        told = _NAMED.search(name)
        seen = fit_tiles(layers, blocks, self.forms if told or not self.named else (*self.forms, *MOVES))
        if not self.named or told is None or seen.exact >= _BELIEVED:
            yield seen
            return
        high, wide = int(told[1]), int(told[2])
        for form in self.forms[:2]:
            for blk_m, blk_n in dict.fromkeys(((high, wide), (wide, high))):
                yield Tiles(blk_m, blk_n, form, 0.0)

    def _columns(self, layers: Convolutions, tiles: Tiles, at_once: int) -> Floats:
        columns = columns_of(layers, tiles.blocks(layers), at_once)
        return columns if self.waves else columns[:, :4]

    def _loss(self, layers: Convolutions, us: Floats, weights: Floats, tiles: Tiles, at_once: int) -> float:
        columns = self._columns(layers, tiles, at_once)
        return float((weights * np.abs(columns @ least_squares(columns, us, weights) - us)).sum())


def _spread(count: int, most: int) -> Ints:
    """Return indices of at most so many samples, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))
