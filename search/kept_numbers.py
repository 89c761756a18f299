"""Numbers that stay on a device, from which memory of many problems is filled.

What a problem reads are numbers that repeat themselves after a while, and problems begin with the same ones. To draw
them again and send them for each took longer than its kernels: 40 MB for a product of matrices of 6 MB.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import numpy.typing as npt
from attrs import define, field

from ..backends import Device, Pointer
from ..ir import DType
from .data import PERIOD, host_dtype

Array = npt.NDArray[Any]

#: Sequences that are kept at most; the one that was not used for the longest time is dropped.
KEPT = 24
#: Elements below which memory is filled from the host: not worth a whole period.
FEW = PERIOD // 16


@define
class KeptNumbers:
    """Sequences on a device, each of a period, by what tells them apart."""

    device: Device
    _sequences: OrderedDict[Hashable, Pointer] = field(factory=OrderedDict, init=False)

    def filled(self, key: Hashable, dtype: DType, count: int, values: Callable[[int], Array]) -> Pointer:
        """Return new memory of `count` elements that a sequence is repeated in; `values` returns its first elements."""
        size = host_dtype(dtype).itemsize
        place = Pointer(self.device.allocate(count * size))
        if count < FEW:
            self.device.upload(place, values(count))
            return place
        source, period = self._sequence(key, size, values), PERIOD * size
        for start in range(0, count * size, period):
            part = Pointer(place.buffer, start)
            self.device.copy(part, source, min(period, count * size - start))
        return place

    def _sequence(self, key: Hashable, size: int, values: Callable[[int], Array]) -> Pointer:
        if key not in self._sequences:
            if len(self._sequences) >= KEPT:
                self._sequences.popitem(last=False)
            self._sequences[key] = Pointer(self.device.allocate(PERIOD * size))
            self.device.upload(self._sequences[key], values(PERIOD))
        self._sequences.move_to_end(key)
        return self._sequences[key]
