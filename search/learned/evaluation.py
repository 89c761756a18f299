"""Evaluation of learned orders on operations and machines that were held out.

The order counts: the rank of the best candidate, and the number of candidates until one is within 5 % of it. Transfer
between machines (`elsewhere.py`) is evaluated separately, on operations that were measured on several machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from attrs import evolve, field, frozen

from ...ir import Target
from .correction import Array, LearnedOrder, with_costs
from .rank_fit import fit_constants
from .rank_points import MeasuredOperation, RankPoints, rank_points
from .residual import fit_trees
from .transfer import TransferModel, ordered_seconds

#: Order of the cost model, and its learned variants: other constants, trees on top of the cost model's constants, or
#: both.
PLAIN = LearnedOrder()
VARIANTS = ("constants", "trees", "both")
#: Number of folds, and the smallest number of operations for an evaluation.
FOLDS, MIN_OPERATIONS = 10, 4
#: Steps of a fit of constants, and the relative difference to the best that counts as equal.
FIT_STEPS, EQUAL_TOLERANCE = 5, 0.05
#: Name of the order with transfer from another machine.
TRANSFER_VARIANT = "recalled"
Learner = Callable[[Sequence[MeasuredOperation], str], LearnedOrder]


@frozen
class OrderResult:
    """Result of an order for one operation.

    It has the rank of the best candidate, and that of the first within 5 % of it.
    """

    label: str
    machine: str
    points: int
    best: int
    close: int


@frozen
class OrderEvaluation:
    """Results of an order on held-out operations."""

    variant: str
    standings: tuple[OrderResult, ...]

    @property
    def medians(self) -> tuple[float, float]:
        """Median ranks of the best candidate and the first within 5%."""
        return (
            float(np.median([s.best for s in self.standings])), float(np.median([s.close for s in self.standings])),
        )  # fmt: skip

    @property
    def means(self) -> tuple[float, float]:
        """Geometric means of both ranks."""
        logs = np.log([(s.best, s.close) for s in self.standings]).mean(axis=0)
        return float(np.exp(logs[0])), float(np.exp(logs[1]))

    def beats(self, other: OrderEvaluation) -> bool:
        """Return whether the order is better than another.

        It must be better by both means, no worse by both medians, and better for more operations than it is worse for.
        """
        pairs = [(a.close, b.close) for a, b in zip(self.standings, other.standings, strict=True)]
        wins, losses = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
        means = all(a < b for a, b in zip(self.means, other.means, strict=True))
        medians = all(a <= b for a, b in zip(self.medians, other.medians, strict=True))
        return means and medians and wins > losses


@frozen
class LearnedModel:
    """Learned order with its evaluation on held-out operations and machines."""

    operations: int
    by_operation: Mapping[str, OrderEvaluation]
    by_machine: Mapping[str, OrderEvaluation]
    chosen: str
    correction: LearnedOrder | None
    by_recall: Mapping[str, OrderEvaluation] = field(factory=dict)

    @property
    def recalls(self) -> bool:
        """True if a search uses measurements of other machines.

        They are used unless an evaluation on enough operations showed no improvement.
        """
        few = not self.by_recall or len(self.by_recall["plain"].standings) < MIN_OPERATIONS
        return few or self.by_recall[TRANSFER_VARIANT].beats(self.by_recall["plain"])

    def lines(self) -> list[str]:
        """Return the evaluation as lines for people."""
        if not self.by_operation:
            return [f"nothing learned: {self.operations} measured operations, {MIN_OPERATIONS} at least are needed"]
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
    """Return the order that a variant learns from operations."""
    parts = group_by_target(operations)
    costs = None if variant == "trees" else fit_constants(parts, rounds=FIT_STEPS)
    corrected = [(points, with_costs(target, costs)) for points, target in parts]
    return LearnedOrder(costs, () if variant == "constants" else fit_trees(corrected))


def group_by_target(operations: Sequence[MeasuredOperation]) -> list[tuple[RankPoints, Target]]:
    """Return the candidates of operations by target."""
    targets = list(dict.fromkeys(o.target for o in operations))
    return [(join_points([o.points for o in operations if o.target == target]), target) for target in targets]


def join_points(each: Sequence[RankPoints]) -> RankPoints:
    """Return the candidates of operations as one; operations keep their numbers."""
    return rank_points(
        np.concatenate([np.column_stack([*p.table, np.full(len(p.seconds), float(n))]) for n, p in enumerate(each)])
    )


def evaluate_order(
    operation: MeasuredOperation, correction: LearnedOrder, elsewhere: TransferModel | None = None
) -> OrderResult:
    """Return the result of an order for an operation."""
    return result_of(operation, ordered_seconds(operation, correction, elsewhere))


def result_of(operation: MeasuredOperation, expected: Array) -> OrderResult:
    """Return the result of an order given by predicted seconds."""
    times = operation.points.seconds[np.argsort(expected, kind="stable")]
    close = int(np.argmax(times <= (1 + EQUAL_TOLERANCE) * times.min())) + 1
    return OrderResult(operation.label, operation.machine, len(times), int(np.argmin(times)) + 1, close)


def evaluate_held_out(
    operations: Sequence[MeasuredOperation], parts: Iterable[set[str]], of: Callable[[MeasuredOperation], str],
    learner: Learner = learn,
) -> dict[str, OrderEvaluation]:  # fmt: skip
    """Evaluate the plain order and each variant, trained on the other parts."""
    found: dict[str, list[OrderResult]] = {name: [] for name in ("plain", *VARIANTS)}
    for part in parts:
        tested, rest = [o for o in operations if of(o) in part], [o for o in operations if of(o) not in part]
        for name, standings in found.items():
            correction = PLAIN if name == "plain" else learner(rest, name)
            standings += [evaluate_order(o, correction) for o in tested]
    return {name: OrderEvaluation(name, tuple(standings)) for name, standings in found.items()}


def evaluate_transfer(operations: Sequence[MeasuredOperation]) -> dict[str, OrderEvaluation]:
    """Evaluate transfer on operations that were measured on several machines."""
    found: dict[str, list[OrderResult]] = {"plain": [], TRANSFER_VARIANT: []}
    for here in operations:
        there = [o for o in operations if o.work == here.work and o.machine != here.machine and o.sizes]
        if there:
            longest = max(there, key=lambda o: len(o.points.seconds))
            found["plain"].append(evaluate_order(here, PLAIN))
            found[TRANSFER_VARIANT].append(
                evaluate_order(here, PLAIN, TransferModel.of(evolve(longest, target=here.target), PLAIN))
            )
    return {name: OrderEvaluation(name, tuple(standings)) for name, standings in found.items() if standings}


def train_order(operations: Sequence[MeasuredOperation], learner: Learner = learn) -> LearnedModel:
    """Learn from operations; keep a variant that beats the plain order.

    It must win on held-out operations and, where there are several, on held-out machines.
    """
    works, machines = sorted({o.work for o in operations}), sorted({o.machine for o in operations})
    if len(works) < MIN_OPERATIONS:
        return LearnedModel(len(works), {}, {}, "", None)
    folds = [set(works[k :: min(FOLDS, len(works))]) for k in range(min(FOLDS, len(works)))]
    judged = evaluate_held_out(operations, folds, lambda o: o.work, learner)
    across = (
        evaluate_held_out(operations, [{m} for m in machines], lambda o: o.machine, learner)
        if len(machines) > 1
        else {}
    )
    again = evaluate_transfer(operations)
    better = [name for name in VARIANTS if judged[name].beats(judged["plain"])
              and (not across or across[name].beats(across["plain"]))]  # fmt: skip
    chosen = min(better, key=lambda name: judged[name].means[1], default="")
    learned = learner(operations, chosen) if chosen else None
    return LearnedModel(len(works), judged, across, chosen, learned, again)
