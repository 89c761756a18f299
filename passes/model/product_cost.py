"""Cost of products in shared memory that bulk copies fetch.

A block fetches and multiplies asynchronously, then computes and stores its results. Its parts add up; DRAM is busy
meanwhile:

    time = max(blocks * (latency + max(products and L2 traffic, lines, arrivals) + epilogue), DRAM)

Resident blocks hide each other's latency, not more: measured times of two blocks on an SM are those of one after the
other. The producer of a persistent grid hides all latencies but the first; where stages hold whole tiles, each is empty
while lines of its next K block pass through L2. A copy brings a line of shared memory at once, of 32 to 128 bytes;
one that begins within a sector, as half of them where a pitch is an odd multiple of 16 bytes, takes five times as long.
Products and traffic are added, as long products are limited by power. Neighbouring blocks fetch a common tile at about
the same time: L2 serves both at once.

Chains in registers begin and end likewise: nothing is computed as the first part arrives, and as the last is stored.
"""

from __future__ import annotations

import functools

import numpy as np

from ...ir import ALTERNATING, PERSISTENT, TEAMS, WARPGROUP, WITH_PRODUCER, CostCoefficients, Target
from ..geometry import MIN_TURN_STAGES, Count, ceil_div, takes_turns
from .feature_schema import Features

#: Shares of the latency of a chain's block that are left where blocks take several tiles in turn: with row operations,
#: and without.
PERSISTENT_LATENCIES = 0.8, 0.25


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
    work = costs.bulk_tensor * tensor + costs.bulk_l2 * through
    work = work + _promotion_seconds(features, blocks, resident, target)
    lines = costs.bulk_box_line * features.boxed + costs.bulk_straddling_line * features.straddling
    brought = blocks * lines / target.clock
    waiting = waves * costs.bulk_arrival * target.dram_latency * features.rounds
    whole = np.greater_equal(features.bulk, PERSISTENT) & np.less_equal(features.rounds, features.stages)
    filling = waiting + np.where(whole, brought + through, 0.0)
    warps = resident * ceil_div(features.threads, target.warp_size)
    slow = costs.bulk_epilogue * np.maximum(1.0, costs.bulk_epilogue_warps / warps) ** costs.bulk_epilogue_power
    slots = (features.issue - features.promoted) / (target.warp_size * target.issue_per_clock)
    epilogue = blocks * (slow * slots + costs.bulk_line * features.lines) / target.clock
    exposed = np.where(np.greater_equal(features.bulk, PERSISTENT), 1.0, waves / resident)
    latency = exposed * costs.bulk_latency * target.dram_latency
    main = _power_sum((work, brought, filling / _blocks_ahead(features, target)), costs.bulk_loop) + barriers
    both = np.maximum(main, costs.bulk_team_l2 * through + brought)
    hidden = np.maximum(both, (both + epilogue) / TEAMS) + epilogue / np.maximum(1.0, blocks)
    alone = np.where(np.equal(features.bulk, ALTERNATING), hidden, main + epilogue) + latency
    return _power_sum((alone, costs.bulk_dram * dram), costs.bulk_dram_power)


def _blocks_ahead(features: Features, target: Target) -> Count:
    """Return the K blocks that are fetched ahead.

    They are all of a short loop, and those of the next tiles in a persistent grid; without a producer, one less.
    """
    distance = np.maximum(1.0, features.stages - np.equal(features.bulk, 1))
    further = np.greater_equal(features.bulk, PERSISTENT) & np.greater(features.grid, target.NUM_SM)
    short = np.less_equal(features.rounds, features.stages) & np.logical_not(further)
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
    """Return the seconds in which chains wait for blocks and parts.

    Warpgroups of a persistent grid begin a tile while others end theirs.
    """
    costs = target.costs
    part = np.where(np.equal(features.chained, 2), costs.chain_part / resident, 0.0)
    part = part + np.where(np.equal(features.chained, 3), _value_clocks(features, resident, target), 0.0)
    part = part + costs.chain_in_step * np.maximum(0, features.in_step - 1)
    left = np.where(np.equal(features.chained, 3), PERSISTENT_LATENCIES[1], PERSISTENT_LATENCIES[0])
    blocks = np.where(np.greater(features.persistent, 0), 1.0 + left * (waves - 1.0), waves)
    # A producer of a single part fetches nothing ahead, and all others wait for it.
    idle = np.equal(features.chained, 2) & np.equal(features.in_step, 0) & np.less_equal(features.rounds, 1)
    latency = costs.chain_latency * target.dram_latency * np.where(idle, 2.0, 1.0)
    return blocks * latency + waves * features.rounds * part / target.clock


def _value_clocks(features: Features, resident: Count, target: Target) -> Count:
    """Return the clocks of a part in which no warpgroup of an SM multiplies, as all compute values.

    Warpgroups begin together and share the tensor cores, so that their values are computed at the same time, unless
    they take turns (`takes_turns`). Three or more that share two stages wait for the last one of them in each
    part.
    """
    groups = np.maximum(1.0, features.threads / (WARPGROUP * target.warp_size))
    few = np.less(features.stages + 1, MIN_TURN_STAGES)
    turns = takes_turns(groups, features.stages + 1, np.equal(features.in_step, 0))
    late = np.where(np.greater(groups, 2) & few, target.costs.chain_late * resident * groups, 0.0)
    return np.where(turns, 0.0, target.costs.chain_value + late)


def _power_sum(times: tuple[Count, ...], power: Count) -> Count:
    """Return the times' sum in a power."""
    top = functools.reduce(np.maximum, times)
    total: Count = 0.0
    for time in times:
        total = total + (time / top) ** power
    return top * total ** (1.0 / power)


def _bytes_through_l2(features: Features, neighbour_share: float) -> Count:
    """Return the bytes of a block's reads, without those that its neighbour's bring.

    Copies pass by L1, so that pixels of several windows come again.
    """
    raster = np.equal(features.outer % features.raster, 0) & np.greater(features.raster, 1)
    common = np.where(raster & np.equal(features.batches, 1), features.columns, features.rows)
    common = np.minimum(common, np.maximum(0.0, features.bytes - np.minimum(features.rows, features.columns)))
    again = np.maximum(0.0, features.fetched - features.bytes)
    return features.bytes + again - (1.0 - neighbour_share) * common


def copied_product_factor(features: Features, costs: CostCoefficients) -> Count:
    """Return the factor of times of products whose factors threads copy."""
    copied = np.greater(features.tensor, 0) & np.equal(features.bulk, 0) & np.equal(features.chained, 0)
    computed = np.where(np.greater(features.register_staged, 0), costs.computed_factors, 1.0)
    in_place = costs.copied_products * computed
    return np.where(copied, np.where(np.greater(features.fragments, 0), costs.fragment_products, in_place), 1.0)


def box_factor(features: Features, waves: Count, costs: CostCoefficients) -> Count:
    """Return the factor of times of products beside a box.

    A block's segments wait for each other, which few other blocks hide where threads need many registers.
    """
    factor = costs.box_products * (1.0 + costs.box_registers * features.needed) * (1.0 + costs.box_tail / waves)
    return np.where(np.greater(features.box_products, 0), factor, 1.0)
