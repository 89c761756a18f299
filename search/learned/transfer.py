"""Transfer: corrects an order by measurements on another machine.

Candidates that were measured there are ordered by their times. Others are corrected by a Gaussian process over the
features of their schedules (`sizes.py`), which tends to the mean of all measured ones: a search measures fast
candidates, so others are assumed slower by a deviation. Estimates are those of this machine, so that no fact of the
other one is needed. A factor common to all candidates of an operation changes no order, so that two machines need not
be equally fast.
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
from .schedule_features import ScheduleFeatures, feature_table

#: Smallest number of measurements of another machine that correct an order.
MIN_RECALLED = 8
#: Deviations by which unmeasured candidates are assumed slower than predicted.
UNMEASURED_PENALTY = 1.0
#: Largest distance of a feature from those of the measured candidates, in their deviations.
MAX_FEATURE_DEVIATIONS = 4.0


@frozen(eq=False)
class TransferModel:
    """Transfer model of one operation.

    It has the logarithms of time over estimate of measured candidates by their features, and a Gaussian process over
    the scaled features. Features that do not `differ` between measured candidates are ignored.
    """

    names: tuple[str, ...]
    known: Mapping[bytes, float]
    differ: Array
    centre: Array
    scale: Array
    process: GaussianProcess

    @classmethod
    def of(cls, operation: MeasuredOperation, order: LearnedOrder) -> TransferModel:
        """Return the transfer model of an operation's times for an order."""
        points = operation.points
        expected = order.seconds(points.features, points.conflicts, operation.target)
        wrong = np.log(points.seconds / expected)
        names = tuple(sorted({name for sizes in operation.sizes for name in sizes}))
        table = feature_table(operation.sizes, names)
        logarithms: dict[bytes, list[float]] = {}
        for key, value in zip(_keys(table), wrong.tolist(), strict=True):
            logarithms.setdefault(key, []).append(value)
        spread = table.std(axis=0)
        differ = np.flatnonzero(spread > 1e-9)
        centre, scale = table[:, differ].mean(axis=0), spread[differ] * np.sqrt(max(1, len(differ)))
        process = GaussianProcess.fit(_scaled_features(table[:, differ], centre, scale), wrong)
        return cls(names, {key: mean(values) for key, values in logarithms.items()}, differ, centre, scale, process)

    def factors(self, table: Array, others: Array) -> Array:
        """Return factors on the predicted seconds of candidates.

        The features are columns by `names`; `others` says which candidates have further features.
        """
        beliefs = self.process.at(_scaled_features(table[:, self.differ], self.centre, self.scale))
        found = beliefs.mean + UNMEASURED_PENALTY * np.sqrt(beliefs.variance)
        measured = (None if other else self.known.get(key) for key, other in zip(_keys(table), others, strict=True))
        return np.exp([value if exact is None else exact for value, exact in zip(found, measured, strict=True)])


def _keys(table: Array) -> list[bytes]:
    return [row.tobytes() for row in np.round(table, 6) + 0.0]


def _scaled_features(table: Array, centre: Array, scale: Array) -> Array:
    limit = MAX_FEATURE_DEVIATIONS / np.sqrt(max(1, len(scale)))
    return np.asarray(np.clip((table - centre) / scale, -limit, limit))


def ordered_seconds(operation: MeasuredOperation, order: LearnedOrder, elsewhere: TransferModel | None) -> Array:
    """Return the predicted seconds of an operation's candidates."""
    found = order.seconds(operation.points.features, operation.points.conflicts, operation.target)
    if elsewhere is None:
        return found
    names = {*elsewhere.names}
    others = np.asarray([any(np.any(v) for n, v in sizes.items() if n not in names) for sizes in operation.sizes])
    return found * elsewhere.factors(feature_table(operation.sizes, elsewhere.names), others)


def times_of(operation: MeasuredOperation) -> tuple[tuple[str, float], ...]:
    """Return the seconds of an operation's candidates by schedule."""
    return tuple(zip(operation.schedules, operation.points.seconds.tolist(), strict=True))


@lru_cache(maxsize=64)
def recalled_of(work: str, target: Target, order: LearnedOrder) -> TransferModel | None:
    """Return an order's transfer model for an operation; None with few times."""
    times, general = dict(order.recalled), evolve(order, recalled=())
    found = operations_of("", work, {}, target, times, MIN_RECALLED)
    return next((TransferModel.of(operation, general) for operation in found), None)


def factors_of(elsewhere: TransferModel, sizes: ScheduleFeatures, count: int) -> Array:
    """Return the factors of `count` candidates; features are arrays or scalars."""
    columns = [np.broadcast_to(sizes.get(name, 0.0), (count,)) for name in elsewhere.names]
    names, others = {*elsewhere.names}, np.zeros(count, bool)
    for name, value in sizes.items():
        if name not in names:
            others |= np.broadcast_to(np.not_equal(value, 0.0), (count,))
    return elsewhere.factors(np.stack(columns, axis=1), others)
