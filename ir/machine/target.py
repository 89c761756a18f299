"""Description of a machine, as numbers and capabilities.

Passes query these; no pass knows a target's name.
"""

from __future__ import annotations

from attrs import frozen

from .cost_coefficients import BoundCoefficients, CoreCoefficients, CostCoefficients


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
    bounds: BoundCoefficients  #: of the lower bound
    costs: CostCoefficients  #: of the cost model, where warps run in lockstep
    core_costs: CoreCoefficients  #: of the cost model elsewhere
    cluster_blocks: int = 1  #: most blocks of a thread block cluster, whose shared memory all of them access
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
    invariant: bool = False  #: kernels follow the policy `batch-invariant` (`ir.machine.policy`)
