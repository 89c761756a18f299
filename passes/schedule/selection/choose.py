"""Choice of a group's schedule without a device, with an explanation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import ceil, inf

import numpy as np
from attrs import evolve, field, frozen

from ....ir import (
    BOUND_PRUNING,
    FusedGroup,
    PassError,
    Pruning,
    Schedule,
    Segment,
    Target,
    Var,
    map_guards,
    rename_expr,
    rename_index,
    substitute,
    substitute_expr,
    substitute_guards,
)
from ...geometry import schedule_of
from ...model import NUMBERS, Bound, Features, features_of, limiting, lower_bound
from ..space import Space, make_space
from .enumerate import columns_of, sample_batches, to_schedule
from .hill_climbing import Point, best_points
from .known_scores import known_scores
from .prune import estimate_schedule, score

#: Samples of each template where time is short.
MAX_SOON_SAMPLES = 1024
#: Candidates that are ranked for a search with measurements.
RANKED_POINTS = 12


@frozen
class Candidate:
    """A chosen schedule with its bound and features.

    `bound` is the lower bound of its time in seconds, `limit` the limiting resource, `features` the counts by name.
    `score` is the cost model's order: estimated seconds.
    `measured` are additions of measurements to reports, as JSON values; `modelled` is the cost model's choice where a
    measurement chose another one.
    """

    schedule: Schedule
    bound: float
    limit: str
    features: Mapping[str, float]
    score: float
    measured: Mapping[str, object] = field(factory=dict)
    modelled: Candidate | None = field(default=None, eq=False)

    def in_shared_launch(self, own: Candidate) -> Candidate:
        """Return this candidate with the facts of the kernel's `own` one."""
        return evolve(self, measured={**own.measured, "why": "chosen by the model for a launch that it shares"})


@frozen
class _Key:
    """A group up to names of tensors and axes: equal groups are searched once."""

    shape: tuple[object, ...]
    group: FusedGroup = field(eq=False)


def choose(group: FusedGroup, target: Target, pruning: Pruning = BOUND_PRUNING, count: int = 1) -> list[Candidate]:
    """Return a group's best `count` legal schedules by the cost model.

    The best comes first; ties go to the earlier one of the space.

    Raises `PassError` where no schedule is legal, which the target's limits can cause.
    """
    points = first_points(group, target, pruning, count)
    space = make_space(group, target)
    return [candidate_of(space, point) for point in points]


def first_points(
    group: FusedGroup, target: Target, pruning: Pruning = BOUND_PRUNING, count: int = RANKED_POINTS
) -> tuple[Point, ...]:
    """Return a group's best `count` legal points by the cost model.

    `choose` returns their candidates; equal groups are searched once.

    Raises `PassError` where no point is legal.
    """
    searched = RANKED_POINTS if count == 1 else count  # the best point is the same
    points = _search(_Key(structural_key(group), group), target, pruning, searched)[:count]
    if not points:
        raise PassError(f"no schedule of the group that writes {', '.join(group.outputs)} fits target '{target.name}'")
    return points


def choose_soon(group: FusedGroup, target: Target) -> Candidate:
    """Return the best of a few samples of a group's space.

    This serves callers without time for more.

    Raises `PassError` where no schedule is legal.
    """
    space = make_space(group, target, coarse=True)
    best: tuple[float, int] | None = None
    for batch in sample_batches(space, MAX_SOON_SAMPLES):
        scores = np.where(batch.legal, score(batch, space), inf)
        place = int(np.argmin(scores))
        if scores[place] < (inf if best is None else best[0]):
            assert batch.points is not None, "samples name their points"
            best = float(scores[place]), int(batch.points[place]) + batch.start
    return choose(group, target)[0] if best is None else assess(group, to_schedule(space, best[1]), target, best[0])


@lru_cache(maxsize=4096)
def _search(key: _Key, target: Target, pruning: Pruning, count: int) -> tuple[Point, ...]:
    return best_points(key.group, target, pruning, count, known_scores(key, target, pruning))


def structural_key(group: FusedGroup) -> tuple[object, ...]:
    """Return the structure that determines a group's space.

    Names are replaced by numbers.
    """
    names: dict[str, str] = {}
    for segment in group.segments:
        for name in (
            *segment.tensors_read,
            *(r.name for r in segment.reductions),
            *(o.tensor for o in segment.outputs),
        ):
            names.setdefault(name, f"t{len(names)}")
    for name in group.tensors:
        names.setdefault(name, f"t{len(names)}")
    types = tuple(sorted((names[n], str(t)) for n, t in group.tensors.items()))
    return (*(_segment_key(s, names) for s in group.segments), types, tuple(names[t] for t in group.shared))


