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


#: Operations that count, or combine elements by their segments.
COUNTS: dict[str, Counterpart] = {"histogram": of_tensors(_histogram)}
