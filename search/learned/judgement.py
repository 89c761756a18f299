"""Is what was learned better than the plain estimate? Asked of operations, and of machines, that it did not see.

What counts is the order: where the best point stands, and how many points are tried until one is within 5 % of it.
What another machine measured of the very operation (`elsewhere.py`) is judged by itself, on operations that were
measured on several machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from attrs import evolve, field, frozen

from ...ir import Target
from ...passes.model import FITTED
from .correction import Array, LearnedOrder
from .elsewhere import Elsewhere, ordered_seconds
from .rank_fit import fit_constants
from .rank_points import MeasuredOperation, RankPoints, rank_points
from .residual import fit_trees

#: The plain estimate, and what is tried in its place: other constants, and trees on top of the plain or of those.
PLAIN = LearnedOrder(FITTED)
VARIANTS = ("constants", "trees", "both")
#: Parts in which operations are left out, and fewest operations that a judgement takes.
FOLDS, FEWEST_OPERATIONS = 10, 4
#: Steps of a fit of constants; within which part of the best a point is as good.
ROUNDS, CLOSE = 5, 0.05
#: What the order is called that recalls what another machine measured of the operation.
RECALLED = "recalled"
Learner = Callable[[Sequence[MeasuredOperation], str], LearnedOrder]


@frozen
class Standing:
    """How an order did for one operation: the place of the best point, and that of the first within 5 % of it."""

    label: str
    machine: str
    points: int
    best: int
    close: int


@frozen
class Judged:
    """An order over operations that it was not learned from."""

    variant: str
    standings: tuple[Standing, ...]

    @property
    def medians(self) -> tuple[float, float]:
        """The median place of the best point, and of the first within 5 % of it."""
        return (
            float(np.median([s.best for s in self.standings])), float(np.median([s.close for s in self.standings])),
        )  # fmt: skip

    @property
    def means(self) -> tuple[float, float]:
        """The geometric means of both places."""
        logs = np.log([(s.best, s.close) for s in self.standings]).mean(axis=0)
        return float(np.exp(logs[0])), float(np.exp(logs[1]))

    def beats(self, other: Judged) -> bool:
        """Whether it is better by both means, no worse by both medians, and better for more operations than it is worse
        for.
        """
        pairs = [(a.close, b.close) for a, b in zip(self.standings, other.standings, strict=True)]
        wins, losses = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
        means = all(a < b for a, b in zip(self.means, other.means, strict=True))
        medians = all(a <= b for a, b in zip(self.medians, other.medians, strict=True))
        return means and medians and wins > losses


@frozen
class Lesson:
    """What was learned of operations, and how it did on those left out: whole operations, and whole machines."""

    operations: int
    by_operation: Mapping[str, Judged]
    by_machine: Mapping[str, Judged]
    chosen: str
    correction: LearnedOrder | None
    by_recall: Mapping[str, Judged] = field(factory=dict)

    @property
    def recalls(self) -> bool:
        """Whether a search is to begin with what other machines measured of its operation: unless that was seen here to
        be no better, of as many operations as a judgement takes.
        """
        few = not self.by_recall or len(self.by_recall["plain"].standings) < FEWEST_OPERATIONS
        return few or self.by_recall[RECALLED].beats(self.by_recall["plain"])

    def lines(self) -> list[str]:
        """Return the judgement for people."""
        if not self.by_operation:
            return [f"nothing learned: {self.operations} measured operations, {FEWEST_OPERATIONS} at least are needed"]
        lines = []
        kinds = (("left out operations", self.by_operation), ("left out machines", self.by_machine),
                 ("seen on another machine", self.by_recall))  # fmt: skip
        for title, found in kinds:
            for name, judged in found.items():
                best, close = judged.medians
                first = f"{title}: {name:<10} place of the best point {best:g} (mean {judged.means[0]:.1f})"
                second = f"points until within 5 % {close:g} (mean {judged.means[1]:.1f})"
                lines.append(f"{first}, {second}, {len(judged.standings)} operations")
        used = "no order learned beats the plain one, which stays" if not self.chosen else f"used: {self.chosen}"
        again = "" if self.recalls else "; what other machines measured of an operation is no better here, and not used"
        return [*lines, used + again]


def learn(operations: Sequence[MeasuredOperation], variant: str) -> LearnedOrder:
    """Return what a variant learns of operations."""
    parts = grouped(operations)
    costs = FITTED if variant == "trees" else fit_constants(parts, rounds=ROUNDS)
    return LearnedOrder(costs, () if variant == "constants" else fit_trees(parts, costs))


def grouped(operations: Sequence[MeasuredOperation]) -> list[tuple[RankPoints, Target]]:
    """Return the points of operations together, by target."""
    targets = list(dict.fromkeys(o.target for o in operations))
    return [(joined([o.points for o in operations if o.target == target]), target) for target in targets]


def joined(each: Sequence[RankPoints]) -> RankPoints:
    """Return the points of operations as one; each operation keeps a number of its own."""
    return rank_points(
        np.concatenate([np.column_stack([*p.table, np.full(len(p.seconds), float(n))]) for n, p in enumerate(each)])
    )


def standing(operation: MeasuredOperation, correction: LearnedOrder, elsewhere: Elsewhere | None = None) -> Standing:
    """Return how an order does for an operation."""
    return standing_of(operation, ordered_seconds(operation, correction, elsewhere))


def standing_of(operation: MeasuredOperation, expected: Array) -> Standing:
    """Return how well an operation's points stand in the order of what is expected of them."""
    times = operation.points.seconds[np.argsort(expected, kind="stable")]
    close = int(np.argmax(times <= (1 + CLOSE) * times.min())) + 1
    return Standing(operation.label, operation.machine, len(times), int(np.argmin(times)) + 1, close)


