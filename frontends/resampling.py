"""Resizing along one axis as a table of elements and weights.

The rules are those of ONNX's `Resize`: the coordinate of each result in the input, the kernel around that point, and
the treatment of positions beyond the ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import frozen

Table = npt.NDArray[Any]

#: Rounding of a position between two elements, by its name in ONNX.
ROUNDING: dict[str, Callable[[Table], Table]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@frozen
class Rule:
    """Resampling rule of an axis: kernel, coordinate rule and options.

    `kernel` is "nearest", "linear" or "cubic".
    """

    kernel: str
    place: str = "half_pixel"
    cubic_a: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    nearest: str = "round_prefer_floor"


def axis_table(
    rule: Rule, size: int, result: int, scale: float, roi: tuple[float, float] = (0.0, 1.0)
) -> tuple[Table, Table, Table]:
    """Return (places, weights, outside) for `result` positions.

    For each position these are its elements, their weights, and whether it lies outside the input.
    """
    x = _coordinates(rule.place, size, result, scale, roi)
    if rule.kernel == "nearest":
        nearest = np.clip(ROUNDING[rule.nearest](x), 0, size - 1).astype(np.int64)[:, None]
        return nearest, np.ones(nearest.shape), (x < 0) | (x > size - 1)
    squeeze = min(scale, 1.0) if rule.antialias else 1.0
    radius = (1 if rule.kernel == "linear" else 2) / squeeze
    first = np.floor(x - radius).astype(np.int64) + 1
    places = first[:, None] + np.arange(2 * math.ceil(radius) + 1)
    weights = _kernel(rule, (places - x[:, None]) * squeeze)
    inside = (places >= 0) & (places < size)
    if rule.exclude_outside:
        weights = np.where(inside, weights, 0)
    if rule.exclude_outside or rule.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    used = np.abs(weights).max(axis=0) > 0
    return np.clip(places, 0, size - 1)[:, used], weights[:, used], (x < 0) | (x > size - 1)


def _coordinates(place: str, size: int, result: int, scale: float, roi: tuple[float, float]) -> Table:
    """Return the coordinate of each result in the input.

    `scale * size` may have a fraction that `result` has not.
    """
    y = np.arange(result, dtype=np.float64)
    full = scale * size
    if place == "align_corners":
        return y * (size - 1) / (full - 1) if full != 1 else np.zeros(result)
    if place == "asymmetric":
        return np.asarray(y / scale)
    if place == "tf_crop_and_resize":
        start, end = roi[0] * (size - 1), roi[1] * (size - 1)
        return start + y * (end - start) / (full - 1) if full != 1 else np.full(result, (start + end) / 2)
    if place == "pytorch_half_pixel" and full == 1:
        return np.full(result, -0.5)
    centre = size / 2 * (1 - result / full) if place == "half_pixel_symmetric" else 0.0
    return np.asarray(centre + (y + 0.5) / scale - 0.5)


def _kernel(rule: Rule, distance: Table) -> Table:
    """Return the weight of an element at a distance: a triangle, or the cubic convolution kernel of Keys."""
    d = np.abs(distance)
    if rule.kernel == "linear":
        return np.asarray(np.maximum(1 - d, 0))
    a = rule.cubic_a
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.asarray(np.where(d <= 1, near, np.where(d < 2, far, 0)))
