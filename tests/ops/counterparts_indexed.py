"""Counterparts of counts and of segments: PyTorch's own functions."""

from __future__ import annotations

import math
from typing import Any

from .counterparts_torch import Attributes, Counterpart, of_tensors, torch


def _histogram(a: Attributes, x: Any, low: Any, high: Any) -> Any:
    """PyTorch counts floats; integers are exact as such where they are small, and no bound equals the other."""
    first, last = float(low), float(high)
    exact = x.is_floating_point() or max(abs(n) for n in (*x.tolist(), first, last)) * a["bins"] < 2**50
    if not exact or not -math.inf < first < last < math.inf or math.isinf(last - first):
        return None
    return torch.histc(x.double(), a["bins"], first, last).long()


def _segments(a: Attributes, x: Any, segment: Any) -> Any:
    """PyTorch scatters slices; those of no segment are dropped."""
    count = a["count"]
    places = torch.where(segment < 0, segment + count, segment).long()
    inside = torch.nonzero((places >= 0) & (places < count)).reshape(-1)
    rows, places = x.index_select(0, inside), places[inside]
    if a["reduction"] == "sum":
        return torch.zeros(count, *x.shape[1:], dtype=x.dtype).index_add(0, places, rows)
    if not x.is_floating_point() and len(places.unique()) < count:
        return None  # the identity is of a type that PyTorch may not have
    start = {"prod": 1.0, "max": -math.inf, "min": math.inf}[a["reduction"]]
    whole = torch.full((count, *x.shape[1:]), start if x.is_floating_point() else 0, dtype=x.dtype)
    places = places.reshape(-1, *(1,) * (rows.ndim - 1)).expand(rows.shape)
    how = {"prod": "prod", "max": "amax", "min": "amin"}[a["reduction"]]
    found = whole.scatter_reduce(0, places, rows, how, include_self=x.is_floating_point())
    return found if rows.numel() and count else whole


#: Operations that count, or combine elements by their segments.
COUNTS: dict[str, Counterpart] = {"histogram": of_tensors(_histogram), "segment_reduce": of_tensors(_segments)}
