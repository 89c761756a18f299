"""Divided dims of merged rows between the segments of a chain.

Heads that share keys are rows of one product. Where these are its only rows, as with one query in decoding, the tensors
that a chain passes on get a dim for the groups of heads and one for the heads of a group:

    p[b, 4*o + i, 0, j] = sum_c q[b, 4*o + i, 0, c] * k[b, o, j, c];    m[b, h] = max_j p[b, h, 0, j]
      ->   p[b, o, i, 0, j] = sum_c q[b, 4*o + i, 0, c] * k[b, o, j, c];    m[b, 4*o + i] = max_j p[b, o, i, 0, j]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve

from ....ir import Expr, Index, Read, Statement, TensorType, Var, as_index, reads, rebuild
from ....ops.language import split_axis


def divide_row_dims(
    parts: Sequence[Sequence[Statement]], tensors: Mapping[str, TensorType], passed: Sequence[str]
) -> tuple[Sequence[Sequence[Statement]], Mapping[str, TensorType]]:
    """Divide the merged rows of `passed` tensors in a chain's statements."""
    scores = tensors[passed[0]].shape
    dim = max((n for n, extent in enumerate(scores[:-1]) if extent > 1), default=0)
    inner = _rows_of_product(parts[0], scores[dim])
    if inner == 1 or any(tensors[t].shape[: dim + 1] != scores[: dim + 1] for t in passed):
        return parts, tensors
    every = [statement for part in parts for statement in part]
    merged = _merged_dims(every, {(t, dim) for t in passed})

    def divide(indices: Sequence[Index]) -> tuple[Index, ...]:
        return (*indices[:dim], indices[dim] // inner, indices[dim] % inner, *indices[dim + 1 :])

    def leaf(node: Expr) -> Expr:
        return evolve(node, indices=divide(node.indices)) if isinstance(node, Read) and node.tensor in passed else node

    def move(statement: Statement) -> Statement:
        for axis in _merged_axes(statement, merged):
            statement = split_axis(statement, axis, inner)
        write = divide(statement.write) if statement.target in passed else statement.write
        return evolve(statement, write=write, body=rebuild(statement.body, leaf))

    types = {t: TensorType(tensors[t].dtype, (*scores[:dim], scores[dim] // inner, inner, *tensors[t].shape[dim + 1 :]))
             for t in passed}  # fmt: skip
    return [[move(statement) for statement in part] for part in parts], {**tensors, **types}


def _rows_of_product(statements: Sequence[Statement], extent: int) -> int:
    """Return how many rows of a product share its columns where a dim of `extent` merges groups of rows, else 1."""
    for statement in statements:
        written = [index for index in statement.write if index.terms]
        if statement.combine is not None and len(written) > 1:  # rows, columns
            steps = {step: axis.extent for axis, step in written[-2].terms if isinstance(axis, Var)}
            inner = steps.get(1, 0)
            if len(written[-2].terms) == 2 and inner * steps.get(inner, 0) == extent:
                return inner
    return 1


def _merged_dims(statements: Sequence[Statement], dims: set[tuple[str, int]]) -> set[tuple[str, int]]:
    """Return the dims of tensors that are numbered by the same axes as some dims, directly or through others."""
    found, size = set(dims), 0
    while len(found) > size:
        size = len(found)
        for statement in statements:
            places = {as_index(axis) for axis in _merged_axes(statement, found)}
            found |= {(t, n) for t, indices in _accesses(statement) for n, i in enumerate(indices) if i in places}
    return found


def _merged_axes(statement: Statement, dims: set[tuple[str, int]]) -> list[Var]:
    """Return the axes of a statement that number some dims of tensors."""
    places = {i for t, indices in _accesses(statement) for n, i in enumerate(indices) if (t, n) in dims}
    return [axis for axis in statement.axes if as_index(axis) in places]


def _accesses(statement: Statement) -> Iterator[tuple[str, tuple[Index, ...]]]:
    yield statement.target, statement.write
    yield from ((r.tensor, r.indices) for r in reads(statement.body))
