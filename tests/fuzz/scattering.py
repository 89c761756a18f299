"""Scatter nodes whose indices may collide."""

from __future__ import annotations

from math import prod

import numpy as np
from cuts.ir.types import DType

from .growth import GREATEST, MAX_ELEMENTS, Growth


def scattering(growth: Growth, value: str) -> None:
    """Replace elements at some places, or combine updates with them."""
    shape, slices = growth.shape(value), growth.flag()
    meeting, axis = growth.number(1, 5), growth.number(0, len(shape) - 1)
    if slices:
        places, updated = _rows(growth, shape[: axis + 1], meeting), (meeting, *shape[axis + 1 :])
    else:
        updated = tuple(meeting if d == axis else growth.number(1, n) for d, n in enumerate(shape))
        places = growth.places(shape[axis], *updated)
    reduction, updates, bound = _combine(growth, value, updated, meeting)
    # Half precision rounds every step of a sum in any order of the steps.
    atomic = (growth.dtype.size >= 4 or not growth.dtype.is_float) and growth.flag()
    growth.grow(
        "scatter_nd" if slices else "scatter_elements", value, places, updates, reduction=reduction, atomic=atomic,
        bound=bound, exact=reduction in ("max", "min", "none"), **({} if slices else {"axis": axis}),
    )  # fmt: skip


def _combine(growth: Growth, value: str, shape: tuple[int, ...], meeting: int) -> tuple[str, str, float]:
    """Draw how updates are combined, add them, and say how large results can be."""
    reduction, bound = growth.pick(("add", "max", "none", "min", "mul")), growth.bounds[value]
    if reduction == "mul":
        updates = growth.positive(*shape)
        large = bound * growth.bounds[updates] ** meeting
    else:
        updates = growth.operand(*shape)
        large = bound + meeting * growth.bounds[updates]
    if growth.dtype.is_float and large > GREATEST:
        reduction = "max"
    return reduction, updates, large if reduction in ("add", "mul") else max(bound, growth.bounds[updates])


def _rows(growth: Growth, extents: tuple[int, ...], count: int) -> str:
    """Add rows of integers that each name a place in the first axes; some count from the end."""
    low = -1 if growth.flag() else 0
    drawn = [growth.build.rng.integers(low * n, n, count) for n in extents]
    return growth.build.array(np.stack(drawn, axis=1), growth.pick((DType.I64, DType.I32)))


def summing(growth: Growth, value: str) -> None:
    """Add slices or elements at given indices: lookup gradients, and unpooling."""
    shape, bound = growth.shape(value), growth.bounds[value]
    sizes = tuple(growth.pick((1, 2, 4)) for _ in shape[2:])
    if sizes and growth.flag() and prod((*shape[:2], *sizes)) <= MAX_ELEMENTS:
        places = growth.places(prod((*shape[:2], *sizes)), *shape)
        growth.grow("max_unpool", value, places, sizes=sizes, bound=bound * 8)
        return
    axis, size = growth.number(0, len(shape) - 1), growth.pick((1, 3, 7))
    places = growth.places(size, shape[axis])
    growth.grow("gather_grad", value, places, axis=axis, size=size, bound=bound * shape[axis])
