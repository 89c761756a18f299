"""State of one task's search: candidates, results and best time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf, sqrt

from attrs import define, field

from ...backends import Timing, middle_mean
from ...ir import PassError
from ...passes.schedule import Point
from ..building import BuildResult, JobResult, ScoredCandidate
from ..database import Measurement
from ..learned import LearnedOrder
from ..settings import Settings, TunedChoice
from ..strategies import Observation, Strategy
from ..tasks import PruningCertificate, TuningTask, schedule_text

#: Deviation of the difference of two trimmed means of n normal values each, in interquartile ranges over the root of n:
#: 1.05 deviations of a value for one, root 2 for two, 1.35 deviations between quartiles. Of three runs the mean of the
#: middle third is a median, of 1.16 deviations.
UNCERTAINTY_FACTOR, SMALL_SAMPLE_FACTOR, SMALL_SAMPLE_RUNS = 1.10, 1.22, 6


@define(eq=False)
class Entry:
    """Candidate that is built, checked and timed.

    `trusted` marks the simple kernel that the others are compared with.
    """

    scored: ScoredCandidate
    text: str
    trusted: bool = False
    built: BuildResult | None = None
    samples: list[float] = field(factory=list)
    outcome: str = ""

    @property
    def seconds(self) -> float:
        """Trimmed mean of its runs; infinity without valid runs."""
        return middle_mean(self.samples) if self.samples and self.outcome in ("", "ok") else inf

    @property
    def spread(self) -> float:
        """Interquartile range of its runs as a fraction of the median."""
        return Timing(tuple(self.samples)).spread if self.samples else 0.0

    @property
    def uncertainty(self) -> float:
        """Relative uncertainty of its time against an equal number of other runs."""
        doubt = UNCERTAINTY_FACTOR if len(self.samples) >= SMALL_SAMPLE_RUNS else SMALL_SAMPLE_FACTOR
        return doubt * self.spread / sqrt(len(self.samples)) if self.samples else 0.0

    @property
    def rank(self) -> tuple[float, int, str]:
        """Tie-breaking key: cost model score, then fewer registers, then the text."""
        return self.scored.candidate.score, self.built.registers if self.built else 0, self.text


@define(eq=False)
class TaskRecord:
    """Search for one tuning task.

    `stored` are results of earlier sessions by schedule. `order` corrects the cost model's order of candidates. Nothing
    can be checked while the expected outputs are `unknown`, nothing but the simple kernel while the task is
    `untrusted`. Candidates that are `ready` are checked next; those of `turns` are timed in turns at the end, which is
    requested once (`turned`). A worker makes proposals while it is `asking`. `place` is the batch of tasks that its
    first jobs are in. `reached` is the best time at the last proposal, `tried` the number of candidates
    then, `stale` the number of batches in a row without improvement, `unsuccessful` the candidates of these. `lost`
    is the
    reason for a failed ranking, `error` the reason for an empty choice. `begun` and `ended` are times of the clock.
    """

    problem: TuningTask
    strategy: Strategy | None = None
    order: LearnedOrder | None = None
    first: list[ScoredCandidate] = field(factory=list)
    stored: dict[str, Measurement] = field(factory=dict)
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
    unsuccessful: int = 0
    tried: int = 0
    points: int = 0
    ending: bool = False
    asking: bool = False
    lost: str = ""
    error: PassError | None = None
    proof: PruningCertificate | None = None
    choice: TunedChoice | None = None
    reached: float = inf
    begun: float = 0.0
    ended: float = 0.0

    @property
    def best(self) -> Entry | None:
        """Fastest candidate so far."""
        ran = [e for e in self.entries.values() if e.seconds < inf]
        return min(ran, key=lambda e: (e.seconds, e.rank)) if ran else None

    @property
    def seconds(self) -> float:
        """Best time so far."""
        return min((e.seconds for e in self.entries.values()), default=inf)

    @property
    def uses(self) -> int:
        """Number of launches of the kernel."""
        return self.problem.uses

    @property
    def start(self) -> float | None:
        """Time of the cost model's first choice, None without a run."""
        texts = [e for e in self.entries.values() if self.first and e.scored is self.first[0] and e.seconds < inf]
        return texts[0].seconds if texts else None

    @property
    def awaited(self) -> ScoredCandidate | None:
        """First choice of the cost model while it has no result yet."""
        if not self.first:
            return None
        entry = self.entries.get(schedule_text(self.first[0].candidate.schedule))
        return None if entry is None or entry.outcome or entry.samples else entry.scored

    @property
    def measurable(self) -> bool:
        """True if a candidate may be checked or finalists timed now."""
        if not self.ready:
            return bool(self.turns)
        return not self.unknown and (not self.untrusted or any(e.trusted for e in self.ready))

    def take(self) -> Entry:
        """Remove and return the candidate to check next."""
        entry = next((e for e in self.ready if e.trusted), self.ready[0])
        self.ready.remove(entry)
        return entry

    @property
    def idle(self) -> bool:
        """True if nothing is pending: the search needs a proposal or ends."""
        begun = self.strategy is not None or bool(self.lost)
        return self.choice is None and begun and not (self.waiting or self.ready or self.turns)

    @property
    def alternates(self) -> bool:
        """True if the best so far is timed again with challengers."""
        return True

    @property
    def gain(self) -> float:
        """Possible saving in seconds of the whole program.

        It is the distance to the lowest lower bound, halved for each round without improvement.
        """
        if self.seconds == inf:
            return inf
        floor = min((s.candidate.bound for s in self.first), default=0.0)
        return self.problem.uses * max(0.0, self.seconds - floor) / 2.0**self.stale

    @property
    def weight(self) -> float:
        """Predicted seconds in the whole program, 0 before the ranking."""
        return self.problem.uses * min((s.candidate.score for s in self.first), default=0.0)

    def note_round(self, tie: float) -> None:
        """Note a round, and whether the best time improved beyond a tie."""
        if self.seconds < self.reached * (1 - tie):
            self.stale, self.unsuccessful = 0, 0
        else:
            self.stale, self.unsuccessful = self.stale + 1, self.unsuccessful + len(self.entries) - self.tried
        self.reached, self.tried = min(self.reached, self.seconds), len(self.entries)
        self.round += 1

    def take_proof(self, done: JobResult) -> None:
        """Take the pruning certificate from a worker."""
        self.proof = done.value

    def is_refused(self, scored: ScoredCandidate) -> bool:
        """Return whether a candidate is known to be wrong or unusable."""
        text = schedule_text(scored.candidate.schedule)
        entry, trial = self.entries.get(text), self.stored.get(text)
        trial = None if trial is not None and trial.holds is False else trial
        return any(each is not None and each.outcome not in ("", "ok", "long") for each in (entry, trial))

    def observations(self) -> list[Observation]:
        """Return the measured candidates, for the strategy."""
        pairs: Iterable[tuple[Point | None, Entry]] = ((e.scored.point, e) for e in self.entries.values())
        return [Observation(point, e.seconds) for point, e in pairs if point is not None and (e.outcome or e.samples)]

    def finalists(self, settings: Settings) -> list[Entry]:
        """Return the fastest candidates, which one measurement cannot distinguish."""
        ran = sorted((e for e in self.entries.values() if e.seconds < inf), key=lambda e: (e.seconds, e.rank))
        limit = (1.0 + max(0.1, 5 * settings.tie)) * self.seconds
        return [e for e in ran[: settings.finalists] if e.seconds <= limit]

    def winner(self, settings: Settings) -> Entry | None:
        """Return the fastest candidate, with ties broken by rule.

        Within the tie band the rule decides, so that noise does not choose.
        """
        best = self.best
        if best is None:
            return None
        band = 1.0 + max(settings.tie, min(3 * settings.tie, best.uncertainty))
        return min((e for e in self.entries.values() if e.seconds <= band * best.seconds), key=lambda e: e.rank)
