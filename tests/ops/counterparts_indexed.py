"""Counterparts of counts and of segments: PyTorch and NumPy."""

from __future__ import annotations

import math
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


#: Operations that count, or combine elements by their segments.
COUNTS: dict[str, Counterpart] = {"histogram": of_tensors(_histogram), "segment_reduce": _segments}
