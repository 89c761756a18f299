"""Rows that several statements of a segment read.

Loops that they share, cached and streamed rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import inf

from ...ir import Call, Expr, FusedGroup, Read, Reduction, Segment, Var, expr_variables, factors, guarded_read, reads


@lru_cache(maxsize=4096)
def cached_reads(segment: Segment, elsewhere: tuple[str, ...]) -> tuple[Read, ...]:
    """Return the row elements that several statements of a segment read.

    Reads of tensors that lie `elsewhere` than in global memory are left out.
    """
    out = {*elsewhere, *(r.name for r in segment.reductions)}
    statements = [(r.reduce, r.body) for r in segment.reductions] + [(o.extra, o.body) for o in segment.outputs]
    found: dict[Read, int] = {}
    for row, body in statements:
        for read in reads(body):
            if read.tensor not in out and expr_variables(read).intersection(row):
                found[read] = found.get(read, 0) + 1
    return tuple(read for read, count in found.items() if count > 1)


@lru_cache(maxsize=4096)
def shareable_loops(segment: Segment) -> tuple[bool, ...]:
    """Return, per reduction, whether it may join the preceding reduction's loop.

    It runs over the same elements and reads no result of the reductions in that loop.
    """
    found: list[bool] = []
    run: list[Reduction] = []
    for reduction in segment.reductions:
        names = {r.name for r in run}
        same_row = bool(run) and run[-1].reduce == reduction.reduce and not (run[-1].along or reduction.along)
        found.append(same_row and not any(read.tensor in names for read in reads(reduction.body)))
        run = [*run, reduction] if found[-1] else [reduction]
    return tuple(found)


def joins_loop(segment: Segment, position: int, loops: Sequence[object], alone: Sequence[object]) -> bool:
    """Return whether a reduction joins the loop of the preceding one.

    Both run over the same `loops`, and neither is `alone`: it stages no operand and takes no matrix instruction.

        acc0 = sum over r of dy[n, r]; acc1 = sum over r of dy[n, r] * (x[n, r] - mean[n])
            ->  for r: acc0 += dy[n, r]; acc1 += dy[n, r] * (x[n, r] - mean[n])
    """
    same = shareable_loops(segment)[position] and loops[position] == loops[position - 1]
    return same and not (alone[position] or alone[position - 1])


def can_stream_rows(group: FusedGroup) -> bool:
    """Return whether rows passed between a group's segments may be streamed."""
    return len(group.segments) == 3 and _can_stream(group.segments, group.shared)


@lru_cache(maxsize=4096)
def _can_stream(segments: tuple[Segment, ...], shared: tuple[str, ...]) -> bool:
    _, rows, last = segments
    greatest, *others = rows.reductions
    own = {r.name for r in rows.reductions}
    wide = [o for o in rows.outputs if o.extra]
    names = {o.tensor for o in wide}
    return (
        greatest.combine == "max"
        and not any(r.tensor in own for r in reads(greatest.body))
        and all(r.combine == "sum" and _is_shifted_exponential(r.body, greatest.name, own) for r in others)
        and all(_is_shifted_exponential(o.body, greatest.name, own) for o in wide)
        and all(r.combine == "sum" and _is_linear(r, names, {*shared}, greatest.reduce) for r in last.reductions)
        and not any(r.tensor in names for o in last.outputs for r in reads(o.body))
    )


def _is_shifted_exponential(body: Expr, greatest: str, own: set[str]) -> bool:
    """Return whether a body is a product of one exponential of a difference from the maximum and of factors that read
    no row reduction.
    """
    found = [part for part in factors(body) if any(r.tensor in own for r in reads(part))]
    if len(found) != 1 or not isinstance(found[0], Call) or found[0].fn != "exp":
        return False
    (inner,) = found[0].args
    if not isinstance(inner, Call) or inner.fn != "sub":
        return False
    value, shift = inner.args
    return is_row_maximum(shift, greatest) and not any(r.tensor in own for r in reads(value))


def is_row_maximum(shift: Expr, greatest: str) -> bool:
    """Return whether an expression is the maximum, with 0 for -inf."""
    element = guarded_read(shift, at=-inf, instead=0)
    return element is not None and element.tensor == greatest


def _is_linear(reduction: Reduction, wide: set[str], shared: set[str], row: tuple[Var, ...]) -> bool:
    """Return whether a reduction along whole rows sums products with one element of the row, and reads nothing else of
    it.
    """
    parts = factors(reduction.body)
    rows = [p for p in parts if isinstance(p, Read) and p.tensor in wide]
    along = [v.extent for v in reduction.reduce] == [v.extent for v in row] and len(row) == 1
    others = (p for p in parts if p not in rows)
    return along and len(rows) == 1 and not any(r.tensor in shared for p in others for r in reads(p))


def whole_loops(segment: Segment, reduces: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the loops over rows that have a value per element.

    Loops are positions; `reduces` are those of each reduction.
    """
    return tuple(sorted({k for r, loops in zip(segment.reductions, reduces, strict=True) if r.along for k in loops}))
