"""Sessions of plans over external buffers of another library."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from threading import Lock

from ..backends import Array, BlockAddress, SequenceLauncher
from .fallback_kernels import use_fallback_kernels
from .placement import CONSTANTS, SCRATCH, ConstantImages, Share, place_over_blocks
from .plan import Plan
from .profiler_range import profiler_range

#: Returns the address of so many zeroed bytes, which the allocator keeps alive.
Allocate = Callable[[int], int]


class ExternalSession:
    """Plan opened over external buffers.

    Any thread may launch it; one launch waits for another.

    With `share`, sessions of equal large constants read one copy of each on the device.
    """

    def __init__(
        self,
        plan: Plan,
        launcher: SequenceLauncher,
        held: Collection[str],
        allocate: Allocate,
        share: Share | None = None,
        images: ConstantImages | None = None,
    ) -> None:
        self.plan = plan = use_fallback_kernels(plan)
        self.launcher = launcher
        images = images or ConstantImages.of_plan(plan)
        self.layout = place_over_blocks(plan, held, images.large if share else ())
        self.waits = launcher.is_blocking
        self.constants, self.scratch = (allocate(self.layout.sizes[n]) for n in (CONSTANTS, SCRATCH))
        self._shared = tuple(self._constant_address(share, images, buffer) for buffer in self.layout.shared if share)
        self._sequence = launcher.load(self.layout.sequence, plan.kernels, plan.binaries)
        self._lock, self._range = Lock(), profiler_range(plan.name)
        self.layout.upload(images, self._write)
        launcher.settle()

    def fixed_addresses(self, held: Sequence[int], scratch: int | None = None) -> tuple[int, ...]:
        """Return the addresses of blocks that rarely move.

        Held inputs are at the addresses `held`.
        """
        return (self.constants, self.scratch if scratch is None else scratch, *self._shared, *held)

    def launch(self, fixed: Sequence[int], moving: Sequence[int], stream: int) -> None:
        """Launch on a stream.

        The other inputs, and then blocks of outputs, are at the addresses `moving`.
        """
        with self._lock, self._range:
            self._sequence.launch(fixed, moving, stream)

    def launch_captured(self, fixed: Sequence[int], moving: Sequence[int], stream: int) -> None:
        """Launch on a stream under capture.

        `fixed` has a scratch block that no other launch uses.
        """
        with self._lock, self._range:
            self._sequence.launch_individually(fixed, moving, stream)

    def _constant_address(self, share: Share, images: ConstantImages, buffer: str) -> int:
        """Return the address of a constant, uploaded where no other session has it on the device."""

        def fill(address: int) -> None:
            self.launcher.upload(address, images.image(buffer))
            self.launcher.settle()

        return share(images.digest(buffer), self.plan.buffers[buffer].nbytes, fill)

    def _write(self, place: BlockAddress, array: Array) -> None:
        self.launcher.upload(self.constants + place.offset, array)
