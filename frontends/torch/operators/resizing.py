"""PyTorch's resizing, forward and backward, by the kernels of each device.

Those kernels differ where a factor is given and an axis keeps its size (2 * 1.3 is 2):

                                      CPU                           GPU
    nearest, one and three axes       by the factor                 by the factor
    nearest, two axes                 copied if small or NHWC       copied
    linear                            copied                        copied if all axes are
    cubic                             by the factor                 copied if all axes are
    with antialias                    copied                        by the factor
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from attrs import frozen

from ...resampling import Rule, axis_table
from ..import_context import Convert, ImportContext, Value

Table = npt.NDArray[np.int64]

#: Sum of rows and columns up to which PyTorch's CPU has one kernel for all memory orders.
_MAX_SMALL_EXTENTS = 128


@frozen
class _Resizing:
    """Resizing call: extents, given factors, device and memory order."""

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    factors: tuple[float | None, ...]
    on_gpu: bool
    channels_last: bool
    double: bool

    @property
    def keeps_all(self) -> bool:
        """Return whether no axis changes its size."""
        return self.shape == self.sizes

    def scales(self, copied: Sequence[bool]) -> tuple[float, ...] | None:
        """Return a scale for each axis, 1 where it is copied.

        Returns None without factors.
        """
        if not any(self.factors):
            return None
        axes = zip(self.shape, self.sizes, self.factors, copied, strict=True)
        return (1.0, 1.0, *(1.0 if kept else f or m / n for n, m, f, kept in axes))

    def keeps_axes(self) -> list[bool]:
        """Return for each axis whether it keeps its size."""
        return [n == m for n, m in zip(self.shape, self.sizes, strict=True)]


def _resizing(ctx: ImportContext, shape: Sequence[int], sizes: Sequence[int] | None, given: Sequence[Any]) -> _Resizing:
    """Return the call: `given` are a factor for each axis, or one list of them."""
    spatial = tuple(shape[2:])
    listed = given[0] if given and isinstance(given[0], (list, tuple)) else given
    factors = tuple(None if f is None else float(f) for f in listed if f is not None or len(listed) == len(spatial))
    factors = factors or (None,) * len(spatial)
    target = [int(n * (f or 1)) for n, f in zip(spatial, factors, strict=True)] if sizes is None else sizes
    operands = ctx.node.all_input_nodes if ctx.node is not None else []
    example = operands[0].meta.get("val") if operands else None
    if not isinstance(example, torch.Tensor):
        return _Resizing(spatial, tuple(target), factors, False, False, False)
    order = {4: torch.channels_last, 5: torch.channels_last_3d}.get(example.dim())
    last = order is not None and example.is_contiguous(memory_format=order)
    return _Resizing(
        spatial, tuple(target), factors, example.device.type == "cuda", last and shape[1] > 3,
        example.dtype is torch.float64,
    )  # fmt: skip


# ---- the nearest element


def _nearest_tables(call: _Resizing, exact: bool) -> list[Table]:
    """Return the elements that PyTorch takes along each axis, `exact` from pixel centres.

    Its coordinates are f32, except in the CPU's general kernel for f64.
    """
    axes = list(zip(call.shape, call.sizes, call.factors, strict=True))
    if call.on_gpu:
        copies = len(axes) == 2
        return [np.arange(m) if copies and n == m else _single_places(n, m, f, exact, np.float32) for n, m, f in axes]
    small = len(axes) == 2 and sum(call.sizes) <= _MAX_SMALL_EXTENTS
    if small or call.channels_last:
        return [_indexed_places(*axis, exact) for axis in axes]
    if exact or call.double:
        return [_general_places(*axis, exact, call.double) for axis in axes]
    return [_single_places(*axis, exact, np.float32) for axis in axes]


def _nearest_tables_back(call: _Resizing, exact: bool) -> list[Table]:
    """Return the element along each axis to which PyTorch adds each gradient."""
    axes = list(zip(call.shape, call.sizes, call.factors, strict=True))
    if not call.on_gpu:
        return [_indexed_places(*axis, exact) for axis in axes]
    if call.keeps_all and len(axes) == 2:
        return [np.arange(n) for n in call.sizes]
    return [_places_of_ranges(*axis, exact) for axis in axes]


def _step(size: int, result: int, factor: float | None, kind: type[np.floating[Any]]) -> Any:
    return kind(size) / kind(result) if factor is None else kind(1 / factor)


def _single_places(size: int, result: int, factor: float | None, exact: bool, middle: type[np.floating[Any]]) -> Table:
    """Return positions times the step; `middle` is the precision of a position's centre."""
    start = np.arange(result, dtype=middle) + middle(0.5) if exact else np.arange(result, dtype=np.float32)
    places: Table = np.floor((start * _step(size, result, factor, np.float32)).astype(np.float32)).astype(np.int64)
    return np.minimum(places, size - 1)


