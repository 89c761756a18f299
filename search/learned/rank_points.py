"""Training data of the cost model: measured candidates as arrays of features.

They are grouped by operation and machine, and come from tuning databases and recorded spaces. Candidates that this
version's spaces exclude are left out, and so are those of machines without a known target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import evolve, fields, frozen

from ...ir import CutsError, FusedGroup, Schedule, Target, parse_ir
from ...passes.geometry import geometry_of
from ...passes.model import NUMBERS, Features, conflict_factor, features_of
from ...passes.schedule import check_schedule
from ..database import Database
from ..tasks import machine_of
from .recorded_spaces import RecordedSpace
from .schedule_features import ScheduleFeatures, features_of_schedule

Array = np.ndarray[Any, Any]
#: Smallest number of candidates of an operation that determine an order, the largest number that are read, and how many
#: of these are the fastest; the others are spread evenly over the rest.
MIN_POINTS, MAX_POINTS, NUM_FASTEST = 8, 400, 100


@frozen(eq=False)
class RankPoints:
    """Measured candidates: features, bank conflicts, seconds, operation numbers."""

    features: Features
    conflicts: Array
    seconds: Array
    case: Array

    @property
    def table(self) -> list[Array]:
        """Columns for `rank_points`, except the last."""
        return [*(np.asarray(getattr(self.features, name)) for name in NUMBERS), self.conflicts, self.seconds]

    def where(self, mask: Array) -> RankPoints:
        """Return the candidates of a mask."""
        chosen = {f.name: getattr(self.features, f.name) for f in fields(Features)}
        chosen = {name: value[mask] if isinstance(value, np.ndarray) else value for name, value in chosen.items()}
        return RankPoints(Features(**chosen), self.conflicts[mask], self.seconds[mask], self.case[mask])


@frozen(eq=False)
class MeasuredOperation:
    """Candidates of one operation on one machine, and the `sizes` of each.

    Operations with the same `work` are the same on every machine.
    """

    label: str
    work: str
    machine: str
    target: Target
    points: RankPoints
    sizes: tuple[ScheduleFeatures, ...] = ()
    schedules: tuple[str, ...] = ()

    def where(self, mask: Array) -> MeasuredOperation:
        """Return the operation with the candidates of a mask."""
        rows = np.flatnonzero(mask)
        sizes = tuple(self.sizes[k] for k in rows) if self.sizes else ()
        schedules = tuple(self.schedules[k] for k in rows) if self.schedules else ()
        return evolve(self, points=self.points.where(mask), sizes=sizes, schedules=schedules)


def rank_points(rows: Sequence[Sequence[float]] | Array) -> RankPoints:
    """Return candidates from rows: features, bank conflicts, seconds, operation number."""
    table = np.asarray(rows, dtype=np.float64)
    columns = dict(zip(NUMBERS, table.T, strict=False))
    return RankPoints(Features(segments=(), **columns), table[:, -3], table[:, -2], table[:, -1].astype(int))


def features_and_conflicts(group: FusedGroup, schedule: Schedule, target: Target) -> list[float]:
    """Return the features and bank conflicts of a candidate, empty if illegal."""
    if check_schedule(group, schedule, target):
        return []
    counts = features_of(group, schedule, target)
    factor = float(np.max(conflict_factor(group, geometry_of(group, schedule), target)))
    return [*(float(np.max(getattr(counts, f))) for f in NUMBERS), factor]


def of_spaces(spaces: Iterable[RecordedSpace]) -> Iterator[MeasuredOperation]:
    """Yield the operations of recorded spaces."""
    for space in spaces:
        times = {p.schedule: p.seconds for p in space.points if p.seconds is not None}
        yield from operations_of(space.label, space.work, space.machine, space.recorded_target, times)


def of_database(database: Database, target: Target) -> Iterator[MeasuredOperation]:
    """Yield a database's operations that were measured on a target's machine."""
    machine = machine_of(target)
    for label, work, times in database.measured_tasks(machine):
        yield from operations_of(label, work, machine, target, times)


def select_candidates(times: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return a limited number of candidates, fastest first."""
    ordered = sorted(times.items(), key=lambda each: (each[1], each[0]))
    if len(ordered) <= MAX_POINTS:
        return ordered
    rest = np.linspace(NUM_FASTEST, len(ordered) - 1, MAX_POINTS - NUM_FASTEST).astype(int)
    return [*ordered[:NUM_FASTEST], *(ordered[k] for k in dict.fromkeys(rest.tolist()))]


def operations_of(
    label: str,
    work: str,
    machine: Mapping[str, str],
    target: Target,
    times: Mapping[str, float],
    fewest: int = MIN_POINTS,
) -> Iterator[MeasuredOperation]:
    """Yield the operation of a work's text if it is usable.

    At least `fewest` of its candidates must be legal.
    """
    try:
        group = parse_ir(work)
    except CutsError:
        return  # written by another version
    rows, sizes, texts = [], [], []
    for text, seconds in select_candidates(times) if isinstance(group, FusedGroup) else ():
        try:
            schedule = parse_ir(text)
            row = features_and_conflicts(group, schedule, target) if isinstance(schedule, Schedule) else []
        except (CutsError, AssertionError):
            continue
        if row:
            rows.append([*row, seconds, 0.0])
            sizes.append(features_of_schedule(group, schedule))
            texts.append(text)
    if len(rows) >= fewest:
        name = machine.get("target", "")
        yield MeasuredOperation(label, work, name, target, rank_points(rows), tuple(sizes), tuple(texts))
