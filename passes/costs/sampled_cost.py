"""Cost of a group by a sample of its space.

The best candidates lead similar groups.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from math import inf
from typing import Any, TypeAlias

import numpy as np
from attrs import field, frozen

from ...ir import FusedGroup, Target
from ..geometry import ScheduleParameter, SegmentTemplate
from ..model import estimate_time, lower_bound
from ..schedule import Batch, Space, make_space, places_at, sample_batches

#: Schedule templates, and candidates of each, that groups over a known iteration space are evaluated with.
MAX_LEADING_STRUCTURES, LEADING_POINTS = 1, 8
#: Schedule templates of each segment of a group.
Combination: TypeAlias = tuple[SegmentTemplate, ...]


@frozen(eq=False)
class Leader:
    """Best candidates of a schedule template.

    It has the template's position among those of its group, its parameters, and the places of the candidates.
    """

    position: int
    knobs: tuple[ScheduleParameter, ...]
    places: np.ndarray[Any, Any]


@frozen
class SampledGroup:
    """A group whose space is sampled: `key` is that of equal groups."""

    key: Hashable
    group: FusedGroup = field(eq=False)
    combinations: Sequence[Combination] = field(eq=False)


@lru_cache(maxsize=4096)
def sample_group(asked: SampledGroup, target: Target, most: int) -> tuple[float, tuple[Leader, ...]]:
    """Return the best seconds of a sample, and the leading candidates.

    Partitions of several candidate subgraphs contain equal groups.
    """
    found: list[tuple[float, Leader]] = []
    space = make_space(asked.group, target, True, asked.combinations)
    for position, batch in enumerate(sample_batches(space, most)):
        values = sampled_seconds(batch, space)
        assert batch.points is not None, "samples name their points"
        first = np.argsort(values, kind="stable")[:LEADING_POINTS]
        if np.isfinite(values[first[0]]):
            places = places_at(batch.structure, batch.points[first])
            found.append((float(values[first[0]]), Leader(position, batch.structure.parameters, places)))
    found.sort(key=lambda pair: pair[0])
    leaders = tuple(leader for _, leader in found[:MAX_LEADING_STRUCTURES])
    return found[0][0] if found else inf, leaders


def sampled_seconds(batch: Batch, space: Space) -> np.ndarray[Any, Any]:
    """Return the modelled seconds of candidates without bank conflicts.

    They are infinite where a candidate is illegal.
    """
    estimate = batch.flat(estimate_time(batch.features, lower_bound(batch.features, space.target), space.target))
    return np.where(batch.legal, estimate, inf)
