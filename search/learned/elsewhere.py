"""What another machine measured of an operation says of its points on this one: by how much an order is wrong at them.

Points that were measured there are ordered by what they took; others by a process over the sizes that their schedules
tell (`sizes.py`), which falls back on what is common to all measured ones: a search measured what is fast, so that
others are held for slower by a deviation. Estimates are those of this machine, so that nothing needs to be known of the
other one. What a factor is for all points of an
operation changes no order, so that two machines need not be equally fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from statistics import mean

import numpy as np
from attrs import evolve, frozen

from ...ir import Target
from .correction import Array, LearnedOrder
from .gaussian import GaussianProcess
from .rank_points import MeasuredOperation, operations_of
from .sizes import Sizes, table_of

#: Fewest points of an operation from elsewhere that correct an order.
FEWEST_RECALLED = 8
#: By how many deviations points that were not measured are held for slower than is expected.
CAUTION = 1.0
#: Farthest that a number of a point may be from those of the measured ones, in their deviations.
FAR = 4.0


@frozen(eq=False)
class Elsewhere:
    """The logarithms of time over estimate of measured points, by their sizes, and a process over these as multiples of
    their deviations; sizes that do not `differ` between measured points say nothing of others.
    """

    names: tuple[str, ...]
    known: Mapping[bytes, float]
    differ: Array
    centre: Array
    scale: Array
    process: GaussianProcess

    @classmethod
    def of(cls, operation: MeasuredOperation, order: LearnedOrder) -> Elsewhere:
        """Return what the times of an operation say of an order."""
        points = operation.points
        expected = order.seconds(points.features, points.conflicts, operation.target)
        wrong = np.log(points.seconds / expected)
        names = tuple(sorted({name for sizes in operation.sizes for name in sizes}))
        table = table_of(operation.sizes, names)
        alike: dict[bytes, list[float]] = {}
        for key, value in zip(_keys(table), wrong.tolist(), strict=True):
            alike.setdefault(key, []).append(value)
        spread = table.std(axis=0)
        differ = np.flatnonzero(spread > 1e-9)
        centre, scale = table[:, differ].mean(axis=0), spread[differ] * np.sqrt(max(1, len(differ)))
        process = GaussianProcess.fitted(_placed(table[:, differ], centre, scale), wrong)
        return cls(names, {key: mean(values) for key, values in alike.items()}, differ, centre, scale, process)

    def factors(self, table: Array, others: Array) -> Array:
        """Return what the expected seconds of points are to be multiplied by, given their sizes in columns by `names`,
        and whether they have any `others`.
        """
        beliefs = self.process.at(_placed(table[:, self.differ], self.centre, self.scale))
        found = beliefs.mean + CAUTION * np.sqrt(beliefs.variance)
        measured = (None if other else self.known.get(key) for key, other in zip(_keys(table), others, strict=True))
        return np.exp([value if exact is None else exact for value, exact in zip(found, measured, strict=True)])


def _keys(table: Array) -> list[bytes]:
    return [row.tobytes() for row in np.round(table, 6) + 0.0]


def _placed(table: Array, centre: Array, scale: Array) -> Array:
    limit = FAR / np.sqrt(max(1, len(scale)))
    return np.asarray(np.clip((table - centre) / scale, -limit, limit))


def ordered_seconds(operation: MeasuredOperation, order: LearnedOrder, elsewhere: Elsewhere | None) -> Array:
    """Return what the points of an operation are expected to take."""
    found = order.seconds(operation.points.features, operation.points.conflicts, operation.target)
    if elsewhere is None:
        return found
    names = {*elsewhere.names}
    others = np.asarray([any(np.any(v) for n, v in sizes.items() if n not in names) for sizes in operation.sizes])
    return found * elsewhere.factors(table_of(operation.sizes, elsewhere.names), others)


def times_of(operation: MeasuredOperation) -> tuple[tuple[str, float], ...]:
    """Return the seconds of an operation's points by schedule, as an order recalls them."""
    return tuple(zip(operation.schedules, operation.points.seconds.tolist(), strict=True))


@lru_cache(maxsize=64)
def recalled_of(work: str, target: Target, order: LearnedOrder) -> Elsewhere | None:
    """Return what an order recalls of the operation that a work is; nothing where that is little."""
    times, general = dict(order.recalled), evolve(order, recalled=())
    found = operations_of("", work, {}, target, times, FEWEST_RECALLED)
    return next((Elsewhere.of(operation, general) for operation in found), None)


def factors_of(elsewhere: Elsewhere, sizes: Sizes, count: int) -> Array:
    """Return the factors of so many points, whose sizes are arrays or the same for all."""
    columns = [np.broadcast_to(sizes.get(name, 0.0), (count,)) for name in elsewhere.names]
    names, others = {*elsewhere.names}, np.zeros(count, bool)
    for name, value in sizes.items():
        if name not in names:
            others |= np.broadcast_to(np.not_equal(value, 0.0), (count,))
    return elsewhere.factors(np.stack(columns, axis=1), others)
