"""Counterparts of counts, of segments and groups: PyTorch and NumPy."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from .counterparts_torch import Array, Attributes, Counterpart, of_tensors, torch


def _histogram(a: Attributes, x: Any, low: Any, high: Any) -> Any:
    """PyTorch counts floats; integers are exact as such where they are small, and no bound equals the other."""
    first, last = float(low), float(high)
    exact = x.is_floating_point() or max(abs(n) for n in (*x.tolist(), first, last)) * a["bins"] < 2**50
    if not exact or not -math.inf < first < last < math.inf or math.isinf(last - first):
        return None
    return torch.histc(x.double(), a["bins"], first, last).long()


def _segments(a: Attributes, x: Array, segment: Array) -> Array:
    """NumPy reduces the elements of each segment."""
    function = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[a["reduction"]]
    whole = x.dtype.kind != "f"
    least, greatest = (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max) if whole else (-np.inf, np.inf)
    identity = {"sum": 0, "prod": 1, "max": least, "min": greatest}[a["reduction"]]
    places = np.where(segment < 0, segment + a["count"], segment)
    rows = [x[places == number] for number in range(a["count"])]
    reduced = [np.asarray(function.reduce(row, 0, x.dtype, initial=identity)).astype(x.dtype) for row in rows]
    return np.reshape(reduced, (a["count"], *x.shape[1:])).astype(x.dtype)


def _groups(count: int, ends: Array) -> list[tuple[int, int]] | None:
    """Return the first and the last row of each group, where ends are in order."""
    last = [int(end) for end in ends]
    if not last or last != sorted(last) or last[0] < 0 or last[-1] > count:
        return None
    return list(zip([0, *last[:-1]], last, strict=True))


def _consecutive(_: Attributes, x: Array, bounds: Array) -> Array | None:
    """NumPy adds up the rows between bounds that are in order."""
    if _groups(len(x), bounds) is None:
        return None
    rows = [x[first:last].sum(0, dtype=np.float64) for first, last in pairwise(bounds)]
    return np.reshape(rows, (len(bounds) - 1, *x.shape[1:])).astype(x.dtype)


def _row_groups(_: Attributes, a: Array, b: Array, ends: Array) -> Array | None:
    if (groups := _groups(len(a), ends)) is None:
        return None
    y = np.zeros((len(a), b.shape[2]), a.dtype)
    for number, (first, last) in enumerate(groups):
        y[first:last] = a[first:last] @ b[number]
    return y


def _outer(_: Attributes, a: Array, b: Array, ends: Array) -> Array | None:
    """Here a row of another group is zero, which times infinity is no number."""
    if (groups := _groups(len(a), ends)) is None or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    return np.stack([a[first:last].T @ b[first:last] for first, last in groups])


def _mode(a: Attributes, x: Array) -> tuple[Array, Array] | None:
    """NumPy counts equal elements of each row; the last of the least most frequent one counts."""
    if not x.shape[a["axis"]]:
        return None
    rows = np.moveaxis(x, a["axis"], -1)
    places = np.empty(rows.shape[:-1], np.int64)
    for at in np.ndindex(places.shape):
        row = rows[at].tolist()
        often = [row.count(value) if value == value else 0 for value in row]
        least = min((value for value, n in zip(row, often, strict=True) if n == max(often)), key=lambda v: (v == v, v))
        places[at] = max((place for place, value in enumerate(row) if value == least), default=0)
    values = np.take_along_axis(rows, places[..., None], -1)
    if not a["keepdims"]:
        return values[..., 0], places
    return np.moveaxis(values, -1, a["axis"]), np.moveaxis(places[..., None], -1, a["axis"])


#: Operations that count, or combine elements by their segments.
COUNTS: dict[str, Counterpart] = {
    "histogram": of_tensors(_histogram), "segment_reduce": _segments, "segment_sum": _consecutive,
    "grouped_matmul": _row_groups,
    "grouped_outer": _outer, "mode": _mode,
}  # fmt: skip
