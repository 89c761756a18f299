"""Coefficients of a target's lower bound and cost model (`cuts.bench fit-rank`)."""

from __future__ import annotations

from attrs import frozen


@frozen(cache_hash=True)
class BoundCoefficients:
    """Least costs that no schedule of a machine avoids.

    `chain` is clocks between dependent multiply-adds, `mma_chain` as many times more between dependent matrix
    instructions. `cached_latency` is the least share of DRAM latency that a cache hit takes, `least_l2_share` that of
    reads that L2 serves one by one where blocks fetch a common tile at the same time, `scattered_line` the weight of a
    memory line at a data-dependent address relative to lines of a run. L1 keeps `l1_kept_bytes` of sectors from one
    trip of a loop to the next; L2 combines values in `parallel_sectors` at once, and values for fewer wait for one
    another. `fenced_barriers` of a fence for products and a barrier of several warpgroups, and `awaited_barriers` of a
    part's waits for copies, products and lanes of rows, are in barriers. Estimates below `least_modelled` seconds do
    not compare algorithms: several launches that hide their latency replace one.
    """

    chain: float
    mma_chain: float
    cached_latency: float
    least_l2_share: float
    scattered_line: float
    l1_kept_bytes: float
    parallel_sectors: float
    fenced_barriers: float
    awaited_barriers: float
    least_modelled: float


