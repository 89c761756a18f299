"""Performance upper limit (PUL) exactly as DeepCuts prints it, contradictions included.

It differs from `pul_paper` in four places (section 4.2, Tables 7 and 8):

* `WBRatio` is `1 - ((N_TB mod N_SM) / N_SM) / ceil(N_TB / N_SM)`;
* a window of F values at stride S reads `floor((T + F - 2 P) / S) + 1` rows for T rows of outputs, without dilation;
* simple operations take `TRANS_global` transactions a row, `W_block / (W_block / TRANS_global)`; filters are loaded
  from shared memory in units of `TRANS_global`;
* `COEF_r` is 0 for a block that uses all threads or all shared memory.

The formulae are those of the access pattern: a product with a window is a direct convolution, another reduction of
products a matrix product, a single windowed operand pooling, everything else a simple operation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import evolve

from ...ir import Expr, FusedGroup, Index, Read, Reduction, Segment, Target, Var, reads
from ..geometry import Count, Geometry, ceil_div, distinct, product
from .feature_schema import Features, PaperCounts
from .pul_paper import performance_limit

Extents = Mapping[Var, Count]


def printed_pul(
    group: FusedGroup, geometry: Sequence[Geometry], features: Features, target: Target, conflicts: Count = 1.0
) -> Count:
    """Return the printed performance upper limit as a share of peak.

    `geometry` has the sizes of each segment, `conflicts` is `COEF_bc`.
    """
    parts = zip(group.segments, geometry, features.segments, strict=True)
    counts = tuple(_counts(group, segment, sizes, known, target) for segment, sizes, known in parts)
    ratio = performance_limit(evolve(features, segments=counts), target, conflicts)
    fits = np.logical_and(features.threads < target.MAX_thread, features.shared < target.MAX_shared)
    return ratio * printed_wb_ratio(features.grid, target.NUM_SM) * np.where(fits, 1.0, 0.0)


def printed_wb_ratio(blocks: Count, sms: int) -> Count:
    """Return the printed `WBRatio`."""
    return 1.0 - (np.mod(blocks, sms) / sms) / np.ceil(blocks / sms)


def _counts(
    group: FusedGroup, segment: Segment, sizes: Geometry, known: PaperCounts, target: Target
) -> PaperCounts:  # fmt: skip
    """Return a segment's counts with the printed loads and transactions."""
    loops = [v for r in segment.reductions for v in r.reduce]
    whole: dict[Var, Count] = {v: v.extent for v in loops}
    block, thread = ({**cover.extents, **whole} for cover in (sizes.block_cover, sizes.thread_cover))
    loads: Count = 0.0
    transactions: Count = 0.0
    own = {r.name for r in segment.reductions}
    bodies: list[tuple[Expr, Reduction | None]] = [(r.body, r) for r in segment.reductions]
    bodies = bodies or [(o.body, None) for o in segment.outputs]
    for body, reduction in bodies:
        found = [read for read in dict.fromkeys(reads(body)) if read.tensor not in own]
        windowed = [any(_window(index, reduction) for index in read.indices) for read in found]
        for read, has_window in zip(found, windowed, strict=True):
            loaded, moved = _of_read(
                group, read, has_window, any(windowed), len(found), reduction, block, thread, target.TRANS_global
            )
            loads = loads + loaded
            transactions = transactions + (0.0 if read.tensor in group.shared else moved)
    return evolve(known, loads=loads, transactions=transactions)


def _of_read(
    group: FusedGroup, read: Read, has_window: bool, convolves: bool, operands: int, reduction: Reduction | None,
    block: Extents, thread: Extents, unit: int,
) -> tuple[Count, Count]:  # fmt: skip
    """Return the loads of a thread and the transactions of a block for one operand."""
    shape = group.tensors[read.tensor].shape
    of_thread, of_block = (_extents_product(read, shape, each, reduction) for each in (thread, block))
    if has_window and operands > 1:
        return of_thread, of_block / unit
    if has_window:
        assert reduction is not None, "windows are those of a reduction"
        return _evaluations(read, thread), of_block / unit
    if convolves:
        return of_thread / unit, np.ceil(of_block / unit)
    inner = distinct(read.indices[-1], block, shape[-1]) if read.indices else 1
    rows = of_block / inner
    if reduction is not None:
        return of_thread, rows * ceil_div(inner, unit)
    return of_thread, rows * unit


def _extents_product(read: Read, shape: Sequence[int], extents: Extents, reduction: Reduction | None) -> Count:
    """Return the elements of an operand, windows by the printed formula."""
    return product(
        _printed_rows(index, extents, reduction) if _window(index, reduction) else distinct(index, extents, extent)
        for index, extent in zip(read.indices, shape, strict=True)
    ) * 1.0  # fmt: skip


def _window(index: Index, reduction: Reduction | None) -> bool:
    """Return whether an index is `S * output + D * reduced - P`."""
    parts = [primary for primary, _ in index.terms]
    reduced = set(reduction.reduce) if reduction is not None else set()
    return len(parts) == 2 and all(isinstance(p, Var) for p in parts) and sum(p in reduced for p in parts) == 1


def _printed_rows(index: Index, extents: Extents, reduction: Reduction | None) -> Count:
    """Return `floor((T + F - 2 P) / S) + 1`, at least 1."""
    assert reduction is not None, "windows are those of a reduction"
    (inner, _), (outer, stride) = sorted(index.terms, key=lambda term: term[0] not in reduction.reduce)
    assert isinstance(inner, Var), "a window is over variables"
    assert isinstance(outer, Var), "a window is over variables"
    tile = extents.get(outer, 1)
    return np.maximum(1, (tile + inner.extent + 2 * index.const) // abs(stride) + 1)


def _evaluations(read: Read, extents: Extents) -> Count:
    """Return the product of the extents of all variables of an operand."""
    used = [primary for index in read.indices for primary, _ in index.terms if isinstance(primary, Var)]
    return product(extents.get(v, 1) for v in dict.fromkeys(used)) * 1.0
