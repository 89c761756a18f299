"""Work of a reduction under a candidate schedule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....ir import (
    COMBINERS,
    SORT_ORDERS,
    Call,
    Expr,
    Reduction,
    Segment,
    dtype_of,
    key_bits,
    read_ranks,
    reads,
    selection_room,
)
from ...geometry import Count, Geometry, StagedTile, product
from ..memory_access import EvaluationSite, depth_vector
from ..roofline import memory_reads
from .fetches import fetch, wait
from .lanes import combine_lanes, multiply_lanes, sort_lanes
from .matrix_instructions import add_mma
from .totals import Totals


def add_reduction(
    totals: Totals,
    segment: Segment,
    reduction: Reduction,
    place: EvaluationSite,
    staged: dict[Expr, StagedTile],
    geometry: Geometry,
    own: Sequence[str],
) -> None:
    """Add up one reduction."""
    if geometry.structure.mma:
        add_mma(totals, segment, segment.reductions.index(reduction), place, staged, geometry)
        return
    body = reduction.body
    fused = reduction.combine == "sum" and isinstance(body, Call) and body.fn == "mul"
    parallel = product(place.thread.sizes[: place.parallel]) * 1.0
    reduced = product(place.thread.sizes[place.parallel :]) * 1.0
    steps, before = parallel * reduced * place.all_trips, dict(totals.sums)
    totals.add("flops", steps * place.threads)
    totals.add("thread_flops", steps)
    issue = COMBINERS[reduction.combine].function.issue
    totals.add("issue", issue * steps * place.threads)
    totals.add("body", parallel * reduced)
    totals.add("functions", parallel * reduced * issue if issue > 1 else 0.0)
    totals.add("chain", issue * reduced * place.all_trips)
    totals.compute(body, place, tuple(staged), fused)
    if geometry.structure.reduction_threads:
        multiply_lanes(totals, before, reduction, parallel, steps, geometry)
    vectors: Count = 0.0
    for expr, tile in staged.items():
        fetch(totals, segment, expr, tile, place, geometry)
        vectors = vectors + (np.not_equal(tile.turned, 0) & np.greater(depth_vector(expr, tile, geometry), 1))
    totals.add(
        "alike", np.where(np.greater(vectors, 1), totals.target.costs.two_vectors, vectors) * steps * place.threads
    )
    held = {r for e in staged for r in reads(e)}
    for read in memory_reads(body, own):
        if read not in held:
            totals.load(read, place, geometry)
    wait(totals, staged, place, geometry)
    if geometry.structure.reduction_threads:
        stretches = np.ceil(reduced / geometry.row_vector) if reduction.along else 1.0
        if reduction.along in SORT_ORDERS:
            room = selection_room(read_ranks(segment, reduction), reduction.reduce[0].extent)
            bits = key_bits(dtype_of(body, totals.group.tensors))
            sort_lanes(totals, parallel * reduced, reduced * geometry.reduction_threads, geometry, room, bits)
        else:
            combine_lanes(totals, parallel * stretches, issue, geometry)
