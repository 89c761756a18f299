"""Cost of products in shared memory that bulk copies fetch.

A block fetches and multiplies asynchronously, then computes and stores its results. Other blocks of its SM multiply
meanwhile, so times of several resident blocks overlap; those of a lone block add up:

    block = latency + max(products and L2 traffic, DRAM) + epilogue

Products and traffic are added, as long products are limited by power. Neighbouring blocks fetch a common tile at about
the same time: L2 serves both at once.

Chains in registers begin and end likewise: nothing is computed as the first part arrives, and as the last is stored.
"""

from __future__ import annotations

import functools

import numpy as np

from ...ir import Target
from ..geometry import Count, ceil_div
from .feature_schema import Features

#: Weights of the clocks of tensor cores and of L2 traffic, and the latency of a block in those of DRAM. These and the
#: constants below are of 161 schedules of eleven products in halves, measured on an H200: the first of the order takes
#: at most 1.04 times the best.
TENSOR_WEIGHT, L2_WEIGHT, BLOCK_LATENCIES = 0.97, 0.43, 6.0
#: Weight of DRAM traffic beside products.
DRAM_WEIGHT = 1.2
#: Share of a tile that neighbouring blocks have in common which passes through L2 for each.
NEIGHBOUR_SHARE = 0.5
#: Clocks of an epilogue's instruction of a warp per scheduler, and warps of an SM that hide its latency.
EPILOGUE_CLOCKS, EPILOGUE_WARPS = 1.6, 16.0
#: Clocks of a K block's barrier, where there is no producer.
PRODUCT_BARRIER_CLOCKS = 100.0
#: Latencies of DRAM after which a K block arrives, and the power in which products and arrivals add up.
ARRIVAL_LATENCIES, LOOP_POWER = 2.3, 3.0
#: Weight of the work of a chain of warpgroups; latencies of DRAM in which a block of any chain begins and ends; clocks
#: in which no block of an SM works in a part of warpgroups, and those of each warpgroup beyond the first one that waits
#: for the others: of 50 schedules of 18 chains in halves, measured on an H200, which are estimated at 0.75 to 1.36 of
#: their time.
CHAIN_WEIGHT, CHAIN_LATENCIES, CHAIN_PART_CLOCKS, IN_STEP_CLOCKS = 0.96, 12.3, 430.0, 765.0
#: Power in which the times of a block's parts add up, for each resident block beyond the first.
POWER_PER_RESIDENT = 0.15


def product_seconds(features: Features, blocks: Count, resident: Count, dram: Count, target: Target) -> Count:
    """Return the seconds of the fullest SM's blocks, `dram` those of DRAM."""
    waves = np.maximum(1.0, blocks / resident)
    tensor = blocks * features.tensor / target.clock
    through = blocks * target.NUM_SM * (_bytes_through_l2(features) + features.stored) / target.l2_bandwidth
    barriers = waves * PRODUCT_BARRIER_CLOCKS * features.barriers / target.clock
    work = np.maximum(TENSOR_WEIGHT * tensor + L2_WEIGHT * through, DRAM_WEIGHT * dram)
    arrival = waves * features.rounds * ARRIVAL_LATENCIES * target.dram_latency / features.stages
    loop = _power_sum((work, arrival), LOOP_POWER) + barriers
    warps = resident * ceil_div(features.threads, target.warp_size)
    slow = EPILOGUE_CLOCKS * np.maximum(1.0, (EPILOGUE_WARPS / warps) ** 0.5)
    slots = (features.issue + features.stores) / (target.warp_size * target.issue_per_clock)
    latency = waves * BLOCK_LATENCIES * target.dram_latency
    power = 1.0 + POWER_PER_RESIDENT * (resident - 1.0)
    return _power_sum((loop, blocks * slow * slots / target.clock, latency), power)


def chain_waits(features: Features, waves: Count, resident: Count, target: Target) -> Count:
    """Return the seconds in which chains wait for blocks and parts."""
    part = np.where(np.greater(features.chained, 1), CHAIN_PART_CLOCKS / resident, 0.0)
    part = part + IN_STEP_CLOCKS * np.maximum(0, features.in_step - 1)
    return waves * (CHAIN_LATENCIES * target.dram_latency + features.rounds * part / target.clock)


def _power_sum(times: tuple[Count, ...], power: Count) -> Count:
    """Return the times' sum in a power."""
    top = functools.reduce(np.maximum, times)
    total: Count = 0.0
    for time in times:
        total = total + (time / top) ** power
    return top * total ** (1.0 / power)


def _bytes_through_l2(features: Features) -> Count:
    """Return the bytes of a block's reads, without those that its neighbour's bring."""
    raster = np.equal(features.outer % features.raster, 0) & np.greater(features.raster, 1)
    common = np.where(raster & np.equal(features.batches, 1), features.columns, features.rows)
    common = np.minimum(common, np.maximum(0.0, features.bytes - np.minimum(features.rows, features.columns)))
    return features.bytes - (1.0 - NEIGHBOUR_SHARE) * common
