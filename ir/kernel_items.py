"""Items of a kernel: phases, loops, barriers and bulk copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, Union

from attrs import frozen

from .affine import Guard, Index, Var
from .dfg import LaneReduce, Mma, MmaAccumulate, Root, WarpgroupMma
from .machine import LANES


@frozen(cache_hash=True)
class Share:
    """Division of one box variable of a phase over threads.

    `value` is the element a thread handles, in terms of thread coordinates and thread-local variables; `register`
    numbers it among the thread's own elements. `valid` holds where the element exists, for divisions with a remainder.
    With matrix instructions, a warp holds other elements of the operands than of the result: `operand` is "a", "b" or
    "c" for a share that only counts there.
    """

    var: Var
    value: Index
    register: Index
    valid: tuple[Guard, ...] = ()
    operand: str = ""


@frozen(cache_hash=True)
class Phase:
    """Data-flow graph that all threads execute between two barriers.

    `kind` is "fetch", "compute" or "exit". The phase runs only where `when` holds. `unrolled` lists the box variables
    in the order of their loops, outermost first. An `asynchronous` phase may issue copies that are in flight until a
    `Wait`; with `l1`, they leave their data in the L1 cache too (.ca). Instruction selection opens `scopes`: loops
    that hold everything that ranges over their variables.
    """

    kind: str
    name: str
    roots: tuple[Root, ...]
    unrolled: tuple[Var, ...]
    shares: tuple[Share, ...] = ()
    when: tuple[Guard, ...] = ()
    asynchronous: bool = False
    l1: bool = False
    scopes: tuple[Var, ...] = ()


@frozen(cache_hash=True)
class Barrier:
    """Block-wide barrier; shared memory is consistent afterwards."""


@frozen(cache_hash=True)
class Commit:
    """Close the group of asynchronous copies issued since the last one."""


@frozen(cache_hash=True)
class Wait:
    """Wait until at most `pending` groups of asynchronous copies are unfinished."""

    pending: int


@frozen(cache_hash=True)
class Loop:
    """Loop `for var in [0, var.extent)` over K blocks.

    It ends before `until`, a definition that is the same for all threads of a block, where there is one; with
    `at_least_once` not before the second iteration. Instruction selection sets the factor `unroll`.
    """

    var: Var
    body: tuple[Item, ...]
    until: Var | None = None
    at_least_once: bool = False
    unroll: int = 1


@frozen(cache_hash=True)
class ProxyFence:
    """Make a thread's writes to shared memory visible to asynchronous products.

    Products of other threads see them after the next barrier.
    """


@frozen(cache_hash=True)
class ProductFence:
    """Order a warpgroup's register writes before the products after it.

    Those of the registers `names` are written in each K block.
    """

    names: tuple[str, ...] = ()


@frozen(cache_hash=True)
class ProductCommit:
    """Close the group of products issued since the last one."""


@frozen(cache_hash=True)
class ProductWait:
    """Wait until at most `pending` groups of products are unfinished.

    The registers `names` may be used afterwards: no unfinished product adds to them. Those of `before` are computed
    while products are unfinished.
    """

    pending: int
    names: tuple[str, ...] = ()
    before: tuple[str, ...] = ()


@frozen(cache_hash=True)
class LaneExchange:
    """Transposition of results among the four lanes of a row.

    Of every eight neighbours of a lane in the registers `name`, along tile dim `dim`, pair p of lane t becomes pair t
    of lane p. Lanes hold pairs of four groups of columns before, and eight neighbours of one group afterwards.
    """

    name: str
    dim: int


@frozen(cache_hash=True)
class MbarrierInit:
    """Initialise all mbarriers of the shared buffer `barriers`.

    A phase of an mbarrier completes with `arrivals` arrivals and the expected bytes. Threads see it after a barrier.
    """

    barriers: str
    arrivals: int


@frozen(cache_hash=True)
class BulkCopy:
    """Copy of a tensor map's box to `address` of a shared buffer.

    The box begins at `coordinates`.
    """

    map: str
    coordinates: tuple[Index, ...]
    buffer: str
    address: Index


@frozen(cache_hash=True)
class BulkFetch:
    """Copies that one thread issues, where `when` holds.

    It arrives at mbarrier `slot` of `barriers`, and expects `nbytes` bytes there.
    """

    barriers: str
    slot: Index
    nbytes: int
    copies: tuple[BulkCopy, ...]
    when: tuple[Guard, ...] = ()


@frozen(cache_hash=True)
class MbarrierWait:
    """Wait for the phase of parity `parity` of mbarrier `slot`.

    Its copies are complete for the waiting thread.
    """

    barriers: str
    slot: Index
    parity: Index


@frozen(cache_hash=True)
class MbarrierArrive:
    """Arrive at mbarrier `slot` where `when` holds, once for each warp."""

    barriers: str
    slot: Index
    when: tuple[Guard, ...] = ()


Item: TypeAlias = Union[
    Phase,
    Barrier,
    Commit,
    Wait,
    ProxyFence,
    ProductFence,
    ProductCommit,
    ProductWait,
    LaneExchange,
    MbarrierInit,
    BulkFetch,
    MbarrierWait,
    MbarrierArrive,
    Loop,
]


@frozen(cache_hash=True)
class Producer:
    """Items of one thread of `threads` beside those that compute.

    It begins after the kernel's first barrier. With `registers`, its threads keep so many, and the others get `others`.
    """

    body: tuple[Item, ...]
    threads: int = LANES
    registers: int = 0
    others: int = 0


def has_synchronisation(items: Sequence[Item]) -> bool:
    """Return whether threads synchronise in some items."""
    for item in items:
        combines = isinstance(item, Phase) and any(
            isinstance(root, (LaneReduce, MmaAccumulate, Mma, WarpgroupMma)) for root in item.roots
        )
        if (
            combines
            or isinstance(item, (Barrier, MbarrierWait, LaneExchange))
            or (isinstance(item, Loop) and has_synchronisation(item.body))
        ):
            return True
    return False
