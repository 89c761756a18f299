"""Work of staged operands: filling tiles, loading from them, and loop rounds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import gcd

import numpy as np

from ....ir import (
    SWIZZLES,
    WIDEST_BYTES,
    WITH_PRODUCER,
    CostCoefficients,
    DType,
    Expr,
    Read,
    Segment,
    dtype_of,
    expr_variables,
    reads,
    variables,
    vector_widths,
)
from ...geometry import (
    MIN_COPY_BYTES,
    Count,
    Geometry,
    StagedTile,
    address_of,
    is_scattered,
    least,
    main_read,
    reads_shared_matrices,
    segments_of,
)
from ..memory_access import (
    EvaluationSite,
    copied_width,
    copy_cost,
    has_division,
    running_axis,
    tile_vector,
    uneven_fetch,
    walks_evenly,
    wavefronts,
)
from ..roofline import node_cost, nodes
from .totals import Totals


def fetch(
    totals: Totals, segment: Segment, expr: Expr, tile: StagedTile, place: EvaluationSite, geometry: Geometry
) -> None:
    """Count a staged operand.

    All threads fetch it together, then each loads it from shared memory.
    """
    size = dtype_of(expr, totals.group.tensors).size
    main = fill(totals, segment, expr, tile, place, geometry)
    used = expr_variables(expr)
    once = least(place.loads(main, totals.group.tensors[main.tensor]), place.thread.dependent(used))
    loads = once * place.repeats(frozenset(used)) * 1.0
    widest = totals.target.vector_bytes // size
    vector = least(tile_vector(expr, tile, geometry), widest)
    totals.add("thread_loads", loads)
    totals.add_conversions(loads * place.threads, dtype_of(expr, totals.group.tensors))
    totals.add_least_loads(used, loads, widest, size, geometry, place.threads)
    totals.add("shared_loads", loads / vector * place.threads)
    totals.add("wavefronts", wavefronts(totals.target, used, loads / vector, vector * size, geometry))


def fill(
    totals: Totals, segment: Segment, expr: Expr, tile: StagedTile, place: EvaluationSite, geometry: Geometry
) -> Read:
    """Count the fetch of a staged operand, and return its main read.

    The main read determines the place of its elements.
    """
    moved = tile.count * place.all_trips * 1.0
    _count_computation(totals, expr, moved)
    size = dtype_of(expr, totals.group.tensors).size
    together = max((4, *vector_widths(dtype_of(expr, totals.group.tensors))))
    main = main_read(expr)
    # The calibration uses scalar kernels of f32, whose copies count as wide ones everywhere.
    atom = bool(geometry.structure.mma)
    looked_at = totals.target.lockstep and (atom or size < MIN_COPY_BYTES)
    shape = totals.group.tensors[main.tensor].steps
    deep: Count = copied_width(main, shape, geometry, together)
    if looked_at:  # rows of a tile begin at multiples of their padding
        deep = np.gcd(deep, geometry.staging.pad)
    width = deep if looked_at else None
    cost, ways = copy_cost(expr, tile, shape, geometry, together, width)
    in_bulk = geometry.loop.tma if reads_shared_matrices(geometry.structure.mma) else None
    if in_bulk is not None:  # one thread copies the whole tile
        cost, ways = np.where(in_bulk, 1.0 / tile.count, cost), np.where(in_bulk, 1.0, ways)
        _count_bulk_copies(totals, main, tile, moved, size, in_bulk, geometry)
        clocks = _narrow_copy_clocks(size / cost, totals.target.costs) if isinstance(expr, Read) else 0.0
        totals.add("wavefronts", np.where(in_bulk, 0.0, moved * cost * clocks / totals.target.warp_size))
    past = (
        np.less_equal(cost, 1.0 / together) & np.greater(geometry.loop.stages, 1) & np.equal(geometry.staging.l1, 0)
        if totals.target.async_copy
        else np.bool_(False)
    )
    staged = [*reads(expr)]
    for read in staged:
        _count_read(totals, read, place, moved, past, None if in_bulk is None else (in_bulk, moved * cost), atom)
    stretch: Count = 1.0
    if not atom:  # whose calibration ignores it
        uneven, stretch = uneven_fetch(main, shape, tile, geometry, deep, totals.threads)
        totals.add("uneven", np.where(uneven, moved / deep, 0.0))
    totals.add("copies", moved * cost * stretch)
    if looked_at:
        narrow = _copies_narrow(totals.group.tensors[staged[-1].tensor].dtype, totals)
        carried = narrow & np.greater(cost * MIN_COPY_BYTES, size) | (atom and not isinstance(expr, Read))
        carried = carried if in_bulk is None else carried & np.equal(in_bulk, 0)
        totals.add("register_staged", np.where(carried, moved * cost, 0.0))
    totals.add("scatter", moved * (ways - 1.0) / totals.target.warp_size)
    totals.add("wavefronts", moved * size / totals.target.shared_bandwidth)
    totals.add("least_wavefronts", moved * size / totals.target.shared_bandwidth)
    divided = moved * (cost if atom else np.where(tile.turned, cost, 1.0))
    if not atom:
        even = walks_evenly(main, shape, tile, geometry)
        divided = np.where(even, least(divided, geometry.threads * place.all_trips * 1.0), divided)
    totals.add("divided", divided * has_division(main, geometry))
    return main


def _count_computation(totals: Totals, expr: Expr, moved: Count) -> None:
    """Count the computation of the elements of a staged expression."""
    dtype = dtype_of(expr, totals.group.tensors)
    for node in nodes(expr):
        work = node_cost(node, totals.group.tensors)
        totals.add("flops", moved * work.flops)
        totals.add("issue", moved * work.issue)
    if not isinstance(expr, Read):  # it passes through registers: each element is widened, and a pair narrowed again
        totals.add_conversions(1.5 * moved, dtype)


def _count_bulk_copies(
    totals: Totals, main: Read, tile: StagedTile, moved: Count, size: int, in_bulk: Count, geometry: Geometry
) -> None:
    """Count the lines of boxes, and those that straddle sectors."""
    shape, line = totals.group.tensors[main.tensor].steps, _line_of_box(main, tile, geometry)
    totals.add("boxed", np.where(in_bulk, moved / line, 0.0))
    straddling = _straddling_share(main, shape, totals.target.sector_bytes // size)
    totals.add("straddling", np.where(in_bulk, moved / line * straddling, 0.0))


def _line_of_box(main: Read, tile: StagedTile, geometry: Geometry) -> Count:
    """Return the elements of a line of shared memory that bulk copies bring at once: those of the widest swizzle.

    Pixels of a window bring channels of one place.
    """
    structure, line = geometry.structure, max(SWIZZLES) // tile.size
    reduced = [a for a in structure.loops[0] if a.extent > 1]
    used = [{v for v in variables(index) if v.extent > 1} for index in main.indices]
    if used[-1] & {*reduced}:
        windowed = any(axes & {*reduced} and axes - {*reduced} for axes in used)
        return np.gcd(reduced[-1].extent if windowed else geometry.block_k[0], line)
    d = structure.rows if used[-1] & {*structure.dims[structure.rows]} else structure.columns
    axes = [a.extent for a in structure.dims[d] if a.extent > 1]
    return np.gcd(np.gcd(geometry.block[d], axes[-1] if len(axes) > 1 else line), line)


def _narrow_copy_clocks(nbytes: Count, costs: CostCoefficients) -> Count:
    """Return the clocks of a warp's copies of so many bytes each to a matrix that products read in place."""
    narrow = np.where(np.less(nbytes, MIN_COPY_BYTES), costs.element_copy, costs.narrow_copy)
    return np.where(np.less(nbytes, WIDEST_BYTES), narrow, 0.0)


