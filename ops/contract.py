"""Sums of products of two arrays, as batched matrix products."""

from __future__ import annotations

from math import prod

import numpy as np

from ..ir import Values


def contract(left: Values, right: Values, kept: int, shape: tuple[int, ...]) -> Values:
    """Sum the product of two arrays over all dims from `kept` on."""
    dims = max(left.ndim, right.ndim)
    left, right = (a.reshape((1,) * (dims - a.ndim) + a.shape) for a in (left, right))
    left, right = _summed_alone(left, right, kept)
    batch = [d for d in range(kept) if left.shape[d] > 1 and right.shape[d] > 1]
    rows = [d for d in range(kept) if d not in batch and left.shape[d] > 1]
    columns = [d for d in range(kept) if d not in batch and d not in rows]
    inner = list(range(kept, dims))
    a = left.transpose(batch + rows + columns + inner).reshape(
        _size(left, batch), _size(left, rows), _size(left, inner)
    )
    b = right.transpose(batch + inner + rows + columns).reshape(
        _size(right, batch), _size(right, inner), _size(right, columns)
    )
    order = batch + rows + columns
    result = (a @ b).reshape([max(left.shape[d], right.shape[d]) for d in order])
    return np.broadcast_to(result.transpose(np.argsort(order)) if order else result, shape)


def _summed_alone(left: Values, right: Values, kept: int) -> tuple[Values, Values]:
    """Return two factors with equal dims from `kept` on: each is summed over the dims that the other does not vary
    along.

    This moves a factor out of a sum, which an infinity or a NaN does not allow: then they are repeated instead.
    """
    inner = range(kept, left.ndim)
    if np.isfinite(left).all() and np.isfinite(right).all():
        alone = tuple(d for d in inner if right.shape[d] == 1)
        rest = tuple(d for d in inner if left.shape[d] == 1 and d not in alone)
        return left.sum(axis=alone, keepdims=True), right.sum(axis=rest, keepdims=True)
    full = [max(p, q) for p, q in zip(left.shape[kept:], right.shape[kept:], strict=True)]
    return np.broadcast_to(left, (*left.shape[:kept], *full)), np.broadcast_to(right, (*right.shape[:kept], *full))


def _size(array: Values, dims: list[int]) -> int:
    return prod(array.shape[d] for d in dims)
