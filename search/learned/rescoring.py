"""Points of a space with the seconds that are expected of them by what was learned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir import print_ir
from ...passes.model import conflict_factor
from ...passes.schedule import Point, Space, columns_of, evaluate
from .correction import LearnedOrder
from .elsewhere import factors_of, recalled_of
from .sizes import sizes_of_batch


def rescored(space: Space, points: Sequence[Point], correction: LearnedOrder) -> list[Point]:
    """Return points with what is expected of them as their scores."""
    scores = np.zeros(len(points))
    elsewhere = recalled_of(print_ir(space.group), space.target, correction) if correction.recalled else None
    for position in sorted({p.structure for p in points}):
        rows = [k for k, p in enumerate(points) if p.structure == position]
        structure = space.structures[position]
        places = np.asarray([points[k].places for k in rows], np.int64).reshape(len(rows), len(structure.shape))
        batch = evaluate(space, structure, columns_of(structure, places), 0)
        conflicts = np.asarray(conflict_factor(space.group, batch.sizes, space.target))
        scores[rows] = correction.seconds(batch.features, conflicts, space.target)
        if elsewhere is not None:
            scores[rows] *= factors_of(elsewhere, sizes_of_batch(batch), len(rows))
    return [Point(float(score), p.structure, p.places) for p, score in zip(points, scores, strict=True)]
