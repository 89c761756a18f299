"""Where rows of scores end: the mask of a chain as a line through rows and keys.

    z[i, j] = s[i, j] if j - i <= offset else -inf   ->   row i ends before i + offset + 1

Only a condition that chooses -inf says so. What it chooses against takes no part, be it no number, where 0 or -inf that
is added would let that pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import inf

from attrs import evolve, frozen

from ...ir import Call, Const, Expr, FusedGroup, Guard, Index, InRange, Output, Read, Segment, Var, as_index, reads


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
