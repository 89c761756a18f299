"""Pruning certificate: the share of a space proven slower than a time.

Also finds a simple schedule of a space.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from ...ir import FusedGroup, Schedule, Target
from ...passes.schedule import Batch, Space, batches, make_space, proven_slower, sample_batches, score, to_schedule
from .tuning_task import TuningTask

#: Points of the largest space that is examined whole.
MAX_EXACT_POINTS = 300_000
#: Sampled points of each structure of a larger space.
SAMPLED_POINTS = 4096
#: Threads of a block of a simple schedule, if possible.
_SIMPLE_THREADS = (64, 256)
#: Unrolled operations of a thread of a simple schedule, at most, if possible.
_MAX_SIMPLE_BODY = 64


@frozen
class PruningCertificate:
    """Numbers of a space's points, legal points, and points proven slower.

    `exact` says that all points were examined.
    """

    points: int
    legal: float
    slower: float
    exact: bool

    @property
    def share(self) -> float:
        """Share of legal points that are proven slower."""
        return self.slower / self.legal if self.legal else 1.0


def prove(problem: TuningTask, best: float) -> PruningCertificate:
    """Return the share of a space whose lower bound exceeds `best` seconds.

    A large space is represented by a sample.
    """
    space = make_space(problem.form, problem.target)
    exact = space.size <= MAX_EXACT_POINTS
    legal = slower = 0.0
    for batch in batches(space) if exact else sample_batches(space, SAMPLED_POINTS):
        fine = batch.legal
        weight = 1.0 if exact else max(1.0, batch.structure.size / max(1, fine.size))
        legal += weight * float(fine.sum())
        slower += weight * float(np.logical_and(fine, proven_slower(batch, problem.target, best)).sum())
    return PruningCertificate(space.size, legal, slower, exact)


def simple_schedule(form: FusedGroup, target: Target) -> Schedule | None:
    """Return the best simple legal schedule, None where there is none.

    A simple schedule stages nothing, unrolls little and has a few warps a block, if possible.
    """
    space = make_space(form, target, coarse=True)
    best: tuple[tuple[float, ...], int] | None = None
    for batch in sample_batches(space, 1024):
        staged = float(any(s.stages_any for s in batch.structure.segments))
        found = _simplest(batch, space)
        if found is not None and (best is None or (staged, *found[0]) < best[0]):
            best = ((staged, *found[0]), found[1])
    return None if best is None else to_schedule(space, best[1])


def _simplest(batch: Batch, space: Space) -> tuple[tuple[float, ...], int] | None:
    legal = np.flatnonzero(batch.legal)
    if not legal.size:
        return None
    threads, body = batch.flat(batch.features.threads)[legal], batch.flat(batch.features.body)[legal]
    awkward = np.logical_or(threads < _SIMPLE_THREADS[0], threads > _SIMPLE_THREADS[1])
    long = body > _MAX_SIMPLE_BODY
    scores = score(batch, space)[legal]
    chosen = np.lexsort((legal, scores, long, awkward))[0]
    assert batch.points is not None, "samples name their points"
    key = (float(awkward[chosen]), float(long[chosen]), float(scores[chosen]))
    return key, int(batch.points[legal[chosen]]) + batch.start
