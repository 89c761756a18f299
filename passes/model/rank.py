"""The order in which points are worth measuring: an estimate of time, made of the bound's counts and of what the bound
forgives.

Nothing is discarded by it. Where warps run in lockstep it is a soft maximum of what each resource takes, and what
nothing overlaps. `passes.model.rank_constants` holds the constants, fitted to measured kernels:

* issue: instructions of a warp, those of the loop, of barriers, guards, fetches and divisions included; cycles of
  shared memory; both
  slower where warps and independent results are too few to hide latency.
* moving: distinct bytes through DRAM, again for each wave of blocks or later statement that does not find them in L2;
  bytes through L2.
* direct loads: a thread has few of them in flight, fewer where guards and divisions come before them or lanes touch
  many lines.
* exposed: in each round of a loop, latency of memory beyond the time that the buffers ahead, or other warps, have work
  for.
"""

from __future__ import annotations

import numpy as np

from ...ir import Target
from .bound import CACHED_LATENCY, Bound, resident_blocks
from .counts import Features
from .footprint import Count, ceil_div
from .rank_constants import FITTED, RankConstants

#: Weight of the estimate among points that take what the bound says.
ORDER = 0.001
#: Operations of an unrolled body that the caches of instructions hold.
LONG = 2048.0
#: Power in which times add up where atoms multiply: they, loads and copies are each waited for by other warps only.
#: 57 points of 4096^3 in four formats, measured with fragments that were not loaded ahead, are then estimated at 0.89
#: to 1.17 of their time, those whose fetches turn tiles round at 0.73 to 0.85.
PRODUCTS = 3.0
#: What bytes of sectors that a warp touches and does not move, and bytes that copies past L1 bring again, weigh beside
#: others on their way through L2: by the order of 865 points of 34 kernels of networks in f16, measured on an H200.
PARTIAL, MISSED = 5.0, 2.0
#: Sectors of memory in which the L2 cache combines values in a clock, for each SM: of 33 million values at random
#: places of 8,192 rows of 512, on an H200.
COMBINED = 0.35
#: Tensor cores of an SM, each of which serves the warps of a quarter of it.
CORES = 4.0
#: Warps of an SM that hide how long an instruction of a fetch through registers waits for the one before it: four
#: clocks, on each of four schedulers.
UNHIDDEN = 16.0
#: Part of a chunk that has been multiplied before copies begin on average, where they are spread among its steps: of
#: 4096^3, with two buffers of twice the depth instead of four, bf16 and TF32 took 1.17 times as long.
SPREAD = 0.5
#: As many rounds as none, where some are divided by.
NONE = 1e-9
#: Elements that a thread has in flight on their way through registers to shared memory: a loop is unrolled so often.
IN_FLIGHT = 32.0
#: Clocks that a block takes longer for each doubling of the warps that divide a depth, and what copies past L1 have to
#: save where one wave of blocks does it all: of 209 points of 14 small products in f16, measured on an H200, the first
#: of the order takes 1.10 times the best so, 1.14 without. Of 27 pairs of them 23 were faster with copies left in L1.
JOINING, PAST_L1 = 90.0, 0.002
#: What each doubling of a ring beyond four buffers has to save: L1 has less room, and the next launch none.
DEEP = 0.01
#: Clocks that a multiply-add waits for its factors where one of them comes from a vector along the depth: all such
#: elements of a step lie in one of the two banks of registers, and half of the sums and of the other factors, too. Of
#: 256 multiply-adds a compiler leaves 64 with three operands in one bank there, 4 elsewhere; products in strict f32
#: reach 40 to 43 TFLOP/s so, 45 to 47 where the fetch turns the tile, 48 to 50 where nothing has to be turned.
BANKED = 0.17
#: Instructions of a warp in each round of a staged loop, for each buffer that it looks ahead, and clocks for each cycle
#: in which fetches write to shared memory: where an SM holds one block of many, its warps fetch together, and no other
#: block multiplies meanwhile. Of 268 points of 18 products in f32, measured on an H100, the first of the order takes
#: 1.033 times the best so, 1.065 without: 512 threads were slower than two blocks of 256, rings of four by 1 to 2 %,
#: chunks of 8 by 5 %.
RING, ALONE = 5.0, 1.5
#: Latencies of memory that a round of a loop takes which stages nothing, as far as its work is shorter, and what of
#: that work counts: all warps of an SM begin such a round together, and none has its loads ahead.
LOOPED, LOOPED_WORK = 1.0, 1.0
#: Latencies for which each segment waits that asks memory for more behind its reductions.
ASKED = 1.5
#: Clocks for which a word that lanes pass one another keeps the path to shared memory.
PASSED = 2.0
#: Instructions that a copy of a fetch takes to find its place in a tile by divisions, and to compare it with the ends:
#: 26 of each copy, in machine code, where 5 are left without. With these five, the waits behind reductions, and warps
#: that a segment leaves idle, 1,650 points of 31 kernels of MobileNetV2 at batch 1, measured on an H100, are ordered
#: with errors of 0.14 instead of 0.17 about the level of their operation, and these levels differ by 0.10 instead of
#: 0.14; in 16 recorded spaces errors are 0.193 instead of 0.202.
UNEVEN = 20.0
#: Part of the registers needed at most that a compiler takes where nothing is staged: it loads late.
LATE = 0.9


