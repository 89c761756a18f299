"""Calibration of the cost model, fitted by `bench/tools/fit_rank.py`; data, not code.

Fitted to 12,900 candidate schedules of 226 operations (convolutions of four networks and their transforms, matrix
products, row operations, pooling, pointwise) on an H200: random ones, the model's favourites, and those that tuning
measured. The rates and latencies that they scale are the target's.
"""

from __future__ import annotations

from attrs import frozen


@frozen
class CostCoefficients:
    """Coefficients of the counts; positive, fitted in their logarithms.

    Instructions of a warp: `load` and `shared_load` each, `store`, `guard` per instruction of guards and flattened
    indices of direct loads, `fetch` per instruction of staging, `division` per staged element found by divisions,
    `beginning` of a kernel, `loop` per round. Cycles of shared memory: `returned` per load and lane, `written` per
    staged instruction, `turned` per cycle of transposed tiles, `line` per line of direct accesses; `conflict` is the
    exponent of bank conflicts.

    `warps` is how many warps of an SM hide the latency of arithmetic, `independent` the exponent of their results,
    `hiding` that of the loss. `dram` and `l2` are shares of the bandwidth that kernels sustain, `again` the share of
    re-read bytes that DRAM serves, `asked` the share of L2 traffic that follows the threads' requests. One more than
    `overlap` is the power in which times add up: the greater, the better resources work side by side.

    Latency, in units of that of DRAM: `direct` of a direct load, `divide` times more where its address takes
    divisions, with exponents `guarded` and `line_spread` of its guards and its lines per 32 lanes; `staged_round` and
    `direct_round` of a round; `first` of a block; `fixed` of a kernel. `ahead` is the share of it
    that the work of other rounds hides. `barrier` scales the target's, `block` is clocks to start one, `tail` the share
    of the last wave that is not filled, `long` the cost of each doubling of a long body.
    """

    load: float
    shared_load: float
    store: float
    guard: float
    fetch: float
    division: float
    beginning: float
    loop: float
    returned: float
    written: float
    turned: float
    line: float
    conflict: float
    warps: float
    independent: float
    hiding: float
    dram: float
    l2: float
    again: float
    asked: float
    overlap: float
    direct: float
    divided: float
    guarded: float
    line_spread: float
    staged_round: float
    direct_round: float
    first: float
    fixed: float
    ahead: float
    barrier: float
    block: float
    tail: float
    long: float


FITTED_COEFFICIENTS = CostCoefficients(
    load=0.7641, shared_load=0.2191, store=0.9351, guard=0.1639, fetch=9.05, division=20.76,
    beginning=16.38, loop=3.884, returned=0.3379, written=0.4567, turned=0.7709, line=0.129, conflict=0.3247,
    warps=47.92, independent=0.0559, hiding=0.115, dram=1.087, l2=1.187, again=1.122, asked=0.444, overlap=0.3953,
    direct=0.02905, divided=3.137, guarded=0.0724, line_spread=0.1945, staged_round=1.658, direct_round=0.1625,
    first=1.392, fixed=1.355, ahead=3.625, barrier=1.005,
    block=10.81, tail=0.821, long=0.06633,
)  # fmt: skip
