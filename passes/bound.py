"""A lower bound on the time of a point.

The bound is `launch + max(terms)`. Every term is the least time one resource needs, at the highest rate the target can reach:

* math: floating-point operations of the blocks on the fullest SM (`ceil(grid / SMs)` of them, by the pigeonhole principle), at peak.
* issue: warp instructions of those blocks, at the number an SM issues per clock.
* shared: cycles in which those blocks occupy the path to shared memory and L1, each moving at most `shared_bandwidth` bytes.
* l2: sectors that all blocks must get and the bytes they store, at the bandwidth of the L2 cache.
* dram: distinct bytes read and written, at DRAM bandwidth; with a warm cache what fits the L2 cache may never leave it.
* latency: waves of resident blocks, each as long as its chain of dependent memory rounds, barriers and multiply-adds.

The bound is never an estimate: where registers limit how many blocks are resident, it takes those that a thread certainly holds.
`passes.rank` is an estimate, and orders points for measurement.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from ..ir.target import Target
from .features import Features
from .footprint import Count, ceil_div

#: Clocks between dependent multiply-adds, on every machine described so far.
CHAIN_CLOCKS = 4.0
#: Least part of DRAM latency that a load served by a cache takes.
CACHED_LATENCY = 0.3
#: Names of the resources, in the order of the table that `bound_terms` returns.
RESOURCES = ("math", "issue", "shared", "l2", "dram", "latency")


@frozen
class Bound:
    """The bound of points: `time` in seconds with the launch, `terms` per resource, blocks expected to fit an SM at once."""

    time: Count
    terms: dict[str, Count]
    occupancy: Count


def occupancy(features: Features, target: Target) -> Count:
    """Return how many blocks are resident on an SM: limited by blocks, warps, registers (in groups of 8) and shared memory."""
    return resident_blocks(features, features.registers, target)


def resident_blocks(features: Features, registers: Count, target: Target) -> Count:
    """Return how many blocks are resident on an SM if a thread has so many registers; 0 where not one fits."""
    warps = ceil_div(features.threads, target.warp_size)
    registers = np.ceil(registers / 8) * 8 * target.warp_size * warps
    resident = np.minimum(target.blocks_per_sm, target.warps_per_sm // warps)
    resident = np.minimum(resident, target.registers_per_sm // registers)
    return np.minimum(resident, target.shared_per_sm // np.maximum(1, features.shared + target.shared_reserved))


def bound(features: Features, target: Target, cold: bool = False) -> Bound:
    """Return the lower bound of every point; `cold` says that no input is in the L2 cache when the kernel starts."""
    most = np.maximum(1, resident_blocks(features, np.maximum(8.0, features.held), target))
    fullest = np.ceil(features.grid / target.NUM_SM)
    dram = features.unique_bytes if cold else np.maximum(0.0, features.unique_bytes - target.l2_bytes)
    lanes = float(target.warp_size)
    barrier = np.where(np.greater(features.threads, 1), target.barrier_clocks, 0.0)
    warps = ceil_div(features.threads, target.warp_size)
    issued = _warp_instructions(features, lanes) + features.barriers * warps
    first = target.dram_latency * (1.0 if cold else CACHED_LATENCY)
    waves = np.ceil(features.grid / (target.NUM_SM * most))
    chain = features.chain * CHAIN_CLOCKS + features.barriers * barrier
    terms: dict[str, Count] = {
        "math": fullest * features.flops * (target.NUM_SM / target.PERF_peak),
        "issue": fullest * issued / (target.issue_per_clock * target.clock),
        "shared": fullest * features.wavefronts / target.clock,
        "l2": features.grid * (features.bytes + features.stored) / target.l2_bandwidth,
        "dram": dram / target.BW_global,
        "latency": waves * (first + chain / target.clock),
    }
    return Bound(target.launch_time + longest(terms), terms, np.maximum(1, occupancy(features, target)))


def _warp_instructions(features: Features, lanes: float) -> Count:
    return (features.issue + features.shared_loads + features.global_loads + features.stores) / lanes


def longest(terms: dict[str, Count]) -> Count:
    """Return the greatest term of every point."""
    values = list(terms.values())
    top = values[0]
    for value in values[1:]:
        top = np.maximum(top, value)
    return top
