"""Items of kernel IR that copy boxes of tensor maps."""

from __future__ import annotations

from attrs import frozen

from ..affine import Guard, Index


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
