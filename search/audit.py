"""Audit: did pruning throw away the winner? Points that the search did not look at are timed, at random or all of a small space.

The figure is published with every release of the model: how many of the audited points ran faster than the choice, whether one of them
was proven slower (which must never happen), and how close the bound comes to measured times.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
from attrs import frozen

from ..passes.choose import candidate_of
from ..passes.space import make_space
from .build import Scored
from .problem import Problem, schedule_text
from .settings import Choice, Settings
from .strategies import random_points
from .task import Entry
from .tuner import Tuner


@frozen
class Audit:
    """What was found of one problem: the choice's time, points timed besides, how many beat the choice by more than its tie band.

    `unsound` counts points that ran faster than their lower bound. `best` is the least time met, `tightness` the median of bound over
    time, `position` where the fastest point stands in the model's order among all that ran.
    """

    label: str
    key: str
    chosen: float
    timed: int
    faster: int
    unsound: int
    best: float
    tightness: float
    position: int
    exhaustive: bool

    @property
    def lost(self) -> bool:
        """Whether pruning lost the winner."""
        return self.faster > 0

    def record(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {
            "kernel": self.label,
            "tuning": self.key,
            "chosen": self.chosen,
            "timed": self.timed,
            "faster": self.faster,
            "faster than their bound": self.unsound,
            "best": self.best,
            "lost": round(1 - self.best / self.chosen, 4) if self.chosen else 0.0,
            "median bound / time": round(self.tightness, 3),
            "position of the fastest": self.position,
            "exhaustive": self.exhaustive,
        }


def audit_choices(tuner: Tuner, problems: Sequence[Problem], choices: Sequence[Choice], count: int, settings: Settings) -> list[Audit]:
    """Time `count` random legal points of each problem (all points of a space that has no more) and compare them with the choice."""
    found: list[Audit] = []
    for problem, choice in {p.key: (p, c) for p, c in zip(problems, choices, strict=True) if c.seconds is not None}.values():
        entries = _points(problem, choice, count, settings)
        tuner.time_points(problem, entries, settings)
        chosen, *others = entries
        if chosen.seconds < inf:
            tuner.compare(problem, [chosen, *(e for e in others if e.seconds < chosen.seconds)], settings)
            found.append(_judge(problem, chosen, others, settings))
        if not tuner.complete:
            break
    return found


def _points(problem: Problem, choice: Choice, count: int, settings: Settings) -> list[Entry]:
    """Return candidates for the choice and for random points, the choice first."""
    space = make_space(problem.form, problem.target)
    scored = [Scored(None, choice.candidate)]
    scored += [Scored(p, candidate_of(space, p)) for p in random_points(space, count, settings.model, settings.seed)]
    unique = {schedule_text(s.candidate.schedule): s for s in reversed(scored)}
    return [Entry(s, text) for text, s in reversed(unique.items())]


def _judge(problem: Problem, chosen: Entry, others: Sequence[Entry], settings: Settings) -> Audit:
    ran = [chosen, *(e for e in others if e.seconds < inf)]
    times, bounds, scores, least = (
        np.asarray(column)
        for column in zip(*((e.seconds, e.scored.candidate.bound, e.scored.candidate.score, min(e.samples)) for e in ran), strict=True)
    )
    band = 1.0 - max(3 * settings.tie, chosen.spread)
    return Audit(
        label=problem.label,
        key=problem.key,
        chosen=float(times[0]),
        timed=len(ran) - 1,
        faster=int((times[1:] < band * times[0]).sum()),
        unsound=int((least < bounds).sum()),
        best=float(times.min()),
        tightness=float(np.median(bounds / times)),
        position=int((scores < scores[int(np.argmin(times))]).sum()) + 1,
        exhaustive=len(others) + 1 >= make_space(problem.form, problem.target).size,
    )
