"""Partial sums in shared memory: warp split-K, sums that keep axes.

    w[i, a, c] across sum = x[i, a, b, c]

A run of such a row has the elements of one `a`. Without a `c`, a thread adds up each vector of it, else its vectors of
the run, element by element. Lanes of a warp add theirs by shuffles, the threads of a block the rest, by shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from attrs import evolve

from ...ir import LANES, FusedGroup, Output, Segment, Target, Var, variables
from .block_sums import part_place
from .footprint import Count, ceil_div
from .segment_geometry import Geometry

#: Most lanes whose vectors of a run are added up by shuffles.
MAX_FOLDED_LANES = 8


def may_split_k(geometry: Geometry) -> bool:
    """Return whether any candidate schedule uses warp split-K."""
    return bool(geometry.structure.mma) and bool(np.any(np.greater(geometry.reduction_threads, 1)))


def partial_sum_bytes(group: FusedGroup, segment: Segment, geometry: Geometry) -> Count:
    """Return the shared-memory bytes of the warps' partial sums."""
    fast, slow, rows = _matrix_dims(segment, geometry)
    places = partial_sum_elements(geometry.block[fast], geometry.block[slow], rows, geometry.reduction_threads)
    size = group.tensors[segment.reductions[0].name].dtype.size
    return np.where(np.greater(geometry.reduction_threads, 1), ceil_div(places * size, 16) * 16, 0)


def result_geometry(group: FusedGroup, segment: Segment, geometry: Geometry, target: Target) -> Geometry:
    """Return the sizes after the exchange of sums.

    Each thread has a share of its former results, and there are no reduction threads.
    """
    if not may_split_k(geometry):
        return geometry
    fast, slow, _ = _matrix_dims(segment, geometry)
    widest = target.vector_bytes // min(group.tensors[o.tensor].dtype.size for o in segment.outputs)
    shares = result_shares(geometry.thread[fast], geometry.thread[slow], geometry.reduction_threads)
    thread, vector, counts = list(geometry.thread), list(geometry.vector), list(geometry.counts)
    for d, share in zip((fast, slow), shares, strict=True):
        thread[d] = geometry.thread[d] // share
        counts[d] = geometry.counts[d] * share
        longest = result_vector(thread[d], widest if d == fast else 1)
        vector[d] = np.where(np.greater(geometry.reduction_threads, 1), longest, geometry.vector[d])
    return evolve(
        geometry,
        thread=tuple(thread),
        vector=tuple(vector),
        counts=tuple(counts),
        spread=evolve(geometry.spread, reduction_threads=1),
    )


def _matrix_dims(segment: Segment, geometry: Geometry) -> tuple[int, int, bool]:
    """Return the dim along which results lie in memory, the other one, and whether the first is that of rows."""
    structure = geometry.structure
    fast = contiguous_side(segment, structure.dims, structure.rows, structure.columns)
    return fast, structure.rows + structure.columns - fast, fast == structure.rows


#: The pitch of a row of sums in words, modulo 16, for stores without bank conflicts: lanes store two neighbours each
#: along columns, or one of each column.
_PITCH_OFFSET, _PITCH_OFFSET_TRANSPOSED = 8, 4


def contiguous_side(segment: Segment, dims: Sequence[Sequence[Var]], rows: int, columns: int) -> int:
    """Return the side that is contiguous in the written output.

    It is `rows` or `columns`, the tile dims of the instruction's results.
    """
    written = [variables(o.write[-1]) for o in segment.outputs if o.write]
    return rows if any(dims[rows][-1] in found for found in written) else columns


def partial_sum_elements(fast: Count, slow: Count, rows: bool, lanes: Count) -> Count:
    """Return the shared-memory elements of a block's partial sums.

    `fast` elements are neighbours, along the instruction's `rows` or its columns.
    """
    return lanes * slow * partial_sum_pitch(fast, rows)


def partial_sum_pitch(fast: Count, rows: bool) -> Count:
    """Return the elements between the starts of rows of partial sums."""
    return fast + ((_PITCH_OFFSET_TRANSPOSED if rows else _PITCH_OFFSET) - fast) % 16


def result_shares(fast: Count, slow: Count, lanes: Count) -> tuple[Count, Count]:
    """Return the divisors of a thread's tile of results.

    They apply to the fast and the slow dim, where `lanes` warps have sums for the tile.
    """
    slow_share = np.gcd(slow, lanes)
    return np.gcd(fast, lanes // slow_share), slow_share


def result_vector(fast: Count, widest: int) -> Count:
    """Return the width of a thread's stores of neighbouring results."""
    return np.gcd(fast, widest)


# ---- sums of rows that keep axes


def kept_runs(output: Output, shape: Sequence[int]) -> tuple[int, int]:
    """Return the elements of a kept sum's run, and its sums.

    Each sum of a run is of every so many elements; (0, 0) where sums are of other elements.

        w[i, a, c] across sum = x[i, a, b, c]   ->   runs of b * c elements, c sums of each
    """
    row, places, kept = prod(v.extent for v in output.extra), list[int](), set[Var]()
    for index, extent in zip(output.write, shape, strict=True):
        if extent > 1 and row % extent == 0 and index == part_place(output.extra, row // extent):
            places.append(extent)
        else:
            kept |= variables(index) & {*output.extra}
    left = [v for v in output.extra if v.extent > 1]
    inner = outer = 1
    while left and left[-1] in kept:
        inner *= left.pop().extent
    while left and left[0] in kept:
        outer *= left.pop(0).extent
    places += [outer] if outer > 1 else []
    length = row // prod(places)
    if not left or kept & {*left} or len(places) > 1 or length % inner or length == inner:
        return 0, 0
    return length, inner


def kept_sum_runs(segment: Segment, group: FusedGroup) -> tuple[int, int]:
    """Return the runs of all kept sums, or (0, 0)."""
    found = {(o.extra, *kept_runs(o, group.tensors[o.tensor].shape)) for o in segment.kept_sums}
    return found.pop()[1:] if len(found) == 1 else (0, 0)


def kept_lanes(geometry: Geometry) -> tuple[Count, Count]:
    """Return the lanes that add up terms by shuffles, and their distance.

    Their elements are of the same sums: of neighbouring vectors of a run, or of vectors at a distance.
    """
    length, inner = geometry.structure.kept
    lanes, width = geometry.reduction_threads, np.maximum(1, geometry.row_vector)
    between = np.maximum(1, inner // width)
    stride = between * np.where(geometry.structure.over_columns > 0, geometry.threads // np.maximum(1, lanes), 1)
    even = np.gcd(lanes // between, np.where(inner > 1, LANES, np.gcd(MAX_FOLDED_LANES, length // width)))
    fitting = np.where(np.equal(stride & (stride - 1), 0), np.maximum(1, LANES // np.maximum(1, stride)), 1)
    return np.minimum(np.gcd(LANES, even), fitting), stride


def kept_slots(geometry: Geometry) -> Count:
    """Return the partial sums of a row in shared memory."""
    folded, _ = kept_lanes(geometry)
    width = np.maximum(1, geometry.row_vector)
    own = ceil_div(geometry.trips[0], geometry.spread.cluster) * geometry.block_k[0] // width
    return np.where(geometry.structure.kept[1] > 1, geometry.reduction_threads * width, own) // folded
