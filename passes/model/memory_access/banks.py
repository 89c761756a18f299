"""Bank conflicts of shared-memory loads, by simulating a warp's addresses.

The result is the paper's `COEF_bc` (section 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....ir import WIDEST_BYTES, FusedGroup, Read, Target, Var, expr_variables, variables
from ...geometry import Count, Geometry, staged_tiles

#: Bytes of a bank's word.
WORD = 4


def conflict_factor(group: FusedGroup, sizes: Sequence[Geometry], target: Target) -> Count:
    """Return `COEF_bc` of every candidate schedule.

    It is that of the worst staged operand, 1 where no load conflicts. Conflicts of fragment loads are part of their
    cycles (`fragment_loads`).
    """
    worst: Count = 1.0
    for segment, geometry in zip(group.segments, sizes, strict=True):
        if geometry.structure.mma:
            continue
        for tile in staged_tiles(group, segment, geometry):
            # Steps in words: neighbours that share a word are served together, as if they were next to each other.
            steps = [-(-s * tile.size // WORD) for s in tile.steps_along(geometry.structure.dims)]
            used = expr_variables(tile.expr)
            worst = np.maximum(worst, _simulate(used, steps, geometry, target.banks, target.warp_size))
    return worst


def shared_conflicts(read: Read, pitches: Sequence[Count], size: int, geometry: Geometry, target: Target) -> Count:
    """Return the bank conflicts of a warp's reads of a shared tensor.

    `pitches` are the tensor's strides. Threads that read several neighbours load vectors of 16 bytes, a quarter of the
    lanes at a time.
    """
    if not target.banked or not read.indices:
        return 1
    used = frozenset[Var]().union(*(variables(i) for i in read.indices))
    steps: list[Count] = []
    run: Count = 1
    for dim, thread in zip(geometry.structure.dims, geometry.thread, strict=True):
        along = [abs(i.coefficient(dim[-1])) for i in read.indices]
        steps.append(-(-sum((a * p for a, p in zip(along, pitches, strict=True)), np.int64(0)) * size // WORD))
        run = np.maximum(run, along[-1] * thread)
    words = WIDEST_BYTES // WORD
    together = np.greater_equal(run * size, WIDEST_BYTES)
    for step, vector in zip(steps, geometry.vector, strict=True):
        together = together & np.equal(step * vector % words, 0)
    single = _simulate(used, steps, geometry, target.banks, target.warp_size)
    parts = [np.maximum(1, step * vector // words) * np.not_equal(step, 0)
             for step, vector in zip(steps, geometry.vector, strict=True)]  # fmt: skip
    wide = _simulate(used, parts, geometry, target.banks // words, target.warp_size // words, whole=True)
    return np.where(together, wide, single)


def _simulate(
    used: frozenset[Var], steps: Sequence[Count], geometry: Geometry, banks: int, warp: int, whole: bool = False
) -> Count:
    """Simulate each distinct warp once: its lanes along each dim and the banks between neighbours determine the result.
    Steps are those of elements, or, `whole`, of a thread's vectors.
    """
    key: Count = np.int64(0)
    radix = warp + 1
    lanes = geometry.lanes_along(warp)
    dims = list(zip(geometry.structure.dims, lanes, steps, geometry.vector, strict=True))[::-1]
    kept = 0
    for dim, along, step, vector in dims:
        if all(a.extent == 1 for a in dim):
            continue
        stride = (step if whole else step * vector) if used & set(dim) else 0
        turn = np.where(np.equal(stride, 0), 0, (stride - 1) % banks + 1)
        key = (key * radix + along) * (banks + 1) + turn
        kept += 1
        if kept == 5:  # a key of five dims fills 64 bits; no warp reaches further
            break
    different, places = np.unique(key, return_inverse=True)
    found: np.ndarray[Any, Any] = warp_cycles(*_decode(different, kept, radix, banks), banks, warp)[places]
    return found.reshape(np.shape(key))


def _decode(
    keys: np.ndarray[Any, Any], dims: int, radix: int, banks: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the lanes and the stride of each dim, fastest first, a row per key."""
    lanes, strides = np.ones((2, keys.size, dims), dtype=np.int64)
    for d in reversed(range(dims)):
        keys, strides[:, d] = np.divmod(keys, banks + 1)
        keys, lanes[:, d] = np.divmod(keys, radix)
    return lanes, strides


def warp_cycles(
    along: np.ndarray[Any, Any], strides: np.ndarray[Any, Any], banks: int, lanes: int
) -> np.ndarray[Any, Any]:
    """Return the cycles of one warp load, for each row.

    The cycles are the most distinct words of one bank. A row gives the lanes along each dim, fastest first, and the
    distance in words between neighbouring lanes along it; at a distance of 0 the lanes read the same word, which is
    served once.
    """
    rest = np.broadcast_to(np.arange(lanes), (len(along), lanes))
    address = word = np.zeros((len(along), lanes), dtype=np.int64)
    for d in range(along.shape[1]):
        rest, at = np.divmod(rest, np.maximum(1, along[:, d : d + 1]))
        stride = strides[:, d : d + 1]
        address = address + at * stride
        word = word * (lanes + 1) + np.where(stride > 0, at, 0)
    words = (lanes + 1) ** along.shape[1]
    asked = np.sort(address % banks * words + word, axis=1)
    fresh = np.ones_like(asked, dtype=bool)
    fresh[:, 1:] = asked[:, 1:] != asked[:, :-1]
    rows = np.arange(len(along))[:, None]
    served = np.bincount((asked // words + rows * banks)[fresh], minlength=len(along) * banks)
    return np.asarray(served.reshape(-1, banks).max(axis=1), dtype=np.float64)
