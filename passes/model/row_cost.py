"""Cost of rows: in tiles beside column sums, and shared by clusters.

Tiles come one after another, while DRAM moves later ones. A tile waits for its sums across threads, and without a ring
for its rows; the blocks of an SM share its issue slots:

    time = begin + (DRAM^p + (waves * tiles * (latency^q + (blocks * issue)^q)^(1/q))^p)^(1/p)

In clusters an SM issues for its blocks, begins each of them and waits for its exchanges, one of its resident blocks
for DRAM; it issues for the first trips over a row in shared memory while DRAM moves the others:

    time = L2 + alone * DRAM / resident + blocks * (begin + exchanges) + issue + accesses
"""

from __future__ import annotations

import numpy as np

from ...ir import Target
from ..geometry import Count, ceil_div
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


def cluster_seconds(features: Features, resident: Count, moved: tuple[Count, Count], target: Target) -> Count:
    """Return the seconds of all blocks.

    `resident` ones share an SM; `moved` are the seconds of DRAM and of L2.
    """
    dram, through = moved
    costs, blocks = target.costs, features.grid / target.NUM_SM
    begin = target.dram_latency * (costs.cluster_block + costs.cluster_exchange * features.exchanged)
    warps = resident * ceil_div(features.threads, target.warp_size)
    slots = features.issue + costs.loop * features.rounds * features.threads
    issue = costs.cluster_issue * slots * (1.0 + costs.cluster_hiding / warps) / target.issue_per_clock
    hidden = costs.cluster_copied / (1.0 + features.exchanged)
    issue = issue * (1.0 - np.where(np.greater(features.shared_loads, 0), hidden, 0.0))
    accesses = costs.cluster_access * (features.direct * features.threads + features.stores)
    accesses = accesses + costs.cluster_shared * features.shared_loads
    work = blocks * (begin + (issue + accesses) / target.warp_size / target.clock)
    return costs.cluster_l2 * through + costs.cluster_alone * dram / resident + work