def _segment_key(segment: Segment, names: Mapping[str, str]) -> tuple[object, ...]:
    axes = [
        *segment.axes,
        *(v for r in segment.reductions for v in r.reduce),
        *(v for o in segment.outputs for v in o.extra),
    ]
    places: dict[Var, Var] = {}
    for axis in axes:
        places.setdefault(axis, Var(f"v{len(places)}", axis.extent))
    reductions = tuple(
        (
            names[r.name],
            tuple(places[v] for v in r.reduce),
            r.combine,
            rename_expr(substitute_expr(r.body, places), names),
            r.math,
            r.along,
        )
        for r in segment.reductions
    )
    outputs = tuple(
        (
            names[o.tensor],
            tuple(rename_index(substitute(i, places), names) for i in o.write),
            o.into,
            tuple(places[v] for v in o.extra),
            rename_expr(substitute_expr(o.body, places), names),
            map_guards(substitute_guards(o.guards, places), lambda index: rename_index(index, names)),
        )
        for o in segment.outputs
    )
    return tuple(places[a] for a in segment.axes), reductions, outputs


def candidate_of(space: Space, point: Point) -> Candidate:
    """Return the candidate of a point of a group's full space."""
    structure = space.templates[point.structure]
    columns = columns_of(structure, np.asarray([point.places], dtype=np.int64)) if structure.parameters else {}
    values = {name: int(column[0]) for name, column in columns.items()}
    schedule = schedule_of(space.group, structure, values, space.target.warp_size)
    return assess(space.group, schedule, space.target, point.score)


def assess(group: FusedGroup, schedule: Schedule, target: Target, score: float | None = None) -> Candidate:
    """Return the candidate of a schedule: bound, limiting resource, counts.

    Its score is the cost model's estimate where none is given.
    """
    features = features_of(group, schedule, target)
    found = lower_bound(features, target)
    seconds = estimate_schedule(group, schedule, features, target) if score is None else score
    return Candidate(schedule, float(found.time), limiting(found), _numbers(features, found), seconds)


def _numbers(features: Features, found: Bound) -> dict[str, float]:
    values = {name: getattr(features, name) for name in NUMBERS}
    values["occupancy"] = found.occupancy
    values.update({f"time_{name}": term for name, term in (*found.terms.items(), ("first", found.first))})
    return {name: float(value) for name, value in values.items()}


#: Explanation of each resource of the bound.
_MEANING = {
    "math": "arithmetic at peak rate",
    "tensor": "tensor cores at their rate",
    "issue": "issuing instructions",
    "shared": "bandwidth of shared memory and L1",
    "l2": "bandwidth of the L2 cache",
    "dram": "bandwidth of global memory",
    "latency": "latency of memory, barriers and dependent operations",
}


def explain(candidate: Candidate, target: Target) -> str:
    """Return the limiting resource and the waste of a candidate.

    The text has a line for each.
    """
    numbers = candidate.features
    time = max(candidate.bound, 1e-12)
    share = numbers[f"time_{candidate.limit}"] / time
    direct = candidate.limit != "latency" and numbers["time_first"] > 0
    lines = [
        f"at least {candidate.bound * 1e6:.2f} us: {share:.0%} of it {_MEANING[candidate.limit]}, "
        f"{target.launch_time / time:.0%} the launch"
        + (f", {numbers['time_first'] / time:.0%} the first load" if direct else ""),
        _waves(int(numbers["grid"]), target.NUM_SM),
        f"{int(numbers['threads'])} threads a block, {int(numbers['occupancy'])} blocks resident on an SM, "
        f"{int(numbers['shared'])} bytes of shared memory, about {int(numbers['registers'])} registers",
    ]
    computed, useful = numbers["flops"] * numbers["grid"], numbers["useful_flops"]
    if useful and computed > 1.05 * useful:
        lines.append(f"{1 - useful / computed:.0%} of the arithmetic is padding or recomputed")
    moved = numbers["grid"] * (numbers["bytes"] + numbers["stored"])
    lines.append(f"{moved / 1e6:.3g} MB through L2, {numbers['unique_bytes'] / 1e6:.3g} MB of them distinct")
    return "\n".join(lines)


def _waves(blocks: int, sms: int) -> str:
    """Return how evenly blocks fall on SMs: "133 blocks on 132 SMs: 50% of the SM time idle"."""
    waves = ceil(blocks / sms)
    idle = 1 - blocks / (sms * waves)
    text = f"{blocks} {'block' if blocks == 1 else 'blocks'} on {sms} SMs"
    if idle < 0.005:
        return f"{text}: every SM works to the end"
    return f"{text}: {idle:.0%} of the SM time idle" + (
        "" if waves == 1 else f", the last of {waves} rounds is {blocks % sms or sms} blocks"
    )
