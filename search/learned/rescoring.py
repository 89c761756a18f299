"""Scores of points by a learned order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir import CutsError, Pruning, Schedule, parse_ir, print_ir
from ...passes.model import conflict_factor
from ...passes.schedule import Point, Space, check_schedule, columns_of, evaluate, neighbours
from .correction import LearnedOrder
from .schedule_features import features_of_batch
from .schedule_lookup import place_of_schedule
from .transfer import factors_of, recalled_of

#: Number of fastest points of another machine that are always ranked, and of those whose neighbours are.
NUM_FASTEST, NUM_PARENTS = 8, 3


def recalled_points(space: Space, correction: LearnedOrder, pruning: Pruning) -> list[Point]:
    """Return the fastest points of another machine, and their neighbours.

    Only points of the space are returned.
    """
    found = []
    for text, _ in sorted(correction.recalled, key=lambda each: (each[1], each[0]))[:NUM_FASTEST]:
        try:
            schedule = parse_ir(text)
            legal = isinstance(schedule, Schedule) and not check_schedule(space.group, schedule, space.target)
            place = place_of_schedule(space, schedule) if legal else None
        except (CutsError, AssertionError):
            continue  # no schedule of this version
        if place is not None:
            found.append(Point(0.0, *place))
    return [*found, *sorted(neighbours(space, found[:NUM_PARENTS], pruning))]


def rescore(space: Space, points: Sequence[Point], correction: LearnedOrder) -> list[Point]:
    """Return points with their predicted seconds as scores."""
    scores = np.zeros(len(points))
    transfer = recalled_of(print_ir(space.group), space.target, correction) if correction.recalled else None
    for position in sorted({p.structure for p in points}):
        rows = [k for k, p in enumerate(points) if p.structure == position]
        structure = space.templates[position]
        places = np.asarray([points[k].places for k in rows], np.int64).reshape(len(rows), len(structure.shape))
        batch = evaluate(space, structure, columns_of(structure, places), 0)
        conflicts = np.asarray(conflict_factor(space.group, batch.sizes, space.target))
        scores[rows] = correction.seconds(batch.features, conflicts, space.target)
        if transfer is not None:
            scores[rows] *= factors_of(transfer, features_of_batch(batch), len(rows))
    return [Point(float(score), p.structure, p.places) for p, score in zip(points, scores, strict=True)]
