"""Constants of the estimate of time that orders points, fitted to measured kernels by `bench/fit_rank.py`; data, not code.

Fitted to 6400 points of 33 operations (convolutions, matrix products, row operations, pooling, pointwise) on an H200, random points and
favourites. The rates and latencies that they scale are the target's.
"""

from __future__ import annotations

from attrs import frozen


@frozen
class Costs:
    """What the estimate multiplies the counts of a point with; all are positive, and are fitted in their logarithms.

    Instructions of a warp: `load` and `shared_load` each, `store`, `guard` per instruction of guards and flattened indices of direct
    loads, `fetch` per instruction of staging, `division` per staged element found by divisions, `table` in place of those by a table,
    `beginning` of a kernel, `loop` per round. Cycles of shared memory: `returned` per load and lane, `written` per staged instruction,
    `turned` per cycle of tiles turned round, `line` per line of direct accesses; `conflict` is the exponent of bank conflicts.

    `warps` is how many warps of an SM hide the latency of arithmetic, `independent` the exponent of their results, `hiding` that of the
    loss. `dram` and `l2` are shares of the bandwidth that kernels sustain, `again` the part of re-read bytes that DRAM serves, `asked`
    the part of L2 traffic that follows what threads ask for. One more than `overlap` is the power in which
    times add up: the greater, the better resources work side by side.

    Latency, in units of that of DRAM: `direct` of a direct load, `divided` times more where its address takes divisions, with exponents
    `guarded` and `apart` of its guards and its lines per 32 lanes; `staged_round` and `direct_round` of a round; `first` of a block;
    `entry` of a table; `fixed` of a kernel. `ahead` tells how much of it the work of other rounds hides.
    `barrier` scales the target's, `block` is clocks to start one, `tail` the share of the last wave that is not filled, `long` what each
    doubling of a long body costs.
    """

    load: float
    shared_load: float
    store: float
    guard: float
    fetch: float
    division: float
    table: float
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
    apart: float
    staged_round: float
    direct_round: float
    first: float
    entry: float
    fixed: float
    ahead: float
    barrier: float
    block: float
    tail: float
    long: float


FITTED = Costs(
    load=1.179, shared_load=0.2307, store=1.066, guard=0.2166, fetch=9.469, division=14.61, table=15.04, beginning=21.72, loop=8.51,
    returned=0.4406, written=0.4941, turned=0.8435, line=0.05665, conflict=0.3634, warps=52.76, independent=0.05951, hiding=0.1561,
    dram=0.9102, l2=0.5671, again=1.088, asked=0.2868, overlap=0.6263, direct=0.01749, divided=2.182, guarded=0.1158, apart=0.2633,
    staged_round=0.5995, direct_round=0.4505, first=0.4326, entry=0.8617, fixed=1.0, ahead=2.499, barrier=0.7684, block=18.93,
    tail=0.6295, long=0.0377,
)  # fmt: skip
