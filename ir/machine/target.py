"""Description of a machine, as numbers and capabilities.

Passes query these; no pass knows a target's name.
"""

from __future__ import annotations

from attrs import frozen

from .cost_coefficients import CoreCoefficients, CostCoefficients


@frozen
class Target:
    """Device: Table 5 of DeepCuts and further parameters of the lower bound.

    Rates are per second, sizes in bytes, times in seconds unless a name says otherwise.
    """

    name: str
    dialect: str  #: source language: "cuda" or "opencl"
    arch: str  #: the toolchain's name of it ("sm_90"), "" where it needs none
    NUM_SM: int
    PERF_peak: float  #: fp32 FLOP/s
    BW_global: float  #: bytes/s
    TRANS_global: int  #: elements of 4 bytes in one global memory transaction
    LAT_shared: float  #: clocks
    MAX_shared: int  #: bytes one block may allocate
    MAX_thread: int  #: threads of one block
    clock: float  #: highest clock, Hz
    shared_per_sm: int
    shared_reserved: int  #: bytes the system keeps of each block's allocation
    registers_per_sm: int
    max_registers: int  #: of one thread
    blocks_per_sm: int
    warps_per_sm: int
    warp_size: int
    issue_per_clock: int  #: warp instructions an SM issues per clock
    shared_bandwidth: float  #: bytes per clock and SM
    banks: int  #: shared-memory banks of 4 bytes
    l2_bandwidth: float
    l2_bytes: int
    launch_time: float
    dram_latency: float
    barrier_clocks: float  #: least cost of one block-wide barrier
    vector_bytes: int  #: widest load or store of one thread
    async_copy: bool  #: whether global-to-shared copies may be asynchronous
    costs: CostCoefficients  #: of the cost model, where warps run in lockstep
    core_costs: CoreCoefficients  #: of the cost model elsewhere
    sector_bytes: int = 32
    parameter_bytes: int = 1024  #: of the parameters of one launch
    lockstep: bool = (
        True  #: lanes of a warp run in lockstep, and other warps hide latency; else a core runs thread after thread
    )
    banked: bool = True  #: shared memory has banks, so that lanes may conflict there
    vector_additions: bool = False  #: whether a thread adds several f32 to memory at once
    warm_caches: bool = False  #: data may be in the caches when a kernel starts
    on_host: bool = False  #: kernels run on the processor that compiles them
    atoms: tuple[
        tuple[str, float], ...
    ] = ()  #: matrix instructions by name (`ir.machine`), with the clocks one takes a quarter SM
    first_load: float = 0.0  #: measured seconds of a kernel that loads one uncached line and stores it
    chain_clocks: float = 4.0  #: between dependent multiply-adds, on every machine described so far
    cached_latency: float = 0.3  #: least share of DRAM latency that a cache hit takes
    #: Least share of bulk traffic that passes through L2, where neighbours fetch a common tile: 402 MB in 31 us of an
    #: H200.
    least_l2_share: float = 0.5
    #: Weight of a memory line at a data-dependent address, relative to lines of a run: 33.5 million loads of random
    #: addresses, most of them L1 hits, take 85 us on an H200, half a clock each.
    scattered_line: float = 4.0
    l1_kept_bytes: float = 32768.0  #: of sectors that L1 keeps from one trip of a loop to the next
    #: Sectors that all parts of the L2 cache combine in parallel: values for fewer sectors wait for one another.
    parallel_sectors: float = 4096.0
    fenced_barriers: float = 12.0  #: of a fence for products and a barrier of several warpgroups, in barriers
    awaited_barriers: float = 4.0  #: of a part's waits for copies, products, and lanes of rows, in barriers
