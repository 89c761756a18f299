"""Rows that several statements of a segment read.

Loops that they share, cached and streamed rows, and chains in registers: contraction, row operations, contraction.

    p[i, j] = sum_c q[i, c] * k[j, c];   m[i], t[i], w[i, j] = row operations of p;   y[i, f] = sum_j w[i, j] * v[j, f]

The lanes of a matrix instruction that hold results hold the same elements as a first operand of the next instruction.
So where the warps of a block divide the rows alone, the results of the first contraction, the rows, and the first
operand of the second one stay in registers: four lanes share a row. Weights that are divided by a number of their row
are divided after the second contraction, in the type of its sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Any

from attrs import evolve, frozen

from ...ir import (
    ACCUMULATOR_THREADS,
    ACCUMULATOR_VECTOR,
    Call,
    Cast,
    Expr,
    FusedGroup,
    Index,
    Read,
    Reduction,
    Segment,
    SegmentSchedule,
    TensorType,
    Var,
    as_index,
    expr_variables,
    factors,
    guarded_read,
    reads,
    stored_factor,
    variables,
    walked_row,
)
from .footprint import places_of, product
from .matrix_instructions import mma_operands
from .schedule_template import SegmentTemplate, is_matrix_like, multiplies_one_row


@lru_cache(maxsize=4096)
def cached_reads(segment: Segment, elsewhere: tuple[str, ...]) -> tuple[Read, ...]:
    """Return the row elements that several statements of a segment read.

    Reads of tensors that lie `elsewhere` than in global memory are left out, and those of one element in several places
    of a row, such as a number of each channel.
    """
    out = {*elsewhere, *(r.name for r in segment.reductions)}
    statements = [(r.reduce, r.body) for r in segment.reductions] + [(o.extra, o.body) for o in segment.outputs]
    found: dict[Read, int] = {}
    for row, body in statements:
        for read in reads(body):
            if read.tensor not in out and row and expr_variables(read) >= {v for v in row if v.extent > 1}:
                found[read] = found.get(read, 0) + 1
    return tuple(read for read, count in found.items() if count > 1)


@lru_cache(maxsize=4096)
def shareable_loops(segment: Segment) -> tuple[bool, ...]:
    """Return, per reduction, whether it may join the preceding reduction's loop.

    It runs over the same elements and reads no result of the reductions in that loop, or is rescaled by a running
    maximum.
    """
    found: list[bool] = []
    run: list[Reduction] = []
    for reduction in segment.reductions:
        names = {r.name for r in run}
        same_row = bool(run) and run[-1].reduce == reduction.reduce and not (run[-1].along or reduction.along)
        free = not any(read.tensor in names for read in reads(reduction.body))
        found.append(same_row and (free or running_maximum(reduction, run) is not None))
        run = [*run, reduction] if found[-1] else [reduction]
    return tuple(found)


def running_maximum(reduction: Reduction, run: Sequence[Reduction]) -> Reduction | None:
    """Return the running maximum that shifts a sum of exponentials.

    The sum is rescaled where the maximum grows, as in an online softmax; it reads no other result of the loop `run`.

        m = max over r of z[r];  t = sum over r of exp(z[r] - m) * v[r]
            ->  for r: m' = max(m, z[r]);  t = t * exp(m - m') + exp(z[r] - m') * v[r];  m = m'
    """
    names = {r.name for r in run}
    greatest = next((r for r in run if r.combine == "max" and _sums_shifted(reduction, r, names)), None)
    return greatest if reduction.combine == "sum" else None


def _sums_shifted(reduction: Reduction, greatest: Reduction, own: set[str]) -> bool:
    """Return whether a body is a product of an exponential of a maximum's elements, shifted by it, and of other factors
    that read no reduction of `own`.
    """
    found = [part for part in factors(reduction.body) if any(r.tensor in own for r in reads(part))]
    score = shifted_score(found[0], greatest.name) if len(found) == 1 else None
    return score is not None and drop_conversions(score) == drop_conversions(greatest.body)


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
    return len(group.segments) == 3 and streams_rows(group.segments, group.shared)


@lru_cache(maxsize=4096)
def streams_rows(segments: tuple[Segment, ...], shared: tuple[str, ...]) -> bool:
    """Return whether rows passed between three segments may be streamed."""
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
    """Return whether a shifted exponential is the one factor that reads row reductions."""
    found = [part for part in factors(body) if any(r.tensor in own for r in reads(part))]
    value = shifted_score(found[0], greatest) if len(found) == 1 else None
    return value is not None and not any(r.tensor in own for r in reads(value))


def shifted_score(body: Expr, greatest: str) -> Expr | None:
    """Return the score of an exponential of its difference from the maximum.

    None of other expressions.
    """
    inner = _without_cast(body.args[0]) if isinstance(body, Call) and body.fn == "exp" else None
    if not isinstance(inner, Call) or inner.fn != "sub":
        return None
    score, shift = inner.args
    return score if is_row_maximum(drop_conversions(shift), greatest) else None


def maximises_scores(rows: Segment, scores: str) -> bool:
    """Return whether the maximum of rows is that of their scores."""
    body = drop_conversions(rows.reductions[0].body)
    return isinstance(body, Read) and body.tensor == scores


def weighs_scores_alone(rows: Segment, scores: str) -> bool:
    """Return whether sums and weights of rows are exponentials of scores alone."""
    greatest, *others = rows.reductions
    bodies = (*(r.body for r in others), *(split_divisor(o.body)[0] for o in rows.outputs if o.extra))
    found = (shifted_score(_without_cast(body), greatest.name) for body in bodies)
    alone = (score is not None and drop_conversions(score) == drop_conversions(greatest.body) for score in found)
    return maximises_scores(rows, scores) and all(alone)


def is_row_maximum(shift: Expr, greatest: str) -> bool:
    """Return whether an expression is the maximum, with 0 for -inf."""
    element = guarded_read(shift, at=-inf, instead=0)
    return element is not None and element.tensor == greatest


def _is_linear(reduction: Reduction, wide: set[str], shared: set[str], row: tuple[Var, ...]) -> bool:
    """Return whether a reduction along rows sums products with one of their elements."""
    parts = [stored_factor(p, reduction.math) for p in factors(reduction.body)]
    rows = [p for p in parts if isinstance(p, Read) and p.tensor in wide]
    along = [v.extent for v in reduction.reduce] == [v.extent for v in row] and len(row) == 1
    others = (p for p in parts if p not in rows)
    return along and len(rows) == 1 and not any(r.tensor in shared for p in others for r in reads(p))


def whole_loops(segment: Segment, reduces: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the loops over rows with values per element or column sums.

    Loops are positions; `reduces` are those of each reduction.
    """
    if segment.column_sums:
        return tuple(sorted({k for loops in reduces for k in loops}))
    return tuple(sorted({k for r, loops in zip(segment.reductions, reduces, strict=True) if r.along for k in loops}))


@lru_cache(maxsize=4096)
def column_run(segment: Segment, shared: tuple[str, ...]) -> int:
    """Return the neighbours in columns of reductions across memory's rows.

    Threads that share a column are numbered slowest, so that neighbours read neighbours: x[n, p, 8*g + c] summed over
    p and c has columns (n, g) of 8. It is 0 in products, and where tensors are `shared` with other segments.
    """
    loops, own = {v for r in segment.reductions for v in r.reduce}, {r.name for r in segment.reductions}
    product = is_matrix_like(segment) or multiplies_one_row(segment)
    passed = not {*shared}.isdisjoint({*segment.tensors_read, *(o.tensor for o in segment.outputs)})
    if passed or product or segment.column_sums or any(r.along for r in segment.reductions):
        return 0
    found = [(places_of(n.indices), n) for r in segment.reductions for n in reads(r.body) if n.tensor not in own]
    found = [(at, n) for at, n in found if loops & at and at.intersection(segment.axes)]
    lengths = {_run_before_axis(n.indices[-1], loops, {*segment.axes}) for _, n in found}
    length = lengths.pop() if len(lengths) == 1 else 0
    runs = ({v for v, factor in n.indices[-1].terms if factor < length} for _, n in found)
    return length if any((loops & at) - run for (at, _), run in zip(found, runs, strict=True)) else 0


def _run_before_axis(last: Index, loops: set[Var], axes: set[Var]) -> int:
    """Return the few elements of loops before the next place of an axis."""
    steps, length = {f: v for v, f in last.terms if isinstance(v, Var) and v.extent > 1}, 1
    while steps.get(length) in loops:
        length *= steps[length].extent
    return length if steps.get(length) in axes and length <= MAX_COLUMN_RUN else 0


def walks_rows(segment: Segment, schedule: SegmentSchedule) -> bool:
    """Return whether each thread takes whole rows of a segment."""
    return walked_row(segment) is not None and schedule.reduction_threads == 1


def walked_loop(segment: Segment, loops: Sequence[tuple[Var, ...]]) -> int:
    """Return the position of the loop over a walked row, or -1."""
    row = walked_row(segment)
    return -1 if row is None else [*loops].index((row,))


@lru_cache(maxsize=4096)
def reads_ahead(segment: Segment) -> tuple[Read, ...]:
    """Return the elements of a walked row that a block loads ahead.

    Those that an output stores unchanged are not: their registers would be written before the stores of vectors.
    """
    own = {r.name for r in segment.reductions}
    row = walked_row(segment)
    found = [r for body in segment.expressions for r in reads(body) if r.tensor not in own]
    copied = {drop_conversions(o.body) for o in segment.outputs}
    moving = (r for r in found if any(row in variables(index) for index in r.indices) and r not in copied)
    return tuple(dict.fromkeys(moving))


def words_ahead(
    segment: Segment,
    tensors: Mapping[str, TensorType],
    dims: Sequence[tuple[Var, ...]],
    threads: Sequence[Any],
    chunk: Any,
) -> Any:
    """Return the registers of a walked block's elements loaded ahead."""
    found = 0
    for read in reads_ahead(segment):
        own = (n for dim, n in zip(dims, threads, strict=True) if not expr_variables(read).isdisjoint(dim))
        found = found + chunk * product(own) * max(1, tensors[read.tensor].dtype.size // 4)
    return found


# ---- chains in registers

#: Lanes that share a row of an instruction's results, and the fewest neighbours of each; most neighbours of a column.
ROW_LANES, ROW_VECTOR, MAX_COLUMN_RUN = ACCUMULATOR_THREADS[1], ACCUMULATOR_VECTOR[1], 16


@frozen
class RegisterChain:
    """Tensors and axes of a chain in registers.

    `scores` are the results of the first contraction, `weights` the factor of the second one. `rows` are the positions
    of the row axis in the three segments, `column` that of the axis along a row in the first, `width` that of the other
    axis in the last one. `divisor` is the number of a row that divides its weights, if any.
    """

    scores: str
    weights: str
    rows: tuple[int, int, int]
    column: int
    width: int
    divisor: Expr | None


def is_register_chain(segments: Sequence[SegmentTemplate] | Sequence[SegmentSchedule]) -> bool:
    """Return whether templates or schedules are a chain in registers."""
    used = [s.mma if isinstance(s, SegmentTemplate) else s.atomic for s in segments]
    return len(used) in (2, 3) and bool(used[0]) and bool(used[-1])


def register_chain(group: FusedGroup) -> RegisterChain | None:
    """Return a group as a chain in registers, or None."""
    return _chain(group.segments, group.shared) if len(group.segments) == 3 else None


@lru_cache(maxsize=4096)
def _chain(segments: tuple[Segment, ...], shared: tuple[str, ...]) -> RegisterChain | None:
    first, rows, last = segments
    wide = [o for o in rows.outputs if o.extra]
    if len(first.reductions) != 1 or len(last.reductions) != 1 or len(first.outputs) != 1 or len(wide) != 1:
        return None
    (scores,), (weights,), row = first.outputs, wide, wide[0].extra
    if scores.tensor not in shared or scores.extra or scores.guards or scores.into or len(row) != 1:
        return None
    if (
        any(r.reduce != row or r.along for r in rows.reductions)
        or last.holds_rows
        or any(o.extra for o in last.outputs)
    ):
        return None
    plain, divisor = _plain_rows(rows)
    if not streams_rows((first, plain, last), shared):
        return None
    found = {r for body in rows.expressions for r in reads(body) if r.tensor == scores.tensor}
    read = [r for r in reads(last.reductions[0].body) if r.tensor == weights.tensor]
    outside = {r.tensor for body in last.expressions for r in reads(body)} & {scores.tensor}
    if len(found) != 1 or len(read) != 1 or outside or any(r.guards for r in (*found, *read)):
        return None
    places = _places(first, rows, last, found.pop(), read[0])
    return None if places is None else RegisterChain(scores.tensor, weights.tensor, *places, divisor)


def _places(
    first: Segment, rows: Segment, last: Segment, score: Read, weight: Read
) -> tuple[tuple[int, int, int], int, int] | None:
    """Return the positions of the row axis, of the axis along rows, and of the other axis of the last segment."""
    (scores,), (weights,) = first.outputs, (o for o in rows.outputs if o.extra)
    if len(scores.write) != len(score.indices) or len(weights.write) != len(weight.indices):
        return None
    row, along = len(rows.axes) - 1, weights.extra[0]
    single = bool(rows.axes) and rows.axes[row].extent == 1
    sides = (along,) if single else (rows.axes[row], along) if rows.axes else ()
    position = {axis: n for n, index in enumerate(score.indices) for axis in sides if index == as_index(axis)}
    at = {axis: n for n, index in enumerate(weights.write) for axis in sides if index == as_index(axis)}
    if not sides or len(position) != len(sides) or len(at) != len(sides):
        return None
    j = _axis(first, scores.write[position[along]])
    i = _single_axis(first) if single else _axis(first, scores.write[position[rows.axes[row]]])
    k = _single_axis(last) if single else _axis(last, weight.indices[at[rows.axes[row]]])
    if i is None or j is None or k is None or weight.indices[at[along]] != as_index(last.reductions[0].reduce[0]):
        return None
    width = next((n for n in reversed(range(len(last.axes))) if n != k and last.axes[n].extent > 1), None)
    if width is None or len(last.reductions[0].reduce) != 1 or first.axes[j].extent != along.extent:
        return None
    operands = (
        mma_operands(first.reductions[0], (first.axes[i],), (first.axes[j],)),
        mma_operands(last.reductions[0], (last.axes[k],), (last.axes[width],)),
    )
    if None in operands or operands[1] is None or operands[1][0] != weight:
        return None
    return (i, row, k), j, width


def _axis(segment: Segment, index: object) -> int | None:
    return next((n for n, axis in enumerate(segment.axes) if index == as_index(axis)), None)


def _single_axis(segment: Segment) -> int | None:
    """Return the last axis of one element."""
    return next((n for n in reversed(range(len(segment.axes))) if segment.axes[n].extent == 1), None)


def split_divisor(body: Expr) -> tuple[Expr, Expr | None]:
    """Return weights without their division, and the divisor of their row."""
    inner = body.arg if isinstance(body, Cast) else body
    if isinstance(inner, Call) and inner.fn == "div":
        weight, divisor = inner.args
        return weight, divisor
    return body, None


def _plain_rows(rows: Segment) -> tuple[Segment, Expr | None]:
    """Return rows without division of weights, without conversions between floats, and the divisor."""
    (wide,) = (o for o in rows.outputs if o.extra)
    body, divisor = split_divisor(wide.body)
    if divisor is not None and not expr_variables(divisor).isdisjoint(wide.extra):
        body, divisor = wide.body, None
    outputs = tuple(evolve(o, body=drop_conversions(body if o is wide else o.body)) for o in rows.outputs)
    reductions = tuple(evolve(r, body=drop_conversions(r.body)) for r in rows.reductions)
    return evolve(rows, reductions=reductions, outputs=outputs), divisor


def _without_cast(expr: Expr) -> Expr:
    """Return the operand of a conversion to a float."""
    return expr.arg if isinstance(expr, Cast) and expr.dtype.is_float else expr


def drop_conversions(expr: Expr) -> Expr:
    """Return an expression without conversions to floats."""
    if isinstance(expr, Cast) and expr.dtype.is_float:
        return drop_conversions(expr.arg)
    return expr.with_children(tuple(map(drop_conversions, expr.children))) if expr.children else expr
