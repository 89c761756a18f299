"""Feature schema: the counts of a candidate schedule, with meaning and kind.

Counts are per block unless one says otherwise, sums over the segments of the group. Everything else reads the
declarations: the walk over a group keeps a sum for each count that is one; reports and fits list the fields.
"""

from __future__ import annotations

from typing import Any

import attrs
from attrs import field, frozen

from ..geometry import Count


@frozen
class PaperCounts:
    """Counts of one segment in the paper's model.

    They are its predecessor's loads and transactions, and the arithmetic of all its operations.
    """

    comp_block: Count
    comp_thread: Count
    loads: Count
    transactions: Count


def _plain_count(meaning: str) -> Any:
    """Declare a count that follows from the candidate itself."""
    return field(metadata={"meaning": meaning, "sum": False})


def _sum(meaning: str) -> Any:
    """Declare a count that the walk over a group sums."""
    return field(metadata={"meaning": meaning, "sum": True})


@frozen
class Features:
    """Counts of a template's candidate schedules; the arrays broadcast."""

    # Launch
    grid: Count = _plain_count("blocks of the grid")
    outer: Count = _plain_count("blocks along the outermost dim along which they share reads")
    batches: Count = _plain_count("blocks along the dims before that, of independent products")
    threads: Count = _plain_count("threads of a block")
    working: Count = _plain_count("warps of a block that work, in the mean over its instructions")
    stages: Count = _plain_count("buffers of the deepest ring that a loop cycles through")
    bulk: Count = _plain_count("form of the bulk copies of factors, 0 for none and for chains in registers")
    fragments: Count = _plain_count("1 where a warp loads the factors of matrix instructions itself")
    box_products: Count = _plain_count("1 where products fill or read a box in shared memory")
    chained: Count = _plain_count("form of a chain in registers: 1 of warps, 2 of warpgroups, 3 without row operations")
    tiled: Count = _plain_count("tiles of rows that a block adds to column sums, 0 without these")
    persistent: Count = _plain_count("1 where the blocks of a chain in registers take several tiles in turn")
    in_step: Count = _plain_count("warpgroups of a chain that meet at a barrier in each part")
    by_lanes: Count = _plain_count("1 where reduction threads load the factors of products, each element once")
    raster: Count = _plain_count("blocks along the outermost dim that the grid walks together")
    min_blocks: Count = _plain_count("blocks that shall be resident on an SM, 0 where the schedule does not ask")
    # Memory of a block and registers of a thread
    shared: Count = _plain_count("bytes of shared memory")
    tile: Count = _plain_count("elements of the smallest staged tile")
    registers: Count = _plain_count("registers that a compiler is expected to use for a thread, of the `limit`")
    needed: Count = _plain_count("fewest registers of a thread that spill nothing")
    held: Count = _plain_count("registers that a thread certainly holds")
    limit: Count = _plain_count("registers that a thread may have")
    instances: Count = _plain_count("independent results of a thread")
    # Arithmetic
    flops: Count = _sum("operations of all threads, a multiply-add as two")
    issue: Count = _sum("issue slots of all threads, a multiply-add as one")
    converted: Count = _sum("conversions of all threads between half types in memory and the compute type")
    alike: Count = _sum("multiply-adds of all threads that take a factor from a vector along the depth")
    thread_flops: Count = _sum("operations of one thread: `COMP_thread` of the paper")
    body: Count = _sum("operations of a thread's longest unrolled loop body")
    functions: Count = _sum("issue slots of that body's operations that take several, as functions do")
    chain: Count = _sum("longest chain of dependent operations of a thread")
    decoding: Count = _sum("instructions of all threads for guards and flattened indices of direct loads")
    quotients: Count = _sum("instructions of all threads that find the axes of flattened dims")
    promoted: Count = _sum("issue slots of all threads, of `issue`, in which products wait for sums that are promoted")
    tensor: Count = _sum("clocks that atoms keep all tensor cores of an SM busy")
    # Loads and stores
    thread_loads: Count = _sum("loads of one thread: `N_load` of the paper")
    global_loads: Count = _sum("load instructions of all threads from global memory")
    shared_loads: Count = _sum("load instructions of all threads from shared memory")
    direct: Count = _sum("load instructions of one thread that are no part of a fetch")
    stores: Count = _sum("store instructions of all threads")
    copies: Count = _sum("instructions of all threads that fetch staged tiles")
    register_staged: Count = _sum("instructions of all threads that fetch through registers what a ring could not copy")
    divided: Count = _sum("elements that a block fetches by way of divisions")
    uneven: Count = _sum("copies of a fetch whose places in a tile are found by divisions of their own")
    divided_direct: Count = _sum("direct loads of one thread whose address takes divisions")
    certain: Count = _sum("memory instructions that are left where the compiler merges all neighbours into vectors")
    # Cycles of shared memory and L1
    wavefronts: Count = _sum("cycles of shared memory or L1 that all loads take")
    least_wavefronts: Count = _sum("such cycles that are left where the compiler merges all neighbours into vectors")
    waited: Count = _sum("cycles of shared memory that tensor cores wait for: those of fragments not loaded ahead")
    scatter: Count = _sum("cycles in which fetches store tiles turned round")
    lines: Count = _sum("memory lines that direct loads and stores of warps touch; none where lanes load one by one")
    boxed: Count = _sum("lines of shared memory that bulk copies bring")
    straddling: Count = _sum("such lines that begin within a sector of memory")
    shuffles: Count = _sum("words that warps pass between their lanes, an instruction each")
    partial_stores: Count = _sum(
        "bytes of sectors that stores of warps touch and do not write, without matrix instructions"
    )
    split: Count = _sum("bytes of pairs of sectors that a block's stores touch and do not write")
    partial: Count = _sum("bytes of sectors that stores and direct loads of warps touch and do not move")
    # Traffic
    transactions: Count = _sum("transactions of `TRANS_global` elements")
    bytes: Count = _sum("bytes of whole sectors that a block must get at least")
    streamed: Count = _sum("bytes that pass by the L1 cache")
    missed: Count = _sum("bytes that copies past the L1 cache bring again")
    rows: Count = _sum("the part of `bytes` that depends on no dim after the `outer` one")
    columns: Count = _sum("the part of `bytes` that does not depend on the `outer` dim")
    touched: Count = _sum("bytes of sectors that direct loads of warps touch, each access for itself")
    window: Count = _sum("such bytes that all warps of a block touch in one trip")
    again: Count = _sum("bytes that a later statement of the block reads once more")
    fetched: Count = _sum("bytes that a block asks for")
    stored: Count = _sum("bytes that a block writes")
    combined: Count = _sum(
        "sectors of memory in which atomic operations combine values, those that wait for others more"
    )
    # Waiting
    barriers: Count = _sum("barriers of the block")
    exchanged: Count = _sum("exchanges of the blocks of a cluster")
    joined: Count = _sum("doublings of the warps that divide a depth and add up their sums")
    asked: Count = _sum("segments that load from memory after their reductions")
    looped: Count = _sum("such rounds of loops that stage nothing")
    rounds: Count = _sum("rounds of loops in which memory is waited for")
    row_direct: Count = _sum("direct loads of a thread before the segment of a product of one row")
    row_lines: Count = _sum("memory lines of warps before such a segment")
    row_flops: Count = _sum("operations of a thread before such a segment")
    # The group as a whole
    useful_flops: float = _plain_count("operations that the group is defined by, over all blocks")
    unique_bytes: float = _plain_count("distinct bytes that the group reads and writes")
    segments: tuple[PaperCounts, ...] = _plain_count("what the paper's model knows of each segment")


#: The counts that are sums, in order.
SUMS = tuple(f.name for f in attrs.fields(Features) if f.metadata["sum"])
#: The counts that are numbers: all but those by segment.
NUMBERS = tuple(f.name for f in attrs.fields(Features) if f.name != "segments")