@frozen(cache_hash=True)
class CostCoefficients:
    """Coefficients of the counts, with lockstep warps; positive, fitted in their logarithms.

    Instructions of a warp: `load` and `shared_load` each, `store`, `guard` per instruction of guards and flattened
    indices of direct loads, `fetch` per instruction of staging, `division` per staged element found by divisions,
    `dividing_copy` per copy whose place is, `beginning` of a kernel, `loop` per round, `stage` per round and
    prefetched buffer. Cycles of shared memory: `returned` per load and lane, `written` per staged instruction,
    `turned` per cycle of transposed tiles, `line` per line of direct accesses, `shuffle` per word; `conflict` is
    the exponent of bank conflicts. `register_bank` is clocks per multiply-add whose factor comes from a vector
    along the depth, `two_vectors` the weight of one whose factors both do, `written_alone` clocks per cycle in which
    a lone block of several writes its tiles, `transposed` those of each part of a word that threads transpose on its
    way to products in place.

    `warps` is how many warps of an SM hide the latency of arithmetic, `independent` the exponent of their results,
    `hiding` that of the loss. `dram` and `l2` are shares of the bandwidth that kernels sustain, `again` the share
    of re-read bytes that DRAM serves, `asked` the share of L2 traffic that follows the threads' requests, `unmoved`
    and `refetched` weights of unmoved bytes of touched sectors and of bytes that copies past L1 fetch again,
    `partial_stores` that of bytes of sectors that stores fill in part, `reread` that of bytes that a block reads again,
    `unfilled_line` the clocks of a memory line that warps touch beyond those that they fill, `combined` the sectors
    that L2 combines values in per clock and SM. One more than `overlap` is the power in which times add up,
    `mma_overlap` that with matrix instructions: the greater, the better resources work side by side.

    Latency, in units of that of DRAM: `direct` of a direct load, `divided` times more where its address takes
    divisions, with exponents `guarded` and `line_spread` of its guards and its lines per 32 lanes; `staged_round`
    and `direct_round` of a round; `first` of a block; `epilogue` of a segment that loads after its reductions;
    `fixed` of a kernel. `ahead` is the share of it that the work of other rounds hides, `beside_single` the part of
    that which other blocks do where a block has one buffer, without matrix instructions, `interleaved` the share of
    a K block that is multiplied before copies begin on average. `barrier` scales the target's, `block` is clocks to
    start one, `joined` those per doubling of the warps of a warp split-K, `tail` the share of the last wave that is
    not filled.

    Relative losses: `long` of each doubling of a body beyond `cached_body` operations, `functions` of each of its
    functions beyond `cached_functions` issue slots, `crowded` of threads with more than `roomy_sums` sums, `deep` of
    each doubling of the stages beyond four, `past_l1` of copies past L1 where one wave of blocks is the whole grid.
    Products whose factors threads copy take `copied_products` times as long, where warps load fragments of them
    `fragment_products` times; where warpgroups multiply factors that threads compute, `computed_factors` times more.
    Products beside a box take `box_products` times as long, more by `box_registers` for each register of a thread and
    by `box_tail` for one wave of blocks. On their way to products in place, an element of each lane takes
    `element_copy` clocks of an SM, 4 or 8 bytes of each `narrow_copy`. Without sums, narrow elements take `many_loads`
    more for each doubling of a thread's loads beyond sixteen. Loops of direct loads lose by the warps that an SM lacks,
    with the exponent `few_warps`.

    Products of bulk copies: weights `bulk_tensor`, `bulk_l2` and `bulk_dram` of clocks of tensor cores and of
    traffic, `bulk_dram_power` in which DRAM and all else add up, `bulk_neighbour` the share of a tile that
    neighbouring blocks have in common which passes through L2 for each. `bulk_latency` of a block and
    `bulk_arrival` of a K block are in latencies of DRAM, `bulk_barrier` is clocks of a K block's barrier without a
    producer, `bulk_loop` the power in which products and arrivals add up. An instruction of the epilogue takes
    `bulk_epilogue` clocks per warp and scheduler, where `bulk_epilogue_warps` warps hide its latency, with fewer
    more by the exponent `bulk_epilogue_power`; `bulk_line` is clocks of a line that it moves, `bulk_box_line` of a line
    of shared memory that copies bring, `bulk_straddling_line` more of one that begins within a sector.
    Teams, whose tiles are small, wait for lines and the share `bulk_team_l2` of the L2 traffic at least.

    Chains in registers: weights `chain_work` of their work and `chain_l2` of L2 traffic, `chain_latency` in which a
    block begins and ends, in latencies of DRAM; clocks in which no block of an SM works in a part (`chain_part`),
    and those of each warpgroup beyond the first one that waits for the others (`chain_in_step`). In each part, values
    between products take `chain_value` clocks, none where warpgroups take turns, and each of three or more warpgroups
    `chain_late` clocks where there are two stages.

    Where reduction threads multiply, a batch of loads in flight takes `streamed` latencies of DRAM, which sustains the
    share `streamed_dram` of its bandwidth; `streamed_overlap` is the power in which times add up there.

    Clusters: a block begins in `cluster_block` latencies of DRAM, exchanges in `cluster_exchange`, and issues for
    `cluster_issue` times its slots, `cluster_hiding` more where one warp is resident, less `cluster_copied` of a first
    loop beside copies. An access takes `cluster_access` clocks of an SM, one to shared memory `cluster_shared`; L2
    traffic `cluster_l2` times its own time, that of DRAM `cluster_alone` times where a block is alone.

    Column sums: a tile waits `column_sums` latencies of DRAM for its sums, without a ring `column_rows` more for its
    rows, and issues for `column_issue` times its slots, with a ring `column_ring_issue` times. `column_power` is the
    power in which both add up, `column_dram_power` that in which tiles and `column_dram` times the time of DRAM do;
    a wave begins in `column_begin` latencies.

    Layouts of products without matrix instructions: a thread multiplies `multiplications` numbers while 16 bytes pass
    through memory. A factor along the reduced axis takes `along_depth` of the product's time, and rows that are added
    up across memory `across_rows` times their accesses.
    """

    load: float
    shared_load: float
    store: float
    guard: float
    fetch: float
    division: float
    dividing_copy: float
    beginning: float
    loop: float
    stage: float
    returned: float
    written: float
    turned: float
    line: float
    shuffle: float
    conflict: float
    register_bank: float
    written_alone: float
    transposed: float
    two_vectors: float
    warps: float
    independent: float
    hiding: float
    dram: float
    l2: float
    again: float
    asked: float
    unmoved: float
    refetched: float
    combined: float
    overlap: float
    mma_overlap: float
    direct: float
    divided: float
    guarded: float
    line_spread: float
    staged_round: float
    direct_round: float
    first: float
    epilogue: float
    fixed: float
    ahead: float
    interleaved: float
    barrier: float
    block: float
    joined: float
    tail: float
    long: float
    cached_body: float
    crowded: float
    roomy_sums: float
    deep: float
    past_l1: float
    element_copy: float
    narrow_copy: float
    many_loads: float
    bulk_tensor: float
    bulk_l2: float
    bulk_dram: float
    bulk_dram_power: float
    bulk_neighbour: float
    bulk_latency: float
    bulk_arrival: float
    bulk_barrier: float
    bulk_loop: float
    bulk_epilogue: float
    bulk_epilogue_warps: float
    bulk_epilogue_power: float
    bulk_line: float
    bulk_box_line: float
    bulk_straddling_line: float
    bulk_team_l2: float
    chain_work: float
    chain_l2: float
    chain_latency: float
    chain_part: float
    chain_in_step: float
    multiplications: float
    along_depth: float
    across_rows: float
    chain_value: float = 0.0
    chain_late: float = 0.0
    streamed: float = 2.5
    streamed_dram: float = 0.94
    streamed_overlap: float = 6.0
    cluster_block: float = 0.19
    cluster_exchange: float = 0.45
    cluster_issue: float = 0.92
    cluster_copied: float = 0.9
    cluster_hiding: float = 4.8
    cluster_access: float = 1.7
    cluster_shared: float = 2.1
    cluster_l2: float = 1.15
    cluster_alone: float = 0.75
    column_sums: float = 0.46
    column_rows: float = 2.94
    column_issue: float = 1.49
    column_ring_issue: float = 1.78
    column_power: float = 1.1
    column_dram: float = 1.21
    column_dram_power: float = 2.7
    column_begin: float = 2.0
    copied_products: float = 1.0
    fragment_products: float = 1.0
    computed_factors: float = 1.0
    box_products: float = 1.0
    box_registers: float = 0.0
    box_tail: float = 0.0
    partial_stores: float = 6.0
    unfilled_line: float = 0.4
    functions: float = 0.4
    cached_functions: float = 800.0
    reread: float = 1.0
    beside_single: float = 1.0
    few_warps: float = 0.15


@frozen(cache_hash=True)
class CoreCoefficients:
    """Coefficients of the cost model without lockstep warps.

    A core runs a block's threads one after another. `busiest` and `others` weigh the busiest unit of a core and the
    sum of all, `asked` is the share of traffic that follows the threads' requests, `least_busy` the least share of
    cores that memory serves, `prefetched` the share of latency that several stages leave, `spilled` clocks of a
    barrier per thread. Relative losses of each doubling: `long` beyond `cached_body` operations of a body,
    `crowded` beyond `few_threads` threads of a block, `held` beyond `few_registers` registers.
    """

    busiest: float
    others: float
    asked: float
    least_busy: float
    prefetched: float
    spilled: float
    long: float
    cached_body: float
    crowded: float
    few_threads: float
    held: float
    few_registers: float
