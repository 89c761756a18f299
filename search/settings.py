"""How to search, what a search chose, and what it did."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median

from attrs import asdict, define, evolve, field, frozen

from ..passes import Decisions
from ..passes.schedule import FIRST, Candidate
from .course import HERE, Search
from .learned import LearnedOrder
from .problem import Problem
from .proof import Proof

#: Points of the model's that short searches try, by which groups are compared.
COMPARED = 2
#: Points of the model's that a search by expected gain begins with, where no short one has tried more.
BEGUN = 1
#: Strategies that end by themselves, and those that go on where they do: a deeper search does not stop there.
ENDLESS = {"frugal": "thorough"}

#: Most groups that are measured at once under a budget: whatever it cuts short, most of the rest is known then.
CHUNK, LEAST_CHUNK = 96, 8
#: Groups per second that are measured together, until it is known.
PACE = 4.0
#: Phases of a compilation that are a search's.
SEARCHING = ("make spaces", "propose", "wait for workers", "wait for places", "check", "time", "record")
#: Part of the measured groups that did no worse, compared with the model, than those are taken to do that were not
#: measured, where a budget may leave them so.
DOUBT = 0.75


@frozen
class Settings:
    """How to search. Counts are candidates of one problem.

    At most `first` by the model's order, then `batch` per proposal, `most` in all; `patience` proposals may fail to
    improve by `tie`. What is `hopeless` times slower than the best is dropped after `runs` runs; `finalists` are timed
    in `rounds` turns. Only a `final` search is remembered as finished. `prove` asks at the end how much of the space is
    proven slower than the winner. A search that `remembers` begins with what was best on other machines and ends with
    no less than the best of longer ones before it. `libraries` lets routines of vendors' libraries, where these are
    installed, take the place of kernels that they beat. `aided` searches begin with the model's best points and leave
    out what a bound proves slower. Kernels that lose most are searched `deeper` so many times where a budget leaves
    time for it. A `correction` that was learned from measurements puts the model's points into another order. One that
    `recalls` begins in the order of what other machines measured of the same problem, where that is enough. A `hasty`
    search leaves out points whose code would be long, as a compiler takes long over it; one that is not is as patient
    with its proposals where they are small, as of many searches side by side, as where they are large.
    """

    strategy: str = "frugal"
    aided: bool = True
    model: str = "bound"
    first: int = FIRST
    batch: int = 3
    most: int = 40
    patience: int = 2
    runs: int = 3
    hopeless: float = 1.3
    finalists: int = 4
    rounds: int = 4
    tie: float = 0.01
    final: bool = True
    prove: bool = True
    remembers: bool = True
    libraries: bool = True
    seed: int = 0
    correction: LearnedOrder | None = None
    recalls: bool = True
    deeper: int = 2
    hasty: bool = True

    def deepened(self, times: int) -> Settings:
        """Return how to go on where a search of these settings, and some deeper ones, have ended by themselves."""
        more = 1 + times
        return evolve(
            self, first=more * self.first, most=more * self.most, patience=more * max(1, self.patience), hasty=False,
            strategy=ENDLESS.get(self.strategy, self.strategy),
        )  # fmt: skip


#: A short search, good enough to compare groups with each other; not with those that a long one knows better.
QUICK = Settings(first=COMPARED, batch=0, most=COMPARED, patience=0, finalists=1, rounds=1, final=False, prove=False,
                 remembers=False, recalls=False)  # fmt: skip
#: A look at what would ship though no clock has seen it.
LOOK = evolve(QUICK, first=1, most=1, remembers=True)
#: Seconds that it takes the device to check and time a kernel at which it has not looked yet, and the part of a budget
#: at most that is kept for that.
LOOKED, LOOKING = 0.05, 0.15


@frozen
class TunedChoice:
    """The schedule chosen for a problem: measured seconds and spread, or none where only the model could be asked, and
    how it was found.

    `origin` is "measured", "database", "elsewhere", "guessed" or "model"; `trials` counts the candidates that were
    tried, `first` is the time of the model's first choice.
    """

    candidate: Candidate
    seconds: float | None
    spread: float = 0.0
    origin: str = "measured"
    trials: int = 0
    first: float | None = None
    proof: Proof | None = None
    reason: str = ""

    def facts(self, key: str) -> dict[str, object]:
        """Return what a report says of the choice for a problem of this key."""
        facts: dict[str, object] = {"tuning": key, "origin": self.origin}
        if self.seconds is None:
            return facts | {"why": f"not measured: {self.reason or 'the search was ended before'}"}
        share = self.candidate.bound / self.seconds if self.seconds else 0.0
        facts |= {"measured": self.seconds, "spread": self.spread, "trials": self.trials}
        bound = f"its bound is {share:.0%} of its time, limited by {self.candidate.limit}"
        why = f"fastest of {self.trials} measured; {bound}"
        if self.proof is not None:
            exact = "" if self.proof.exact else "about "
            why += f"; {exact}{self.proof.share:.1%} of {self.proof.points:,} points are proven slower"
        return facts | {"why": why}


@frozen
class Findings:
    """What a compilation found: the problems of its kernels, the choice for each, and what it decided."""

    problems: tuple[Problem, ...]
    choices: tuple[TunedChoice, ...]
    made: Decisions | None


@frozen
class Rejected:
    """Points of a problem that became nothing for one reason: how many, the first of them, and the problem as text."""

    outcome: str
    reason: str
    kernel: str
    point: str
    problem: str
    count: int = 1


@define
class Statistics:
    """What a search did: candidates by outcome, why points were rejected, points of all spaces, seconds by phase, how
    times fell.
    """

    outcomes: Counter[str] = field(factory=Counter)
    phases: dict[str, float] = field(factory=dict)
    problems: int = 0
    hits: int = 0
    points: int = 0
    legal: float = 0.0
    slower: float = 0.0
    compiled: int = 0
    timed: int = 0
    dropped: int = 0
    reused: int = 0
    stale: int = 0
    audited: int = 0
    rejected: list[Rejected] = field(factory=list)
    building: tuple[float, int] = (0.0, 0)  #: what workers took to build candidates, together, and how many these were
    clock: Callable[[], float] = time.monotonic
    searches: list[Search] = field(factory=list)

    def record(self) -> dict[str, object]:
        """Return the figures as JSON values."""
        return {
            "problems": self.problems,
            "from the database": self.hits,
            "points": self.points,
            "pruned": max(0, self.points - self.compiled - self.reused),
            "proven slower": round(self.slower / self.legal, 4) if self.legal else None,
            "compiled": self.compiled,
            "timed": self.timed,
            "dropped early": self.dropped,
            "reused": self.reused,
            "made otherwise since": self.stale,
            "outcomes": dict(sorted(self.outcomes.items())),
            "rejected": [asdict(each) for each in self.rejected],
            "seconds": {name: round(value, 3) for name, value in self.phases.items()},
        }

    def reject(self, rejected: Rejected) -> None:
        """Take in a point that became nothing; one of each kernel and reason is kept, and how many there were."""
        for place, each in enumerate(self.rejected):
            if (each.outcome, each.reason, each.problem) == (rejected.outcome, rejected.reason, rejected.problem):
                self.rejected[place] = evolve(each, count=each.count + 1)
                return
        self.rejected.append(rejected)

    def note_built(self, seconds: float) -> None:
        """Take in what a worker took to build a candidate."""
        if seconds > 0.0:
            self.building = self.building[0] + seconds, self.building[1] + 1

    @property
    def searching(self) -> float:
        """Seconds of the phases that are a search's, and no pass's."""
        return sum(self.phases.get(phase, 0.0) for phase in SEARCHING)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of a block to a phase, and take down when that was."""
        start = self.clock()
        try:
            yield
        finally:
            end = self.clock()
            self.phases[name] = self.phases.get(name, 0.0) + end - start
            HERE.note(name, start, end)


@define
class Pace:
    """The seconds that it took to measure groups, and how many these were."""

    spent: float = 0.0
    count: int = 0

    @property
    def rate(self) -> float:
        """Groups that are measured per second."""
        return self.count / self.spent if self.count and self.spent else PACE

    def size(self, left: float) -> int:
        """Return how many groups to measure together, so that some seconds are enough for them."""
        return int(min(CHUNK, max(LEAST_CHUNK, self.rate * left)))

    def note(self, seconds: float, count: int) -> None:
        """Take in what it took to measure some groups."""
        self.spent, self.count = self.spent + seconds, self.count + count


def scale_of(ratios: Sequence[float], doubting: bool) -> float:
    """Return what the model's costs are multiplied with, given measured costs over the model's; where not all groups
    will be measured, those that are not have to be better than most, so that an optimistic guess replaces no group that
    is known to be good.
    """
    if not ratios:
        return 1.0
    return sorted(ratios)[int(DOUBT * len(ratios))] if doubting else median(ratios)
