"""Registers of rows that a thread keeps between statements."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ...ir import (
    MAX_RADIX_LANES,
    SORT_ORDERS,
    Expr,
    Read,
    Segment,
    Var,
    as_index,
    distinct,
    expr_variables,
    reads,
    sorts_by_radix,
    substitute_expr,
)
from ..geometry import (
    Count,
    Geometry,
    ceil_div,
    dims_of_sum,
    product,
    running_maximum,
    shareable_loops,
    sums_row,
)


def resident_row(geometry: Geometry) -> Count:
    """Return whether reduction threads, of a cluster too, hold whole rows.

    Then every reduction takes one trip, and all statements of the row share its loads. Those of a walked row share
    the loads of each block.
    """
    if geometry.structure.walked >= 0:
        return np.bool_(True)
    if not geometry.structure.reduction_threads:
        return np.bool_(False)
    if geometry.structure.passes_rows:
        return np.greater(geometry.reduction_threads, 1)  # of streamed rows, one part
    single: Count = np.greater(geometry.reduction_threads, 1)
    for trips in geometry.trips:
        single = np.logical_and(single, np.equal(trips, geometry.spread.cluster))
    return single


def shared_rows(segment: Segment) -> int:
    """Return how many row values an instance needs in several statements.

    The compiler computes them once and keeps them; a sum of two rows counts as one. The gradient of a layer norm keeps
    those of its data and of its upstream gradient: 255 registers and spills where one row was counted, in 186.
    """
    statements = [(r.body, r.reduce) for r in segment.reductions] + [(o.body, o.extra) for o in segment.outputs]
    bodies: list[Expr] = []
    rows: set[Var] = set()
    for body, row in statements:
        places = {v: Var(f"row{n}", v.extent) for n, v in enumerate(row)}
        bodies.append(substitute_expr(body, {v: as_index(place) for v, place in places.items()}))
        rows.update(places.values())

    def of_row(node: Expr) -> bool:
        used = expr_variables(node)
        return not used.isdisjoint(segment.axes) and not used.isdisjoint(rows)

    uses = Counter(node for body in bodies for node in {*distinct(body)} if of_row(node))
    found: set[frozenset[Read]] = set()
    pending = list(bodies)
    while pending:
        node = pending.pop()
        if uses[node] > 1:
            found.add(frozenset(r for r in reads(node) if of_row(r)))
        elif of_row(node):
            pending.extend(node.children)
    return sum(not any(other < each for other in found) for each in found)


def row_registers(segment: Segment, geometry: Geometry) -> Count:
    """Return the elements of rows that a thread keeps between statements.

    It keeps them from reduction to reduction, for outputs along the row, and for values along it. A running maximum and
    its sums keep those of each K block.
    """
    if len(segment.reductions) < 2 and not any(output.extra for output in segment.outputs):
        return 0.0
    longest: Count = 0
    walked = geometry.structure.walked
    for chunk in geometry.block_k[walked:][:1] if walked >= 0 else geometry.block_k:
        longest = np.maximum(longest, ceil_div(chunk, geometry.reduction_threads))
    # Sorted elements are held with their place, in two registers, and beside it; not where lanes are many.
    most = sorts_by_radix(longest, geometry.reduction_threads) & np.equal(geometry.reduction_threads, MAX_RADIX_LANES)
    word = np.where(most, 3.0, 4.0)
    along = sum((word if r.along in SORT_ORDERS else float(bool(r.along)) for r in segment.reductions), start=0.0)
    rows = np.maximum(along, max(1, shared_rows(segment)))
    parts = segment.reductions
    rescaled = any(running_maximum(r, parts[:n]) and shareable_loops(segment)[n] for n, r in enumerate(parts))
    held = np.where(resident_row(geometry), rows, float(rescaled))
    return longest * product(geometry.thread) * held


def column_registers(segment: Segment, geometry: Geometry) -> Count:
    """Return the registers of column sums and a tile's terms."""
    if not segment.column_sums:
        return 0.0
    if (walked := geometry.structure.walked) >= 0:
        held: Count = 0.0
        for output in segment.column_sums:
            summed = dims_of_sum(segment, output, geometry.structure.dims)
            kept = product(n for d, n in enumerate(geometry.thread) if d not in summed)
            held = held + kept * (1 if sums_row(output) else geometry.block_k[walked])
        return held
    row = ceil_div(geometry.block_k[0], geometry.reduction_threads) * 1.0
    return row * (len(segment.column_sums) + product(geometry.thread))