def held_out(
    operations: Sequence[MeasuredOperation], parts: Iterable[set[str]], of: Callable[[MeasuredOperation], str],
    learner: Learner = learn,
) -> dict[str, Judged]:  # fmt: skip
    """Judge the plain order and each variant on parts of the operations, each learned from all others."""
    found: dict[str, list[Standing]] = {name: [] for name in ("plain", *VARIANTS)}
    for part in parts:
        tested, rest = [o for o in operations if of(o) in part], [o for o in operations if of(o) not in part]
        for name, standings in found.items():
            correction = PLAIN if name == "plain" else learner(rest, name)
            standings += [standing(o, correction) for o in tested]
    return {name: Judged(name, tuple(standings)) for name, standings in found.items()}


def recalled(operations: Sequence[MeasuredOperation]) -> dict[str, Judged]:
    """Judge the plain order, and with it what other machines measured of the same operation, on operations that were
    measured on several.
    """
    found: dict[str, list[Standing]] = {"plain": [], RECALLED: []}
    for here in operations:
        there = [o for o in operations if o.work == here.work and o.machine != here.machine and o.sizes]
        if there:
            longest = max(there, key=lambda o: len(o.points.seconds))
            found["plain"].append(standing(here, PLAIN))
            found[RECALLED].append(standing(here, PLAIN, Elsewhere.of(evolve(longest, target=here.target), PLAIN)))
    return {name: Judged(name, tuple(standings)) for name, standings in found.items() if standings}


def lesson_of(operations: Sequence[MeasuredOperation], learner: Learner = learn) -> Lesson:
    """Learn from operations, and keep what beats the plain order on those left out; on whole machines too, where there
    are several.
    """
    works, machines = sorted({o.work for o in operations}), sorted({o.machine for o in operations})
    if len(works) < FEWEST_OPERATIONS:
        return Lesson(len(works), {}, {}, "", None)
    folds = [set(works[k :: min(FOLDS, len(works))]) for k in range(min(FOLDS, len(works)))]
    judged = held_out(operations, folds, lambda o: o.work, learner)
    across = held_out(operations, [{m} for m in machines], lambda o: o.machine, learner) if len(machines) > 1 else {}
    again = recalled(operations)
    better = [name for name in VARIANTS if judged[name].beats(judged["plain"])
              and (not across or across[name].beats(across["plain"]))]  # fmt: skip
    chosen = min(better, key=lambda name: judged[name].means[1], default="")
    learned = learner(operations, chosen) if chosen else None
    return Lesson(len(works), judged, across, chosen, learned, again)
