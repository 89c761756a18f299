"""Statements of a chain as its segments need them.

Rows compute the elements that a product reads: elementwise statements before it are moved there.

    w[i, j] = e[i, j] / t[i] is of the rows, where y[i, f] = sum_j w[i, j] * v[j, f]

The segments of a chain agree about the axes of the tensors between them. Two kinds of dims merge axes. A view does, as
of batches and heads that are one axis of a product: all statements get its axes. Heads that share keys are rows of one
product: where they are its only rows, as with one query in decoding, the tensors have a dim for the groups of heads and
one for the heads of a group:

    p[b, 4*o + i, 0, j] = sum_c q[b, 4*o + i, 0, c] * k[b, o, j, c];    m[b, h] = max_j p[b, h, 0, j]
      ->   p[b, o, i, 0, j] = sum_c q[b, 4*o + i, 0, c] * k[b, o, j, c];    m[b, 4*o + i] = max_j p[b, o, i, 0, j]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from attrs import evolve

from ....ir import Cast, Expr, Index, Read, Statement, TensorType, Var, as_index, reads, rebuild
from ....ops.language import split_axis

#: Dims of tensors that merge two axes, with the extent of the inner one.
MergedDims: TypeAlias = dict[tuple[str, int], int]


def move_row_values(
    parts: Sequence[Sequence[Statement]],
    live: Sequence[Sequence[str]],
    outside: Sequence[str],
    tensors: Mapping[str, TensorType],
) -> tuple[Sequence[Sequence[Statement]], Sequence[Sequence[str]]]:
    """Move elementwise values of rows to the rows of a chain."""
    first, rows, last = (list(part) for part in parts)
    made = {s.target for s in (*first, *rows)}
    while (
        last
        and _is_value(last[0])
        and not widens(last[0], tensors)
        and {*last[0].tensors_read} <= made
        and last[0].target not in live[2]
    ):
        made.add(last[0].target)
        rows.append(last.pop(0))
    read = {t for statement in last for t in statement.tensors_read}
    left = dict.fromkeys(s.target for s in rows if s.target in read or s.target in outside)
    moves = last and len(last) < len(parts[2])
    return ((first, rows, last), (live[0], [*left], live[2])) if moves else (parts, live)


def widens(statement: Statement, tensors: Mapping[str, TensorType]) -> bool:
    """Return whether a statement only converts bytes to wider floats."""
    body = statement.body
    if statement.combine is not None or not isinstance(body, Cast) or not isinstance(body.arg, Read):
        return False
    kind = tensors[body.arg.tensor].dtype
    return kind.is_float and kind.size == 1 and body.dtype.is_float and body.dtype.size > 1


def _is_value(statement: Statement) -> bool:
    """Return whether a statement computes elements, which a copy does not."""
    return statement.combine is None and not isinstance(statement.body, Read)


def divide_merged_dims(
    parts: Sequence[Sequence[Statement]], tensors: Mapping[str, TensorType], passed: Sequence[str]
) -> tuple[Sequence[Sequence[Statement]], Mapping[str, TensorType]]:
    """Divide the merged dims of `passed` tensors in a chain."""
    every = [statement for part in parts for statement in part]
    merged = {**_merged_by_copies(every, tensors), **_merged_rows(parts[0], tensors, passed)}
    merged = {dim: inner for seed in merged.items() for dim, inner in _divisible_with(every, seed).items()}
    dims = {t: {n: inner for (name, n), inner in merged.items() if name == t} for t in passed}

    def leaf(node: Expr) -> Expr:
        if not isinstance(node, Read) or not dims.get(node.tensor):
            return node
        return evolve(node, indices=_divide(node.indices, dims[node.tensor]))

    def move(statement: Statement) -> Statement:
        for axis, inner in _merged_axes(statement, merged).items():
            statement = split_axis(statement, axis, inner)
        write = _divide(statement.write, dims.get(statement.target, {}))
        return evolve(statement, write=write, body=rebuild(statement.body, leaf))

    if not merged:
        return parts, tensors
    types = {t: TensorType(tensors[t].dtype, _divided_shape(tensors[t].shape, dims[t])) for t in passed}
    return [[move(statement) for statement in part] for part in parts], {**tensors, **types}


def _divide(indices: Sequence[Index], dims: Mapping[int, int]) -> tuple[Index, ...]:
    """Return indices with two for each divided dim."""
    parts = ((i // dims[n], i % dims[n]) if n in dims else (i,) for n, i in enumerate(indices))
    return tuple(index for pair in parts for index in pair)


def _divided_shape(shape: Sequence[int], dims: Mapping[int, int]) -> tuple[int, ...]:
    """Return a shape with two extents for each divided dim."""
    parts = ((extent // dims[n], dims[n]) if n in dims else (extent,) for n, extent in enumerate(shape))
    return tuple(extent for pair in parts for extent in pair)


def _inner_extent(index: Index, extent: int) -> int:
    """Return the extent of the inner one of two axes that an index over `extent` elements merges, else 0."""
    steps = {step: axis.extent for axis, step in index.terms if isinstance(axis, Var)}
    inner = steps.get(1, 0)
    return inner if len(index.terms) == 2 and not index.const and inner * steps.get(inner, 0) == extent else 0


def _merged_by_copies(statements: Sequence[Statement], tensors: Mapping[str, TensorType]) -> MergedDims:
    """Return the dims that merge axes of copies."""
    found: MergedDims = {}
    for statement in (s for s in statements if isinstance(s.body, Read) and s.combine is None):
        for tensor, indices in _accesses(statement):
            for n, index in enumerate(indices):
                if inner := _inner_extent(index, tensors[tensor].shape[n]):
                    found[tensor, n] = inner
    return found


def _merged_rows(
    statements: Sequence[Statement], tensors: Mapping[str, TensorType], passed: Sequence[str]
) -> MergedDims:
    """Return the dims of the only rows of a product, if groups of them are merged there."""
    shape = tensors[passed[0]].shape
    dim = max((n for n, extent in enumerate(shape[:-1]) if extent > 1), default=0)
    for statement in statements:
        written = [index for index in statement.write if index.terms]
        if statement.combine is None or len(written) < 2 or not (inner := _inner_extent(written[-2], shape[dim])):
            continue
        same = all(tensors[t].shape[: dim + 1] == shape[: dim + 1] for t in passed)
        return dict.fromkeys(((t, dim) for t in passed), inner) if same else {}
    return {}


def _divisible_with(statements: Sequence[Statement], seed: tuple[tuple[str, int], int]) -> MergedDims:
    """Return the dims to divide with one; none where sums run over one of them, whose rows would have two axes."""
    found = _merged_with(statements, dict((seed,)))
    reduced = (
        (read.tensor, n)
        for statement in statements
        for read in reads(statement.body)
        for n, index in enumerate(read.indices)
        if index in map(as_index, statement.reduce)
    )
    return {} if any(dim in found for dim in reduced) else found


def _merged_with(statements: Sequence[Statement], dims: MergedDims) -> MergedDims:
    """Return the dims that are numbered by the same axes as some merged dims, directly or through others."""
    found, size = dict(dims), 0
    while len(found) > size:
        size = len(found)
        for statement in statements:
            axes = {as_index(axis): inner for axis, inner in _merged_axes(statement, found).items()}
            for tensor, indices in _accesses(statement):
                found.update({(tensor, n): axes[i] for n, i in enumerate(indices) if i in axes})
    return found


def _merged_axes(statement: Statement, dims: MergedDims) -> dict[Var, int]:
    """Return the axes of a statement that number merged dims, with the extents of inner ones."""
    places = {i: dims[t, n] for t, indices in _accesses(statement) for n, i in enumerate(indices) if (t, n) in dims}
    return {axis: places[as_index(axis)] for axis in statement.axes if as_index(axis) in places}


def _accesses(statement: Statement) -> Iterator[tuple[str, tuple[Index, ...]]]:
    yield statement.target, statement.write
    yield from ((r.tensor, r.indices) for r in reads(statement.body))