def _indexed_places(size: int, result: int, factor: float | None, exact: bool) -> Table:
    """Return the positions of the CPU's kernel for small or channels-last results; kept or doubled sizes are exact."""
    if not exact and result in (size, 2 * size):
        return np.arange(result, dtype=np.int64) * size // result
    return _single_places(size, result, factor, exact, np.float64)


def _general_places(size: int, result: int, factor: float | None, exact: bool, double: bool) -> Table:
    """Return the positions of the CPU's general kernel, which rounds to f32 last."""
    kind: type[np.floating[Any]] = np.float64 if double else np.float32
    step = np.float64(_step(size, result, factor, kind))
    middle = np.maximum((step * (np.arange(result) + 0.5) - 0.5).astype(kind), 0).astype(np.float64) + 0.5
    places = np.floor((middle if exact else np.arange(result) * step).astype(np.float32))
    return np.minimum(places.astype(np.int64), size - 1)


def _places_of_ranges(size: int, result: int, factor: float | None, exact: bool) -> Table:
    """Return the positions of the GPU's backward kernel: each element sums a range that ends at a rounded multiple."""
    step = np.float32(result) / np.float32(size) if factor is None else np.float32(factor)
    ends = np.ceil(np.arange(1, size + 1, dtype=np.float32) * step - np.float32(0.5 if exact else 0.0))
    return np.minimum(np.searchsorted(ends, np.arange(result), side="right"), size - 1)


def _take_nearest(ctx: ImportContext, x: Value, call: _Resizing, exact: bool, tables: Sequence[Table]) -> list[Value]:
    """Return the steps from `x` to the elements of tables: one for exact nearest positions, else one for each axis."""
    shape = ctx.shape(x)
    scales = call.scales([bool((t == np.arange(n)).all()) for t, n in zip(tables, call.sizes, strict=True)])
    factors = call.factors if scales is None else scales[2:]
    right = [_exact_places(*axis, exact) for axis in zip(call.shape, call.sizes, factors, strict=True)]
    if all((a == b).all() for a, b in zip(tables, right, strict=True)):
        rule: dict[str, Any] = {
            "coordinate_transformation_mode": "half_pixel" if exact else "asymmetric",
            "nearest_mode": "round_prefer_ceil" if exact else "floor",
        }
        return [ctx.emit("resize_nearest", x, sizes=shape[:2] + call.sizes, scales=scales, **rule)]
    steps = []
    for n, (table, extent) in enumerate(zip(tables, call.shape, strict=True)):
        if len(table) != extent or (table != np.arange(extent)).any():
            x = ctx.emit("gather", x, ctx.constant(table), axis=n + 2)
            steps.append(x)
    return steps


