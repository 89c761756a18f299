"""Items of kernel IR that order the threads of a block."""

from __future__ import annotations

from attrs import frozen


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
class TurnWait:
    """Wait for a warpgroup's turn to issue products."""


@frozen(cache_hash=True)
class TurnPass:
    """Give the turn to the next warpgroup in a circle.

    Warpgroups from `first` to `last` do, `last` excluded: once before all turns the last one, so that the first one
    begins, then all. Tensor cores then serve one after the other; each computes values meanwhile.
    """

    first: int
    last: int


@frozen(cache_hash=True)
class LaneExchange:
    """Transposition of results among the four lanes of a row.

    Of every eight neighbours of a lane in the registers `name`, along tile dim `dim`, pair p of lane t becomes pair t
    of lane p. Lanes hold pairs of four groups of columns before, and eight neighbours of one group afterwards.
    """

    name: str
    dim: int
