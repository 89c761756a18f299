"""Cost of products in shared memory that bulk copies fetch.

A block fetches and multiplies asynchronously, then computes and stores its results. Its parts add up; DRAM is busy
meanwhile:

    time = max(blocks * (latency + max(products and L2 traffic, arrivals) + epilogue), DRAM)

Resident blocks hide each other's latency, not more: measured times of two blocks on an SM are those of one after the
other. The producer of a persistent grid hides all latencies but the first. Products and traffic are added, as long
products are limited by power. Neighbouring blocks fetch a common tile at about the same time: L2 serves both at once.

Chains in registers begin and end likewise: nothing is computed as the first part arrives, and as the last is stored.
"""

from __future__ import annotations

import functools

import numpy as np

from ...ir import PERSISTENT, WARPGROUP, WITH_PRODUCER, Target
from ..geometry import Count, ceil_div
from .feature_schema import Features

#: Weights of the clocks of tensor cores and of L2 traffic, and the latency of a block in those of DRAM. These and the
#: constants below are of 330 schedules of 30 products in halves, measured on an H200: the first of the order takes at
#: most 1.06 times the best, and 1.2 times in one product of two K blocks.
TENSOR_WEIGHT, L2_WEIGHT, BLOCK_LATENCIES = 0.94, 0.3, 1.7
#: Weight of DRAM traffic beside products, and the power in which both add up.
DRAM_WEIGHT, DRAM_POWER = 1.53, 3.4
#: Share of a tile that neighbouring blocks have in common which passes through L2 for each.
NEIGHBOUR_SHARE = 0.7
#: Clocks of an epilogue's instruction of a warp per scheduler, warps of an SM that hide its latency, and the power of
#: the loss where there are fewer.
EPILOGUE_CLOCKS, EPILOGUE_WARPS, EPILOGUE_POWER = 0.82, 16.0, 0.66
#: Clocks in which an SM stores or loads one of a warp's memory lines, as many bytes of it as there are.
LINE_CLOCKS = 3.1
#: Clocks of a K block's barrier, where there is no producer.
PRODUCT_BARRIER_CLOCKS = 27.0
#: Latencies of DRAM after which a K block arrives, and the power in which work and arrivals add up.
ARRIVAL_LATENCIES, LOOP_POWER = 2.06, 5.0
#: Weights of the work of a chain of warpgroups and of its L2 traffic; latencies of DRAM in which a block of any chain
#: begins and ends; clocks in which no block of an SM works in a part of warpgroups, and those of each warpgroup beyond
#: the first one that waits for the others: of 50 schedules of 18 chains in halves, measured on an H200, which are
#: estimated at 0.75 to 1.36 of their time.
CHAIN_WEIGHT, CHAIN_L2_WEIGHT, CHAIN_LATENCIES, CHAIN_PART_CLOCKS, IN_STEP_CLOCKS = 0.96, 0.43, 12.3, 430.0, 765.0


def product_seconds(features: Features, blocks: Count, resident: Count, dram: Count, target: Target) -> Count:
    """Return the seconds of the fullest SM's blocks, `dram` those of DRAM."""
    waves = np.maximum(1.0, blocks / resident)
    tensor = blocks * features.tensor / target.clock
    through = blocks * target.NUM_SM * (_bytes_through_l2(features) + features.stored) / target.l2_bandwidth
    barriers = waves * PRODUCT_BARRIER_CLOCKS * features.barriers / target.clock
    work = TENSOR_WEIGHT * tensor + L2_WEIGHT * through
    work = work + _promotion_seconds(features, blocks, resident, target)
    arrival = waves * ARRIVAL_LATENCIES * target.dram_latency * features.rounds / _blocks_ahead(features)
    warps = resident * ceil_div(features.threads, target.warp_size)
    slow = EPILOGUE_CLOCKS * np.maximum(1.0, EPILOGUE_WARPS / warps) ** EPILOGUE_POWER
    slots = (features.issue - features.promoted) / (target.warp_size * target.issue_per_clock)
    epilogue = blocks * (slow * slots + LINE_CLOCKS * features.lines) / target.clock
    exposed = np.where(np.equal(features.bulk, PERSISTENT), 1.0, waves / resident)
    latency = exposed * BLOCK_LATENCIES * target.dram_latency
    alone = _power_sum((work, arrival), LOOP_POWER) + barriers + epilogue + latency
    return _power_sum((alone, DRAM_WEIGHT * dram), DRAM_POWER)


def _blocks_ahead(features: Features) -> Count:
    """Return the K blocks that are fetched ahead.

    They are all of a short loop, and those of the next tiles in a persistent grid; without a producer, one less.
    """
    distance = np.maximum(1.0, features.stages - np.equal(features.bulk, 1))
    short = np.less_equal(features.rounds, features.stages) & np.not_equal(features.bulk, PERSISTENT)
    return np.where(short, np.maximum(1.0, features.rounds), distance)


def _promotion_seconds(features: Features, blocks: Count, resident: Count, target: Target) -> Count:
    """Return the seconds in which no warpgroup multiplies while others add.

    Beside a producer warpgroups do so in turn; else barriers let all of a block add at the same time.
    """
    together = np.where(np.greater_equal(features.bulk, WITH_PRODUCER), WARPGROUP * target.warp_size, features.threads)
    turns = resident * features.threads / together
    slots = features.promoted / (target.warp_size * target.issue_per_clock)
    return blocks * slots / (turns * target.clock)


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