def _exact_places(size: int, result: int, factor: float | None, exact: bool) -> Table:
    """Return the nearest positions by exact arithmetic, as the vocabulary's operation has them."""
    ratio = Fraction(result, size) if factor is None else Fraction(factor).limit_denominator()
    places = [(2 * i + exact) * ratio.denominator // (2 * ratio.numerator) for i in range(result)]
    return np.minimum(np.array(places, np.int64), size - 1)


def nearest(exact: bool) -> Convert:
    """Return the conversion of taking the nearest element."""

    def convert(ctx: ImportContext, x: Value, sizes: Any, *given: Any) -> Any:
        call = _resizing(ctx, ctx.shape(x), sizes, given)
        return _take_nearest(ctx, x, call, exact, _nearest_tables(call, exact))[-1]

    return convert


def _nearest_back(exact: bool) -> Convert:
    def convert(ctx: ImportContext, dy: Value, sizes: Any, shape: Sequence[int], *given: Any) -> Any:
        call = _resizing(ctx, shape, sizes, given)
        tables = _nearest_tables_back(call, exact)
        return _back(ctx, dy, shape, lambda x: _take_nearest(ctx, x, call, exact, tables))

    return convert


def _back(ctx: ImportContext, dy: Value, shape: Sequence[int], forward: Callable[[Value], list[Value]]) -> Value:
    """Return the gradient of an operand of a shape, given its forward steps."""
    x = ctx.constant(np.broadcast_to(np.zeros((), ctx.type(dy).dtype.numpy), tuple(shape)))
    steps = [x, *forward(x)]
    for before, after in zip(steps[-2::-1], steps[:0:-1], strict=True):
        (dy,) = ctx.adjoint(after, dy, [before])
    return dy


# ---- neighbours weighted by nearness


def _weigh(ctx: ImportContext, x: Value, call: _Resizing, mode: str, corners: bool, back: bool) -> list[Value]:
    """Return the step from `x` to neighbours weighted by a kernel."""
    if call.on_gpu or mode == "cubic":
        copied = [call.keeps_all and (call.on_gpu or back)] * len(call.shape)
    else:
        copied = call.keeps_axes()
    scales = None if corners else call.scales(copied)
    place = "align_corners" if corners else "half_pixel"
    sizes = ctx.shape(x)[:2] + call.sizes
    return [ctx.emit(f"resize_{mode}", x, sizes=sizes, scales=scales, coordinate_transformation_mode=place)]


def _weigh_wide(ctx: ImportContext, x: Value, call: _Resizing, kernel: str, corners: bool, back: bool) -> list[Value]:
    """Return the steps from `x` to neighbours weighted by a kernel as wide as an element of the result."""
    rule = Rule(kernel, cubic_a=-0.5, antialias=True, exclude_outside=True)
    steps, kind = [], ctx.type(x).dtype
    for n, (extent, size, factor) in enumerate(zip(call.shape, call.sizes, call.factors, strict=True)):
        scale = size / extent if factor is None else factor
        if corners:  # the scale of the outermost elements, with the positions of the rule without corners
            scale = (size - 1) / (extent - 1) if min(size, extent) > 1 else np.inf
        copied = call.keeps_all and back if call.on_gpu else not back
        if extent == size and (copied or scale == 1):
            continue
        places, weights, _ = axis_table(rule, extent, size, scale)
        x = ctx.emit("sample_axis", x, ctx.constant(places), ctx.constant(weights, dtype=kind), axis=n + 2)
        steps.append(x)
    return steps


_Steps = Callable[[ImportContext, Value, _Resizing, str, bool, bool], list[Value]]


def _smooth(steps: _Steps, mode: str) -> Convert:
    def convert(ctx: ImportContext, x: Value, sizes: Any, corners: bool, *given: Any) -> Any:
        call = _resizing(ctx, ctx.shape(x), sizes, given)
        return [x, *steps(ctx, x, call, mode, corners, False)][-1]

    return convert


def _smooth_back(steps: _Steps, mode: str) -> Convert:
    def convert(ctx: ImportContext, dy: Value, sizes: Any, shape: Sequence[int], corners: bool, *given: Any) -> Any:
        call = _resizing(ctx, shape, sizes, given)
        return _back(ctx, dy, shape, lambda x: steps(ctx, x, call, mode, corners, True))

    return convert


_SMOOTH: dict[str, tuple[_Steps, str]] = {
    "upsample_linear1d": (_weigh, "linear"), "upsample_bilinear2d": (_weigh, "linear"),
    "upsample_trilinear3d": (_weigh, "linear"), "upsample_bicubic2d": (_weigh, "cubic"),
    "_upsample_bilinear2d_aa": (_weigh_wide, "linear"), "_upsample_bicubic2d_aa": (_weigh_wide, "cubic"),
}  # fmt: skip

_NEAREST = {
    f"{name}{rank}d": exact
    for name, exact in (("upsample_nearest", False), ("_upsample_nearest_exact", True))
    for rank in (1, 2, 3)
}

TABLE: dict[str, Convert] = {
    **{f"aten.{name}": _smooth(*how) for name, how in _SMOOTH.items()},
    **{f"aten.{name}_backward": _smooth_back(*how) for name, how in _SMOOTH.items()},
    **{f"aten.{name}": nearest(exact) for name, exact in _NEAREST.items()},
    **{f"aten.{name}_backward": _nearest_back(exact) for name, exact in _NEAREST.items()},
}
