"""Audit of pruning: candidates that the search skipped are timed.

They are random ones, or all of a small space. A candidate that beats the choice although its lower bound excludes that
was lost by a wrong proof: there must never be one. A candidate that beats the choice and was not proposed shows the
quality of the search. The figures are published with every release of the cost model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

import numpy as np
from attrs import asdict, frozen

from ..building import ScoredCandidate
from ..settings import Settings, TunedChoice
from ..tasks import TuningTask, schedule_text
from ..tuner import Entry, Tuner
from .sweeps import Sweep, SweepRunner

#: Widest tie band: where times scatter more, faster candidates are reported rather than ignored.
MAX_TIE_BAND = 0.1


@frozen
class TimedCandidate:
    """Timed candidate: schedule, time, shortest run, lower bound and its limit."""

    schedule: str
    seconds: float
    least: float
    bound: float
    limit: str


@frozen
class Audit:
    """Audit of one task: candidates faster than its choice by `band`.

    The space has `points`, and `legal` of these are legal (counted if `exact`, else estimated from a sample). `timed`
    candidates ran besides the choice, and `exhaustive` says that these are all. `pruned` ones are proven slower than
    the choice by their lower bound. `lost` are proven slower and beat the choice, `missed` beat it and were not
    proposed, `unsound` ran faster than their lower bound in at least one run. `tightness` is the median of bound over
    time, `winner` that of the choice. `fastest` is the candidate with the shortest time, `position` its rank in the
    cost model's order, `tightest` the candidate whose bound is closest to its shortest run.
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
    fastest: TimedCandidate
    position: int
    tightest: TimedCandidate

    @property
    def best(self) -> float:
        """Shortest time of all."""
        return self.fastest.seconds

    @property
    def faster(self) -> int:
        """Number of candidates that beat the choice."""
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
    tuner: Tuner, problems: Sequence[TuningTask], choices: Sequence[TunedChoice], count: int, settings: Settings
) -> list[Audit]:
    """Time `count` random legal candidates of each task and audit its choice.

    All candidates of a smaller space are timed.
    """
    return list(audits(tuner, problems, choices, count, settings))


def audits(
    tuner: Tuner,
    problems: Sequence[TuningTask],
    choices: Sequence[TunedChoice],
    count: int,
    settings: Settings,
) -> Iterator[Audit]:
    """Yield the audit of each distinct task when its candidates are timed."""
    unique = {p.key: (p, c) for p, c in zip(problems, choices, strict=True) if c.seconds is not None}
    sweeps = SweepRunner(tuner.executor, settings)
    for sweep in sweeps.run(Sweep(p, chosen=_entry(c), count=count) for p, c in unique.values()):
        ran = [e for e in sweep.entries.values() if e.seconds < inf]
        least = {e.text: min(e.samples) for e in ran}
        sweeps.compare(sweep, [sweep.chosen])  # it selects the candidates to compare, so it is timed more often
        limit = (1.0 + settings.tie) * sweep.chosen.seconds
        rivals = [e for e in ran if e is not sweep.chosen and e.seconds < limit] if limit < inf else []
        sweeps.compare(sweep, [sweep.chosen, *rivals])
        if not tuner.complete:
            return
        if sweep.chosen.seconds < inf:  # otherwise the choice no longer runs, and there is no reference
            yield _judge(sweep, least, unique[sweep.problem.key][1].seconds or inf, settings)


def _entry(choice: TunedChoice) -> Entry:
    return Entry(ScoredCandidate(None, choice.candidate), schedule_text(choice.candidate.schedule))


def _judge(sweep: Sweep, least: dict[str, float], found: float, settings: Settings) -> Audit:
    """Return the audit of a sweep. The search discarded candidates above the time `found`, which may differ from
    today's.
    """
    chosen, drawn = sweep.chosen, sweep.drawn
    assert drawn is not None, "a finished sweep has its points"
    entries = [chosen, *(e for e in sweep.entries.values() if e is not chosen and e.seconds < inf)]
    ran = [_timed_candidate(entry, least[entry.text]) for entry in entries]
    times, shortest, bounds = (np.asarray([getattr(r, name) for r in ran]) for name in ("seconds", "least", "bound"))
    scores = np.asarray([e.scored.candidate.score for e in entries])
    band = max(3 * settings.tie, min(MAX_TIE_BAND, chosen.spread))
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


def _timed_candidate(entry: Entry, least: float) -> TimedCandidate:
    candidate = entry.scored.candidate
    return TimedCandidate(entry.text, entry.seconds, min(*entry.samples, least), candidate.bound, candidate.limit)
