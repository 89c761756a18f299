"""Cost of rows that the blocks of a cluster share.

An SM issues for its blocks, begins each of them and waits for its exchanges, one of its resident blocks for DRAM:

    time = L2 + alone * DRAM / resident + blocks * (begin + exchanges) + issue + accesses
"""

from __future__ import annotations

from ...ir import Target
from ..geometry import Count, ceil_div
from .feature_schema import Features


def cluster_seconds(features: Features, resident: Count, moved: tuple[Count, Count], target: Target) -> Count:
    """Return the seconds of all blocks.

    `resident` ones share an SM; `moved` are the seconds of DRAM and of L2.
    """
    dram, through = moved
    costs, blocks = target.costs, features.grid / target.NUM_SM
    begin = target.dram_latency * (costs.cluster_block + costs.cluster_exchange * features.exchanged)
    warps = resident * ceil_div(features.threads, target.warp_size)
    issue = costs.cluster_issue * features.issue * (1.0 + costs.cluster_hiding / warps) / target.issue_per_clock
    accesses = costs.cluster_access * (features.direct * features.threads + features.stores)
    accesses = accesses + costs.cluster_shared * features.shared_loads
    work = blocks * (begin + (issue + accesses) / target.warp_size / target.clock)
    return costs.cluster_l2 * through + costs.cluster_alone * dram / resident + work
