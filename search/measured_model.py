"""Measured cost model: `Evaluate` of Algorithm 1 from measured times.

The tuner provides the schedule of each kernel. The partition is first found by the cost model. All groups that it
evaluated are then measured at once, so that workers and device are busy. With the measured costs the partition is found
again, until it evaluates no new group.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from math import inf

from attrs import define, evolve, field

from ..ir import FULL_SHARE, UNSEARCHED_SHARE, FusedGroup
from ..passes import KernelsQuery, MeasuredTimes, Member, Questions, Workload
from ..passes.fusion import GroupEvaluator, form_key
from ..passes.schedule import Candidate
from .group_costs import GroupCosts
from .library_routines import seconds_for_routines
from .plan_executor import PlanExecutor
from .settings import QUICK_SEARCH, SINGLE_MEASUREMENT, Settings, TunedChoice
from .tasks import TuningTask
from .tuner import TaskRecord, Tuner, bundle_members, is_faster, search_deeper, space_key


@define(eq=False)
class MeasuredModel:
    """Cost model of one compilation that uses a tuner.

    Where it `measures`, groups are compared by short searches of `quick` settings. It `replays` decisions, or answers
    from results that are `known_only`. `problems` are the tuning tasks of the kernels that it scheduled last, `choices`
    their results.
    """

    tuner: Tuner
    settings: Settings
    costs: GroupCosts
    executor: PlanExecutor
    measures: bool = True
    known_only: bool = False
    replays: bool = False
    quick: Settings = QUICK_SEARCH
    problems: list[TuningTask] = field(factory=list, init=False)
    choices: list[TunedChoice] = field(factory=list, init=False)
    _answers: dict[tuple[str, ...], list[TunedChoice]] = field(factory=dict, init=False)

    @property
    def times(self) -> MeasuredTimes:
        """Measured times so far."""
        return self.costs.times

    def evaluator(self, modelled: GroupEvaluator) -> GroupEvaluator:
        """Return an evaluator that answers with measured times where known.

        Workers and device start at the same time as the passes before the partition.
        """
        self.costs.model = modelled
        if not self.replays:
            self.tuner.begin()
        return self.costs

    # ---- groups

    def measure(self, questions: Callable[[], Questions], share: float, plan: KernelsQuery | None = None) -> bool:
        """Measure the groups evaluated since the last call, within the budget.

        Under a budget only the groups of the current decisions are measured, one question after the other, so that a
        short budget ships no group that was never timed against its parts. Without a budget all are measured at once.
        """
        wanted = questions()
        if not self.measures or self.known_only or not self.costs.groups_without_times():
            return False
        executor, pace = self.tuner.executor, self.costs.known.pace
        fresh = self.costs.to_measure(wanted)
        waiting = list(fresh.items())
        if executor.budget.is_limited and wanted:
            self.executor.reserve_for({form_key(form): form for form in wanted[0]}.values())
        while waiting and not executor.over(share):
            size = pace.size(executor.budget.remaining(share)) if executor.budget.is_limited else len(waiting)
            some, waiting = dict(waiting[:size]), waiting[size:]
            self._measure(some, share, None if waiting else plan)
        self.costs.rescale()
        return any(k in self.times.seconds for k in fresh)

    def _measure(self, fresh: Mapping[Hashable, FusedGroup], share: float, plan: KernelsQuery | None) -> None:
        """Measure groups at once, within the budget."""
        executor, times = self.tuner.executor, self.times
        problems = [self.executor.group_task(group, "a possible group") for group in fresh.values()]
        start = executor.elapsed
        with executor.calling_when_idle(
            partial(self._use_idle_workers, plan) if plan and self.executor.builds_ahead else None
        ):
            found = self.tuner.estimate(problems, self.quick, share)
        known = ((key, seconds) for key, seconds in zip(fresh, found, strict=True) if seconds is not None)
        times.seconds.update({key: times.without_overhead(seconds) for key, seconds in known})
        self.costs.known.pace.note(executor.elapsed - start, sum(key in times.seconds for key in fresh))

    def _use_idle_workers(self, plan: KernelsQuery, tasks: Sequence[TaskRecord]) -> None:
        """Give workers that a comparison leaves idle to the kernels of the current plan."""
        ended = [task for task in tasks if task.choice is not None]
        for task in ended:
            if task.seconds < inf:
                self.times.note(task.problem.form, task.seconds)
        self.executor.search_ahead(plan(), spared=len(tasks) - len(ended))

    # ---- launches

    def compare_launches(self, launches: Sequence[Sequence[Member]]) -> Sequence[bool]:
        """Return for each launch whether it is faster than its groups.

        Groups without a measurement count with the cost model's time. A launch that the budget left no time to measure
        counts as faster, since the cost model proposed it; the time to build it is reserved.
        """
        asked = [(self.executor.joint_task(members), bundle_members(members)) for members in launches]
        kernels, new = len(self.problems), sum(choice.seconds is None for choice in self.choices)
        self.executor.reserve(kernels, new + len(asked))
        found = self.tuner.time_launches(asked)
        self.executor.reserve(kernels, new + found.count(None))
        alone, tie = self.times.without_overhead, self.settings.tie
        return [is_faster(seconds, members, alone, tie) for seconds, members in zip(found, launches, strict=True)]

    # ---- kernels

    def schedule(self, kernels: Mapping[Hashable, Workload], share: float = FULL_SHARE) -> Mapping[Hashable, Candidate]:
        """Tune every kernel and return its schedule and the facts for reports.

        After the end of the budget the answer to an earlier question stays the same. The time to build the kernels is
        reserved.
        """
        self.executor.poll()
        self.executor.reserve_for(workload.form for workload in kernels.values())
        share, budget = 0.0 if self.known_only else share, self.tuner.executor.budget
        tasks = {key: self.executor.task(workload) for key, workload in kernels.items()}
        self.problems = [*tasks.values()]
        budget.final_seconds = seconds_for_routines(self.problems, self.settings, budget)
        self.executor.begin_search(tasks, late=budget.over(share) and not self.known_only)
        asked = tuple(p.key for p in self.problems)
        known = self._answers.get(asked) if budget.over(share) else None
        self.choices = self._answers[asked] = known or self._run(share)
        self.executor.reserve(len(kernels), sum(choice.seconds is None for choice in self.choices))
        return {
            key: self._with_facts(task, choice) for (key, task), choice in zip(tasks.items(), self.choices, strict=True)
        }

    def _with_facts(self, task: TuningTask, choice: TunedChoice) -> Candidate:
        """Return a choice with the facts for reports, and with the cost model's choice if the space is ranked."""
        found = evolve(choice.candidate, measured=choice.facts(task.key))
        ranked = self.tuner.executor.memory.ranked.get(space_key(task, self.settings))
        if not ranked:
            return found
        first = ranked[0].candidate
        return evolve(found, modelled=found if first.schedule == found.schedule else first.in_shared_launch(found))

    def _run(self, share: float) -> list[TunedChoice]:
        """Tune the tasks, those with the largest possible saving first; then measure each unmeasured one once."""
        tuner, budget = self.tuner, self.tuner.executor.budget
        weights = [self.costs.gain(p) for p in self.problems]
        order = sorted(range(len(weights)), key=lambda n: -weights[n])
        ordered = [self.problems[n] for n in order]
        found = dict(zip(order, tuner.run(ordered, self.settings, share, self.replays), strict=True))
        unseen = [n for n in order if found[n].seconds is None]
        if unseen and share and budget.is_limited and not tuner.frozen:
            # A candidate that is built for this measurement need not be built again for the plan.
            self.executor.reserve(len(self.problems), len(unseen) // 2)
            if not budget.over(UNSEARCHED_SHARE):
                looked = tuner.run([self.problems[n] for n in unseen], SINGLE_MEASUREMENT, UNSEARCHED_SHARE)
                found |= dict(zip(unseen, looked, strict=True))
        if not self.replays:
            found = search_deeper(self.problems, found, tuner, self.settings, share)
        return [found[n] for n in range(len(weights))]
