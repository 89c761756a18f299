"""Cost model: estimated kernel time, which orders candidate schedules for measurement.

The model discards nothing. With lockstep warps it is a soft maximum of the time of each resource, plus exposed latency.
Its coefficients, fitted to measured kernels, are the target's:

* issue: instructions of a warp, those of the loop, of barriers, guards, fetches and divisions included; cycles of
  shared memory; both slower where warps and independent results are too few to hide latency.
* moving: distinct bytes through DRAM, again for each wave of blocks or later statement that does not find them in L2;
  bytes through L2.
* direct loads: a thread has few of them in flight, fewer where guards and divisions come before them or lanes touch
  many lines.
* exposed: in each round of a loop, latency of memory beyond the work of prefetched buffers, or other warps.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ...ir import PERSISTENT, CoreCoefficients, CostCoefficients, Target
from ..geometry import MIN_TAKING_SUMS, Count, ceil_div, producer_share
from .feature_schema import Features
from .lower_bound import Bound, resident_blocks
from .product_cost import box_factor, chain_waits, copied_product_factor, product_seconds
from .row_cost import cluster_seconds, column_seconds
from .work import TENSOR_CORES

#: Weight of the estimate among candidates at their lower bound.
ORDER_WEIGHT = 0.001
#: Stands for zero rounds in a divisor.
MIN_ROUNDS = 1e-9
#: Elements of a thread in flight that pass through registers: with a single buffer, where a compiler stores some before
#: it loads others, and where all of a K block are loaded before its products.
MAX_STAGED_IN_FLIGHT, MAX_HELD_IN_FLIGHT = 16.0, 64.0
#: Loads of a thread in flight, its other registers as they are issued, and those of its products where registers are
#: scarce, if reduction threads multiply. Kernels of 4 to 40 loads took 38 to 140 registers.
MAX_LOADS_IN_FLIGHT, STREAMING_REGISTERS, RUNNING_REGISTERS = 20.0, 16.0, 20.0
#: Lines that a warp's load of 16 bytes per thread fills, and the exponent of the time of more of them: products of
#: 128,256 columns with 64 bytes of eight rows took 1.6 times as long.
FILLED_LINES, SCATTERED_ROWS_POWER = 4.0, 0.35
#: Clocks from a sum to the next one that it enters, and operations of a thread on a row that other blocks hide: two
#: products of 14,336 columns took 63.2 us after a norm of 258 operations of a thread, 57.8 after one of 66.
SUM_CLOCKS, HIDDEN_SUMS = 5.0, 128.0
#: Share of the needed registers that a compiler takes without staging: it loads late.
UNSTAGED_REGISTER_SHARE = 0.9
#: Loads of a thread that are in flight together; bytes of one that is not narrow; results of a thread without loops.
FEW_LOADS, WORD_BYTES, FEW_RESULTS = 16.0, 4.0, 32.0


def estimate_time(features: Features, found: Bound, target: Target, conflicts: Count = 1.0) -> Count:
    """Return the estimated time, never much below the bound.

    `conflicts` is the bank conflict factor.
    """
    if not target.lockstep:
        return _sequential_time(features, found, target, target.core_costs)
    costs = target.costs
    fitting = _occupancy(features, target)
    fullest = np.ceil(features.grid / target.NUM_SM)
    blocks = np.maximum(1.0, (1.0 - costs.tail) * features.grid / target.NUM_SM + costs.tail * fullest)
    resident = np.minimum(fitting, fullest)
    waves = np.maximum(1.0, blocks / resident)
    streamed = np.greater(features.by_lanes, 0)
    compute = _compute_seconds(features, blocks, resident, target, conflicts, costs)
    dram, through = _transfer_seconds(features, blocks, fitting, target, costs)
    unique = features.unique_bytes / target.BW_global
    busy = _soft_maximum(
        (
            *compute,
            np.where(streamed, costs.dram / costs.streamed_dram * _scattered_rows(features), 1.0) * dram,
            np.where(streamed & np.greater_equal(features.grid, target.NUM_SM), costs.bulk_l2, 1.0) * through,
            waves * _direct_latencies(features, costs) * target.dram_latency,
            features.grid * features.combined / (costs.combined * target.NUM_SM * target.clock),
            blocks * costs.unfilled_line * _unfilled_lines(features, target) / target.clock,
        ),
        np.where(
            streamed,
            costs.streamed_overlap,
            np.where(np.greater(features.tensor, 0), costs.mma_overlap, 1.0 + costs.overlap),
        ),
    )
    exposed = _exposed_seconds(features, busy, waves, resident, target, costs)
    barriers = (
        waves * features.barriers * costs.barrier * target.barrier_clocks / target.clock / np.minimum(resident, 2.0)
    )
    if np.any(features.chained):
        work = _soft_maximum((*compute, dram, costs.chain_l2 * through), costs.mma_overlap)
        warpgroups = np.greater(features.chained, 1)
        waiting = np.where(np.greater(features.chained, 0), chain_waits(features, waves, resident, target), 0.0)
        busy, barriers = np.where(warpgroups, costs.chain_work * work, busy), barriers * ~warpgroups
        exposed = exposed * ~warpgroups + waiting
    if np.any(features.bulk):
        busy = np.where(np.greater(features.bulk, 0), product_seconds(features, blocks, resident, dram, target), busy)
        exposed = np.where(np.greater(features.bulk, 0), 0.0, exposed)
    for counted, seconds in (
        (features.tiled, partial(column_seconds, features, fitting, compute[0], unique, target)),
        (features.exchanged, partial(cluster_seconds, features, resident, (dram, through), target)),
    ):
        if np.any(counted):
            alone = np.greater(counted, 0)
            busy = np.where(alone, seconds(), busy)
            exposed, barriers = (np.where(alone, 0.0, other) for other in (exposed, barriers))
    joined = waves * features.joined * costs.joined / target.clock
    total = blocks * costs.block / target.clock + busy + exposed + barriers + joined + costs.fixed * target.dram_latency
    total = total * copied_product_factor(features, costs) * box_factor(features, waves, costs)
    total = total * _few_warps_factor(features, resident, target)
    time = target.launch_time + total * (_size_penalty(features, costs) + _past_l1_penalty(features, target))
    # Small kernels are estimated below their bound, and would not differ.
    return np.maximum(time, found.time) + ORDER_WEIGHT * time


def _occupancy(features: Features, target: Target) -> Count:
    """Return the expected resident blocks of an SM."""
    late = np.minimum(np.maximum(UNSTAGED_REGISTER_SHARE * features.needed, 16.0), features.limit)
    early = STREAMING_REGISTERS + features.instances + 4.0 * np.minimum(_loads_of_round(features), MAX_LOADS_IN_FLIGHT)
    late = np.where(np.greater(features.by_lanes, 0), np.minimum(early, features.limit), late)
    registers = np.where(np.equal(features.copies, 0) & np.equal(features.exchanged, 0), late, features.registers)
    fitting = np.maximum(1, resident_blocks(features, registers, target))
    # Warpgroups of a chain may take the registers of their producer, and all of an SM with them.
    _, taken = producer_share(features.threads, MIN_TAKING_SUMS, target.registers_per_sm)
    produced = np.equal(features.chained, 2) & np.equal(features.in_step, 0)
    lone = produced & np.greater(taken, 0) & np.equal(features.limit, taken)
    lone = lone | np.greater_equal(features.bulk, PERSISTENT) | np.greater(features.persistent, 0)
    return np.where(lone, 1, fitting)


def _soft_maximum(times: tuple[Count, ...], sharpness: Count) -> Count:
    """Return a soft maximum of times: resources slow each other down."""
    top = times[0]
    for time in times[1:]:
        top = np.maximum(top, time)
    total: Count = 0.0
    for time in times:
        total = total + (time / top) ** sharpness
    return top * total ** (1.0 / sharpness)


def _exposed_seconds(
    features: Features, busy: Count, waves: Count, resident: Count, target: Target, costs: CostCoefficients
) -> Count:
    """Return the seconds of exposed memory latency: in rounds of loops, beyond their work, and as blocks begin."""
    warps = ceil_div(features.threads, target.warp_size)
    staged = np.greater(features.copies, 0)
    others = np.where(staged, resident, resident * np.maximum(1.0, warps / 2.0))
    ring = (
        staged & np.greater(features.stages, 1) & np.greater(features.rounds, 1) & np.equal(features.register_staged, 0)
    )
    spread = np.greater(features.tensor, 0) & np.equal(features.waited, 0)
    single = staged & np.equal(features.stages, 1) & np.equal(features.tensor, 0)
    beside = (1.0 - 1.0 / others) * np.where(single, costs.beside_single, 1.0)
    ahead = np.where(ring, features.stages - 1.0 - np.where(spread, costs.interleaved, 0.0), 0.0) + beside
    latency = np.where(staged, costs.staged_round, costs.direct_round) * target.dram_latency
    # Synchronous copies come in several batches, with a wait for each.
    in_flight = np.where(np.greater(features.stages, 1), MAX_HELD_IN_FLIGHT, MAX_STAGED_IN_FLIGHT)
    turns = np.ceil(features.register_staged / (features.threads * np.maximum(1.0, features.rounds) * in_flight))
    latency = latency * np.maximum(1.0, turns)
    looped = np.minimum(features.looped, np.maximum(1.0, features.rounds))
    staged_rounds = waves * np.maximum(MIN_ROUNDS, features.rounds - looped)
    part = staged_rounds / (waves * np.maximum(1.0, features.rounds))
    waiting = staged_rounds * latency**2 / (latency + costs.ahead * ahead * busy * part / staged_rounds)
    waiting = waiting + _unstaged_seconds(busy * (1.0 - part), waves * np.maximum(MIN_ROUNDS, looped), target)
    waiting = waiting + _lone_block_clocks(features, waves, resident, target) / target.clock
    loads = costs.streamed * np.maximum(0.0, features.row_direct / MAX_LOADS_IN_FLIGHT - 1.0)
    sums = np.maximum(0.0, features.row_flops - HIDDEN_SUMS) * SUM_CLOCKS
    waiting = waiting + waves * (loads * target.dram_latency + sums / target.clock)
    asked = costs.epilogue * waves * features.asked * target.dram_latency / resident
    return waiting + asked + costs.first * waves * target.dram_latency / resident


def _unstaged_seconds(work: Count, rounds: Count, target: Target) -> Count:
    """Return the seconds that rounds of loops without staging wait for memory beyond their work."""
    latency = target.dram_latency
    return rounds * latency**2 / (latency + np.maximum(0.0, work) / rounds)


def _lone_block_clocks(features: Features, waves: Count, resident: Count, target: Target) -> Count:
    """Return the clocks in which blocks that are alone on an SM, one after another, write fetched data to shared
    memory; with matrix instructions, copies are spread among steps.
    """
    alone = np.equal(resident, 1) & np.greater(waves, 1) & np.greater(features.rounds, 1) & np.equal(features.tensor, 0)
    written = features.fetched / target.shared_bandwidth + features.scatter
    return np.where(alone & np.greater(features.copies, 0), target.costs.written_alone * waves * written, 0.0)


def _compute_seconds(
    features: Features, blocks: Count, resident: Count, target: Target, conflicts: Count, costs: CostCoefficients
) -> tuple[Count, Count, Count]:
    """Return the seconds that the fullest SM issues, and that its path to shared memory and its tensor cores are
    busy.
    """
    lanes = float(target.warp_size)
    warps = ceil_div(features.threads, target.warp_size)
    idle = lanes * warps / features.threads
    accesses = (
        costs.load * features.global_loads + costs.shared_load * features.shared_loads + costs.store * features.stores
    )
    divisions = features.divided * costs.division + costs.dividing_copy * features.uneven
    fetches = (costs.fetch * features.copies + costs.guard * features.decoding + divisions) / lanes
    alone = np.maximum(1.0, target.bounds.chain * target.issue_per_clock / (resident * warps))
    fetches = fetches * np.where(np.greater(features.register_staged, 0), alone, 1.0)
    # The pipelines of matrix instructions are not fitted: they multiply with far fewer instructions.
    ringed = np.greater(features.copies, 0) & np.equal(features.tensor, 0)
    ring = np.where(ringed, costs.stage * np.maximum(1.0, features.stages - 1.0), 0.0)
    overhead = warps * (costs.beginning + (costs.loop + ring) * features.rounds + features.barriers)
    slots = features.issue + _extra_issue_slots(target) * features.flops / 2 + costs.register_bank * features.alike
    slots = slots + features.converted + features.quotients
    issue = (slots + accesses) / lanes * idle + fetches + overhead
    returned = costs.returned * features.thread_loads * features.threads / lanes
    shared = np.maximum(features.wavefronts, returned) * conflicts**costs.conflict
    shared = (
        shared + costs.written * features.copies / lanes + costs.turned * features.scatter + costs.line * features.lines
    )
    shared = shared + costs.shuffle * features.shuffles
    working = np.minimum(warps, features.working)
    parallel = resident * working * np.minimum(features.instances, 64) ** costs.independent / costs.warps
    busy = blocks / target.clock * (1.0 + parallel**-4.0) ** (costs.hiding / 4.0)
    busy = busy * np.where(ringed, _last_wave_factor(features, resident, warps, target, costs), 1.0)
    # Warps of one block load their fragments together and multiply together; other blocks multiply meanwhile.
    used = TENSOR_CORES / np.minimum(TENSOR_CORES, resident * warps)
    tensor = features.tensor * used + features.waited / np.sqrt(resident)
    issue = issue * np.maximum(1.0, target.issue_per_clock / (resident * working))
    return busy * issue / target.issue_per_clock, busy * shared, busy * tensor


def _last_wave_factor(
    features: Features, resident: Count, warps: Count, target: Target, costs: CostCoefficients
) -> Count:
    """Return the factor of an SM's work where warps do not divide among its schedulers, and the last wave has few."""

    def latency_factor(blocks: Count) -> Count:
        parallel = blocks * warps * np.minimum(features.instances, 64) ** costs.independent / costs.warps
        return (1.0 + parallel**-4.0) ** (costs.hiding / 4.0)

    def imbalance(blocks: Count) -> Count:
        shared = blocks * warps / target.issue_per_clock
        return np.ceil(shared) / shared

    fullest = np.ceil(features.grid / target.NUM_SM)
    last = np.maximum(1.0, fullest - resident * np.floor((fullest - 1.0) / resident))
    slower = imbalance(last) * latency_factor(last) / latency_factor(resident)
    return imbalance(resident) + last / fullest * (slower - imbalance(resident))


