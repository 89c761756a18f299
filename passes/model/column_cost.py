"""Cost of column sums: tiles of rows one after another.

DRAM moves later tiles meanwhile. A tile waits for its sums across threads, and without a ring for its rows; the blocks
of an SM share its issue slots:

    time = begin + (DRAM^p + (waves * tiles * (latency^q + (blocks * issue)^q)^(1/q))^p)^(1/p)
"""

from __future__ import annotations

import numpy as np

from ...ir import Target
from ..geometry import Count
from .feature_schema import Features

#: Latency of a tile's sums, and of its rows where they are not copied ahead, in latencies of DRAM; how much longer
#: issue takes than its slots, without a ring and with one; both powers; begin of a wave, and how much longer DRAM takes
#: than at its peak. Fitted to 71 kernels of four norms: of each, the first so takes 1.10 times the best or less.
SUMS_LATENCY, ROWS_LATENCY, ISSUE_FACTORS = 0.46, 2.94, (1.49, 1.78)
TILE_POWER, DRAM_POWER, BEGIN_LATENCY, DRAM_FACTOR = 1.1, 2.7, 2.0, 1.21


def column_seconds(features: Features, fitting: Count, issue: Count, dram: Count, target: Target) -> Count:
    """Return the seconds of all blocks.

    `fitting` ones are resident on an SM, which takes `issue` seconds to issue for its blocks.
    """
    fullest = np.ceil(features.grid / target.NUM_SM)
    waves = np.ceil(fullest / fitting)
    tiles = np.maximum(1.0, features.tiled)
    ring = np.greater(features.stages, 1)
    latency = target.dram_latency * (SUMS_LATENCY + np.where(ring, 0.0, ROWS_LATENCY))
    slots = np.where(ring, ISSUE_FACTORS[1], ISSUE_FACTORS[0]) * issue / (waves * tiles)
    tile = (latency**TILE_POWER + slots**TILE_POWER) ** (1.0 / TILE_POWER)
    moved = (DRAM_FACTOR * dram) ** DRAM_POWER + (waves * tiles * tile) ** DRAM_POWER
    return BEGIN_LATENCY * target.dram_latency * waves + moved ** (1.0 / DRAM_POWER)
