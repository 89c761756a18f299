"""Recorded pool as a search domain: strategies get the nearest recorded point.

Every strategy then meets the same points with the same times, and never an unmeasured point. Distance is that of the
logarithms of parameter values; points of other structures are never near. A point that failed in the recording fails
here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from math import inf
from typing import Any

import numpy as np
from attrs import define, field
from cuts.ir import BOUND_PRUNING, FusedGroup, Pruning, Storage, parse_ir
from cuts.passes.schedule import Point, make_space
from cuts.search.building.factory import ScoredCandidate
from cuts.search.learned.recorded_spaces import RecordedPoint, RecordedSpace
from cuts.search.strategies import FullSpace, Place, place_of
from cuts.search.tasks.tuning_task import TuningTask, schedule_text

#: Largest number of neighbours of a point where a pool has few that differ in a single parameter.
MAX_NEIGHBOURS = 48
#: Points by which a structure is recognised.
NUM_PROBES = 16


@define
class RecordedDomain(FullSpace):
    """Points of a pool in this version's space, with their `seconds`.

    The time of a failed point is infinity.
    """

    points: list[Point] = field(factory=list)
    seconds: dict[Place, float] = field(factory=dict)
    _rows: dict[int, list[int]] = field(init=False, factory=dict)
    _values: dict[int, Any] = field(init=False, factory=dict)
    _candidates: dict[Place, ScoredCandidate] = field(init=False, factory=dict)

    def add_recording(self, space: RecordedSpace) -> None:
        """Add the points of a recorded space.

        Points whose schedule this version prints differently are left out.
        """
        recorded = sorted(space.points, key=lambda p: p.structure)
        for number, points in groupby(recorded, key=lambda p: p.structure):
            self._add_structure(number, [*points])
        self.points.sort()
        for s in sorted({p.structure for p in self.points}):
            self._rows[s] = [k for k, p in enumerate(self.points) if p.structure == s]
            self._values[s] = self.values([self.points[k] for k in self._rows[s]])

    def _add_structure(self, number: int, recorded: Sequence[RecordedPoint]) -> None:
        """Add the points of one structure.

        Its number is that of the version that recorded it, which may have had further structures before it.
        """
        for position in reversed(range(min(number + 1, len(self.shapes)))):
            shape = self.shapes[position]
            inside = [p for p in recorded if len(p.places) == len(shape)]
            texts = {(position, p.places): p for p in inside
                     if all(a < n for a, n in zip(p.places, shape, strict=True))}  # fmt: skip
            legal = super().legal(list(texts))
            if sum(self._add(point, texts[place_of(point)]) for point in legal[:NUM_PROBES]):
                for point in legal[NUM_PROBES:]:
                    self._add(point, texts[place_of(point)])
                return

    def _add(self, point: Point, recorded: RecordedPoint) -> bool:
        """Add a point, and return whether this version prints its schedule as it was recorded."""
        scored, place = super().candidate_at(point), place_of(point)
        if schedule_text(scored.candidate.schedule) != recorded.schedule:
            return False
        self.points.append(point)
        self.seconds[place] = inf if recorded.seconds is None else recorded.seconds
        self._candidates[place] = scored
        return True

    @property
    def best(self) -> float:
        """Shortest time of all."""
        return min(self.seconds.values(), default=inf)

    def random(self, count: int, seed: Sequence[int]) -> list[Point]:
        """Return recorded points in a random order, equally many of each structure."""
        generator = np.random.default_rng(list(seed))
        turns = [(turn, generator.random(), k) for rows in self._rows.values()
                 for turn, k in enumerate(generator.permutation(rows))]  # fmt: skip
        return [self.points[k] for _, _, k in sorted(turns)[:count]]

    def legal(self, places: Sequence[Place]) -> list[Point]:
        """Return the recorded points nearest to the legal ones of given points."""
        wanted = super().legal([p for p in places if p[0] in self._rows])
        found: dict[int, Point] = {}
        for position in sorted({p.structure for p in wanted}):
            asked = [k for k, p in enumerate(wanted) if p.structure == position]
            nearest = self._distances(position, [wanted[k] for k in asked]).argmin(axis=1)
            found |= {k: self.points[self._rows[position][n]] for k, n in zip(asked, nearest, strict=True)}
        return list({place_of(found[k]): found[k] for k in sorted(found)}.values())

    def near(self, points: Sequence[Point]) -> set[Point]:
        """Return recorded points that differ in one parameter, and the nearest others."""
        found: set[Point] = set()
        for point in points:
            rows = [self.points[k] for k in self._rows.get(point.structure, [])]
            if rows:
                differ = (np.asarray([p.places for p in rows]) != np.asarray(point.places)).sum(axis=1)
                order = np.argsort(self._distances(point.structure, [point])[0], kind="stable")
                found |= {rows[k] for k in np.flatnonzero(differ == 1)} | {rows[k] for k in order[:MAX_NEIGHBOURS]}
        return found - set(points)

    def candidate_at(self, point: Point) -> ScoredCandidate:
        """Return the candidate of a point."""
        return self._candidates[place_of(point)]

    def nearest(self, point: Point) -> Point:
        """Return the nearest recorded point; the cost model's best without any."""
        return next(iter(self.legal([place_of(point)])), self.points[0])

    def _distances(self, structure: int, points: Sequence[Point]) -> Any:
        rows = self.values(points)
        return np.abs(rows[:, None, :] - self._values[structure][None, :, :]).sum(axis=2)


def recorded_domain(space: RecordedSpace, problem: TuningTask, pruning: Pruning = BOUND_PRUNING) -> RecordedDomain:
    """Return the search domain of a task's recorded space."""
    domain = RecordedDomain(make_space(problem.form, problem.target), pruning)
    domain.add_recording(space)
    return domain


def domain_of(space: RecordedSpace) -> RecordedDomain:
    """Return the search domain of a recorded space, for its target."""
    form, storages = read_work(space.work)
    return recorded_domain(space, TuningTask(form, storages, space.recorded_target, {}))


def read_work(work: str) -> tuple[FusedGroup, dict[str, Storage]]:
    """Return the group and the storages in a tuning task's description."""
    text, *layouts = re.split(r"^# ", work, flags=re.MULTILINE)
    form = parse_ir(text, "<pack>")
    assert isinstance(form, FusedGroup), "a pack describes groups"
    storages = {}
    for line in layouts:
        found = re.fullmatch(r"(\S+) at offset (-?\d+) with strides ([-\d, ]*)", line.strip())
        assert found is not None, line
        strides = tuple(int(s) for s in found[3].split(", ") if s)
        storages[found[1]] = Storage(found[1], int(found[2]), strides)
    return form, storages
