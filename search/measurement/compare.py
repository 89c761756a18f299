"""Comparison of two arrays on the device, without a transfer.

A candidate may write a hundred megabytes. The comparison kernel is generated like any other, once for each of two block
sizes. It is trusted only after it has found single differences that were put into equal arrays.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define

from ...backends import Device, Pointer
from ...backends.source import emit
from ...ir import (
    BackendError,
    Cast,
    Const,
    DType,
    Expr,
    FusedGroup,
    KernelFunction,
    Output,
    Read,
    Reduction,
    Segment,
    Target,
    TensorType,
    Var,
    as_index,
    call,
)
from ...numerics import epsilon
from ...passes.instructions import select_instructions
from ...passes.lowering import extract, lower
from ...passes.schedule import choose

Array = npt.NDArray[Any]

#: Elements whose differences one result counts, and results of a launch: as many as possible, fewer for the rest.
ROW, ROWS = 256, (4096, 64)
#: Elements of a launch of either size.
BLOCK, SMALL_BLOCK = ROW * ROWS[0], ROW * ROWS[1]


def comparison(rows: int, dtype: DType = DType.F32) -> FusedGroup:
    """Return the group that counts differences of rows of two arrays.

    It computes `c[i] = sum over j of (|a[i, j] - b[i, j]| <= limit[0] * |b[i, j]| + limit[1] ? 0 : 1)` for arrays of a
    type that is computed in f32; NaN differs from all.
    """
    i, j = Var("i", rows), Var("j", ROW)
    a, b = (_wide(Read(t, (as_index(i), as_index(j))), dtype) for t in ("a", "b"))
    relative, absolute = (Read("limit", (as_index(n),)) for n in (0, 1))
    allowed = call("add", call("mul", relative, call("abs", b)), absolute)
    body = call(
        "select", call("le", call("abs", call("sub", a, b)), allowed), Const(0.0, DType.F32), Const(1.0, DType.F32)
    )
    reduction = Reduction("acc", (j,), "sum", body)
    tensors = {
        "a": TensorType(dtype, (rows, ROW)),
        "b": TensorType(dtype, (rows, ROW)),
        "limit": TensorType(DType.F32, (2,)),
        "c": TensorType(DType.F32, (rows,)),
        "acc": TensorType(DType.F32, (rows,)),
    }
    output = Output("c", (as_index(i),), Read("acc", (as_index(i),)))
    return FusedGroup((Segment((i,), (reduction,), (output,)),), tensors, ("a", "b", "limit"), ("c",))


def _wide(read: Read, dtype: DType) -> Expr:
    return read if dtype is DType.F32 else Cast(DType.F32, read)


@define(slots=False)
class Comparer:
    """Counter of the elements of two arrays that differ too much."""

    device: Device
    target: Target
    dtype: DType = DType.F32

    @cached_property
    def usable(self) -> bool:
        """True if the type computes in f32 and the kernels work here.

        They must find each of a few differences, and none in equal arrays.
        """
        if not self.dtype.is_float or self.dtype.arithmetic is not DType.F32:
            return False
        count = BLOCK + 2 * SMALL_BLOCK
        array = np.random.default_rng(0).standard_normal(count, np.float32).astype(self.dtype.numpy)
        places = [Pointer(self.device.allocate(array.nbytes)) for _ in range(2)]
        try:
            for place in places:
                self.device.upload(place, array)
            step = epsilon(self.dtype)
            if self.differences(places[0], places[1], count, step, step):
                return False
            near = float(array[BLOCK + 77])
            near += 8 * step * (1 + abs(near))
            wrong = ((0, 1e4), (BLOCK - 1, np.nan), (BLOCK + 77, near), (count - 1, np.inf))
            for number, (at, value) in enumerate(wrong, 1):
                array[at] = value
                self.device.upload(places[0], array)
                if self.differences(places[0], places[1], count, step, step) != number:
                    return False
        except BackendError:
            return False
        return True

    def differences(self, found: Pointer, wanted: Pointer, count: int, relative: float, absolute: float) -> int:
        """Return the number of differences in the first `count` elements.

        `count` is a multiple of `SMALL_BLOCK`.
        """
        limit = self._limit
        self.device.upload(limit, np.array([relative, absolute], np.float32))
        result = self.device.allocate(count // ROW * 4)
        start = 0
        for rows in ROWS:
            kernel, loaded = self._kernels[rows]
            while count - start >= rows * ROW:
                moved = {
                    "a": Pointer(found.buffer, found.offset + self.dtype.size * start),
                    "b": Pointer(wanted.buffer, wanted.offset + self.dtype.size * start),
                    "c": Pointer(result, start // ROW * 4),
                    "limit": limit,
                }
                self.device.bind(loaded, kernel, [moved[a.tensor] for a in kernel.arguments])()
                start += rows * ROW
        counts = np.empty(count // ROW, np.float32)
        self.device.download(counts, Pointer(result))
        return int(counts.sum(dtype=np.float64))

    @cached_property
    def _limit(self) -> Pointer:
        return Pointer(self.device.allocate(8))

    @cached_property
    def _kernels(self) -> dict[int, tuple[KernelFunction, object]]:
        return {rows: self._kernel(rows) for rows in ROWS}

    def _kernel(self, rows: int) -> tuple[KernelFunction, object]:
        group = comparison(rows, self.dtype)
        threads = extract(lower(group, choose(group, self.target)[0].schedule, {}, self.target))
        kernel = emit(select_instructions(threads, self.target.dialect), self.target.dialect, {})
        return kernel, self.device.build([kernel])[0]
