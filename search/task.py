"""The state of the search for one problem: candidates on their way, what is known of them, and which is best."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf, sqrt

from attrs import define, field

from ..backends import Timing, trimmed_mean
from ..ir import PassError
from ..passes.schedule import Point
from .build import Built, Scored
from .database import Trial
from .learned import LearnedOrder
from .problem import Problem, schedule_text
from .proof import Proof
from .settings import Settings, TunedChoice
from .strategies import Known, Strategy

#: The deviation of the difference of two trimmed means of so many normal values each, in distances between quartiles
#: over the root of that number: 1.05 deviations of a value for one, root 2 for two, 1.35 deviations between quartiles.
#: Of three runs the mean of the middle third is a median, of 1.16 deviations.
DOUBT, DOUBT_OF_FEW, FEW = 1.10, 1.22, 6


@define(eq=False)
class Entry:
    """A candidate on its way: built, checked, timed. `trusted` marks the simple kernel that the others are held
    against.
    """

    scored: Scored
    text: str
    trusted: bool = False
    built: Built | None = None
    samples: list[float] = field(factory=list)
    outcome: str = ""

    @property
    def seconds(self) -> float:
        """What a run takes: the mean of the middle two thirds, infinity where it has none that count."""
        return trimmed_mean(self.samples) if self.samples and self.outcome in ("", "ok") else inf

    @property
    def spread(self) -> float:
        """The distance between the quartiles of its runs as a fraction of the median."""
        return Timing(tuple(self.samples)).spread if self.samples else 0.0

    @property
    def doubt(self) -> float:
        """About how far its time may be from that of as many other runs, as a fraction: the more runs, the less."""
        doubt = DOUBT if len(self.samples) >= FEW else DOUBT_OF_FEW
        return doubt * self.spread / sqrt(len(self.samples)) if self.samples else 0.0

    @property
    def rank(self) -> tuple[float, int, str]:
        """By what ties are broken: the model's order, then fewer registers, then the text."""
        return self.scored.candidate.score, self.built.registers if self.built else 0, self.text


@define(eq=False)
class SearchTask:
    """The search for one problem.

    `trials` are results of earlier sessions by schedule, `order` is what is known of the order of points besides the
    model. Nothing can be checked while it is `unknown` what the outputs must be, nothing but the simple kernel that the
    others are held against while the problem is `untrusted`. Candidates that are `ready` are checked next, those of
    `turns` are timed in turns in the end, which was asked for where it is `turned`. Where it is `asking` a worker
    proposes. `place` is the batch of problems that its first jobs are in. `reached` is the best time when the last
    batch was proposed, `tried` how many points there were then, `stale` how many batches in a row did not better it,
    `vain` how many points these had. `lost` says why its space could not be ranked, `error` why there is nothing to
    choose from. It `begun` and `ended` at moments of the clock.
    """

    problem: Problem
    strategy: Strategy | None = None
    order: LearnedOrder | None = None
    first: list[Scored] = field(factory=list)
    trials: dict[str, Trial] = field(factory=dict)
    entries: dict[str, Entry] = field(factory=dict)
    ready: deque[Entry] = field(factory=deque)
    turns: list[Entry] = field(factory=list)
    turned: bool = False
    unknown: bool = False
    untrusted: bool = False
    waiting: int = 0
    place: int = 0
    round: int = 0
    stale: int = 0
    vain: int = 0
    tried: int = 0
    points: int = 0
    ending: bool = False
    asking: bool = False
    lost: str = ""
    error: PassError | None = None
    proof: Proof | None = None
    choice: TunedChoice | None = None
    reached: float = inf
    begun: float = 0.0
    ended: float = 0.0

    @property
    def best(self) -> Entry | None:
        """The fastest candidate so far."""
        ran = [e for e in self.entries.values() if e.seconds < inf]
        return min(ran, key=lambda e: (e.seconds, e.rank)) if ran else None

    @property
    def seconds(self) -> float:
        """The best time so far."""
        return min((e.seconds for e in self.entries.values()), default=inf)

    @property
    def uses(self) -> int:
        """How often the kernel is launched."""
        return self.problem.uses

    @property
    def start(self) -> float | None:
        """The time of the model's first choice, where it ran."""
        texts = [e for e in self.entries.values() if self.first and e.scored is self.first[0] and e.seconds < inf]
        return texts[0].seconds if texts else None

    @property
    def awaited(self) -> Scored | None:
        """The model's first choice, where it is on its way and nothing became of it yet."""
        if not self.first:
            return None
        entry = self.entries.get(schedule_text(self.first[0].candidate.schedule))
        return None if entry is None or entry.outcome or entry.samples else entry.scored

    @property
    def measurable(self) -> bool:
        """Whether a candidate may be checked now, or the last ones timed in turns."""
        if not self.ready:
            return bool(self.turns)
        return not self.unknown and (not self.untrusted or any(e.trusted for e in self.ready))

    def take(self) -> Entry:
        """Return the candidate to check next, and forget that it waits."""
        entry = next((e for e in self.ready if e.trusted), self.ready[0])
        self.ready.remove(entry)
        return entry

    @property
    def idle(self) -> bool:
        """Whether nothing of it is under way, so that something new must be proposed or the search ended."""
        begun = self.strategy is not None or bool(self.lost)
        return self.choice is None and begun and not (self.waiting or self.ready or self.turns)

    @property
    def alternates(self) -> bool:
        """Whether the best so far is timed in turns with what may beat it."""
        return True

    @property
    def gain(self) -> float:
        """What further search may save, in seconds of the whole program: the distance to the least bound, less after
        vain rounds.
        """
        if self.seconds == inf:
            return inf
        floor = min((s.candidate.bound for s in self.first), default=0.0)
        return self.problem.uses * max(0.0, self.seconds - floor) / 2.0**self.stale

    @property
    def weight(self) -> float:
        """The seconds of the whole program that it takes by the model, as far as its space is ranked."""
        return self.problem.uses * min((s.candidate.score for s in self.first), default=0.0)

    def refused(self, scored: Scored) -> bool:
        """Whether a point is known to be of no use: it computes something else, fails, or spills registers."""
        text = schedule_text(scored.candidate.schedule)
        entry, trial = self.entries.get(text), self.trials.get(text)
        trial = None if trial is not None and trial.holds is False else trial
        return any(each is not None and each.outcome not in ("", "ok", "long") for each in (entry, trial))

    def known(self) -> list[Known]:
        """Return the points that were tried, for the strategy."""
        pairs: Iterable[tuple[Point | None, Entry]] = ((e.scored.point, e) for e in self.entries.values())
        return [Known(point, e.seconds) for point, e in pairs if point is not None and (e.outcome or e.samples)]

    def finalists(self, settings: Settings) -> list[Entry]:
        """Return the fastest candidates, those that cannot be told from them by one measurement."""
        ran = sorted((e for e in self.entries.values() if e.seconds < inf), key=lambda e: (e.seconds, e.rank))
        limit = (1.0 + max(0.1, 5 * settings.tie)) * self.seconds
        return [e for e in ran[: settings.finalists] if e.seconds <= limit]

    def winner(self, settings: Settings) -> Entry | None:
        """Return the fastest candidate; of those within the tie band, the one that the rule prefers, so that noise does
        not choose.
        """
        best = self.best
        if best is None:
            return None
        band = 1.0 + max(settings.tie, min(3 * settings.tie, best.doubt))
        return min((e for e in self.entries.values() if e.seconds <= band * best.seconds), key=lambda e: e.rank)
