"""Analytic cost of groups: the best candidate of a sample.

Similar groups are compared by the candidates that were best for the first of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf
from typing import Any

import numpy as np
from attrs import evolve, field, frozen

from ...ir import FusedGroup, PassError, Segment, Target, expr_variables, has_dependent_sizes, operands
from ..fusion import form_key
from ..geometry import ScheduleTemplate, SegmentTemplate, cached_reads, multiplies_one_row
from ..model import estimate_time, features_of, lower_bound
from ..schedule import (
    Candidate,
    Point,
    Space,
    candidate_of,
    chain_templates,
    choose,
    columns_of,
    combine_templates,
    evaluate,
    fills_box,
    first_points,
    make_space,
    only_chains,
    score,
    segment_templates,
    sums_windows,
)
from .sampled_cost import Combination, Leader, SampledGroup, sample_group, sampled_seconds

#: Schedule templates, and candidates of each, that groups over a known iteration space of dependent sizes are evaluated
#: with; a search that serves many groups refines more points than that of one.
MAX_SEARCHED_STRUCTURES, SEARCHED_POINTS = 2, 64


@frozen
class AnalyticCost:
    """Analytic cost of a group: its best sampled candidate schedule.

    At most `sample` candidates of each schedule template are compared, in the order of the cost model. Where the sizes
    of segments depend on one another, a sample represents the space badly, as few of its candidates are legal: the
    space is searched.

    Of groups that compute over the same iteration space, such as a convolution before and after its neighbours were
    fused into it, the first is searched; the others are evaluated with the candidates that are best there.
    """

    target: Target
    sample: int = 512
    leaders: dict[tuple[Any, ...], tuple[Leader, ...]] = field(factory=dict, eq=False, repr=False)
    points: dict[Hashable, tuple[Point, ...]] = field(factory=dict, eq=False, repr=False)

    def cost(self, group: FusedGroup) -> float:
        """Return the modelled time with its launch; infinity without a legal sample."""
        combinations, dependent = self._combinations(group), self._is_searched(group)
        key = _similarity(group, combinations)
        best, *_ = self._lead(group, combinations, self.leaders.get(key, ()))
        if best < inf:
            return best
        if dependent:
            best, self.leaders[key] = self._search(group, combinations)
        else:
            asked = SampledGroup(form_key(group), group, combinations)
            best, self.leaders[key] = sample_group(asked, self.target, self.sample)
        return best

    def search_key(self, group: FusedGroup) -> Hashable:
        """Return the key of a group that is searched, else None."""
        key = _similarity(group, self._combinations(group)) if self._is_searched(group) else None
        return None if key in self.leaders else key

    def search(self, forms: Sequence[FusedGroup]) -> float:
        """Return the modelled time of a sequence of kernels, each searched.

        Those without sums share a launch, and DRAM; others find results of earlier ones in the L2 cache.
        """
        try:
            found = [choose(form, self.target)[0] for form in forms]
        except PassError:
            return inf
        together = [c for c, form in zip(found, forms, strict=True) if not any(s.reductions for s in form.segments)]
        launch = self.target.launch_time
        seconds = launch * bool(together) + sum(candidate.score - launch for candidate in together)
        made: dict[str, float] = {}
        for candidate, form in zip(found, forms, strict=True):
            if candidate not in together:
                cached = sum(made.get(t, 0.0) for t in form.inputs)
                seconds += self._seconds_after(form, candidate, cached)
            made |= {t: float(form.tensors[t].nbytes) for t in form.outputs}
        return seconds

    def _seconds_after(self, form: FusedGroup, candidate: Candidate, cached: float) -> float:
        """Return the time of a kernel that finds bytes in the L2 cache, if half of it is enough for them."""
        if not 0.0 < cached <= self.target.l2_bytes / 2:
            return candidate.score
        features = features_of(form, candidate.schedule, self.target)
        warm = evolve(features, unique_bytes=max(0.0, features.unique_bytes - cached))
        cold, warm_time = (estimate_time(f, lower_bound(f, self.target), self.target) for f in (features, warm))
        return candidate.score * float(warm_time / cold)

    def improve(self, group: FusedGroup, candidate: Candidate) -> Candidate:
        """Return a candidate, or a better one of a similar group.

        A search finds the best points of a space of dependent sizes in one group and misses them in another.
        """
        if not self._is_searched(group):
            return candidate
        combinations = self._combinations(group)
        leaders = self.leaders.get(_similarity(group, combinations), ())
        best, space, places = self._lead(group, combinations, leaders)
        return candidate_of(space, Point(best, 0, places)) if best < candidate.score else candidate

    def _is_searched(self, group: FusedGroup) -> bool:
        """Return whether a sample would represent the space of a group badly."""
        passes = any(map(multiplies_one_row, group.segments[1:]))  # the product of a row that another segment passes
        return passes or has_dependent_sizes(group) or fills_box(group, self.target) or sums_windows(group, self.target)

    def _combinations(self, group: FusedGroup) -> list[Combination]:
        """Return the schedule templates that are compared."""
        if chains := only_chains(group, self.target):
            return [*chains]
        segments = [segment_templates(group, k, self.target) for k in range(len(group.segments))]
        plain = combine_templates(segments if self._is_searched(group) else [*map(_staging_templates, segments)])
        return [*plain, *chain_templates(group, self.target)]

    def _lead(
        self, group: FusedGroup, combinations: Sequence[Combination], leaders: Sequence[Leader]
    ) -> tuple[float, Space, tuple[int, ...]]:
        """Return the best of the leading candidates: seconds, the space of its template, and its places."""
        best, space, places = inf, Space(group, self.target, ()), ()
        for leader in leaders:
            own = Space(group, self.target, (ScheduleTemplate(combinations[leader.position], leader.knobs),))
            batch = evaluate(own, own.templates[0], columns_of(own.templates[0], leader.places), 0)
            seconds = score(batch, own) if self._is_searched(group) else sampled_seconds(batch, own)
            if (found := float(seconds.min())) < best:
                best, space, places = found, own, tuple(leader.places[int(seconds.argmin())].tolist())
        return best, space, places

    def _search(self, group: FusedGroup, combinations: Sequence[Combination]) -> tuple[float, tuple[Leader, ...]]:
        """Return the estimate of the candidate that is chosen without a device, and the best of its template."""
        try:
            points = self.points.get(form_key(group)) or search_points(group, self.target)
        except PassError:
            return inf, ()
        templates, found = make_space(group, self.target).templates, list[Leader]()
        for number in [*dict.fromkeys(point.structure for point in points)][:MAX_SEARCHED_STRUCTURES]:
            places = np.asarray([point.places for point in points if point.structure == number])
            position = combinations.index(templates[number].segments)
            found.append(Leader(position, templates[number].parameters, places))
        return points[0].score, tuple(found)


def search_points(group: FusedGroup, target: Target) -> tuple[Point, ...]:
    """Return the best points of a group that leads others."""
    return first_points(group, target, count=SEARCHED_POINTS)


def _similarity(group: FusedGroup, combinations: Sequence[Combination]) -> tuple[Any, ...]:
    """Return a key of the groups that are evaluated with the same leading candidates."""
    return tuple(tuple(map(_choices, each)) for each in combinations), *iteration_spaces(group)


def _staging_templates(structures: Sequence[SegmentTemplate]) -> list[SegmentTemplate]:
    """Return the schedule templates that stage all operands or none; others do not change costs at this level."""
    most = max((len(s) for structure in structures for s in structure.staged), default=0)
    return [s for s in structures if all(len(staged) in (0, most) for staged in s.staged)] or list(structures)


def _choices(structure: SegmentTemplate) -> tuple[Hashable, ...]:
    """Return the properties that decide which parameters a schedule template has."""
    sizes = (len(structure.dims), len(structure.loops), len(structure.patch), structure.staged, bool(structure.shared))
    return (
        *sizes,
        structure.reduction_threads,
        structure.mma,
        structure.bulk,
        structure.caches_rows,
        structure.scatter_dim,
        structure.clusters,
        structure.part_rows,
        structure.additions,
        structure.parts,
    )


def iteration_spaces(group: FusedGroup) -> tuple[Any, ...]:
    """Return each segment's iteration space: axes, loops, and rows of outputs."""
    return tuple(map(_iteration_space, group.segments))


def _iteration_space(segment: Segment) -> tuple[Hashable, Hashable, Hashable]:
    """Return a segment's axes, and those of operands and outputs.

    Elements of a row that are read again are counted.
    """
    axes = segment.axes
    own = [r.name for r in segment.reductions]
    loops = []
    for reduction in segment.reductions:
        every = (*axes, *reduction.reduce)
        used = tuple(tuple(v in expr_variables(p) for v in every) for p in operands(reduction, own))
        loops.append((reduction.combine, reduction.along, tuple(v.extent for v in reduction.reduce), used))
    extras = tuple(tuple(v.extent for v in o.extra) for o in segment.outputs)
    return tuple(a.extent for a in axes), tuple(loops), (extras, len(cached_reads(segment, ())))
