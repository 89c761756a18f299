"""Device memory of outputs that stay on the device.

Each block belongs to its array, and is reused after the array.
"""

from __future__ import annotations

import weakref
from collections import defaultdict

from ..backends import Buffer, Device
from .arrays import DeviceArray


class OutputMemory:
    """Output blocks of one session.

    Taking and returning a block are each one operation of a list, so any thread may do either. A block returns when
    nothing refers to its array any more. Other libraries may still be reading it then, on streams of their own; so the
    whole device is synchronised before a block is written again, as freeing it would do.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: defaultdict[int, list[Buffer]] = defaultdict(list)

    def take(self, nbytes: int) -> Buffer:
        """Return an unused block."""
        try:
            block = self._free[nbytes].pop()
        except IndexError:
            return self._device.allocate(nbytes)
        self._device.settle()
        return block

    def lend(self, array: DeviceArray) -> DeviceArray:
        """Return the array, and reclaim its block after its last reference."""
        block = array.pointer.buffer
        weakref.finalize(array, self._free[block.nbytes].append, block).atexit = False
        return array