def _extra_issue_slots(target: Target) -> float:
    """Return the additional issue slots of a multiply-add of f32: an SM with fewer lanes than it issues for takes
    several clocks of its schedulers for one.
    """
    lanes = target.PERF_peak / (2.0 * target.NUM_SM * target.clock)
    return max(0.0, round(target.issue_per_clock * target.warp_size / lanes) - 1.0)


def _scattered_rows(features: Features) -> Count:
    """Return the slowdown of DRAM where a warp's load touches more lines than it fills: parts of many rows."""
    loads = (features.direct - features.row_direct) * features.threads + features.stores
    lines = (features.lines - features.row_lines) * 32.0 / np.maximum(loads, 1e-9)
    return np.maximum(1.0, lines / FILLED_LINES) ** SCATTERED_ROWS_POWER


def _unfilled_lines(features: Features, target: Target) -> Count:
    """Return the lines that warps touch beyond those that their direct accesses would fill.

    Threads without loops touch a line again at once.
    """
    counted = _loads_in_loops(features) & np.equal(features.by_lanes, 0)
    filled = (features.fetched + features.stored) / target.shared_bandwidth
    return np.where(counted, np.maximum(0.0, features.lines - filled), 0.0)


def _loads_in_loops(features: Features) -> Count:
    """Return where loops load at known places: data give others, whose lines weigh more."""
    known = np.less_equal(features.lines, 1.01 * (features.direct * features.threads + features.stores))
    return known & np.greater(features.looped, 0) & np.equal(features.tensor, 0) & np.equal(features.chained, 0)


