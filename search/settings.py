"""Settings, choices and statistics of a search."""

from __future__ import annotations

from attrs import evolve, frozen

from ..ir import BOUND_PRUNING, Pruning
from ..passes.schedule import RANKED_POINTS, Candidate
from .learned import LearnedOrder
from .tasks import PruningCertificate

#: First candidates of the cost model that short searches try, to compare groups.
QUICK_CANDIDATES = 2
#: First candidates of a Bayesian search where no short search has tried more.
FIRST_CANDIDATES = 1
#: Strategies that end early, and those that continue in a deeper search.
DEEPER_STRATEGIES = {"frugal": "thorough"}


@frozen
class Settings:
    """Settings of a search; counts are candidates of one task.

    At most `first` candidates by the cost model's order are tried, then `batch` per proposal, `most` in all; `patience`
    proposals may fail to improve by `tie`. A candidate that is `hopeless` times slower than the best is dropped after
    `runs` runs; `finalists` are timed in `rounds` turns. Only a `final` search is stored as finished. `prove`
    requests a pruning certificate at the end. A search that `remembers` begins with the best of other machines and ends
    with no less than the best of longer ones before it. `libraries` lets routines of vendors' libraries replace kernels
    that they beat. `aided` searches begin with the cost model's best candidates and skip those that a bound proves
    slower. The slowest kernels are searched `deeper` so many times where a budget leaves time. A `correction` that was
    learned from measurements changes the order of candidates. With `recalls`, the order uses measurements of the same
    task on other machines, if there are enough. A `hasty` search skips candidates with long code, which a compiler
    takes long for; other searches have equal patience for small and large proposals.
    """

    strategy: str = "frugal"
    aided: bool = True
    pruning: Pruning = BOUND_PRUNING
    first: int = RANKED_POINTS
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

    def deeper_settings(self, times: int) -> Settings:
        """Return the settings of the next deeper search."""
        more = 1 + times
        return evolve(
            self, first=more * self.first, most=more * self.most, patience=more * max(1, self.patience), hasty=False,
            strategy=DEEPER_STRATEGIES.get(self.strategy, self.strategy),
        )  # fmt: skip


#: Short search, precise enough to compare groups of short searches with each other.
QUICK_SEARCH = Settings(first=QUICK_CANDIDATES, batch=0, most=QUICK_CANDIDATES, patience=0, finalists=1, rounds=1,
final=False, prove=False,
                 remembers=False, recalls=False)  # fmt: skip
#: Single measurement of a kernel that would ship unmeasured.
SINGLE_MEASUREMENT = evolve(QUICK_SEARCH, first=1, most=1, remembers=True)
#: Seconds that the device takes to check and time a new kernel, and the largest share of a budget that is reserved for
#: that.
SECONDS_PER_NEW_KERNEL, MAX_NEW_KERNEL_SHARE = 0.05, 0.15


@frozen
class TunedChoice:
    """Chosen schedule of a task, with measured seconds and spread if known.

    `origin` is "measured", "database", "elsewhere", "guessed" or "model"; `trials` counts the measured candidates,
    `first` is the time of the cost model's first choice.
    """

    candidate: Candidate
    seconds: float | None
    spread: float = 0.0
    origin: str = "measured"
    trials: int = 0
    first: float | None = None
    proof: PruningCertificate | None = None
    reason: str = ""

    def facts(self, key: str) -> dict[str, object]:
        """Return the facts of the choice for a report."""
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
