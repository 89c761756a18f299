"""The order in which points are worth measuring: an estimate of time, made of the bound's counts and of what the bound forgives.

Nothing is discarded by it. On a GPU it is the longer of computing and moving data, part of the shorter one, and what nothing overlaps:

* computing: instructions of a warp, those of the loop, of barriers and of fetches included; cycles of shared memory, at two per 16-byte
  load even where lanes share addresses, times bank conflicts; both slower where warps and independent results are too few to hide latency.
* moving: distinct bytes through DRAM, again for each wave of blocks or later statement that does not find them in L2; bytes through L2 for
  the fullest SM.
* exposed: in each round of a loop, latency of memory beyond the time that the buffers ahead, or other warps, have work for.
"""

from __future__ import annotations

import numpy as np

from ..ir.target import Target
from .bound import CACHED_LATENCY, Bound, longest
from .features import Features
from .footprint import Count, ceil_div

#: Instructions of a warp per round of a loop over chunks, per instruction that fetches a staged tile, and of a kernel's beginning.
LOOP, FETCH, BEGINNING = 16.0, 4.0, 80.0
#: Clocks of an SM that the start of a block takes.
BLOCK = 40.0
#: Warps of an SM times the root of each thread's independent results that hide the latency of arithmetic and shared memory.
PARALLEL = 32.0
#: Shares of the rates of DRAM and L2 that a good kernel sustains.
DRAM_SHARE, L2_SHARE = 0.9, 0.45
#: Part of what is read again that DRAM serves where the L2 cache cannot hold it.
REREAD = 0.5
#: Share of DRAM latency that a round waits for, on average of what caches hold.
ROUND_LATENCY = 0.5


def rank(features: Features, found: Bound, target: Target, conflicts: Count = 1.0) -> Count:
    """Return the time by which points are ordered, never much below the bound; `conflicts` is the bank conflict factor."""
    if target.is_cpu:
        return _on_cpu(features, found, target)
    compute, resident = _computing(features, found, target, conflicts)
    memory = _moving(features, found, target)
    longer, shorter = np.maximum(compute, memory), np.minimum(compute, memory)
    waves = np.ceil(features.grid / (target.NUM_SM * found.occupancy))
    ahead, overlap = _overlap(features, resident, target)
    latency = ROUND_LATENCY * target.dram_latency
    rounds = waves * np.maximum(1.0, features.rounds)
    exposed = rounds * latency**2 / (latency + 4.0 * ahead * longer / rounds) + waves * latency / resident
    barriers = waves * features.barriers * 1.5 * target.barrier_clocks / target.clock / np.minimum(resident, 2.0)
    starts = np.ceil(features.grid / target.NUM_SM) * BLOCK / target.clock
    total = starts + longer + shorter * (0.15 + 0.85 / overlap) + exposed + barriers + target.dram_latency
    return target.launch_time + np.maximum(total, longest(found.terms)) * _unwieldy(features)


def _overlap(features: Features, resident: Count, target: Target) -> tuple[Count, Count]:
    """Return for how many rounds there is work while a round's data comes, and how many parts of a kernel run side by side."""
    warps = ceil_div(features.threads, target.warp_size)
    staged = np.greater(features.copies, 0)
    others = np.where(staged, resident, resident * np.maximum(1.0, warps / 2.0))
    ring = staged & np.greater(features.stages, 1) & np.greater(features.rounds, 1)
    ahead = np.where(ring, features.stages - 1.0, 0.0) + 1.0 - 1.0 / others
    return ahead, np.where(ring, np.maximum(others, 3.0), others)


def _computing(features: Features, found: Bound, target: Target, conflicts: Count) -> tuple[Count, Count]:
    """Return the seconds that the fullest SM computes for, and how many of its blocks do so at once."""
    lanes = float(target.warp_size)
    blocks = np.ceil(features.grid / target.NUM_SM)
    resident = np.minimum(found.occupancy, blocks)
    warps = ceil_div(features.threads, target.warp_size)
    idle = lanes * warps / features.threads
    accesses = features.shared_loads + features.global_loads + features.stores
    overhead = warps * (BEGINNING + LOOP * features.rounds + features.barriers)
    overhead = overhead + (FETCH * features.copies + features.decoding) / lanes
    issue = (features.issue + accesses) / lanes * idle + overhead
    returned = 0.5 * features.thread_loads * features.threads / lanes
    shared = np.maximum(features.wavefronts, returned) * conflicts + features.copies / lanes + features.scatter + features.lines
    times = issue / target.issue_per_clock, shared
    busy = np.maximum(*times) + 0.2 * np.minimum(*times)
    hidden = np.minimum(1.0, resident * warps * np.sqrt(np.minimum(features.instances, 64)) / PARALLEL)
    return blocks * busy / target.clock / np.maximum(0.1, hidden) ** 0.7, resident