def rank(
    features: Features, found: Bound, target: Target, conflicts: Count = 1.0, costs: RankConstants = FITTED
) -> Count:
    """Return the time that orders points, never much below the bound; `conflicts` is the bank conflict factor."""
    if not target.lockstep:
        return _thread_after_thread(features, found, target)
    fitting = _occupancy(features, target)
    fullest = np.ceil(features.grid / target.NUM_SM)
    blocks = np.maximum(1.0, (1.0 - costs.tail) * features.grid / target.NUM_SM + costs.tail * fullest)
    resident = np.minimum(fitting, fullest)
    waves = np.maximum(1.0, blocks / resident)
    busy = _softly_longest(
        (
            *_computing(features, blocks, resident, target, conflicts, costs),
            *_moving(features, blocks, fitting, target, costs),
            waves * _direct(features, costs) * target.dram_latency,
            features.grid * features.combined / (COMBINED * target.NUM_SM * target.clock),
        ),
        np.where(np.greater(features.tensor, 0), PRODUCTS, 1.0 + costs.overlap),
    )
    exposed = _exposed(features, busy, waves, resident, target, costs)
    barriers = (
        waves * features.barriers * costs.barrier * target.barrier_clocks / target.clock / np.minimum(resident, 2.0)
    )
    joined = waves * features.joined * JOINING / target.clock
    total = blocks * costs.block / target.clock + busy + exposed + barriers + joined + costs.fixed * target.dram_latency
    tables = (
        features.table * np.greater(features.divided, 0) * waves * features.rounds * costs.entry * target.dram_latency
    )
    time = target.launch_time + (total + tables) * (_unwieldy(features, costs) + _past_l1(features, target))
    # Small kernels are estimated below their bound, and would all be alike.
    return np.maximum(time, found.time) + ORDER * time


def _occupancy(features: Features, target: Target) -> Count:
    """Return how many blocks an SM is expected to hold."""
    late = np.minimum(np.maximum(LATE * features.needed, 16.0), features.limit)
    registers = np.where(np.equal(features.copies, 0), late, features.registers)
    return np.maximum(1, resident_blocks(features, registers, target))


def _softly_longest(times: tuple[Count, ...], sharpness: Count) -> Count:
    """Return a little more than the longest time: resources get into each other's way."""
    top = times[0]
    for time in times[1:]:
        top = np.maximum(top, time)
    total: Count = 0.0
    for time in times:
        total = total + (time / top) ** sharpness
    return top * total ** (1.0 / sharpness)