def _loads_of_round(features: Features) -> Count:
    return features.direct / np.maximum(1.0, features.rounds)


def _direct_latencies(features: Features, costs: CostCoefficients) -> Count:
    """Return the sequential latencies of a thread's direct loads.

    Reduction threads that multiply have as many in flight as registers hold; others have few.
    """
    room = np.clip((features.limit - STREAMING_REGISTERS - RUNNING_REGISTERS) / 4.0, 1.0, MAX_LOADS_IN_FLIGHT)
    batches = np.maximum(features.rounds, features.direct / room)
    loads = np.maximum(features.direct * features.threads, 1e-9)
    guarded = (1.0 + features.decoding / loads) ** costs.guarded
    line_factor = np.clip(features.lines * 32.0 / (loads + features.stores), 1.0, 32.0) ** costs.line_spread
    others = costs.direct * (features.direct + costs.divided * features.divided_direct) * guarded * line_factor
    return np.where(np.greater(features.by_lanes, 0), costs.streamed * batches, others)


def _transfer_seconds(
    features: Features, blocks: Count, fitting: Count, target: Target, costs: CostCoefficients
) -> tuple[Count, Count]:
    """Return the seconds of data transfer: from DRAM, and through the L2 cache for the fullest SM."""
    together = np.minimum(features.grid, target.NUM_SM * fitting)
    large = np.greater(features.unique_bytes, target.l2_bytes / 2)
    dram = np.maximum(features.unique_bytes, np.where(large, _wave_bytes(features, together), 0.0))
    lost = np.clip(2.0 * together * features.bytes / target.l2_bytes - 1.0, 0.0, 1.0)  # share that L2 no longer holds
    dram = dram + costs.again * lost * features.grid * features.again + features.grid * features.split
    asked = np.maximum(features.bytes, features.fetched)
    asked = (1.0 - costs.asked) * features.bytes + costs.asked * asked
    evicted = _evicted_share(features, np.minimum(fitting, np.ceil(features.grid / target.NUM_SM)), target)
    again = features.bytes + evicted * np.maximum(0.0, features.touched - features.bytes)
    through = np.maximum(asked, again) + features.stored
    through = through + costs.partial_stores * features.partial_stores
    through = through + costs.reread * features.again
    through = through + costs.unmoved * features.partial + costs.refetched * (1.0 - costs.asked) * features.missed
    return dram / (costs.dram * target.BW_global), blocks * through * target.NUM_SM / (costs.l2 * target.l2_bandwidth)


