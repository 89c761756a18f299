"""Comparing two arrays on the device: what a candidate writes is a hundred megabytes that need not travel to the host to be judged.

The comparing kernel is generated like any other, once for blocks of a fixed size, and it is not trusted before it has found single
differences that were put into equal arrays.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define

from ..backends.device import Device, Pointer
from ..backends.emit import emit
from ..ir.errors import BackendError
from ..ir.expr import Const, Read, call
from ..ir.index import Var, as_index
from ..ir.launch import KernelFunction
from ..ir.segment import FusedGroup, Output, Reduction, Segment
from ..ir.target import Target
from ..ir.types import DType, TensorType
from ..passes.choose import choose
from ..passes.extract import extract
from ..passes.lower import lower

Array = npt.NDArray[Any]

#: Elements that one result counts the differences of, results of a launch, and elements of a launch.
ROW, ROWS = 256, 4096
BLOCK = ROW * ROWS


def comparison() -> FusedGroup:
    """Return the group `c[i] = sum over j of (|a[i, j] - b[i, j]| <= limit[0] * |b[i, j]| + limit[1] ? 0 : 1)`; NaN differs from all."""
    i, j = Var("i", ROWS), Var("j", ROW)
    a, b = (Read(t, (as_index(i), as_index(j))) for t in ("a", "b"))
    relative, absolute = (Read("limit", (as_index(n),)) for n in (0, 1))
    allowed = call("add", call("mul", relative, call("abs", b)), absolute)
    body = call("select", call("le", call("abs", call("sub", a, b)), allowed), Const(0.0, DType.F32), Const(1.0, DType.F32))
    reduction = Reduction("acc", (j,), "sum", body)
    tensors = {
        "a": TensorType(DType.F32, (ROWS, ROW)),
        "b": TensorType(DType.F32, (ROWS, ROW)),
        "limit": TensorType(DType.F32, (2,)),
        "c": TensorType(DType.F32, (ROWS,)),
        "acc": TensorType(DType.F32, (ROWS,)),
    }
    output = Output("c", (as_index(i),), Read("acc", (as_index(i),)))
    return FusedGroup((Segment((i,), (reduction,), (output,)),), tensors, ("a", "b", "limit"), ("c",))


@define(slots=False)
class Comparer:
    """Counts, on one device, where two fp32 arrays differ by more than is allowed."""

    device: Device
    target: Target

    @cached_property
    def usable(self) -> bool:
        """Whether the kernel works here: it finds each of a few differences, and none in equal arrays."""
        array = np.random.default_rng(0).standard_normal(2 * BLOCK).astype(np.float32)
        places = [Pointer(self.device.allocate(array.nbytes)) for _ in range(2)]
        try:
            for place in places:
                self.device.upload(place, array)
            if self.differences(places[0], places[1], 2 * BLOCK, 1e-6, 1e-6):
                return False
            wrong = ((0, 1e9), (BLOCK - 1, np.nan), (BLOCK + 77, float(array[BLOCK + 77]) + 1e-3), (2 * BLOCK - 1, np.inf))
            for number, (at, value) in enumerate(wrong, 1):
                array[at] = value
                self.device.upload(places[0], array)
                if self.differences(places[0], places[1], 2 * BLOCK, 1e-6, 1e-6) != number:
                    return False
        except BackendError:
            return False
        return True

    def differences(self, found: Pointer, wanted: Pointer, count: int, relative: float, absolute: float) -> int:
        """Return how many of the first `count` elements, a multiple of `BLOCK`, differ."""
        kernel, loaded, limit = self._kernel
        launches = count // BLOCK
        result = self.device.allocate(launches * ROWS * 4)
        self.device.upload(limit, np.array([relative, absolute], np.float32))
        for number in range(launches):
            at = number * BLOCK * 4
            moved = {
                "a": Pointer(found.buffer, found.offset + at),
                "b": Pointer(wanted.buffer, wanted.offset + at),
                "c": Pointer(result, number * ROWS * 4),
                "limit": limit,
            }
            self.device.bind(loaded, kernel, [moved[a.tensor] for a in kernel.arguments])()
        counts = np.empty(launches * ROWS, np.float32)
        self.device.download(counts, Pointer(result))
        return int(counts.sum(dtype=np.float64))

    @cached_property
    def _kernel(self) -> tuple[KernelFunction, object, Pointer]:
        group = comparison()
        for candidate in choose(group, self.target, count=8):
            kernel = emit(extract(lower(group, candidate.schedule, {}, self.target)), self.target.dialect, {})
            if not kernel.tables:
                (loaded,) = self.device.build([kernel])
                return kernel, loaded, Pointer(self.device.allocate(8))
        raise BackendError("the comparing kernel needs a table")
