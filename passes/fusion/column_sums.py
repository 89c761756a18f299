"""Column sums beside rows: reductions over the instances of a group, as row outputs that blocks accumulate.

The gradient of a norm sums its rows for the gradient of its input, and its columns for those of its parameters. Both
read the same tensors. Where instances hold rows, a column sum is an output along the row, `across` the instances:

    s[i] = sum_r x[i, r];   y[i, r] = x[i, r] - s[i];   w[r] = sum_i x[i, r] * s[i]
      ->   instance i: acc0 = sum over r of x[i, r];   y[i, r] for r;   w[r] across instances for r = x[i, r] * acc0

A block accumulates the rows of its instances in registers (`passes.split.split_columns` divides the instances).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from math import prod

from attrs import evolve, frozen

from ...ir import (
    Cast,
    Index,
    Read,
    Segment,
    Statement,
    TensorType,
    Var,
    as_index,
    is_bijection,
    solve,
    substitute,
    variables,
)
from ..statements import FusionError

#: Fewest instances of a group with column sums, and fewest elements of its rows.
MIN_INSTANCES, MIN_ROW = 256, 32


@frozen
class ColumnSum:
    """Column sum of a group: its reduction, and how many of its leading axes are the reduced ones."""

    combine: str
    reduced: int


def column_sums(
    statements: Sequence[Statement], tensors: Mapping[str, TensorType], live: Collection[str]
) -> Mapping[str, ColumnSum]:
    """Return the column sums of statements by target, none where these hold no rows.

    Nothing in the group reads a column sum; the others reduce rows that as many instances hold as it has terms.
    """
    statements = join_casts(statements, tensors, live)
    sums = [s for s in statements if s.combine and s.along is None and s.step is None and s.into is None]
    read = {t for s in statements for t in s.tensors_read}
    free = [s for s in sums if s.target in live and s.target not in read and tensors[s.target].dtype.is_float]
    rows = [s for s in sums if s not in free]
    if not free or not rows or any(s.combine and s not in sums for s in statements):
        return {}
    instances, row = _elements(rows[0].axes), _elements(rows[0].reduce)
    found = [s for s in free if (_elements(s.reduce), _elements(s.axes)) == (instances, row) and s.combine == "sum"]
    square = instances == row and len(found) < len(free)
    if instances < MIN_INSTANCES or row < MIN_ROW or square:
        return {}
    return {s.target: ColumnSum(str(s.combine), len(s.reduce)) for s in found}


def _elements(axes: Sequence[Var]) -> int:
    return prod(axis.extent for axis in axes)


def join_casts(
    statements: Sequence[Statement], tensors: Mapping[str, TensorType], live: Collection[str]
) -> list[Statement]:
    """Return statements in which sums that are only narrowed write the narrow values, whose accumulators they are.

    s[c] = sum_r f32(x[r, c]);   y[c] = bf16(s[c])      ->      y[c] = sum_r f32(x[r, c])
    """
    sums = {s.target: s for s in statements if s.combine == "sum" and s.target not in live}
    found = list(statements)
    for narrow in statements:
        read = narrow.body.arg if isinstance(narrow.body, Cast) and narrow.is_pointwise else None
        wide = sums.get(read.tensor) if isinstance(read, Read) and not read.guards else None
        if wide is None or read is None or sum(wide.target in s.tensors_read for s in statements) > 1:
            continue
        accumulates = tensors[narrow.target].dtype.accumulator is tensors[wide.target].dtype
        solution = solve(list(zip(read.indices, wide.write, strict=True)), narrow.axes)
        if accumulates and solution is not None and not solution.guards and not solution.free:
            write = tuple(substitute(w, solution.values) for w in narrow.write)
            found[found.index(narrow)] = evolve(wide, target=narrow.target, write=write)
            found.remove(wide)
    return found


def spread_columns(
    statements: Sequence[Statement],
    columns: Mapping[str, ColumnSum],
    tensors: Mapping[str, TensorType],
    live: Collection[str],
) -> Sequence[Statement]:
    """Return statements in which each column sum is the statement of its terms."""
    if not columns:
        return statements
    return [
        evolve(s, axes=(*s.reduce, *s.axes), reduce=(), combine=None) if s.target in columns else s
        for s in join_casts(statements, tensors, live)
    ]


def place_column(
    number: int, statements: Sequence[Statement], known: Mapping[int, Mapping[Var, Index]], axes: Sequence[Var]
) -> Mapping[Var, Index] | None:
    """Return the axes of the terms of a column sum that reads a tensor of a placed statement, None without one.

    Axes that the instances determine are theirs, the others are those of the row.
    """
    own, onto = statements[number], [p for p in axes if p.extent > 1]
    for other, values in known.items():
        for read, theirs in product(own.reads, statements[other].reads):
            if read.tensor != theirs.tensor:
                continue
            right = [substitute(index, values) for index in theirs.indices]
            solution = solve(list(zip(read.indices, right, strict=True)), own.axes)
            if solution is None or solution.guards:
                continue
            placed = {a: v for a in own.axes if variables(v := solution.values[a]) <= {*axes}}
            if is_bijection(placed, [a for a in placed if a.extent > 1], onto):
                rows = (a for a in own.axes if a not in placed)
                return {**placed, **{a: as_index(Var(f"c{number}_{n}", a.extent)) for n, a in enumerate(rows)}}
    return None


def check_column(statement: Statement, column: ColumnSum, values: Mapping[Var, Index], axes: Sequence[Var]) -> None:
    """Raise `FusionError` where the instances are not the terms of each element of a column sum."""
    reduced, kept = statement.axes[: column.reduced], statement.axes[column.reduced :]
    onto = [p for p in axes if p.extent > 1]
    terms = is_bijection({a: values[a] for a in reduced}, [a for a in reduced if a.extent > 1], onto)
    if not terms or any(variables(values[a]) & {*axes} for a in kept):
        raise FusionError(f"the terms of {statement.target} are not those of each row")


def check_rows(segment: Segment) -> None:
    """Raise `FusionError` where a segment has column sums and rows of several kinds."""
    rows = {r.reduce for r in segment.reductions} | {o.extra for o in segment.outputs if o.extra}
    if segment.column_sums and (len(rows) != 1 or any(r.along for r in segment.reductions)):
        raise FusionError("column sums are beside rows of several kinds")
