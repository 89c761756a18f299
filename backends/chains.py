"""Kernels launched in order over blocks of memory that another library owns, and that may lie elsewhere each time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from attrs import frozen

from ..ir import KernelFunction
from .device import Array


@frozen
class BlockPlace:
    """A place in memory: the number of a block, and how many bytes from its start."""

    block: int
    offset: int = 0


@frozen
class Copied:
    """Bytes that are copied from one place to another."""

    source: BlockPlace
    destination: BlockPlace
    nbytes: int


@frozen
class Called:
    """A kernel, by number, and where its arguments lie at each turn of its loop (one, where it is in none).

    An argument is in the same block at each turn. The one of number `passing` begins a number of bytes that nothing
    else reads (`Device.passing`).
    """

    kernel: int
    turns: tuple[tuple[BlockPlace, ...], ...]
    passing: tuple[int, int] | None = None


@frozen
class ChainPlan:
    """What a chain does: copies, then `order`, the call and the turn of each launch, then copies again.

    `blocks` are the bytes of each block, which begin at multiples of 16: no kernel loads or stores more at once. The
    first `fixed` of them seldom move. `waits` has for each launch those before it that it waits for, where that is not
    just the one in front of it.
    """

    blocks: tuple[int, ...]
    fixed: int
    calls: tuple[Called, ...]
    order: tuple[tuple[int, int], ...]
    before: tuple[Copied, ...] = ()
    after: tuple[Copied, ...] = ()
    waits: tuple[tuple[int, ...], ...] | None = None


class Chain(ABC):
    """Launches in order, made ready to be repeated. One thread at a time may call it."""

    @abstractmethod
    def launch(self, fixed: Sequence[int], moving: Sequence[int], stream: int) -> None:
        """Launch everything on a stream, over blocks at these addresses.

        Where `fixed` is the very object of the last launch, it is not looked at.
        """

    @abstractmethod
    def launch_apart(self, fixed: Sequence[int], moving: Sequence[int], stream: int) -> None:
        """Launch everything on a stream that somebody records, and keep nothing of it.

        Raises `BackendError` where something of it cannot be recorded.
        """


class Chains(ABC):
    """What launches kernels in memory that another library owns."""

    #: Whether a launch has finished when it returns, so that blocks may be read at once.
    waits: bool

    @abstractmethod
    def upload(self, address: int, source: Array) -> None:
        """Copy a contiguous host array to a place that nothing is using."""

    @abstractmethod
    def settle(self) -> None:
        """Wait for all that was uploaded."""

    @abstractmethod
    def chain(self, plan: ChainPlan, kernels: Sequence[KernelFunction], binaries: Sequence[bytes | None]) -> Chain:
        """Load kernels and return what launches them in order."""


def moved(known: Sequence[int], addresses: Sequence[int], first: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the number, counted from `first`, and the new address of each block that lies elsewhere than known."""
    for number, (before, now) in enumerate(zip(known, addresses, strict=True), first):
        if before != now:
            yield number, now
