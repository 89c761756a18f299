"""Launch sequences: kernels in order over memory that another library owns.

The addresses of its blocks may change from launch to launch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from attrs import frozen

from ..ir import KernelFunction
from .device import Array


@frozen
class BlockAddress:
    """Address in memory: a block's number and an offset in bytes."""

    block: int
    offset: int = 0


@frozen
class Copy:
    """Copy of bytes from one address to another."""

    source: BlockAddress
    destination: BlockAddress
    nbytes: int


@frozen
class KernelCall:
    """Kernel, by number, with its arguments in each iteration of its loop.

    Outside of loops it has one iteration. An argument is in the same block in each iteration. The argument of number
    `evict_first` begins a number of bytes that nothing else reads (`Device.evict_first`).
    """

    kernel: int
    iterations: tuple[tuple[BlockAddress, ...], ...]
    evict_first: tuple[int, int] | None = None


@frozen
class SequencePlan:
    """Launch sequence: copies, then calls in `order`, then copies again.

    `order` has the call and the iteration of each launch. `blocks` are the bytes of each block, which begin at
    multiples of 16, the widest load or store of a kernel. The first `fixed` of them seldom move. `waits` has the
    earlier launches that each launch waits for, where that is not just its predecessor.
    """

    blocks: tuple[int, ...]
    fixed: int
    calls: tuple[KernelCall, ...]
    order: tuple[tuple[int, int], ...]
    before: tuple[Copy, ...] = ()
    after: tuple[Copy, ...] = ()
    waits: tuple[tuple[int, ...], ...] | None = None


class LaunchSequence(ABC):
    """Loaded launch sequence, to be repeated.

    One thread at a time may call it.
    """

    @abstractmethod
    def launch(self, fixed: Sequence[int], moving: Sequence[int], stream: int) -> None:
        """Launch everything on a stream, over blocks at these addresses.

        Where `fixed` is the same object as in the last launch, it is not compared.
        """

    @abstractmethod
    def launch_individually(self, fixed: Sequence[int], moving: Sequence[int], stream: int) -> None:
        """Launch everything on a stream that a caller records, and store nothing.

        Raises `BackendError` where a part of it cannot be recorded.
        """


class SequenceLauncher(ABC):
    """Launches kernels in memory that another library owns."""

    #: True where a launch has finished when it returns, so that blocks may be read at once.
    is_blocking: bool

    @abstractmethod
    def upload(self, address: int, source: Array) -> None:
        """Copy a contiguous host array to an unused place."""

    @abstractmethod
    def settle(self) -> None:
        """Wait for all uploads."""

    @abstractmethod
    def load(
        self, plan: SequencePlan, kernels: Sequence[KernelFunction], binaries: Sequence[bytes | None]
    ) -> LaunchSequence:
        """Load kernels and return their launch sequence."""


def moved_blocks(known: Sequence[int], addresses: Sequence[int], first: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the number and new address of each block that has moved.

    Numbers are counted from `first`.
    """
    for number, (before, now) in enumerate(zip(known, addresses, strict=True), first):
        if before != now:
            yield number, now