def _exposed(
    features: Features, busy: Count, waves: Count, resident: Count, target: Target, costs: RankConstants
) -> Count:
    """Return the seconds in which memory is waited for: in rounds of loops, beyond the work there is, and as blocks
    begin.
    """
    warps = ceil_div(features.threads, target.warp_size)
    staged = np.greater(features.copies, 0)
    others = np.where(staged, resident, resident * np.maximum(1.0, warps / 2.0))
    ring = staged & np.greater(features.stages, 1) & np.greater(features.rounds, 1) & np.equal(features.carried, 0)
    spread = np.greater(features.tensor, 0) & np.equal(features.waited, 0)
    ahead = np.where(ring, features.stages - 1.0 - np.where(spread, SPREAD, 0.0), 0.0) + 1.0 - 1.0 / others
    latency = np.where(staged, costs.staged_round, costs.direct_round) * target.dram_latency
    # What no copy brings behind the threads' backs comes in several turns, each of which is waited for.
    turns = np.ceil(features.carried / (features.threads * np.maximum(1.0, features.rounds) * IN_FLIGHT))
    latency = latency * np.maximum(1.0, turns)
    looped = np.minimum(features.looped, np.maximum(1.0, features.rounds))
    staged_rounds = waves * np.maximum(NONE, features.rounds - looped)
    part = staged_rounds / (waves * np.maximum(1.0, features.rounds))
    waiting = staged_rounds * latency**2 / (latency + costs.ahead * ahead * busy * part / staged_rounds)
    waiting = waiting + _looped(busy * (1.0 - part), waves * np.maximum(NONE, looped), target)
    waiting = np.maximum(waiting, _fetched_alone(features, waves, resident, target) / target.clock)
    asked = ASKED * waves * features.asked * target.dram_latency
    return waiting + asked + costs.first * waves * target.dram_latency / resident


def _looped(work: Count, rounds: Count, target: Target) -> Count:
    """Return the seconds in which rounds of loops that stage nothing wait for memory beyond their work."""
    latency = LOOPED * target.dram_latency
    return rounds * latency**2 / (latency + LOOPED_WORK * np.maximum(0.0, work) / rounds)


def _fetched_alone(features: Features, waves: Count, resident: Count, target: Target) -> Count:
    """Return the clocks in which blocks that are alone on an SM, one after another, write what they fetch to shared
    memory; atoms' copies are spread among their steps.
    """
    alone = np.equal(resident, 1) & np.greater(waves, 1) & np.greater(features.rounds, 1) & np.equal(features.tensor, 0)
    written = features.fetched / target.shared_bandwidth + features.scatter
    return np.where(alone & np.greater(features.copies, 0), ALONE * waves * written, 0.0)


def _computing(
    features: Features, blocks: Count, resident: Count, target: Target, conflicts: Count, costs: RankConstants
) -> tuple[Count, Count, Count]:
    """Return the seconds that the fullest SM issues for, and those that its path to shared memory and its tensor cores
    are busy.
    """
    lanes = float(target.warp_size)
    warps = ceil_div(features.threads, target.warp_size)
    idle = lanes * warps / features.threads
    accesses = (
        costs.load * features.global_loads + costs.shared_load * features.shared_loads + costs.store * features.stores
    )
    divisions = features.divided * (costs.division + costs.table * features.table) + UNEVEN * features.uneven
    fetches = (costs.fetch * features.copies + costs.guard * features.decoding + divisions) / lanes
    alone = np.maximum(1.0, UNHIDDEN / (resident * warps))
    fetches = fetches * np.where(np.greater(features.carried, 0), alone, 1.0)
    # Rings of atoms are not fitted: they multiply by far fewer instructions.
    ringed = np.greater(features.copies, 0) & np.equal(features.tensor, 0)
    ring = np.where(ringed, RING * np.maximum(1.0, features.stages - 1.0), 0.0)
    overhead = warps * (costs.beginning + (costs.loop + ring) * features.rounds + features.barriers)
    slots = features.issue + _again(target) * features.flops / 2 + BANKED * features.alike
    issue = (slots + accesses) / lanes * idle + fetches + overhead
    returned = costs.returned * features.thread_loads * features.threads / lanes
    shared = np.maximum(features.wavefronts, returned) * conflicts**costs.conflict
    shared = (
        shared + costs.written * features.copies / lanes + costs.turned * features.scatter + costs.line * features.lines
    )
    shared = shared + PASSED * features.shuffles
    working = np.minimum(warps, features.working)
    parallel = resident * working * np.minimum(features.instances, 64) ** costs.independent / costs.warps
    busy = blocks / target.clock * (1.0 + parallel**-4.0) ** (costs.hiding / 4.0)
    # Warps of one block load their fragments together and multiply together; other blocks multiply meanwhile.
    used = CORES / np.minimum(CORES, resident * warps)
    tensor = features.tensor * used + features.waited / np.sqrt(resident)
    issue = issue * np.maximum(1.0, target.issue_per_clock / (resident * working))
    return busy * issue / target.issue_per_clock, busy * shared, busy * tensor


