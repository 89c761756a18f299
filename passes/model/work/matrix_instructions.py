"""Work of matrix-instruction reductions: multiplications, fragments, and sums shared by warps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....ir import ACCUMULATOR_VECTOR, LANES, MATH_MODES, Expr, Read, Segment, dtype_of
from ...geometry import (
    ROW_LANES,
    Count,
    Geometry,
    StagedTile,
    is_staged_once,
    lies_deep,
    main_read,
    may_split_k,
    product,
    promotion_depth,
    reads_shared_matrices,
    staged_tiles,
    streamed_segment,
)
from ..memory_access import EvaluationSite, evaluation_site
from ..mma_work import MmaSide, MmaWork, mma_work, warps_of
from .fetches import fill, wait
from .fragment_loads import MATRICES, filling_ways, fragment_loads
from .totals import Totals

#: Tensor cores of an SM: each serves the warps of a quarter of it.
TENSOR_CORES = 4.0
#: Instructions of a sum that lanes exchange: one shuffle and three selections.
EXCHANGE_INSTRUCTIONS = 4.0


def add_mma(
    totals: Totals, segment: Segment, position: int, place: EvaluationSite, staged: dict[Expr, StagedTile],
    geometry: Geometry,
) -> None:  # fmt: skip
    """Add up a reduction of a segment by matrix instructions.

    Warps load their fragments, split them into parts, multiply, and add partial sums where these are promoted.
    """
    work, warps, trips = mma_work(segment, geometry, position), warps_of(geometry), place.all_trips
    if work.mma.reads_shared:
        _add_warpgroup_products(totals, segment, position, work, place, staged, geometry)
        return
    mode = MATH_MODES.get(segment.reductions[0].math)
    atoms = work.multiplications * trips * warps * 1.0
    totals.add("tensor", atoms * dict(totals.target.atoms).get(work.mma.name, 0.0) / TENSOR_CORES)
    totals.add("issue", atoms * totals.target.warp_size)
    totals.add("body", work.multiplications * 1.0)
    totals.add("chain", work.steps * trips * work.products * totals.target.bounds.mma_chain)
    if mode is not None and mode.every:
        totals.add("issue", product(geometry.thread) * trips * geometry.threads * 1.0)
    for axis, side in enumerate(work.sides):
        size = dtype_of(side.expr, totals.group.tensors).size
        elements = side.atoms * side.elements * work.steps * 1.0
        totals.add("issue", elements * work.splitting * trips * geometry.threads)
        totals.add("body", elements * (1 + work.splitting))
        if totals.in_registers and side.expr not in staged:
            _hold_rows(totals, side, elements * trips, place, geometry)
            continue
        if side.expr in staged:
            if not is_staged_once(side.expr, geometry.structure):
                fill(totals, segment, side.expr, staged[side.expr], place, geometry)
            _load_fragments(totals, staged[side.expr], side, axis, side.atoms * work.steps * trips * 1.0, geometry)
        elif geometry.structure.boxed:
            _load_box_fragments(totals, side, side.atoms * work.steps * trips * 1.0, geometry)
        totals.add("thread_loads", elements * trips)
        totals.add("certain", elements * trips * geometry.threads * size / totals.target.vector_bytes)
        cycles = elements * trips * warps * (totals.target.warp_size * size / totals.target.shared_bandwidth)
        totals.add("least_wavefronts", cycles)
    wait(totals, staged, place, geometry)
    if may_split_k(geometry):
        _join_warps(totals, segment, geometry)


def _hold_rows(totals: Totals, side: MmaSide, elements: Count, place: EvaluationSite, geometry: Geometry) -> None:
    """Count the rows' fragments of a chain in registers.

    They are results that are packed in pairs, or loads before the parts.
    """
    main = main_read(side.expr)
    if main.tensor in totals.in_registers:
        totals.add("issue", elements / 2.0 * geometry.threads)
    else:
        totals.block_traffic(main, place)


def add_chain_overhead(totals: Totals, geometry: Sequence[Geometry]) -> None:
    """Count the work of a chain in registers besides its segments.

    It rescales sums of online softmax, and loads the rows' fragments once; a part takes a wait and a barrier.
    """
    first, last = geometry[0], geometry[-1]
    parts = geometry[1].trips[0] if len(geometry) > 2 else streamed_segment(geometry)[1]
    several = np.where(np.greater(parts, 1), parts * 1.0, 0.0)
    if len(geometry) > 2:
        totals.add("issue", product(last.thread) * last.threads * several)
    segment = totals.group.segments[0]
    kept = [t for t in staged_tiles(totals.group, segment, first) if is_staged_once(t.expr, first.structure)]
    for tile in kept:
        fill(totals, segment, tile.expr, tile, evaluation_site(first, first.structure.reduces[tile.reduction]), first)
    if not kept:
        elements = first.thread[first.structure.rows] * first.block_k[0] / ROW_LANES * 1.0
        pairs = elements / 2.0 * last.threads
        totals.add("global_loads", pairs)
        totals.add("certain", pairs)
        totals.add("direct", elements / 2.0)
    barriers = np.where(np.greater(parts, 1), parts * 1.0, 2.0)
    if reads_shared_matrices(last.structure.mma):  # copies of all threads end with a fence, and warpgroups in step
        target = totals.target
        barriers = barriers * np.where(
            np.greater(last.loop.tma, 0), target.bounds.awaited_barriers, target.bounds.fenced_barriers
        )
    totals.sums["barriers"] = barriers
    totals.sums["rounds"] = parts * 1.0


def _add_warpgroup_products(
    totals: Totals,
    segment: Segment,
    position: int,
    work: MmaWork,
    place: EvaluationSite,
    staged: dict[Expr, StagedTile],
    geometry: Geometry,
) -> None:
    """Add up products whose operands a warpgroup reads in shared memory.

    An instruction reads all its columns, and its rows, unless registers hold these. The bound does not add these reads
    to the writes of copies: no measurement shows that the two exclude each other, and for 64 columns or more products
    take longer.
    """
    warps, trips, atom = warps_of(geometry), place.all_trips, work.mma
    columns = geometry.block[geometry.structure.columns]
    rows, reduction = work.sides[0], segment.reductions[position]
    loaded = rows.expr in staged and staged[rows.expr].held
    rows_held = loaded or rows.expr not in staged
    atoms = work.multiplications * trips * warps * (1.0 / atom.warps)
    instructions = atoms * atom.n / columns
    totals.add("tensor", atoms * dict(totals.target.atoms).get(atom.name, 0.0) / TENSOR_CORES)
    totals.add("issue", instructions * atom.warps * totals.target.warp_size)
    totals.add("body", work.multiplications * 1.0)
    totals.add("chain", work.steps * trips * totals.target.bounds.mma_chain)
    read = (columns if rows_held else atom.m + columns) * atom.k * atom.held.size / totals.target.shared_bandwidth
    totals.add("wavefronts", instructions * read)
    if promotion_depth(reduction, atom.name):
        promoted = 1.0 * product(geometry.thread) * trips * geometry.threads
        totals.add("issue", promoted)
        totals.add("promoted", promoted)
    _exchange_lanes(totals, staged.get(work.sides[1].expr), geometry)
    if rows_held and not loaded:
        elements = rows.atoms * (atom.m // atom.warps * atom.k // LANES) * work.steps * trips * 1.0
        _hold_rows(totals, rows, elements, place, geometry)
    for side in (s for s in work.sides if s.expr in staged):
        if is_staged_once(side.expr, geometry.structure):
            continue
        fill(totals, segment, side.expr, staged[side.expr], place, geometry)
        moved = staged[side.expr].count * place.all_trips * 1.0
        totals.add("issue", np.where(geometry.loop.tma, 0.0, moved * work.splitting))
        copies = 1.0 if loaded and side is rows else work.parts - 1.0  # loads of rows, or stores of further parts
        totals.add("wavefronts", moved * copies * atom.held.size / totals.target.shared_bandwidth)
        if work.splitting and side is not rows and not lies_deep(side.expr, reduction):
            totals.add("scatter", moved * work.parts * totals.target.costs.transposed)
        if loaded and side is rows:
            totals.add("shared_loads", moved / geometry.vector[geometry.structure.rows])
    wait(totals, staged, place, geometry)


def _exchange_lanes(totals: Totals, tile: StagedTile | None, geometry: Geometry) -> None:
    """Count the exchange of sums among the lanes of a row, where columns lie along their side."""
    if tile is None:
        return
    vector = geometry.vector[geometry.structure.columns]
    exchanged = np.equal(tile.turned, 0) & np.greater(vector, ACCUMULATOR_VECTOR[1])
    sums = np.where(exchanged, product(geometry.thread), 0) * 1.0
    totals.add("issue", EXCHANGE_INSTRUCTIONS * sums * geometry.threads)
    totals.add("shuffles", sums * warps_of(geometry))


def _load_fragments(
    totals: Totals, tile: StagedTile, side: MmaSide, axis: int, fragments: Count, geometry: Geometry
) -> None:
    """Count each warp's loads of a staged operand's fragments, and the waits of products: all loads, unless they are
    prefetched.
    """
    loads = fragment_loads(tile, axis, side.fragment, geometry, totals.target)
    totals.add("shared_loads", fragments * loads.instructions * geometry.threads)
    cycles = fragments * loads.cycles * warps_of(geometry)
    totals.add("wavefronts", cycles)
    totals.add("waited", np.where(geometry.loop.prefetch, 0.0, cycles))
    d = (geometry.structure.rows, geometry.structure.columns)[axis]
    along, across = geometry.block_k[geometry.structure.reduces[0][0]], geometry.block[d]
    ways = filling_ways(np.where(tile.turned, along, across), tile.pad, tile.size)
    moved = along * across * tile.size / totals.target.shared_bandwidth
    totals.add("wavefronts", (ways - 1.0) * moved * product(geometry.trips))


def _load_box_fragments(totals: Totals, side: MmaSide, fragments: Count, geometry: Geometry) -> None:
    """Count each warp's loads of fragments of a tensor in shared memory: matrices, unless an expression changes it."""
    loads = side.fragment.registers / (MATRICES if isinstance(side.expr, Read) else 1.0)
    totals.add("shared_loads", fragments * loads * geometry.threads)
    cycles = fragments * side.fragment.registers * warps_of(geometry)
    totals.add("wavefronts", cycles)
    totals.add("waited", cycles)


def _join_warps(totals: Totals, segment: Segment, geometry: Geometry) -> None:
    """Count the exchange of sums in a warp split-K: every thread stores its own, and adds up those of a share of the
    results.
    """
    several = np.greater(geometry.reduction_threads, 1)
    sums = np.where(several, product(geometry.block) * geometry.reduction_threads, 0) * 1.0
    size = totals.group.tensors[segment.reductions[0].name].dtype.size
    cycles = 2.0 * sums * size / totals.target.shared_bandwidth
    totals.add("wavefronts", cycles)
    totals.add("least_wavefronts", cycles)
    totals.add("shared_loads", 2.0 * sums * size / totals.target.vector_bytes)
    totals.add("certain", 2.0 * sums * size / totals.target.vector_bytes)
    totals.add("issue", sums)
    totals.add("chain", np.where(several, geometry.reduction_threads, 0) * 1.0)
    totals.add("barriers", np.where(several, 1.0, 0.0))
    totals.add("joined", np.log2(geometry.reduction_threads))
