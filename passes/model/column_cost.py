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


def column_seconds(features: Features, fitting: Count, issue: Count, dram: Count, target: Target) -> Count:
    """Return the seconds of all blocks.

    `fitting` ones are resident on an SM, which takes `issue` seconds to issue for its blocks.
    """
    costs = target.costs
    fullest = np.ceil(features.grid / target.NUM_SM)
    waves = np.ceil(fullest / fitting)
    tiles = np.maximum(1.0, features.tiled)
    ring = np.greater(features.stages, 1)
    latency = target.dram_latency * (costs.column_sums + np.where(ring, 0.0, costs.column_rows))
    slots = np.where(ring, costs.column_ring_issue, costs.column_issue) * issue / (waves * tiles)
    tile = (latency**costs.column_power + slots**costs.column_power) ** (1.0 / costs.column_power)
    power = costs.column_dram_power
    moved = (costs.column_dram * dram) ** power + (waves * tiles * tile) ** power
    return costs.column_begin * target.dram_latency * waves + moved ** (1.0 / power)
