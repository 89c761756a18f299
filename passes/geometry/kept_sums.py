"""Sums of rows that keep axes: runs, lanes, shared memory.

    w[i, a, c] across sum = x[i, a, b, c]

A run has the elements of one `a`. Where it has no `c`, a thread adds up each vector of it, else the vectors that it has
of the block's run, element by element. Lanes of a warp add theirs by shuffles; the block's threads add up what is left,
through shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ...ir import LANES, FusedGroup, Output, Segment, Var, variables
from .block_sums import part_place
from .footprint import Count, ceil_div
from .segment_geometry import Geometry

#: Most lanes whose vectors of a run are added up by shuffles.
MAX_FOLDED_LANES = 8


def kept_runs(output: Output, shape: Sequence[int]) -> tuple[int, int]:
    """Return the lengths of the runs of a row that a kept sum adds up, and of the kept elements within each.

    A run's sums are of every so many elements; (0, 0) where sums are of other elements.

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
    """Return the runs of a segment's kept sums, (0, 0) without common ones."""
    found = {(o.extra, *kept_runs(o, group.tensors[o.tensor].shape)) for o in segment.kept_sums}
    return found.pop()[1:] if len(found) == 1 else (0, 0)


def kept_lanes(geometry: Geometry) -> tuple[Count, Count]:
    """Return the lanes that add up the terms of kept sums by shuffles, and their distance.

    Their elements are of the same sums: of neighbouring vectors of a run, or of vectors at a distance.
    """
    length, inner = geometry.structure.kept
    lanes, width = geometry.reduction_threads, np.maximum(1, geometry.row_vector)
    apart = np.maximum(1, inner // width)
    stride = apart * np.where(geometry.structure.over_columns > 0, geometry.threads // np.maximum(1, lanes), 1)
    even = np.gcd(lanes // apart, np.where(inner > 1, LANES, np.gcd(MAX_FOLDED_LANES, length // width)))
    fitting = np.where(np.equal(stride & (stride - 1), 0), np.maximum(1, LANES // np.maximum(1, stride)), 1)
    return np.minimum(np.gcd(LANES, even), fitting), stride


def kept_slots(geometry: Geometry) -> Count:
    """Return the partial sums of a row that the threads of a block leave in shared memory."""
    folded, _ = kept_lanes(geometry)
    width = np.maximum(1, geometry.row_vector)
    own = ceil_div(geometry.trips[0], geometry.spread.cluster) * geometry.block_k[0] // width
    return np.where(geometry.structure.kept[1] > 1, geometry.reduction_threads * width, own) // folded
