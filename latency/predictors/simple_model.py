"""Latency model of operations between convolutions.

It has lines in the elements that they move, with bends where the cache ends. An operation is an image `(n, c, h, w)`, a
pool has `(window, stride, padding)` after that. Coefficients are least absolute deviations of relative errors and not
negative, one set per operation and state of the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import frozen

from ..convolution import Floats
from ..dataset import Profile, SimpleSamples
from .fitting import least_deviations

#: Images of a batch that an operation reads and writes, in units of its own size; reductions and pools write less.
READS: Mapping[str, int] = {"add": 2, "multiply": 2, "concat": 2}
WRITES: Mapping[str, int] = {"concat": 2}
#: Pools: (n, c, h, w, window, stride, padding).
POOLS = ("max_pool", "average_pool")
#: Operations on an image (n, c, h, w) that read and write each element about once.
POINTWISE = (
    "relu",
    "relu6",
    "sigmoid",
    "silu",
    "hardswish",
    "hardsigmoid",
    "gelu",
    "add",
    "multiply",
    "scale",
    "bias",
    "batch_norm",
    "concat",
    "global_average",
)
OPERATIONS = (*POINTWISE, *POOLS)
#: Parts of a cross-validation, the least samples of a model.
FOLDS = 5
#: Bends of the lines, in bytes moved: half of the cache and all of it.
_BENDS = (30e6, 60e6)


def moved_elements(op: str, shapes: Sequence[Sequence[int]]) -> tuple[Floats, Floats]:
    """Return the elements that are read and written."""
    sizes = np.array([tuple(shape) for shape in shapes], float)
    whole, planes = sizes[:, :4].prod(axis=1), sizes[:, 0] * sizes[:, 1]
    if op == "global_average":
        return whole, planes
    if op in POOLS:
        window, stride, pad = sizes[:, 4], sizes[:, 5], sizes[:, 6]
        high, wide = ((sizes[:, i] + 2 * pad - window) // stride + 1 for i in (2, 3))
        return whole, planes * high * wide
    return whole * READS.get(op, 1), whole * WRITES.get(op, 1)


def _columns(op: str, shapes: Sequence[Sequence[int]]) -> Floats:
    sizes = np.array([tuple(shape) for shape in shapes], float)
    read, written = moved_elements(op, shapes)
    nbytes = 4 * (read + written)
    planes, plane = sizes[:, 0] * sizes[:, 1], sizes[:, 2] * sizes[:, 3]
    columns = [
        np.ones(len(sizes)),
        read,
        written,
        np.sqrt(nbytes),
        *(np.maximum(0.0, nbytes - bend) for bend in _BENDS),
    ]
    columns += [
        planes,
        plane,
        sizes[:, 0] * plane,
    ]  # blocks of a channel each: the work of one of them, and their number
    if op in POOLS:
        columns.append(written * sizes[:, 4] ** 2)
    return np.stack(columns, axis=1)


@frozen
class SimpleModel:
    """Model of one operation.

    It has its coefficients, the 90 % quantile of its relative errors in cross-validation, and the most elements that it
    moved in the profile.
    """

    op: str
    coefficients: tuple[float, ...]
    spread: float
    most: float

    def predict(self, shapes: Sequence[Sequence[int]]) -> Floats:
        """Return microseconds."""
        return np.asarray(_columns(self.op, shapes) @ np.array(self.coefficients))


def fit_simple(op: str, samples: SimpleSamples, state: str) -> SimpleModel:
    """Fit one operation to its measurements."""
    us = samples.cold if state == "cold" else samples.warm
    columns = _columns(op, samples.shapes)
    fold, errors = np.arange(len(us)) % FOLDS, np.zeros(len(us))
    for number in range(FOLDS):
        test = fold == number
        found = least_deviations(columns[~test], us[~test], 1 / us[~test])
        errors[test] = np.abs(columns[test] @ found / us[test] - 1)
    found = least_deviations(columns, us, 1 / us)
    most = float(np.add(*moved_elements(op, samples.shapes)).max())
    return SimpleModel(op, tuple(float(value) for value in found), float(np.quantile(errors, 0.9)), most)


def fit_all(profile: Profile, state: str) -> dict[str, SimpleModel]:
    """Return the models of all operations that a profile has.

    Operands of a concatenation were mostly written long ago, so it is never warm.
    """
    found = {op: profile.simple(op) for op in OPERATIONS}
    return {
        op: fit_simple(op, samples, "cold" if op == "concat" else state)
        for op, samples in found.items()
        if len(samples.shapes) >= FOLDS
    }
