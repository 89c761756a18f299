"""Launch sequences: kernels in order over blocks of memory.

The blocks are buffers of a device, or memory that another library owns and that may move from launch to launch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from attrs import frozen

from ..ir import KernelFunction
from .device import Array, Device, Launch, Pointer, launch_all


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
    `evict_first` begins a number of bytes that nothing else reads: the L2 cache evicts these first.
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

        Where `fixed` is the same object as in the last launch, it is not compared. A stream that the caller records
        gets the launches as part of its recording.

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


class BoundSequence:
    """Launch sequence bound to blocks at pointers of a device.

    `launches` has the launch of each element of the plan's order, `calls` those of each call, by iteration.
    """

    def __init__(
        self,
        device: Device,
        plan: SequencePlan,
        kernels: Sequence[KernelFunction],
        loaded: Sequence[object],
        blocks: Sequence[Pointer],
    ) -> None:
        self.device, self.plan, self.blocks = device, plan, list(blocks)
        self.kernels, self.loaded = kernels, loaded
        self.calls = tuple(
            device.bind_turns(
                loaded[call.kernel],
                kernels[call.kernel],
                [[self.pointer(place) for place in turn] for turn in call.iterations],
            )
            for call in plan.calls
        )
        self.launches = tuple(self.calls[call][turn] for call, turn in plan.order)

    def pointer(self, place: BlockAddress) -> Pointer:
        """Return an address within the blocks as a pointer."""
        block = self.blocks[place.block]
        return Pointer(block.buffer, block.offset + place.offset)

    def launch(self) -> None:
        """Launch everything, without waiting for the end."""
        for copied in self.plan.before:
            self._copy(copied)
        launch_all(self.launches)
        for copied in self.plan.after:
            self._copy(copied)

    def record(self) -> Launch:
        """Return a replay of everything, recorded where that is cheaper.

        Recorded launches have their L2 policies, and begin after those that they wait for.
        """
        return self.device.record(self)

    def _copy(self, copied: Copy) -> None:
        self.device.copy(self.pointer(copied.destination), self.pointer(copied.source), copied.nbytes)
