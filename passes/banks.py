"""Bank conflicts of shared-memory loads, by simulating the addresses of a warp (the paper's `COEF_bc`, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir.expr import expr_variables
from ..ir.index import Var
from ..ir.segment import FusedGroup, operands
from ..ir.target import Target
from .footprint import Count
from .geometry import Geometry
from .tiles import operand_steps


def conflict_factor(group: FusedGroup, sizes: Sequence[Geometry], target: Target) -> Count:
    """Return `COEF_bc` of every point: the worst of its staged operands, 1 where no load conflicts."""
    worst: Count = 1.0
    for segment, geometry in zip(group.segments, sizes, strict=True):
        own = [r.name for r in segment.reductions]
        for position, reduction in enumerate(segment.reductions):
            for operand in geometry.structure.staged[position]:
                expr = operands(reduction, own)[operand]
                steps = operand_steps(expr, segment, reduction, geometry, position)
                used = expr_variables(expr)
                worst = np.maximum(worst, _simulated(used, steps, geometry, target))
    return worst


def _simulated(used: frozenset[Var], steps: Sequence[Count], geometry: Geometry, target: Target) -> Count:
    """Simulate each different warp once: the lanes along each dim and the banks between neighbours say all there is to know."""
    banks = target.banks
    key: Count = np.int64(0)
    radix = target.warp_size + 1
    lanes = geometry.lanes_along(target.warp_size)
    dims = list(zip(geometry.structure.dims, lanes, steps, geometry.vector, strict=True))[::-1]
    kept = 0
    for dim, along, step, vector in dims:
        if all(a.extent == 1 for a in dim):
            continue
        stride = step * vector if used & set(dim) else 0
        turn = np.where(np.equal(stride, 0), 0, (stride - 1) % banks + 1)
        key = (key * radix + along) * (banks + 1) + turn
        kept += 1
        if kept == 5:  # a key of five dims fills 64 bits; no warp reaches further
            break
    different, places = np.unique(key, return_inverse=True)
    factors = np.asarray([warp_cycles(_decode(int(k), kept, radix, banks), banks, target.warp_size) for k in different])
    found: np.ndarray[Any, Any] = factors[places].reshape(np.shape(key))
    return found


def _decode(key: int, dims: int, radix: int, banks: int) -> list[tuple[int, int]]:
    """Return (lanes, stride) of each dim, fastest first."""
    found = []
    for _ in range(dims):
        key, turn = divmod(key, banks + 1)
        key, along = divmod(key, radix)
        found.append((along, turn))
    return found[::-1]


def warp_cycles(dims: Sequence[tuple[int, int]], banks: int, lanes: int) -> float:
    """Return how many cycles one load of a warp takes: the most different words that one bank must serve.

    `dims` gives lanes and the distance in words between neighbouring lanes along each dim, fastest first; a distance of 0 means that
    the lanes read the same word, which is served once.
    """
    words: dict[int, set[tuple[int, ...]]] = {}
    for lane in range(lanes):
        place, address = [], 0
        rest = lane
        for along, stride in dims:
            rest, at = divmod(rest, max(1, along))
            address += at * stride
            place.append(at if stride else 0)
        words.setdefault(address % banks, set()).add(tuple(place))
    return float(max(len(w) for w in words.values()))
