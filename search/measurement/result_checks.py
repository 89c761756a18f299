"""Comparison of a kernel's results on a device with the expected ones.

Samples of each output are compared with the reference, and all elements with those of the first correct kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define, field

from ...backends import Device, Pointer
from ...ir import DType
from ...numerics import group_tolerance, relative_error
from ..tasks import Sample, addresses, elements, host_dtype, span
from .compare import BLOCK, SMALL_BLOCK, Comparer
from .task_data import TaskData

Array = npt.NDArray[Any]

#: Elements of an output that are transferred to the host at once, of 8 bytes at most.
TRANSFER_ELEMENTS = 1 << 21


@define
class ResultChecker:
    """Comparer of outputs on a device; `comparers` are by element type."""

    device: Device
    comparers: dict[DType, Comparer] = field(factory=dict)
    _part: Array = field(factory=lambda: np.empty(TRANSFER_ELEMENTS * 8, np.uint8), repr=False)

    def keep_results(self, data: TaskData) -> None:
        """Keep a correct kernel's outputs: the reference for every element."""
        for tensor in data.problem.form.outputs:
            data.whole[tensor] = Pointer(self.device.allocate(span(data.problem, tensor)))
            self.device.copy(data.whole[tensor], data.first[tensor], span(data.problem, tensor))

    def difference(self, data: TaskData, tensor: str) -> str:
        """Return an output's difference; empty where rounding explains it."""
        return "" if self._matches_reference(data, tensor) else self._compare(data, tensor)

    def _matches_reference(self, data: TaskData, tensor: str) -> bool:
        """Return whether the device finds a large output equal to that of the first correct kernel.

        If not, the host compares it in detail.
        """
        covered = elements(data.problem, tensor) // SMALL_BLOCK * SMALL_BLOCK
        dtype = data.problem.form.tensors[tensor].dtype
        if tensor not in data.whole or not covered:
            return False
        comparer = self.comparers.setdefault(dtype, Comparer(self.device, self.device.target, dtype))
        if not comparer.usable:
            return False
        allowed, scale = 2 * group_tolerance(data.problem.form, tensor), data.reference.scales[tensor] or 1.0
        found, wanted = data.first[tensor], data.whole[tensor]
        if comparer.differences(found, wanted, covered, allowed, allowed * scale):
            return False
        tails = [self.read(data, tensor, place, covered) for place in (found, wanted)]
        return not tails[0].size or float(relative_error(tails[0], tails[1], scale).max()) <= allowed

    def _compare(self, data: TaskData, tensor: str) -> str:
        """Return the difference as the host finds it."""
        problem, sample = data.problem, data.reference.samples[tensor]
        allowed, scale = group_tolerance(problem.form, tensor), data.reference.scales[tensor]
        got = self._read_sample(data, tensor, sample)
        wrong = relative_error(got, sample.values.astype(host_dtype(problem.form.tensors[tensor].dtype)), scale)
        if wrong.size and float(wrong.max()) > allowed:
            at = int(np.argmax(wrong))
            return f"{tensor}{[int(p[at]) for p in sample.places]} is {got[at]}, expected {sample.values[at]}"
        if tensor in data.whole:
            found, wanted = (self.read(data, tensor, place[tensor]) for place in (data.first, data.whole))
            for start in range(0, len(found), BLOCK):
                part = slice(start, start + BLOCK)
                wrong = relative_error(found[part], wanted[part], scale)
                if float(wrong.max()) > 2 * allowed:
                    at = start + int(np.argmax(wrong))
                    right = f"another kernel, which was checked, makes it {wanted[at]}"
                    return f"{tensor}: element {at} of memory is {found[at]}, {right}"
        return ""

    def _read_sample(self, data: TaskData, tensor: str, sample: Sample) -> Array:
        """Return an output at the indices of a sample.

        It is transferred part by part, always to the same memory: touching new memory may take many times as long as
        the copy.
        """
        dtype, count = host_dtype(data.problem.form.tensors[tensor].dtype), elements(data.problem, tensor)
        at = addresses(data.problem, tensor, sample.places)
        found = np.empty(len(at), dtype)
        for start in range(0, count, TRANSFER_ELEMENTS):
            inside = np.flatnonzero((at >= start) & (at < start + TRANSFER_ELEMENTS))
            if inside.size:
                part = self._part[: min(TRANSFER_ELEMENTS, count - start) * dtype.itemsize].view(dtype)
                place = data.first[tensor]
                self.device.download(part, Pointer(place.buffer, place.offset + start * dtype.itemsize))
                found[inside] = part[at[inside] - start]
        return found

    def read(self, data: TaskData, tensor: str, place: Pointer, start: int = 0) -> Array:
        """Return an output's elements in memory, from `start` on."""
        dtype = host_dtype(data.problem.form.tensors[tensor].dtype)
        array = np.empty(elements(data.problem, tensor) - start, dtype)
        self.device.download(array, Pointer(place.buffer, place.offset + start * dtype.itemsize))
        return array
