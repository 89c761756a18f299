"""Launch sequences on a CPU: PoCL runs kernels on the host's memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ...ir import KernelFunction
from ..device import Array, Buffer, Launch, Pointer
from ..launch_sequence import BlockAddress, Copy, LaunchSequence, SequenceLauncher, SequencePlan, moved_blocks
from .device import OpenCLDevice, launched_function


class OpenCLSequenceLauncher(SequenceLauncher):
    """Launcher of sequences on an OpenCL device in host memory."""

    is_blocking = True

    def __init__(self, device: OpenCLDevice) -> None:
        self.device = device

    def upload(self, address: int, source: Array) -> None:
        """Copy within the host."""
        ctypes.memmove(address, source.ctypes.data, source.nbytes)

    def settle(self) -> None:
        """Do nothing: copies of the host have finished when they return."""

    def load(
        self, plan: SequencePlan, kernels: Sequence[KernelFunction], binaries: Sequence[bytes | None]
    ) -> LaunchSequence:
        """Build the kernels; they are bound when addresses are known."""
        with self.device.current():
            return OpenCLLaunchSequence(self.device, plan, kernels, self.device.build(kernels, binaries))


class OpenCLLaunchSequence(LaunchSequence):
    """Kernel objects, whose arguments are updated where a block has moved."""

    def __init__(
        self, device: OpenCLDevice, plan: SequencePlan, kernels: Sequence[KernelFunction], loaded: Sequence[object]
    ) -> None:
        self.device, self.plan, self.kernels, self.loaded = device, plan, kernels, loaded
        self._fixed: Sequence[int] = ()
        self._moving: tuple[int, ...] = ()
        self._buffers: list[Buffer] = []
        self._launches: tuple[tuple[Launch, ...], ...] = ()

    def launch(self, fixed: Sequence[int], moving: Sequence[int], stream: int) -> None:
        """Update moved addresses, and run to the end."""
        with self.device.current():
            if self._launches:
                self._rebind(fixed, moving)
            else:
                self._bind((*fixed, *moving))
            self._fixed, self._moving = fixed, tuple(moving)
            for copied in self.plan.before:
                self._copy(copied)
            for call, turn in self.plan.order:
                self._launches[call][turn]()
            for copied in self.plan.after:
                self._copy(copied)
            self.device.synchronize()

    def launch_individually(self, fixed: Sequence[int], moving: Sequence[int], stream: int) -> None:
        """Launch as usual: a CPU has no recorded streams."""
        self.launch(fixed, moving, stream)

    def _bind(self, addresses: Sequence[int]) -> None:
        self._buffers = [self.device.wrap_host_memory(at, n) for at, n in zip(addresses, self.plan.blocks, strict=True)]
        self._launches = tuple(
            self.device.bind_turns(
                self.loaded[call.kernel],
                self.kernels[call.kernel],
                [[self._pointer(place) for place in turn] for turn in call.iterations],
            )
            for call in self.plan.calls
        )

    def _rebind(self, fixed: Sequence[int], moving: Sequence[int]) -> None:
        gone = list(moved_blocks(self._moving, moving, self.plan.fixed))
        if fixed is not self._fixed:
            gone += moved_blocks(self._fixed, fixed)
        for number, address in gone:
            self._buffers[number] = self.device.wrap_host_memory(address, self.plan.blocks[number])
        blocks = {number for number, _ in gone}
        if not blocks:
            return
        for call, launches in zip(self.plan.calls, self._launches, strict=True):
            function: Any = launched_function(launches[0])
            for number, place in enumerate(call.iterations[0]):
                if place.block in blocks and function is not None:
                    function.set_arg(2 * number, self._buffers[place.block].handle)  # each is followed by its offset

    def _pointer(self, place: BlockAddress) -> Pointer:
        return Pointer(self._buffers[place.block], place.offset)

    def _copy(self, copied: Copy) -> None:
        self.device.copy(self._pointer(copied.destination), self._pointer(copied.source), copied.nbytes)
