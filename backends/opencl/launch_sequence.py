"""Launch sequences on a CPU: PoCL runs kernels on the host's memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

from ...ir import KernelFunction
from ..device import Array, Pointer
from ..launch_sequence import BoundSequence, LaunchSequence, SequenceLauncher, SequencePlan, moved_blocks
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
        self.device, self.plan = device, plan
        self._bind = partial(BoundSequence, device, plan, kernels, loaded)
        self._bound: BoundSequence | None = None
        self._touched = {place.block for call in plan.calls for turn in call.iterations for place in turn}
        self._touched |= {place.block for c in (*plan.before, *plan.after) for place in (c.source, c.destination)}
        self._fixed: Sequence[int] = ()
        self._moving: tuple[int, ...] = ()

    def launch(self, fixed: Sequence[int], moving: Sequence[int], stream: int) -> None:
        """Update moved addresses, and run to the end."""
        with self.device.current():
            if self._bound is None:
                self._bound = self._bind([self._block(number, at) for number, at in enumerate((*fixed, *moving))])
            else:
                self._rebind(self._bound, fixed, moving)
            self._fixed, self._moving = fixed, tuple(moving)
            self._bound.launch()
            self.device.synchronize()

    def _block(self, number: int, address: int) -> Pointer:
        nbytes = self.plan.blocks[number] if number in self._touched else 0  # the others may be anywhere
        return Pointer(self.device.wrap_host_memory(address, nbytes))

    def _rebind(self, bound: BoundSequence, fixed: Sequence[int], moving: Sequence[int]) -> None:
        gone = list(moved_blocks(self._moving, moving, self.plan.fixed))
        if fixed is not self._fixed:
            gone += moved_blocks(self._fixed, fixed)
        blocks = {number for number, _ in gone} & self._touched
        for number, address in gone:
            if number in blocks:
                bound.blocks[number] = self._block(number, address)
        if not blocks:
            return
        for call, launches in zip(self.plan.calls, bound.calls, strict=True):
            function: Any = launched_function(launches[0])
            for number, place in enumerate(call.iterations[0]):
                if place.block in blocks and function is not None:
                    # Each argument is followed by its offset.
                    function.set_arg(2 * number, bound.blocks[place.block].buffer.handle)
