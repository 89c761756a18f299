"""Cost of products in shared memory that bulk copies fetch.

A block fetches and multiplies asynchronously, then computes and stores its results. Other blocks of its SM multiply
meanwhile, so times of several resident blocks overlap; those of a lone block add up:

    block = latency + max(products and L2 traffic, DRAM) + epilogue

Products and traffic are added, as long products are limited by power. Neighbouring blocks fetch a common tile at about
the same time: L2 serves both at once.
"""

from __future__ import annotations

import functools

import numpy as np

from ...ir import Target
from ..geometry import Count, ceil_div
from .feature_schema import Features


def product_seconds(features: Features, blocks: Count, resident: Count, dram: Count, target: Target) -> Count:
    """Return the seconds of the fullest SM's blocks, `dram` those of DRAM."""
    costs = target.costs
    waves = np.maximum(1.0, blocks / resident)
    tensor = blocks * features.tensor / target.clock
    through = (
        blocks
        * target.NUM_SM
        * (_bytes_through_l2(features, costs.bulk_neighbour) + features.stored)
        / target.l2_bandwidth
    )
    barriers = waves * costs.bulk_barrier * features.barriers / target.clock
    work = np.maximum(costs.bulk_tensor * tensor + costs.bulk_l2 * through, costs.bulk_dram * dram)
    arrival = waves * features.rounds * costs.bulk_arrival * target.dram_latency / features.stages
    loop = _power_sum((work, arrival), costs.bulk_loop) + barriers
    warps = resident * ceil_div(features.threads, target.warp_size)
    slow = costs.bulk_epilogue * np.maximum(1.0, (costs.bulk_epilogue_warps / warps) ** 0.5)
    slots = (features.issue + features.stores) / (target.warp_size * target.issue_per_clock)
    latency = waves * costs.bulk_latency * target.dram_latency
    power = 1.0 + costs.bulk_resident * (resident - 1.0)
    return _power_sum((loop, blocks * slow * slots / target.clock, latency), power)


def _power_sum(times: tuple[Count, ...], power: Count) -> Count:
    """Return the times' sum in a power."""
    top = functools.reduce(np.maximum, times)
    total: Count = 0.0
    for time in times:
        total = total + (time / top) ** power
    return top * total ** (1.0 / power)


def _bytes_through_l2(features: Features, neighbour_share: float) -> Count:
    """Return the bytes of a block's reads, without those that its neighbour's bring."""
    raster = np.equal(features.outer % features.raster, 0) & np.greater(features.raster, 1)
    common = np.where(raster & np.equal(features.batches, 1), features.columns, features.rows)
    common = np.minimum(common, np.maximum(0.0, features.bytes - np.minimum(features.rows, features.columns)))
    return features.bytes - (1.0 - neighbour_share) * common