def _evicted_share(features: Features, resident: Count, target: Target) -> Count:
    """Return the share of the sectors of direct loads that L1 no longer holds when other loads touch them again."""
    room = np.maximum(target.bounds.l1_kept_bytes, target.shared_per_sm - resident * features.shared)
    return np.maximum(0.0, 1.0 - room / np.maximum(1.0, resident * features.window))


def _wave_bytes(features: Features, together: Count) -> Count:
    """Return the DRAM bytes where concurrent blocks share their reads, and later ones find nothing in L2."""
    whole = features.grid / features.batches
    together, several = np.minimum(together, whole), np.maximum(1.0, together / whole)
    side = np.maximum(1.0, whole / np.maximum(1.0, features.outer))
    grouped = np.equal(features.outer % features.raster, 0) & np.equal(features.batches, 1)
    tall = np.minimum(np.where(grouped, features.raster, 1), features.outer)
    wide = np.minimum(side, np.ceil(together / tall))
    tall = np.maximum(tall, np.ceil(together / wide))
    own = np.maximum(0.0, features.bytes - features.rows - features.columns)
    wave = several * (tall * features.rows + wide * features.columns + together * own)
    return features.grid / (several * together) * (wave + several * together * features.stored)


def _size_penalty(features: Features, costs: CostCoefficients) -> Count:
    """Return a soft penalty on long unrolled bodies (instruction cache, compile time), on impossible launch bounds, on
    more stages than most loops need, and on many loads of elements of a thread.
    """
    long = 1.0 + costs.long * np.maximum(0.0, np.log2(np.maximum(1.0, features.body / costs.cached_body)))
    slots = np.maximum(1.0, features.functions / costs.cached_functions)
    long = long + costs.functions * np.log2(slots)
    roomy = np.greater(features.registers, 128)
    asked = np.where(
        np.greater(features.min_blocks, 1), 0.002, np.where(np.equal(features.min_blocks, 1) == roomy, 0.0, 0.001)
    )
    copied = np.greater(features.tensor, 0) & np.equal(features.bulk, 0)
    crowded = costs.crowded * (copied & np.greater(features.held, costs.roomy_sums))
    deep = costs.deep * np.log2(np.maximum(1.0, features.stages / 4.0))
    narrow = np.less(features.bytes, WORD_BYTES * features.direct * features.threads)
    narrow = narrow & np.equal(features.looped, 0) & np.equal(features.copies, 0)
    plain = np.equal(features.looped, 0) & np.equal(features.copies, 0) & np.equal(features.tensor, 0)
    many = 2.0 * plain * np.log2(np.maximum(1.0, features.instances / FEW_RESULTS))
    many = many + narrow * np.log2(np.maximum(1.0, features.direct / FEW_LOADS))
    return long + asked + crowded + deep + costs.many_loads * many + 0.0005 * np.log2(features.raster)


