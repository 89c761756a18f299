"""What another machine measured of an operation says of its points on this one: by how much an order is wrong at them.

Points that were measured there are corrected to what they took; others by a process over the sizes that their schedules
tell (`sizes.py`), which falls back on what is common to all measured ones. What a factor is for all points of an
operation changes no order, so that two machines need not be equally fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from attrs import evolve, frozen

from ...ir import Target
from .correction import Array, LearnedOrder
from .gaussian import GaussianProcess
from .rank_points import MeasuredOperation, operations_of
from .sizes import Sizes, table_of

#: Fewest points of an operation from elsewhere that correct an order.
FEWEST_RECALLED = 8
#: Farthest that a number of a point may be from those of the measured ones, in their deviations.
FAR = 4.0


@frozen(eq=False)
class Elsewhere:
    """A process of the logarithms of time over estimate, at the sizes of measured points as multiples of their
    deviations; what does not differ between these says nothing.
    """

    names: tuple[str, ...]
    centre: Array
    scale: Array
    process: GaussianProcess

    @classmethod
    def of(cls, operation: MeasuredOperation, order: LearnedOrder) -> Elsewhere:
        """Return what the times of an operation say of an order."""
        points = operation.points
        names = sorted({name for sizes in operation.sizes for name in sizes})
        table = table_of(operation.sizes, names)
        spread = table.std(axis=0)
        differ = np.flatnonzero(spread > 1e-9)
        scale = spread[differ] * np.sqrt(max(1, len(differ)))
        centre, names = table[:, differ].mean(axis=0), [names[k] for k in differ]
        expected = order.seconds(points.features, points.conflicts, operation.target)
        rows = _placed(table[:, differ], centre, scale)
        return cls(tuple(names), centre, scale, GaussianProcess.fitted(rows, np.log(points.seconds / expected)))

    def factors(self, table: Array) -> Array:
        """Return what the expected seconds of points are to be multiplied by, given a row of sizes for each."""
        rows = _placed(table, self.centre, self.scale)
        return np.asarray(np.exp(self.process.at(rows).mean))


def _placed(table: Array, centre: Array, scale: Array) -> Array:
    limit = FAR / np.sqrt(max(1, len(scale)))
    return np.asarray(np.clip((table - centre) / scale, -limit, limit))


def ordered_seconds(operation: MeasuredOperation, order: LearnedOrder, elsewhere: Elsewhere | None) -> Array:
    """Return what the points of an operation are expected to take."""
    found = order.seconds(operation.points.features, operation.points.conflicts, operation.target)
    if elsewhere is None:
        return found
    return found * elsewhere.factors(table_of(operation.sizes, elsewhere.names))


def times_of(operation: MeasuredOperation) -> tuple[tuple[str, float], ...]:
    """Return the seconds of an operation's points by schedule, as an order recalls them."""
    return tuple(zip(operation.schedules, operation.points.seconds.tolist(), strict=True))


@lru_cache(maxsize=64)
def recalled_of(work: str, target: Target, order: LearnedOrder) -> Elsewhere | None:
    """Return what an order recalls of the operation that a work is; nothing where that is little."""
    times, general = dict(order.recalled), evolve(order, recalled=())
    found = operations_of("", work, {}, target, times, FEWEST_RECALLED)
    return next((Elsewhere.of(operation, general) for operation in found), None)


def factors_of(elsewhere: Elsewhere, sizes: Sizes, shape: Sequence[int]) -> Array:
    """Return the factors of a batch of points whose sizes broadcast to a shape."""
    columns = [np.broadcast_to(sizes.get(name, 0.0), shape).reshape(-1) for name in elsewhere.names]
    return elsewhere.factors(np.stack(columns, axis=1))
