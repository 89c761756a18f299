"""A lower bound on the time of a point, and a rank that orders points for measurement.

The bound is `launch + max(terms)`. Every term is the least time one resource needs, at the highest rate the target can reach:

* math: floating-point operations of the blocks on the fullest SM (`ceil(grid / SMs)` of them, by the pigeonhole principle), at peak.
* issue: warp instructions of those blocks, at the number an SM issues per clock.
* shared: cycles in which those blocks occupy the path to shared memory and L1, each moving at most `shared_bandwidth` bytes.
* l2: sectors that all blocks must get and the bytes they store, at the bandwidth of the L2 cache.
* dram: distinct bytes read and written, at DRAM bandwidth; with a warm cache what fits the L2 cache may never leave it.
* latency: waves of resident blocks, each as long as its chain of dependent memory rounds, barriers and multiply-adds.

The bound is never an estimate. `rank` is: it multiplies the bound's terms by soft penalties and is used only to order.
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
    """The bound of points: `time` in seconds with the launch, `terms` per resource, blocks that fit an SM at once."""

    time: Count
    terms: dict[str, Count]
    occupancy: Count


def occupancy(features: Features, target: Target) -> Count:
    """Return how many blocks are resident on an SM: limited by blocks, warps, registers (in groups of 8) and shared memory."""
    warps = ceil_div(features.threads, target.warp_size)
    registers = np.ceil(features.registers / 8) * 8 * target.warp_size * warps
    resident = np.minimum(target.blocks_per_sm, target.warps_per_sm // warps)
    resident = np.minimum(resident, target.registers_per_sm // registers)
    return np.minimum(resident, target.shared_per_sm // np.maximum(1, features.shared + target.shared_reserved))


def bound(features: Features, target: Target, cold: bool = False) -> Bound:
    """Return the lower bound of every point; `cold` says that no input is in the L2 cache when the kernel starts."""
    resident = np.maximum(1, occupancy(features, target))
    fullest = np.ceil(features.grid / target.NUM_SM)
    dram = features.unique_bytes if cold else max(0.0, features.unique_bytes - target.l2_bytes)
    lanes = float(target.warp_size)
    barrier = np.where(np.greater(features.threads, 1), target.barrier_clocks, 0.0)
    warps = ceil_div(features.threads, target.warp_size)
    issued = _warp_instructions(features, lanes) + features.barriers * warps
    first = target.dram_latency * (1.0 if cold else CACHED_LATENCY)
    waves = np.ceil(features.grid / (target.NUM_SM * resident))
    chain = features.chain * CHAIN_CLOCKS + features.barriers * barrier
    terms: dict[str, Count] = {
        "math": fullest * features.flops * (target.NUM_SM / target.PERF_peak),
        "issue": fullest * issued / (target.issue_per_clock * target.clock),
        "shared": fullest * features.wavefronts / target.clock,
        "l2": features.grid * (features.bytes + features.stored) / target.l2_bandwidth,
        "dram": dram / target.BW_global,
        "latency": waves * (first + chain / target.clock),
    }
    return Bound(target.launch_time + longest(terms), terms, resident)


def _warp_instructions(features: Features, lanes: float) -> Count:
    return (features.issue + features.shared_loads + features.global_loads + features.stores) / lanes


def longest(terms: dict[str, Count]) -> Count:
    """Return the greatest term of every point."""
    values = list(terms.values())
    top = values[0]
    for value in values[1:]:
        top = np.maximum(top, value)
    return top


def rank(features: Features, found: Bound, target: Target, conflicts: Count = 1.0) -> Count:
    """Return the time by which points are ordered: the bound's terms, made worse by what it forgives.

    Penalties: bank conflicts (`conflicts`), loads whose lanes touch scattered lines, idle lanes of the last warp, too few warps to hide
    latency, loads a cache may have to serve again, memory rounds that nothing overlaps, barriers, long unrolled bodies; on a CPU large
    work-groups and many registers.
    """
    scattered = np.ceil(features.grid / target.NUM_SM) * features.lines / target.clock
    shared = found.terms["shared"] * conflicts + scattered
    resident = found.occupancy
    warps = ceil_div(features.threads, target.warp_size)
    idle = target.warp_size * warps / features.threads
    busy = np.minimum(1.0, features.grid / target.NUM_SM)
    per_sm = np.minimum(resident, np.ceil(features.grid / target.NUM_SM))
    hidden = np.minimum(1.0, per_sm * warps / _wanted_warps(target))
    busiest = np.maximum(found.terms["math"], np.maximum(found.terms["issue"], shared))
    compute = (0.9 * busiest + 0.05 * (found.terms["math"] + found.terms["issue"] + shared)) * idle
    traffic = features.grid * (0.5 * features.bytes + 0.5 * features.fetched + features.stored) / target.l2_bandwidth
    memory = np.maximum(traffic, features.unique_bytes / target.BW_global) / np.maximum(busy, 0.05)
    waves = np.ceil(features.grid / (target.NUM_SM * resident))
    exposed = np.where(np.greater(features.stages, 1), 0.35, 1.0)
    rounds = waves * features.rounds * target.dram_latency * CACHED_LATENCY * exposed
    barriers = waves * features.barriers * _barrier_cost(features, target) / target.clock
    total = compute / np.maximum(0.25, np.sqrt(hidden)) + memory + found.terms["latency"] + rounds + barriers
    return target.launch_time + total * _unwieldy(features, target)


def _unwieldy(features: Features, target: Target) -> Count:
    """A soft penalty on long unrolled bodies (instruction cache, compile time) and on work-groups too large for a CPU."""
    long = 1.0 + 0.1 * np.maximum(0.0, np.log2(np.maximum(1.0, features.body / 1024.0)))
    if target.is_cpu:
        long = long * (1.0 + 0.15 * np.maximum(0.0, np.log2(features.threads / 64.0)))
        long = long * (1.0 + 0.15 * np.maximum(0.0, np.log2(features.registers / 96.0)))
    return long


def _wanted_warps(target: Target) -> float:
    """Warps of an SM that hide the latency of arithmetic and shared memory: a few per scheduler."""
    return 1.0 if target.is_cpu else 4.0 * target.issue_per_clock


def _barrier_cost(features: Features, target: Target) -> Count:
    """Clocks of a barrier; on a CPU it ends a loop over the work-items and spills what lives across it."""
    return target.barrier_clocks + (features.threads * 16.0 if target.is_cpu else 0.0)