def _few_warps_factor(features: Features, resident: Count, target: Target) -> Count:
    """Return the factor of loops that load without staging where few warps load few words at a time."""
    words = features.fetched / np.maximum(1e-9, WORD_BYTES * features.direct * features.threads)
    warps = resident * ceil_div(features.threads, target.warp_size) * np.maximum(1.0, words)
    direct = _loads_in_loops(features) & np.equal(features.copies, 0)
    direct = direct & (np.equal(features.shuffles, 0) | np.greater(features.quotients, 0))
    return np.where(direct, np.minimum(1.0, warps / target.warps_per_sm) ** -target.costs.few_warps, 1.0)


def _past_l1_penalty(features: Features, target: Target) -> Count:
    """Return a soft penalty on copies past L1 with matrix instructions and at most one block per SM."""
    past = np.greater(features.streamed, 0) & np.less_equal(features.grid, target.NUM_SM)
    return np.where(np.greater(features.tensor, 0) & past, target.costs.past_l1, 0.0)


def _sequential_time(features: Features, found: Bound, target: Target, costs: CoreCoefficients) -> Count:
    """Return the estimated time where a core runs a block's threads one after another: small blocks, few registers and
    barriers, no latency to hide.
    """
    warps = ceil_div(features.threads, target.warp_size)
    idle = target.warp_size * warps / features.threads
    busy = np.minimum(1.0, features.grid / target.NUM_SM)
    terms = found.terms
    busiest = np.maximum(terms["math"], np.maximum(terms["issue"], terms["shared"]))
    compute = (costs.busiest * busiest + costs.others * (terms["math"] + terms["issue"] + terms["shared"])) * idle
    asked = (1.0 - costs.asked) * features.bytes + costs.asked * features.fetched
    traffic = features.grid * (asked + features.stored) / target.l2_bandwidth
    memory = np.maximum(traffic, features.unique_bytes / target.BW_global) / np.maximum(busy, costs.least_busy)
    waves = np.ceil(features.grid / (target.NUM_SM * found.occupancy))
    exposed = np.where(np.greater(features.stages, 1), costs.prefetched, 1.0)
    rounds = waves * features.rounds * target.dram_latency * target.bounds.cached_latency * exposed
    # A barrier ends a loop over the work-items and spills values that live across it.
    barriers = waves * features.barriers * (target.barrier_clocks + features.threads * costs.spilled) / target.clock
    long = 1.0 + costs.long * np.maximum(0.0, np.log2(np.maximum(1.0, features.body / costs.cached_body)))
    long = long * (1.0 + costs.crowded * np.maximum(0.0, np.log2(features.threads / costs.few_threads)))
    long = long * (1.0 + costs.held * np.maximum(0.0, np.log2(features.registers / costs.few_registers)))
    return target.launch_time + (compute + memory + terms["latency"] + rounds + barriers) * long
