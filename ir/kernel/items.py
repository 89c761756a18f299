"""Items of kernel IR: phases over block tiles, and loops.

The same classes describe a kernel before extraction (phases over the block's box, which `shares` divide over threads)
and after (phases over one thread's box, `shares` empty).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, Union

from attrs import frozen

from ..affine import Guard, Index, Var
from ..dfg import LaneProduct, LaneReduce, Mma, MmaAccumulate, Root, WarpgroupMma
from ..machine import LANES
from .bulk_copies import BulkFetch, MbarrierArrive, MbarrierInit, MbarrierWait
from .synchronisation import (
    Barrier,
    Commit,
    LaneExchange,
    ProductCommit,
    ProductFence,
    ProductWait,
    ProxyFence,
    TurnPass,
    TurnWait,
    Wait,
)


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


Item: TypeAlias = Union[
    Phase,
    Barrier,
    Commit,
    Wait,
    ProxyFence,
    ProductFence,
    ProductCommit,
    ProductWait,
    TurnWait,
    TurnPass,
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
            isinstance(root, (LaneProduct, LaneReduce, MmaAccumulate, Mma, WarpgroupMma)) for root in item.roots
        )
        if (
            combines
            or isinstance(item, (Barrier, MbarrierWait, LaneExchange))
            or (isinstance(item, Loop) and has_synchronisation(item.body))
        ):
            return True
    return False


def phases(items: tuple[Item, ...]) -> list[Phase]:
    """Return all phases, loops entered, in order."""
    found: list[Phase] = []
    for item in items:
        if isinstance(item, Phase):
            found.append(item)
        elif isinstance(item, Loop):
            found.extend(phases(item.body))
    return found


def bulk_fetches(items: tuple[Item, ...]) -> list[BulkFetch]:
    """Return all bulk fetches, loops entered, in order."""
    inner = ([item] if isinstance(item, BulkFetch) else bulk_fetches(item.body) for item in items
             if isinstance(item, (BulkFetch, Loop)))  # fmt: skip
    return [fetch for found in inner for fetch in found]


def loops(items: tuple[Item, ...]) -> list[Loop]:
    """Return all loops, outer ones before those inside of them."""
    found: list[Loop] = []
    for loop in (item for item in items if isinstance(item, Loop)):
        found += [loop, *loops(loop.body)]
    return found
