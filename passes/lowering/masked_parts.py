"""Parts of rows that a mask leaves nothing of: the loop over parts ends in front of them.

    z[i, j] = s[i, j] if j - i <= offset else -inf;   m = max_j z;   t = sum_j exp(z - m);   y = sum_j exp(z - m) * v[j]
      ->  a block of rows i0 .. i1 takes the parts that begin at j <= i1 + offset

Where scores are -inf, the greatest of a row stays what it is, and the exponentials are 0, of rows of nothing as well
(`streams.py`). But results are sums of products, and 0 times a number that is none is none. So what the other factors
are is looked at behind the loop, without scores: each column of results gets the sum of 0 times its elements of the
parts that were left out, the same for all rows of a block, which is 0 but for infinities and NaN.

Only a condition that chooses -inf makes it so: what it chooses against takes no part, be it no number, where 0 or -inf
that is added would let that pass. The bound is an index of the block's place alone, the same for all its threads, and
blocks that have most to do begin first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import gcd, inf

from attrs import evolve, frozen

from ...ir import (
    Accumulate,
    Call,
    Const,
    Define,
    Expr,
    FusedGroup,
    Guard,
    Held,
    Index,
    InRange,
    Item,
    Loop,
    Output,
    Phase,
    Read,
    Reduction,
    Segment,
    Var,
    as_index,
    call,
    clamp,
    delinearise,
    expr_variables,
    factors,
    reads,
)
from .frames import BlockLayout
from .reductions import accumulate
from .ring import left_out
from .segment_state import SegmentState

#: Elements of what is left out that a thread looks at in one turn.
LOOKED_AT = 16


@frozen
class Edge:
    """Where rows of scores end: of the row that `row`, an axis of the last segment, numbers, all that is not -inf lies
    before `(slope * row + const) // step + 1`.
    """

    row: Var
    slope: int
    const: int
    step: int

    def end(self, first: Index, rows: int) -> Index:
        """Return where rows of a block end that begins at a row."""
        last = first + (rows - 1) if self.slope > 0 else first
        return (last * self.slope + self.const) // self.step + 1


def edge_of(group: FusedGroup) -> Edge | None:
    """Return where rows of a chain end by their number, None where they do not, or where what lies behind is more than
    weights that are 0.
    """
    return _edge_of(group.segments) if len(group.segments) == 3 else None


@lru_cache(maxsize=4096)
def _edge_of(segments: tuple[Segment, ...]) -> Edge | None:
    first, rows, last = segments
    greatest, *others = rows.reductions
    scores = greatest.body
    wide = [o for o in rows.outputs if o.extra]
    weights = (*(r.body for r in others), *(o.body for o in wide))
    if not isinstance(scores, Read) or len(wide) != 1 or not all(_is_weight(body, scores) for body in weights):
        return None
    (masked,) = (o for o in first.outputs if o.tensor == scores.tensor)
    at = _followed(masked, scores)
    key = next((axis for axis, index in at.items() if index == as_index(greatest.reduce[0])), None)
    (weight,) = {r for body in last.expressions for r in reads(body) if r.tensor == wide[0].tensor}
    behind = _followed(wide[0], weight)
    for edge in (_edge(guard, key) for guard in _masks(masked.body) if key is not None):
        rows_axis = _axis(at.get(edge.row)) if edge is not None else None
        row = _axis(behind.get(rows_axis)) if rows_axis is not None else None
        if edge is not None and row is not None:
            return evolve(edge, row=row)
    return None


def _followed(output: Output, read: Read) -> dict[Var, Index]:
    """Return for axes that number a dim of what a segment leaves what a later one reads there."""
    pairs = zip(map(_axis, output.write), read.indices, strict=True)
    return {axis: index for axis, index in pairs if axis is not None}


def _axis(index: Index | None) -> Var | None:
    """Return the variable that an index is, None where it is anything else."""
    primary = index.terms[0][0] if index is not None and len(index.terms) == 1 else None
    return primary if isinstance(primary, Var) and index == as_index(primary) else None


def _is_weight(body: Expr, scores: Read) -> bool:
    """Whether a body is the exponential of a difference from a score, and nothing besides."""
    return isinstance(body, Call) and body.fn == "exp" and isinstance(b := body.args[0], Call) and b.args[0] == scores


def _masks(body: Expr) -> Iterator[Guard]:
    """Yield conditions on indices without which a score is -inf, whatever else it is made of."""
    while isinstance(body, Call) and body.fn == "select":
        condition, body, other = body.args
        if not isinstance(other, Const) or other.value != -inf:
            return
        if isinstance(condition, InRange):
            yield from condition.guards


def _edge(guard: Guard, key: Var) -> Edge | None:
    """Return the edge that a condition on a row and a key makes."""
    terms = dict(guard.index.terms)
    step = terms.pop(key, 0)
    if not step or len(terms) != 1:
        return None
    ((row, factor),) = terms.items()
    if not isinstance(row, Var):
        return None
    if step > 0:
        return Edge(row, -factor, guard.high - 1 - guard.index.const, step)
    return Edge(row, factor, guard.index.const - guard.low, -step)


# ---- lowering


def end_of_parts(layout: BlockLayout, last: SegmentState) -> Var | None:
    """Return the definition before which the loop over parts ends, None where every block takes all of them."""
    edge, part = edge_of(layout.group), layout.part
    dims = last.frame.schedule.dims
    place = next((d for d, dim in enumerate(dims) if edge and dim.axes == (edge.row,)), None)
    if edge is None or part is None or place is None:
        return None
    length = layout.part_length
    end = clamp(edge.end(last.frame.starts[place], dims[place].block), 0, part.extent * length)
    parts = (end + (length - 1)) // length
    if parts == as_index(part.extent):
        return None
    until = Var("parts", part.extent + 1)
    if edge.slope > 0:
        _longest_first(layout, place)
    layout.defines.append(Define(until, parts))
    return until


def if_taken(items: Sequence[Item], at: Index, until: Var | None) -> list[Item]:
    """Return copies of a part, left out where the part is."""
    if until is None:
        return [*items]
    return [left_out(i, as_index(until) - at - 1, until.extent) if isinstance(i, Phase) else i for i in items]


def _longest_first(layout: BlockLayout, place: int) -> None:
    """Number blocks so that those whose rows begin last come first: an SM that has done one then finds a short one.
    `place` is the dim of rows.
    """
    counts = [d.blocks for d in layout.schedule.segments[-1].dims]
    names = [Var(f"b{d}", count) for d, count in enumerate(counts)]
    inner, rows, counts[place] = layout.schedule.blocks // counts[place], counts[place], 1
    values = dict(zip(names, delinearise(as_index(layout.block) % inner, counts), strict=True))
    values[names[place]] = as_index(rows - 1) - as_index(layout.block) // inner
    layout.defines = [evolve(d, value=values.get(d.var, d.value)) for d in layout.defines]


def left_out_terms(state: SegmentState, number: int, reduction: Reduction, until: Var) -> list[Item]:
    """Return what adds to the sums of the last segment 0 times what the parts that are left out hold."""
    length, at_once = state.layout.part_length, gcd(state.layout.part_length, LOOKED_AT)
    shared = state.group.shared
    others = [p for p in factors(reduction.body) if not (isinstance(p, Read) and p.tensor in shared)]
    dtype = state.group.tensors[reduction.name].dtype
    body: Expr = Const(0.0, dtype)
    for part in others:
        body = call("mul", body, part)
    prefix = f"{state.frame.prefix}n{number}"
    (dim,) = state.frame.schedule.reductions[number].dims
    dim = evolve(dim, chunk=at_once)
    local, turn = Var(f"{prefix}k", at_once), Var(f"{prefix}it", dim.trips)
    binding = state.bind((dim,), (local,), (as_index(turn) * at_once,))
    used = [bool({*d.axes} & expr_variables(body)) for d in state.frame.schedule.dims]
    tiles = tuple(as_index(t) if use else Index() for t, use in zip(state.frame.tiles, used, strict=True))
    begin = state.initialise(reduction)
    shape = tuple(size if use else 1 for size, use in zip(begin.shape, used, strict=True))
    name = f"{reduction.name}.none"
    shares = {s.var: s for s in state.frame.shares}
    added = evolve(accumulate(state, evolve(reduction, body=body), binding, (local,), {}, {}), name=name, at=tiles)
    looked = state.phase("compute", f"none{number}", [added], (local,), shares)
    behind = Guard(as_index(turn) - as_index(until) * (length // at_once), 0, dim.trips)
    looked = evolve(looked, when=(*looked.when, behind))
    end = Accumulate(
        reduction.name, tuple(map(as_index, state.frame.tiles)), "sum", Held(name, tiles, dtype), (), dtype
    )
    return [
        state.phase("compute", f"nothing{number}", [evolve(begin, name=name, shape=shape)], (), shares),
        Loop(turn, (looked,)),
        state.phase("compute", f"rest{number}", [end], (), shares),
    ]
