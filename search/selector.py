"""Measured choice for the pipeline: `Evaluate` of Algorithm 1 from measured times, and the schedule of each kernel from
the tuner.

The partition is first found by the model. Every group that it asked about is then measured, all at once, so that
workers and device are busy; with the measured costs the partition is found again, until it asks about nothing new.
Costs that are not measured are the model's, scaled by what the measured ones say of it, so that both kinds can be
compared.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import inf
from statistics import median

from attrs import evolve

from ..ir import FusedGroup, Target, print_ir
from ..passes import Fragment, Priced, Workload
from ..passes.fusion import GroupEvaluator, form_key
from ..passes.schedule import Candidate
from .audit import Audit, audit_choices
from .library import LibraryCandidate, fastest_library
from .problem import Problem, digest, machine_of
from .settings import QUICK, Settings, TunedChoice
from .tuner import Tuner

#: Most groups that are measured at once under a budget, besides those that the decision so far rests on.
CHUNK = 256
#: The share of the budget after which costs of the model are not worth keeping.
PARTITION_SHARE = 0.5
#: The least part of a measured time that the kernel itself takes.
LEAST = 0.2


class MeasuredSelector:
    """A `Selector` that asks a tuner. `evaluate` switches measured partition search on; `libraries` compete with
    generated kernels; `audit` points of every kernel are timed besides, to see whether pruning lost the winner.
    `cached` says that the plan was found and nothing was searched.
    """

    def __init__(
        self,
        target: Target,
        tuner: Tuner,
        settings: Settings | None = None,
        *,
        evaluate: bool = True,
        libraries: Sequence[LibraryCandidate] = (),
        audit: int = 0,
    ) -> None:
        self.target = target
        self.tuner = tuner
        self.settings = settings or Settings()
        self.evaluate = evaluate
        self.libraries = tuple(libraries)
        self.problems: list[Problem] = []
        self.choices: list[TunedChoice] = []
        self.audit = audit
        self.cached = False
        self.audits: list[Audit] = []
        self._machine = machine_of(target)
        self._modelled: GroupEvaluator | None = None
        self._forms: dict[Hashable, FusedGroup] = {}
        self._costs: dict[Hashable, float] = {}
        self._measured: dict[Hashable, float] = {}
        self._scale = 1.0

    @property
    def complete(self) -> bool:
        """Whether neither the budget nor an interrupt ended a search."""
        return self.tuner.complete

    def _before(self, share: float) -> bool:
        """Whether less than a share of the budget is used up."""
        resources = self.tuner.resources
        return resources.elapsed < share * resources.budget

    def evaluator(self, modelled: GroupEvaluator) -> GroupEvaluator:
        """Return an evaluator that answers with measured times where they are known."""
        self._modelled = modelled
        return self

    def cost(self, group: FusedGroup) -> float:
        """Return the seconds of a group: measured, the library's if that is faster,
        or what the model says on the same scale.
        """
        key = form_key(group)
        if not group.adds_to_memory:  # a second run would give another result
            self._forms.setdefault(key, group)
        return self._measured.get(key, self._scale * self._model(key, group))

    def plan(self, fragments: Sequence[Fragment]) -> Sequence[Priced]:
        """Return the kernels of small graphs, which the workers find side by side;
        what the model says of them is kept.
        """
        found = self.tuner.plan(fragments)
        for form, seconds in (each for kernels in found for each in kernels or ()):
            self._costs.setdefault(form_key(form), seconds)
        return found

    def learn(self, wanted: Sequence[FusedGroup] = (), share: float = 0.5) -> bool:
        """Measure what was asked for since the last call, as long as there is time for it.

        Under a budget that is what the decision rests on so far (`wanted`), before anything else: a short budget then
        ships no group that was never timed beside its parts. Without one all are measured at once.
        """
        asked = {k: g for k, g in self._forms.items() if k not in self._measured and self._costs.get(k, 0.0) < inf}
        if not asked or not self.evaluate or not self.tuner.complete or not self._before(share):
            return False
        fresh = self._next(asked, wanted)
        problems = [Problem(group, {}, self.target, self._machine, "a possible group") for group in fresh.values()]
        for key, group, choice in zip(fresh, fresh.values(), self.tuner.estimate(problems, QUICK, share), strict=True):
            if choice is not None:
                seconds = min(choice, fastest_library(group, self.libraries).seconds)
                self._measured[key] = self._alone(seconds)
        ratios = [self._measured[k] / self._costs[k] for k in self._measured if 0.0 < self._costs.get(k, 0.0) < inf]
        self._scale = median(ratios) if ratios else 1.0
        return any(k in self._measured for k in fresh)

    def tell(self, group: FusedGroup, seconds: float) -> None:
        """Take in what a group was measured to take as it was chosen."""
        self._measured[form_key(group)] = self._alone(seconds)

    def knows(self, group: FusedGroup) -> bool:
        """Whether a group was measured."""
        return form_key(group) in self._measured

    def _alone(self, seconds: float) -> float:
        """Return what a kernel takes among others: several in a row do not pay for being timed one by one."""
        return max(seconds - self.tuner.overhead(self.target), LEAST * seconds)

    def _next(
        self, asked: Mapping[Hashable, FusedGroup], wanted: Sequence[FusedGroup]
    ) -> Mapping[Hashable, FusedGroup]:
        """Return the groups to measure now: of those that were asked for the wanted ones, else what takes longest by
        the model; all where time is no object.
        """
        if self.tuner.resources.budget == inf:
            return asked
        first = {key: asked[key] for key in map(form_key, wanted) if key in asked}
        longest = sorted(asked, key=lambda key: -self._costs.get(key, 0.0))[:CHUNK]
        return first or {key: asked[key] for key in longest}

    def choose(self, workloads: Mapping[Hashable, Workload]) -> Mapping[Hashable, Candidate]:
        """Tune every kernel and return its schedule, with what reports say of the measurement."""
        self.problems = [
            Problem(w.form, w.storages, self.target, self._machine, ", ".join(w.nodes), w.uses)
            for w in workloads.values()
        ]
        self.choices = self.tuner.run(self.problems, self.settings)
        if self.audit and self.tuner.complete:
            self.audits = audit_choices(self.tuner, self.problems, self.choices, self.audit, self.settings)
        return {
            key: evolve(c.candidate, measured=_facts(c, p))
            for key, c, p in zip(workloads, self.choices, self.problems, strict=True)
        }

    def _model(self, key: Hashable, group: FusedGroup) -> float:
        """Return the model's cost, which the database remembers: it takes a while to compute."""
        if key not in self._costs:
            assert self._modelled is not None, "the pipeline asks for the evaluator first"
            name = digest(f"{self.target}\n{print_ir(group)}")
            kept = self.tuner.resources.database.cost(name)
            self._costs[key] = self._modelled.cost(group) if kept is None else kept
            # Behind its share of the budget the model answers with less than its best, which is not worth keeping.
            if kept is None and self._costs[key] < inf and self._before(PARTITION_SHARE):
                self.tuner.resources.database.keep_cost(name, self._costs[key])
        return self._costs[key]


def _facts(choice: TunedChoice, problem: Problem) -> dict[str, object]:
    """Return what a report says of a choice."""
    facts: dict[str, object] = {"tuning": problem.key, "origin": choice.origin}
    if choice.seconds is None:
        return facts | {"why": f"not measured: {choice.reason or 'the search was ended before'}"}
    share = choice.candidate.bound / choice.seconds if choice.seconds else 0.0
    facts |= {"measured": choice.seconds, "spread": choice.spread, "trials": choice.trials}
    bound = f"its bound is {share:.0%} of its time, limited by {choice.candidate.limit}"
    why = f"fastest of {choice.trials} measured; {bound}"
    if choice.proof is not None:
        exact = "" if choice.proof.exact else "about "
        why += f"; {exact}{choice.proof.share:.1%} of {choice.proof.points:,} points are proven slower"
    return facts | {"why": why}