def _again(target: Target) -> float:
    """Return how many further slots a multiply-add of f32 keeps busy: an SM with fewer lanes than it issues for takes
    several clocks of its schedulers for one.
    """
    lanes = target.PERF_peak / (2.0 * target.NUM_SM * target.clock)
    return max(0.0, round(target.issue_per_clock * target.warp_size / lanes) - 1.0)


def _direct(features: Features, costs: RankConstants) -> Count:
    """Return the latencies that a thread's direct loads take one after another."""
    loads = np.maximum(features.direct * features.threads, 1e-9)
    guarded = (1.0 + features.decoding / loads) ** costs.guarded
    apart = np.clip(features.lines * 32.0 / (loads + features.stores), 1.0, 32.0) ** costs.apart
    return costs.direct * (features.direct + costs.divided * features.divided_direct) * guarded * apart


def _moving(
    features: Features, blocks: Count, fitting: Count, target: Target, costs: RankConstants
) -> tuple[Count, Count]:
    """Return the seconds that data takes: from DRAM, and through the L2 cache for the fullest SM."""
    together = np.minimum(features.grid, target.NUM_SM * fitting)
    large = np.greater(features.unique_bytes, target.l2_bytes / 2)
    dram = np.maximum(features.unique_bytes, np.where(large, _waved(features, together), 0.0))
    lost = np.clip(2.0 * together * features.bytes / target.l2_bytes - 1.0, 0.0, 1.0)  # part that L2 no longer holds
    dram = dram + costs.again * lost * features.grid * features.again
    asked = np.maximum(features.bytes, features.fetched)
    through = (1.0 - costs.asked) * features.bytes + costs.asked * asked + features.stored
    through = through + PARTIAL * features.partial + MISSED * (1.0 - costs.asked) * features.missed
    return dram / (costs.dram * target.BW_global), blocks * through * target.NUM_SM / (costs.l2 * target.l2_bandwidth)


def _waved(features: Features, together: Count) -> Count:
    """Return the bytes that DRAM moves if blocks that run together share what they read,
    and later ones find nothing.
    """
    side = np.maximum(1.0, features.grid / np.maximum(1.0, features.outer))
    tall = np.minimum(np.where(np.equal(features.outer % features.raster, 0), features.raster, 1), features.outer)
    wide = np.minimum(side, np.ceil(together / tall))
    tall = np.maximum(tall, np.ceil(together / wide))
    own = np.maximum(0.0, features.bytes - features.rows - features.columns)
    wave = tall * features.rows + wide * features.columns + together * own
    return features.grid / together * (wave + together * features.stored)


def _unwieldy(features: Features, costs: RankConstants) -> Count:
    """Return a soft penalty on long unrolled bodies (instruction cache, compile time), on launch bounds that ask for
    the impossible, and on more buffers than most loops need.
    """
    long = 1.0 + costs.long * np.maximum(0.0, np.log2(np.maximum(1.0, features.body / LONG)))
    roomy = np.greater(features.registers, 128)
    asked = np.where(
        np.greater(features.min_blocks, 1), 0.002, np.where(np.equal(features.min_blocks, 1) == roomy, 0.0, 0.001)
    )
    deep = DEEP * np.log2(np.maximum(1.0, features.stages / 4.0))
    return long + asked + deep + 0.0005 * np.log2(features.raster)


def _past_l1(features: Features, target: Target) -> Count:
    """Return a soft penalty on copies past L1 where atoms multiply and each SM has one block at most."""
    past = np.greater(features.streamed, 0) & np.less_equal(features.grid, target.NUM_SM)
    return np.where(np.greater(features.tensor, 0) & past, PAST_L1, 0.0)


def _thread_after_thread(features: Features, found: Bound, target: Target) -> Count:
    """Return the order where a core runs a block's threads in turn: small blocks, few registers and barriers, no
    latency to hide.
    """
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
