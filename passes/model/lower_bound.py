"""Lower bound on the time of a candidate schedule.

The bound is `launch + max(first + max(throughput terms), latency)`. Every term is the least time one resource needs, at
the highest rate the target can reach; `first` is the latency of the first load from global memory, before which there
is nothing to compute with, nor anything that a memory could deliver:

* math: floating-point operations of the blocks on the fullest SM (`ceil(grid / SMs)` of them, by the pigeonhole
  principle), at peak.
* tensor: clocks in which the tensor cores of that SM execute the blocks' matrix instructions.
* issue: warp instructions of those blocks, at the number an SM issues per clock.
  Each scheduler of an SM issues one instruction of one of its warps a clock, to lanes of its own. So math and issue
  take longer where fewer warps are resident than there are schedulers.
* shared: cycles in which those blocks occupy the path to shared memory and L1, each moving at most `shared_bandwidth`
  bytes.
* l2: sectors that blocks must get past the L1 cache and the bytes they store, at the bandwidth of the L2 cache; of
  sectors the share that an SM cannot get faster (`least_l2_share`), as L2 may serve several SMs at once.
* dram: distinct bytes read and written, at DRAM bandwidth, less those that may be in the L2 cache when the kernel
  starts.
* latency: waves of resident blocks, each as long as its chain of barriers and multiply-adds after a load. The loads
  of the first wave come from DRAM, those of later ones may hit a cache.

A GPU starts with cold caches, as kernels are timed: other data in them must be written back before new data enters, so
that in the long run every distinct byte passes through DRAM.

The bound is never an estimate: where registers limit occupancy, it takes those that a thread certainly holds.
`passes.model.cost_model` is an estimate, and orders candidate schedules for measurement.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import field, frozen

from ...ir import WITH_PRODUCER, FusedGroup, Target
from ..geometry import Count, ceil_div, producer_share, teams_of
from .feature_schema import Features
from .roofline import group_work

#: Names of the resources, in the order of the table that `bound_terms` returns.
RESOURCES = ("math", "tensor", "issue", "shared", "l2", "dram", "latency")


@frozen
class Bound:
    """Lower bound of candidate schedules.

    `time` is in seconds with the launch, `terms` are the times per resource, `first` is the time before all throughput
    terms. It is that of `features` on a `target`.
    """

    time: Count
    terms: dict[str, Count]
    first: Count
    features: Features = field(eq=False, repr=False)
    target: Target = field(eq=False, repr=False)

    @property
    def occupancy(self) -> Count:
        """Expected resident blocks of an SM, at least 1."""
        return np.maximum(1, occupancy(self.features, self.target))


def occupancy(features: Features, target: Target) -> Count:
    """Return how many blocks are resident on an SM.

    Blocks, warps, registers (in groups of 8) and shared memory limit it.
    """
    return resident_blocks(features, features.registers, target)


def resident_blocks(features: Features, registers: Count, target: Target) -> Count:
    """Return the resident blocks of an SM for a register count.

    It is 0 where not one fits. Each scheduler has its own registers, which whole warps share;
    a producer that gives none back is a warp.
    """
    threads = features.threads * teams_of(features.bulk)
    warps = ceil_div(threads, target.warp_size)
    produced = np.greater_equal(features.bulk, WITH_PRODUCER)
    if np.any(produced):
        sums = np.maximum(features.instances, features.held)
        _, others = producer_share(threads, sums, target.registers_per_sm)
        warps = warps + (produced & np.equal(others, 0))
    # A chain of warpgroups has a producer where these do not copy.
    warps = warps + (np.greater_equal(features.chained, 2) & np.equal(features.in_step, 0))
    registers = np.ceil(registers / 8) * 8 * target.warp_size
    fitting = target.issue_per_clock * (target.registers_per_sm // target.issue_per_clock // registers)
    resident = np.minimum(target.blocks_per_sm, target.warps_per_sm // warps)
    resident = np.minimum(resident, fitting // warps)
    return np.minimum(resident, target.shared_per_sm // np.maximum(1, features.shared + target.shared_reserved))


def lower_bound(features: Features, target: Target) -> Bound:
    """Return the lower bound of every candidate schedule.

    Where caches may be warm, they hold the data when a kernel starts.
    """
    most = np.maximum(1, resident_blocks(features, np.maximum(8.0, features.held), target))
    fullest = np.ceil(features.grid / target.NUM_SM)
    dram = _dram_bytes(features.unique_bytes, target)
    lanes = float(target.warp_size)
    barrier = np.where(np.greater(features.threads, 1), target.barrier_clocks, 0.0)
    warps = ceil_div(features.threads, target.warp_size)
    issued = _warp_instructions(features, lanes) + features.barriers * warps
    load = target.dram_latency * (target.bounds.cached_latency if target.warm_caches else 1.0)
    waves = np.ceil(features.grid / (target.NUM_SM * most))
    chain = waves * (features.chain * target.bounds.chain + features.barriers * barrier)
    reads, kept = np.greater(features.bytes, 0), np.greater(features.bytes, features.streamed)
    hit = np.where(kept, target.LAT_shared / target.clock, target.bounds.cached_latency * target.dram_latency)
    loads = np.where(reads, load + (waves - 1.0) * np.minimum(load, hit), 0.0)
    fetching = np.minimum(features.grid, target.NUM_SM)  # L1 may keep a block's data for the next one on its SM
    fetched = features.grid * features.streamed + fetching * (features.bytes - features.streamed)
    # L2 may serve blocks that fetch a common tile at the same time at once.
    through = target.bounds.least_l2_share * fetched + features.grid * features.stored
    idle = idle_schedulers(features, np.minimum(most, fullest), target)
    terms: dict[str, Count] = {
        "math": idle * fullest * features.flops * (target.NUM_SM / target.PERF_peak),
        "tensor": fullest * features.tensor / target.clock,
        "issue": idle * fullest * issued / (target.issue_per_clock * target.clock),
        "shared": fullest * features.least_wavefronts / target.clock,
        "l2": through / target.l2_bandwidth,
        "dram": dram / target.BW_global,
        "latency": loads + chain / target.clock,
    }
    first = 0.0 if target.warm_caches else np.where(reads, max(load, target.first_load), 0.0)
    return Bound(target.launch_time + longest(terms, first), terms, first, features, target)


def least_seconds(group: FusedGroup, target: Target, launches: int = 1) -> float:
    """Return a lower bound of the kernels that compute a group.

    They move its distinct bytes; of several segments masks may spare any.
    """
    unique = group_work(group)[1] if len(group.segments) == 1 else 0.0
    return launches * target.launch_time + float(_dram_bytes(unique, target)) / target.BW_global


def _dram_bytes(unique: Count, target: Target) -> Count:
    return np.maximum(0.0, unique - target.l2_bytes) if target.warm_caches else unique


def idle_schedulers(features: Features, resident: Count, target: Target) -> Count:
    """Return the slowdown of an SM whose schedulers lack warps.

    Each scheduler issues one instruction of one warp a clock, to lanes of its own. Without lockstep warps there are no
    schedulers.
    """
    if not target.lockstep:
        return 1.0
    warps = ceil_div(features.threads, target.warp_size)
    return np.maximum(1.0, target.issue_per_clock / (resident * warps))


def _warp_instructions(features: Features, lanes: float) -> Count:
    return (features.issue + features.certain) / lanes


def limiting(found: Bound) -> str:
    """Return the resource that decides the bound."""
    return max(
        found.terms, key=lambda name: float(found.terms[name]) + (0.0 if name == "latency" else float(found.first))
    )


def longest(terms: Mapping[str, Count], first: Count) -> Count:
    """Return the least time that the terms allow.

    Latency contains the first load; throughput begins after it.
    """
    top = terms["latency"]
    for name, value in terms.items():
        if name != "latency":
            top = np.maximum(top, first + value)
    return top
