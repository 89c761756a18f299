"""Sessions of plans over external buffers of another library."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from threading import Lock

from ..backends import Array, BlockAddress, SequenceLauncher
from .fallback_kernels import use_fallback_kernels
from .placement import CONSTANTS, ConstantImages, Share, place_in_parts
from .plan import Plan
from .profiler_range import profiler_range

#: Returns the address of so many zeroed bytes, which the allocator keeps alive.
Allocate = Callable[[int], int]


class ExternalSession:
    """Plan opened over external buffers.

    Any thread may launch it; one launch waits for another. The session allocates constants; the scratch block is its
    caller's.

    With `share`, sessions of equal large constants read one copy of each on the device. With `divide`, launches are
    divided into `parts` where a caller that releases inputs after their last part, and allocates outputs before their
    first one, needs less memory; intermediates too.
    """

    def __init__(
        self,
        plan: Plan,
        launcher: SequenceLauncher,
        held: Collection[str],
        allocate: Allocate,
        share: Share | None = None,
        images: ConstantImages | None = None,
        divide: bool = True,
    ) -> None:
        self.plan = plan = use_fallback_kernels(plan)
        self.launcher = launcher
        images = images or ConstantImages.of_plan(plan)
        codes = plan.binaries or (None,) * len(plan.kernels)
        self.layout, self.parts = place_in_parts(plan, held, images.large if share else (), divide)
        self.waits = launcher.is_blocking
        self.constants = allocate(self.layout.sizes[CONSTANTS])
        self._shared = tuple(self._constant_address(share, images, buffer) for buffer in self.layout.shared if share)
        self._sequences = tuple(
            launcher.load(part.sequence, [plan.kernels[n] for n in part.kernels], [codes[n] for n in part.kernels])
            for part in self.parts
        )
        self._lock, self._range = Lock(), profiler_range(plan.name)
        self.layout.upload(images, self._write)
        launcher.settle()

    def fixed_addresses(self, held: Sequence[int], scratch: int) -> tuple[int, ...]:
        """Return the addresses of blocks that rarely move.

        Held inputs are at the addresses `held`, values between kernels at `scratch`.
        """
        return (self.constants, scratch, *self._shared, *held)

    def launch(self, fixed: Sequence[int], moving: Sequence[int], stream: int, part: int | None = None) -> None:
        """Launch on a stream, all parts or one.

        The other inputs, and then blocks of outputs, are at the addresses `moving`; where a part touches none of a
        block, its address may be anything. Where the caller records the stream, no other launch uses the scratch block
        in `fixed`.
        """
        with self._lock, self._range:
            for sequence in self._sequences if part is None else self._sequences[part : part + 1]:
                sequence.launch(fixed, moving, stream)

    def _constant_address(self, share: Share, images: ConstantImages, buffer: str) -> int:
        """Return the address of a constant, uploaded where no other session has it on the device."""

        def fill(address: int) -> None:
            self.launcher.upload(address, images.image(buffer))
            self.launcher.settle()

        return share(images.digest(buffer), self.plan.buffers[buffer].nbytes, fill)

    def _write(self, place: BlockAddress, array: Array) -> None:
        self.launcher.upload(self.constants + place.offset, array)