def _straddling_share(read: Read, shape: Sequence[int], sector: int) -> float:
    """Return the share of lines that begin within a sector of so many elements.

    They begin at multiples of the greatest step that all of them have in common.
    """
    axis, _ = running_axis(read)
    address = address_of(read.indices, shape)
    return 1.0 - gcd(sector, address.const, *(n for v, n in address.terms if v != axis)) / sector


def _copies_narrow(dtype: DType, totals: Totals) -> bool:
    """Return whether copies of elements narrower than a word are vectors of them."""
    return totals.target.async_copy or bool(vector_widths(dtype))


def _count_read(
    totals: Totals,
    read: Read,
    place: EvaluationSite,
    moved: Count,
    past: Count,
    in_bulk: tuple[Count, Count] | None,
    atom: bool,
) -> None:
    """Count the loads of `moved` elements that one read of a staged operand makes.

    `past` is true where they bypass L1; `in_bulk` has where one thread makes them all, and its loads.
    """
    kind = totals.group.tensors[read.tensor].dtype
    pieces = moved / (totals.target.vector_bytes // (min(4, kind.size) if _copies_narrow(kind, totals) else 4))
    if in_bulk is not None:
        pieces = np.where(*in_bulk, pieces)
    totals.add("global_loads", pieces)
    totals.add("certain", pieces)
    more = np.maximum(0.0, _sector_bytes(read, place, totals) - moved * kind.size)
    totals.add("fetched", moved * kind.size + more)
    once = totals.block_traffic(read, place)
    totals.add("streamed", np.where(past, once, 0.0))
    totals.add("missed", more / 2.0)  # with requested bytes, as many bytes through L2
    if totals.target.lockstep and is_scattered(read):
        totals.add("lines", totals.target.bounds.scattered_line * moved)
    if atom:
        totals.add("missed", np.where(past, np.maximum(0.0, moved * kind.size - once), 0.0))


def _sector_bytes(read: Read, place: EvaluationSite, totals: Totals) -> Count:
    """Return the bytes of the sectors that a fetch touches in all trips: partly used ones come again in later trips,
    unless L1 keeps a whole trip's.
    """
    kind = totals.group.tensors[read.tensor]
    unit = max(1, totals.target.sector_bytes // kind.dtype.size)
    touched = segments_of(read, kind.steps, place.block, unit) * float(totals.target.sector_bytes)
    return np.where(np.greater(touched, totals.target.bounds.l1_kept_bytes), touched * place.all_trips, 0.0)


def wait(totals: Totals, staged: Collection[Expr], place: EvaluationSite, geometry: Geometry) -> None:
    """Count the rounds of a loop, and its barriers."""
    if staged:
        refilled = np.where(
            np.greater(place.all_trips, 1), 2.0 * place.all_trips, 1.0
        )  # a buffer that is read before it is filled again
        rounds = np.where(np.greater(geometry.loop.stages, 1), place.all_trips * 1.0, refilled)
        if reads_shared_matrices(geometry.structure.mma):  # beside a producer, threads meet once
            rounds = np.where(np.greater_equal(geometry.loop.tma, WITH_PRODUCER), 1.0, rounds)
        totals.add("barriers", rounds)
    totals.add("rounds", place.all_trips * totals.repeat * totals.left * 1.0)
    if not staged:
        totals.add("looped", place.all_trips * totals.repeat * totals.left * 1.0)