def _moving(features: Features, found: Bound, target: Target) -> Count:
    """Return the seconds that data takes: from DRAM, and through the L2 cache for the fullest SM."""
    dram = features.unique_bytes / target.BW_global
    if features.unique_bytes > target.l2_bytes / 2:
        dram = np.maximum(dram, _waved(features, found, target) / target.BW_global)
    together = np.minimum(features.grid, target.NUM_SM * found.occupancy)
    lost = np.clip(2.0 * together * features.bytes / target.l2_bytes - 1.0, 0.0, 1.0)  # part that L2 no longer holds
    dram = dram + REREAD * lost * features.grid * features.again / target.BW_global
    blocks = np.ceil(features.grid / target.NUM_SM)
    through = 0.5 * features.bytes + 0.5 * np.maximum(features.bytes, features.fetched) + features.stored
    return np.maximum(dram / DRAM_SHARE, blocks * through * target.NUM_SM / (L2_SHARE * target.l2_bandwidth))


def _waved(features: Features, found: Bound, target: Target) -> Count:
    """Return the bytes that DRAM moves if blocks that run together share what they read, and later ones find nothing."""
    together = np.minimum(features.grid, target.NUM_SM * found.occupancy)
    side = np.maximum(1.0, features.grid / np.maximum(1.0, features.outer))
    tall = np.minimum(np.where(np.equal(features.outer % features.raster, 0), features.raster, 1), features.outer)
    wide = np.minimum(side, np.ceil(together / tall))
    tall = np.maximum(tall, np.ceil(together / wide))
    own = np.maximum(0.0, features.bytes - features.rows - features.columns)
    wave = tall * features.rows + wide * features.columns + together * own
    return features.grid / together * (wave + together * features.stored)


def _unwieldy(features: Features) -> Count:
    """Return a soft penalty on long unrolled bodies (instruction cache, compile time), and on launch bounds that ask for the impossible."""
    long = 1.0 + 0.08 * np.maximum(0.0, np.log2(np.maximum(1.0, features.body / 1024.0)))
    roomy = np.greater(features.registers, 128)
    asked = np.where(np.greater(features.min_blocks, 1), 0.002, np.where(np.equal(features.min_blocks, 1) == roomy, 0.0, 0.001))
    return long + asked + 0.0005 * np.log2(features.raster)


def _on_cpu(features: Features, found: Bound, target: Target) -> Count:
    """Return the order for a CPU: small work-groups, few registers and barriers, no latency to hide."""
    warps = ceil_div(features.threads, target.warp_size)
    idle = target.warp_size * warps / features.threads
    busy = np.minimum(1.0, features.grid / target.NUM_SM)
    terms = found.terms
    busiest = np.maximum(terms["math"], np.maximum(terms["issue"], terms["shared"]))
    compute = (0.9 * busiest + 0.05 * (terms["math"] + terms["issue"] + terms["shared"])) * idle
    traffic = features.grid * (0.5 * features.bytes + 0.5 * features.fetched + features.stored) / target.l2_bandwidth
    memory = np.maximum(traffic, features.unique_bytes / target.BW_global) / np.maximum(busy, 0.05)
    waves = np.ceil(features.grid / (target.NUM_SM * found.occupancy))
    exposed = np.where(np.greater(features.stages, 1), 0.35, 1.0)
    rounds = waves * features.rounds * target.dram_latency * CACHED_LATENCY * exposed
    # A barrier ends a loop over the work-items and spills what lives across it.
    barriers = waves * features.barriers * (target.barrier_clocks + features.threads * 16.0) / target.clock
    long = 1.0 + 0.1 * np.maximum(0.0, np.log2(np.maximum(1.0, features.body / 1024.0)))
    long = long * (1.0 + 0.15 * np.maximum(0.0, np.log2(features.threads / 64.0)))
    long = long * (1.0 + 0.15 * np.maximum(0.0, np.log2(features.registers / 96.0)))
    return target.launch_time + (compute + memory + terms["latency"] + rounds + barriers) * long
