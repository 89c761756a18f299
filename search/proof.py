"""What can be said of a space without measuring it: how much of it is proven slower than a time,
and which of its points is simple.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from ..ir import FusedGroup, Schedule, Target
from ..passes.schedule import Batch, Space, batches, make_space, proven_slower, sampled, score, to_schedule
from .problem import Problem

#: Spaces of at most this many points are looked at whole.
EXACT = 300_000
#: Points of each structure that stand for a larger one.
SAMPLE = 4096
#: Threads of a block that a simple schedule has where it can.
_THREADS = (64, 256)
#: Unrolled operations of a thread that a simple schedule has at most, where it can.
_BODY = 64


@frozen
class Proof:
    """How many points a space has, how many of those looked at were legal, and how many of them are proven slower than
    a time.

    `exact` says that all points were looked at.
    """

    points: int
    legal: float
    slower: float
    exact: bool

    @property
    def share(self) -> float:
        """The share of legal points that are proven slower."""
        return self.slower / self.legal if self.legal else 1.0


def prove(problem: Problem, best: float) -> Proof:
    """Return how much of a problem's space has a lower bound above `best` seconds;
    a sample speaks for a large space.
    """
    space = make_space(problem.form, problem.target)
    exact = space.size <= EXACT
    legal = slower = 0.0
    for batch in batches(space) if exact else sampled(space, SAMPLE):
        fine = batch.legal
        weight = 1.0 if exact else max(1.0, batch.structure.size / max(1, fine.size))
        legal += weight * float(fine.sum())
        slower += weight * float(np.logical_and(fine, proven_slower(batch, problem.target, best)).sum())
    return Proof(space.size, legal, slower, exact)


def simple_schedule(form: FusedGroup, target: Target) -> Schedule | None:
    """Return the best of those legal points that stage nothing, unroll little and have a few warps a block,
    as far as there are such.
    """
    space = make_space(form, target, coarse=True)
    best: tuple[tuple[float, ...], int] | None = None
    for batch in sampled(space, 1024):
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
    awkward = np.logical_or(threads < _THREADS[0], threads > _THREADS[1])
    long = body > _BODY
    scores = score(batch, space, "bound")[legal]
    chosen = np.lexsort((legal, scores, long, awkward))[0]
    assert batch.points is not None, "samples name their points"
    key = (float(awkward[chosen]), float(long[chosen]), float(scores[chosen]))
    return key, int(batch.points[legal[chosen]]) + batch.start
