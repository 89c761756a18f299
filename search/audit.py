"""Audit: did pruning throw away the winner? Points that the search did not look at are timed, at random or all of a
small space.

A point that beats the choice, and whose lower bound says that it cannot, was lost by a wrong proof: there must never be
one. A point that beats the choice and was merely not proposed says how good the search is. The figures are published
with every release of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

import numpy as np
from attrs import asdict, frozen

from .build import Scored
from .problem import Problem, schedule_text
from .settings import Settings, TunedChoice
from .sweeps import KeptPoints, Sweep, Sweeps
from .task import Entry
from .tuner import Tuner

#: The widest tie band: where times scatter more than this, points are rather accused wrongly than excused.
WIDEST = 0.1


@frozen
class Ran:
    """A point that ran: its schedule, its time and the shortest of its runs, its lower bound and what limits it."""

    schedule: str
    seconds: float
    least: float
    bound: float
    limit: str


@frozen
class Audit:
    """What was found of one problem: times of its choice and of other points, and how many of those beat the choice by
    more than `band`.

    The space has `points`, of which `legal` are legal (counted if `exact`, else estimated from a sample); `timed` of
    them ran besides the choice, and `exhaustive` says that these are all. Of those that ran `pruned` are proven slower
    than the choice by their lower bound. `lost` are proven slower and beat the choice, `missed` beat it and were not
    proposed, `unsound` ran faster than their lower bound in at least one run. `tightness` is the median of bound over
    time, `winner` that of the choice. `fastest` is the point with the least time, `position` where it stands in the
    model's order among all that ran, `tightest` the point whose bound is closest to its shortest run.
    """

    label: str
    key: str
    points: int
    legal: int
    exact: bool
    timed: int
    exhaustive: bool
    chosen: float
    band: float
    pruned: int
    lost: int
    missed: int
    unsound: int
    tightness: float
    winner: float
    fastest: Ran
    position: int
    tightest: Ran

    @property
    def best(self) -> float:
        """The least time met."""
        return self.fastest.seconds

    @property
    def faster(self) -> int:
        """How many points beat the choice."""
        return self.lost + self.missed

    def record(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {
            "kernel": self.label,
            "tuning": self.key,
            "points": self.points,
            "legal": self.legal,
            "legal counted": self.exact,
            "timed": self.timed,
            "exhaustive": self.exhaustive,
            "chosen": self.chosen,
            "best": self.best,
            "best / chosen": round(self.best / self.chosen, 4) if self.chosen else 1.0,
            "band": round(self.band, 4),
            "proven slower": self.pruned,
            "lost by proof": self.lost,
            "missed": self.missed,
            "faster than their bound": self.unsound,
            "median bound / time": round(self.tightness, 3),
            "bound / time of the choice": round(self.winner, 3),
            "position of the fastest": self.position,
            "fastest": asdict(self.fastest),
            "tightest": asdict(self.tightest),
        }


def audit_choices(
    tuner: Tuner, problems: Sequence[Problem], choices: Sequence[TunedChoice], count: int, settings: Settings
) -> list[Audit]:
    """Time `count` random legal points of each problem (all points of a space that has no more) and compare them with
    the choice.
    """
    return list(audits(tuner, problems, choices, count, settings))


def audits(
    tuner: Tuner,
    problems: Sequence[Problem],
    choices: Sequence[TunedChoice],
    count: int,
    settings: Settings,
    kept: KeptPoints | None = None,
) -> Iterator[Audit]:
    """Yield what is found of each problem as soon as all its points are timed; equal problems are looked at once. What
    became of the points of a problem for which there is no time left is `kept`, and need not be timed the next time.
    """
    unique = {p.key: (p, c) for p, c in zip(problems, choices, strict=True) if c.seconds is not None}
    sweeps = Sweeps(tuner.resources, settings, kept)
    for sweep in sweeps.run(Sweep(p, chosen=_entry(c), count=count) for p, c in unique.values()):
        ran = [e for e in sweep.entries.values() if e.seconds < inf]
        least = {e.text: min(e.samples) for e in ran}
        sweeps.compare(
            sweep, [sweep.chosen]
        )  # it decides which points come into question, so it is timed more often than they
        limit = (1.0 + settings.tie) * sweep.chosen.seconds
        rivals = [e for e in ran if e is not sweep.chosen and e.seconds < limit] if limit < inf else []
        sweeps.compare(sweep, [sweep.chosen, *rivals])
        if not tuner.complete:
            return
        if (
            sweep.chosen.seconds < inf
        ):  # otherwise the choice does not run any more, so that nothing can be held against it
            yield _judge(sweep, least, unique[sweep.problem.key][1].seconds or inf, settings)


def _entry(choice: TunedChoice) -> Entry:
    return Entry(Scored(None, choice.candidate), schedule_text(choice.candidate.schedule))


def _judge(sweep: Sweep, least: dict[str, float], found: float, settings: Settings) -> Audit:
    """Say what the times mean. The search discarded what is above the time that it `found`, which may differ from the
    time now.
    """
    chosen, drawn = sweep.chosen, sweep.drawn
    assert drawn is not None, "a finished sweep has its points"
    entries = [chosen, *(e for e in sweep.entries.values() if e is not chosen and e.seconds < inf)]
    ran = [_ran(entry, least[entry.text]) for entry in entries]
    times, shortest, bounds = (np.asarray([getattr(r, name) for r in ran]) for name in ("seconds", "least", "bound"))
    scores = np.asarray([e.scored.candidate.score for e in entries])
    band = max(3 * settings.tie, min(WIDEST, chosen.spread))
    faster = times < (1.0 - band) * times[0]
    pruned = bounds > min(float(times[0]), found)
    fastest = int(np.argmin(times))
    return Audit(
        label=sweep.problem.label,
        key=sweep.problem.key,
        points=drawn.points,
        legal=drawn.legal,
        exact=drawn.exact,
        timed=len(ran) - 1,
        exhaustive=drawn.whole,
        chosen=float(times[0]),
        band=band,
        pruned=int(pruned[1:].sum()),
        lost=int(np.logical_and(faster, pruned).sum()),
        missed=int(np.logical_and(faster, np.logical_not(pruned)).sum()),
        unsound=int((shortest < bounds).sum()),
        tightness=float(np.median(bounds / times)),
        winner=float(bounds[0] / times[0]),
        fastest=ran[fastest],
        position=int((scores < scores[fastest]).sum()) + 1,
        tightest=ran[int(np.argmax(bounds / shortest))],
    )


def _ran(entry: Entry, least: float) -> Ran:
    candidate = entry.scored.candidate
    return Ran(entry.text, entry.seconds, min(*entry.samples, least), candidate.bound, candidate.limit)
