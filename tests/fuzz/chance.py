"""Random selector: any legal partition, algorithm and schedule."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
from attrs import field, frozen
from cuts.ir.affine import Var
from cuts.ir.compiled import FULL_SHARE
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.passes.costs.candidate_subgraphs import CandidateSubgraph, CostedKernels, SubgraphKernels, partition_subgraph
from cuts.passes.costs.executor import Workload
from cuts.passes.fusion.grouping.partitioner import GroupEvaluator
from cuts.passes.schedule.selection.choose import Candidate, assess, choose, structural_key
from cuts.passes.schedule.space import ScheduleTemplate, Space, make_space

from ..kernels.cases import ByModel, legal_points

#: Structures of a group's space that are tried for a legal point before the model is asked.
TRIES = 6
#: Points of a structure that are compared by how rare they are.
CHOICES = 32
#: One graph in so many is computed by other algorithms than its nodes' own declarations, where there are any.
ALGORITHMS = 6


@frozen
class Chance(ByModel):
    """Random decisions in the place that measurements have: costs and schedules.

    Costs of groups decide merges, split reductions and algorithms.

    Equal seeds give equal decisions: a group's cost depends on the seed and the group alone. Where nothing is launched,
    groups need no legal point (`launched`).
    """

    seed: int = 0
    launched: bool = True
    points: dict[tuple[Hashable, ...], Schedule | None] = field(factory=dict, eq=False, repr=False)

    def evaluator(self, modelled: GroupEvaluator) -> GroupEvaluator:
        """Return random costs."""
        return _Drawn(self)

    def submit(self, requests: Sequence[Any]) -> Callable[[], Sequence[Any]]:
        """Let an algorithm of several nodes cost nothing, or be impossible."""
        if not isinstance(requests[0], CandidateSubgraph):
            return super().submit(requests)
        found = self._plan(requests)
        return lambda: found

    def _plan(self, fragments: Sequence[CandidateSubgraph]) -> Sequence[SubgraphKernels]:
        if self.seed % ALGORITHMS:
            return [None] * len(fragments)
        rng = np.random.default_rng(self.seed)
        free = [len(f.graph.nodes) > 4 for f in fragments]
        return [
            (CostedKernels((), 0.0) if rng.integers(2) else None) if several else partition_subgraph(fragment)
            for fragment, several in zip(fragments, free, strict=True)
        ]

    def schedule(
        self, workloads: Mapping[Hashable, Workload], share: float = FULL_SHARE
    ) -> Mapping[Hashable, Candidate]:
        """Return a random legal point of each kernel."""
        return {key: self._candidate(work.form) for key, work in workloads.items()}

    def _candidate(self, form: FusedGroup) -> Candidate:
        schedule = self.point(form)
        return choose(form, self.target)[0] if schedule is None else assess(form, schedule, self.target)

    def point(self, form: FusedGroup) -> Schedule | None:
        """Return a legal point of a group's space, or None without one."""
        number = self.number(form)
        key = (number, *_axes(form))  # groups that are equal but for the names of axes have equal points of their own
        if key not in self.points:
            space = make_space(form, self.target)
            rng = np.random.default_rng(number)
            drawn = [space.templates[k] for k in rng.permutation(len(space.templates))]
            wanted = rng.integers(3)
            if wanted == 1:  # most structures stage nothing
                drawn.sort(key=lambda structure: not any(s.stages_any for s in structure.segments))
            elif wanted == 2:
                drawn.sort(key=lambda structure: not any(s.reduction_threads for s in structure.segments))
            found = (_point(space, structure, rng) for structure in drawn[:TRIES])
            self.points[key] = next((point for point in found if point is not None), None)
        return self.points[key]

    def number(self, form: FusedGroup) -> int:
        """Return a number that depends on the seed and a group's structure."""
        return zlib.crc32(repr(structural_key(form)).encode(), self.seed & 0xFFFFFFFF)


def _axes(form: FusedGroup) -> Iterator[Var]:
    """Yield the axes that a schedule of a group names."""
    for segment in form.segments:
        yield from segment.axes
        yield from (axis for reduction in segment.reductions for axis in reduction.reduce)
        yield from (axis for output in segment.outputs for axis in output.extra)


def _point(space: Space, structure: ScheduleTemplate, rng: np.random.Generator) -> Schedule | None:
    """Return a legal point of a structure; of several drawn the one with most of the rare properties on small tensors,
    or with some of them.
    """
    several = CHOICES if rng.integers(3) else 1
    weights = rng.integers(0, 3, 7)
    found = legal_points(space, structure, int(rng.integers(2**32)), several)
    return max(
        found, key=lambda point: sum(w * r for w, r in zip(weights, _rarities(point), strict=True)), default=None
    )


def _rarities(schedule: Schedule) -> tuple[bool, ...]:
    """Return the properties of a schedule that most points of small tensors lack."""
    segments = schedule.segments
    return (
        schedule.raster > 1,
        schedule.blocks > 1,
        any(s.warp for s in segments),
        any(s.reduction_threads > 1 for s in segments),
        any(d.vector > 1 for s in segments for d in s.dims),
        any(r.stages > 1 and r.staging for s in segments for r in s.reductions),
        any(d.trips > 1 for s in segments for r in s.reductions for d in r.dims),
    )


@frozen
class _Drawn:
    chance: Chance

    def cost(self, group: FusedGroup) -> float:
        """Return a cost; infinity where no kernel is known to exist.

        Two of three merges gain by it, and one of three splits; groups of two segments are rare, so they are cheap.
        """
        if self.chance.launched and self.chance.point(group) is None:
            return inf
        drawn = float(np.exp(2.0 * np.random.default_rng(self.chance.number(group) ^ 1).standard_normal()))
        return drawn / 8 if len(group.segments) > 1 else drawn
