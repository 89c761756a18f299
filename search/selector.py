"""Measured selection: `Evaluate` of Algorithm 1 from measured times.

The tuner provides the schedule of each kernel. The partition is first found by the cost model. All groups that it
evaluated are then measured at once, so that workers and device are busy. With the measured costs the partition is found
again, until it evaluates no new group. Costs without a measurement are the model's, scaled by the ratio of measured
costs to the model's, so that both can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf, isnan
from typing import Any

from attrs import evolve

from ..ir import (
    FULL_SHARE,
    UNSEARCHED_SHARE,
    Budget,
    CompiledGraph,
    CompileOptions,
    FusedGroup,
    Graph,
    KernelFunction,
    Target,
)
from ..ops import Registry
from ..passes import (
    STATEMENT_STAGES,
    CandidateSubgraph,
    CompileContext,
    CostRequest,
    Decisions,
    Emit,
    KernelsQuery,
    Keys,
    MeasuredTimes,
    Member,
    MemberRow,
    ModelQuery,
    Questions,
    Roofline,
    SubgraphKernels,
    Workload,
    assemble_kernels,
    record_decisions,
    run_stages,
    unfused_seconds,
)
from ..passes.fusion import GroupEvaluator, form_key, form_text
from ..passes.schedule import Candidate
from ..store import digest
from .analysis import Audit, audit_choices
from .building import Job
from .libraries import seconds_for_routines
from .settings import (
    MAX_GROUPS_AT_ONCE,
    QUICK_SEARCH,
    SINGLE_MEASUREMENT,
    Findings,
    Pace,
    Settings,
    TunedChoice,
    scale_of,
)
from .tasks import DecisionRecord, TuningTask, machine_of
from .tuner import (
    LOWERING_SECONDS,
    ORIGIN_ELSEWHERE,
    ORIGIN_GUESSED,
    SpeculativeBuild,
    TaskRecord,
    Tuner,
    build_kernels,
    building_seconds,
    bundle_job,
    bundle_members,
    is_faster,
    joint_task,
    kernel_job,
    ranking_seconds,
    search_deeper,
)

#: Assumed share of a plan's kernels that are not built yet when its groups are known.
UNBUILT_SHARE = 0.25
#: Smallest share of a measured time that belongs to the kernel itself.
MIN_KERNEL_SHARE = 0.2
#: Stages that a candidate plan of the same graph repeats, and the seconds of loading and timing two plans.
REPEATED_STAGES, PLAN_SELECTION_SECONDS = (*STATEMENT_STAGES, "layouts", "pack", "views", "split"), 1.5


class MeasuredSelector:
    """Cost model and executor that use a tuner.

    `evaluate` enables measured partition search. `audit` further candidates of every shipped kernel are timed, to see
    whether pruning discarded the winner. `cached` says that the plan was cached and nothing was searched. `decisions`
    is the decision record that the next compilation replays, `made` that of the last one, `unfused_seconds` the
    seconds of the
    unfused units. `searches_ahead` continues the search where there are final decisions. `has_rival_plan` says that
    another candidate plan of the graph follows. `uncompared` has a sentence for each shipped plan that was not
    compared. `answer` is the record of the graph, stored once it is compiled.
    """

    def __init__(
        self,
        target: Target,
        tuner: Tuner,
        settings: Settings | None = None,
        *,
        evaluate: bool = True,
        audit: int = 0,
        further: bool = False,
    ) -> None:
        self.target = target
        self.tuner = tuner
        self.settings = settings or Settings()
        self.evaluate = evaluate
        self.problems: list[TuningTask] = []
        self.choices: list[TunedChoice] = []
        self.audit = audit
        self.cached = False
        self.further = further
        self.decisions: Decisions | None = None
        self.new_decisions: Decisions | None = None
        self.unfused_seconds = inf
        self.has_rival_plan = False
        self.uncompared: list[str] = []
        self.answer: DecisionRecord | None = None
        self.audits: list[Audit] = []
        self._machine = machine_of(target)
        self._modelled: GroupEvaluator | None = None
        self._forms: dict[Hashable, FusedGroup] = {}
        self._costs: dict[Hashable, float] = {}
        self._answers: dict[tuple[str, ...], list[TunedChoice]] = {}
        self.times = MeasuredTimes(True, 1.0, self._without_overhead, lambda: tuner.complete)
        self._asked: dict[Hashable, TuningTask] = {}
        self._joined: dict[Hashable, TuningTask] = {}
        self._known_only = False
        self._quick = QUICK_SEARCH
        self._pace = Pace()
        self._preparation = SpeculativeBuild(tuner.resources, self.settings)

    @property
    def budget(self) -> Budget:
        """Time limit of the compilation."""
        return self.tuner.resources.budget

    @property
    def has_unmeasured(self) -> bool:
        """True if a schedule comes from another version or the cost model."""
        return any(choice.origin in (ORIGIN_ELSEWHERE, ORIGIN_GUESSED) for choice in self.choices)

    @property
    def seconds(self) -> float:
        """Time of all kernels: measured, or the scaled cost model's."""
        taken = zip(self.problems, self.choices, strict=True)
        return sum(
            p.uses * (self.times.scale * c.candidate.score if c.seconds is None else c.seconds) for p, c in taken
        )

    @property
    def planned(self) -> float:
        """Seconds of the compilation outside of searches."""
        return self.budget.elapsed - self.tuner.statistics.searching

    @property
    def complete(self) -> bool:
        """True if neither the budget nor an interrupt ended a search."""
        return self.tuner.complete

    def compile(
        self, graph: Graph, registry: Registry, target: Target, options: CompileOptions, emit: Emit
    ) -> CompiledGraph:
        """Compile a graph by measured times or recorded `decisions`.

        Raises `ForeignDecisionsError` where these cannot be replayed.
        """
        shares = options.horizontal_fusion if self.evaluate and not self._known_only else False
        options = evolve(options, horizontal_fusion=shares)
        context = CompileContext(registry, target, options, emit, self, self, self.budget, self.decisions)
        kernels = run_stages(graph, context)
        if kernels is None:
            return CompiledGraph(graph, (), ())
        self.new_decisions = record_decisions(kernels.launches, context)
        self.unfused_seconds = unfused_seconds(kernels.launches, context)
        return assemble_kernels(kernels, context)

    def evaluator(self, modelled: GroupEvaluator) -> GroupEvaluator:
        """Return an evaluator that answers with measured times where known.

        Workers and device start at the same time as the passes before the partition.
        """
        self._modelled = modelled
        if self.decisions is None:
            self.tuner.begin()
        return self

    def cost(self, group: FusedGroup) -> float:
        """Return the seconds of a group: measured, or the scaled cost model's."""
        key = form_key(group)
        if not group.adds_to_memory:  # a second run would give another result
            self._forms.setdefault(key, group)
        return self.times.seconds.get(key, self.times.scale * self._model(key, group))

    @property
    def findings(self) -> Findings:
        """Results of the last compilation."""
        return Findings(tuple(self.problems), tuple(self.choices), self.new_decisions)

    @findings.setter
    def findings(self, found: Findings) -> None:
        self.problems, self.choices, self.new_decisions = list(found.problems), list(found.choices), found.made

    def submit(self, requests: Sequence[ModelQuery[Any]]) -> Callable[[], Sequence[Any]]:
        """Have workers answer questions of one kind; return a function that waits."""
        match requests:
            case [CandidateSubgraph(), *_]:
                return self.plan_ahead(requests)  # type: ignore[arg-type]
            case [CostRequest(), *_]:
                return self.tuner.price(requests)  # type: ignore[arg-type]
            case [MemberRow(), *_]:
                rows = self.tuner.schedule_bundles(requests)  # type: ignore[arg-type]
                return lambda: rows
        return lambda: [None] * len(requests)

    def plan_ahead(self, fragments: Sequence[CandidateSubgraph]) -> Callable[[], Sequence[SubgraphKernels]]:
        """Start partitioning small graphs by workers; return a function that waits."""
        wait = self.tuner.plan(fragments)

        def wait_and_store() -> Sequence[SubgraphKernels]:
            found = wait()
            for kernels in (kernels for kernels in found if kernels is not None):
                for form, seconds in kernels.costs:
                    self._costs.setdefault(form_key(form), seconds)
                self.tuner.resources.hill_climbed.update({form_key(form): points for form, points in kernels.points})
            return found

        return wait_and_store

    def prepare(self, kernels: Callable[[], Iterable[Workload]], further: bool = False) -> None:
        """Have idle workers build the kernels of a plan, the slowest first.

        With `further`, they build the next candidates of the kernels' searches. Where searches run at several places,
        only the spaces are ranked.
        """
        if further:
            self.search_ahead([kernel.form for kernel in kernels()])
            return
        self.poll()
        if self.budget.is_limited and not (self.budget.overdue() or self.tuner.frozen) and self.evaluate:
            self._preparation.begin(self._longest_first(map(self._problem, kernels())), self.tuner.is_local)

    def search_ahead(self, groups: Sequence[FusedGroup], spared: int = 0) -> None:
        """Have a plan's next candidates built; some workers are `spared`."""
        if self._builds_ahead:
            problems = [TuningTask(group, {}, self.target, self._machine, "a kernel of the plan") for group in groups]
            self._preparation.searches_ahead.begin(self._longest_first({p.key: p for p in problems}.values()), spared)

    @property
    def _builds_ahead(self) -> bool:
        return self.budget.is_limited and self.tuner.is_local and self.evaluate

    def _longest_first(self, problems: Iterable[TuningTask]) -> list[TuningTask]:
        return sorted(problems, key=lambda problem: -self._gain(problem))

    def poll(self) -> None:
        """Receive finished builds."""
        self._preparation.receive()

    def _problem(self, workload: Workload) -> TuningTask:
        nodes = ", ".join(workload.nodes)
        return TuningTask(workload.form, workload.storages, self.target, self._machine, nodes, workload.uses)

    def _count_unbuilt(self, forms: Iterable[FusedGroup]) -> int:
        """Return the number of groups without a built kernel."""
        keys = [form_key(form) for form in forms]
        return sum(key not in self.times.seconds and not self._preparation.has_built(key) for key in keys)

    @contextmanager
    def reserving_budget(self, kernels: int, seconds: float) -> Iterator[None]:
        """Reserve budget in a block for building a plan with `kernels` kernels.

        The groups of the plan are found in `seconds`, while workers build most kernels. After the block the time of the
        kernels that are not built yet is reserved.
        """
        self.budget.needed = seconds + self._building_seconds(kernels, int(UNBUILT_SHARE * kernels))
        try:
            yield
        finally:
            self._reserve(kernels, self._preparation.missing)

    def measure(self, questions: Callable[[], Questions], share: float, plan: KernelsQuery | None = None) -> bool:
        """Measure the groups evaluated since the last call, within the budget.

        Under a budget only the groups of the current decisions are measured, one question after the other, so that a
        short budget ships no group that was never timed against its parts. Without a budget all are measured at once.
        """
        wanted = questions()
        asked = {k: g for k, g in self._forms.items() if k not in self.times.seconds and self._costs.get(k, 0.0) < inf}
        if not asked or not self.evaluate or self._known_only:
            return False
        fresh = self._groups_to_measure(asked, wanted)
        waiting = list(fresh.items())
        self._reserve_for_question(wanted)
        while waiting and not self.tuner.resources.over(share):
            size = self._pace.size(self.budget.remaining(share)) if self.budget.is_limited else len(waiting)
            some, waiting = dict(waiting[:size]), waiting[size:]
            self._measure(some, share, None if waiting else plan)
        ratios = [
            self.times.seconds[k] / self._costs[k] for k in self.times.seconds if 0.0 < self._costs.get(k, 0.0) < inf
        ]
        self.times.scale = scale_of(ratios, self.budget.is_limited)
        return any(k in self.times.seconds for k in fresh)

    def _reserve_for_question(self, questions: Sequence[Sequence[FusedGroup]]) -> None:
        """Reserve budget for building the kernels of the first question."""
        if self.budget.is_limited and questions:
            forms = {form_key(form): form for form in questions[0]}
            self._reserve(
                len(forms), self._count_unbuilt(form for k, form in forms.items() if k not in self.times.seconds)
            )

    def _use_idle_workers(self, plan: KernelsQuery, tasks: Sequence[TaskRecord]) -> None:
        """Give workers that a comparison leaves idle to the kernels of the current plan."""
        ended = [task for task in tasks if task.choice is not None]
        known = {form_key(task.problem.form): task.seconds for task in ended if task.seconds < inf}
        self.times.seconds.update({key: self._without_overhead(seconds) for key, seconds in known.items()})
        self.search_ahead(plan(), spared=len(tasks) - len(ended))

    def _measure(self, fresh: Mapping[Hashable, FusedGroup], share: float, plan: KernelsQuery | None) -> None:
        """Measure groups at once, within the budget."""
        problems = [TuningTask(group, {}, self.target, self._machine, "a possible group") for group in fresh.values()]
        start = self.budget.elapsed
        with self.tuner.resources.calling_when_idle(
            partial(self._use_idle_workers, plan) if plan and self._builds_ahead else None
        ):
            found = self.tuner.estimate(problems, self._quick, share)
        known = ((key, seconds) for key, seconds in zip(fresh, found, strict=True) if seconds is not None)
        self.times.seconds.update({key: self._without_overhead(seconds) for key, seconds in known})
        self._pace.note(self.budget.elapsed - start, sum(key in self.times.seconds for key in fresh))

    def compare_launches(self, launches: Sequence[Sequence[Member]]) -> Sequence[bool]:
        """Return for each launch whether it is faster than its groups.

        Groups without a measurement count with the cost model's time. A launch that the budget left no time to measure
        counts as faster, since the cost model proposed it; the time to build it is reserved.
        """
        asked = [(self._joint_task(members), bundle_members(members)) for members in launches]
        kernels, new = len(self.problems), sum(choice.seconds is None for choice in self.choices)
        self._reserve(kernels, new + len(asked))
        found = self.tuner.time_launches(asked)
        self._reserve(kernels, new + found.count(None))
        tie, pairs = self.settings.tie, zip(found, launches, strict=True)
        return [is_faster(seconds, members, self._without_overhead, tie) for seconds, members in pairs]

    def _joint_task(self, members: Sequence[Member]) -> TuningTask:
        """Return the joint tuning task of the groups of a launch."""
        key = tuple((form_key(form), tuple(storages.items())) for form, storages, _ in members)
        if key not in self._joined:
            self._joined[key] = joint_task(members, self.target, self._machine)
        return self._joined[key]

    def _without_overhead(self, seconds: float) -> float:
        """Return the time of a kernel among others, without the overhead of timing it in isolation."""
        return max(seconds - self.tuner.overhead(self.target), MIN_KERNEL_SHARE * seconds)

    def _groups_to_measure(
        self, asked: Mapping[Hashable, FusedGroup], questions: Sequence[Sequence[FusedGroup]]
    ) -> Mapping[Hashable, FusedGroup]:
        """Return the groups to measure now.

        These are the groups of the first question, then of the second, and so on, the slowest by the cost model first;
        without questions the slowest of all; all groups without a time limit.
        """
        if not self.budget.is_limited:
            return asked
        longest = sorted(asked, key=lambda key: -self._costs.get(key, 0.0))
        wanted = [{form_key(form) for form in question} for question in questions]
        first = dict.fromkeys(key for keys in wanted for key in longest if key in keys)
        return {key: asked[key] for key in (first if questions else longest[:MAX_GROUPS_AT_ONCE])}

    def schedule(
        self, workloads: Mapping[Hashable, Workload], share: float = FULL_SHARE
    ) -> Mapping[Hashable, Candidate]:
        """Tune every kernel and return its schedule and the facts for reports.

        After the end of the budget the answer to an earlier question stays the same. The time to build the kernels is
        reserved.
        """
        self._preparation.receive()
        self._reserve(len(workloads), self._count_unbuilt(w.form for w in workloads.values()))
        share = 0.0 if self._known_only else share
        self.problems = list(map(self._problem, workloads.values()))
        self.budget.final_seconds = seconds_for_routines(self.problems, self.settings, self.budget)
        self._prepare(share)
        self._asked.update(zip(workloads, self.problems, strict=True))
        asked = tuple(p.key for p in self.problems)
        known = self._answers.get(asked) if self.budget.over(share) else None
        self.choices = known or self._run(share)
        self._answers[asked] = self.choices
        self._reserve(len(workloads), sum(choice.seconds is None for choice in self.choices))
        return {
            key: evolve(c.candidate, measured=c.facts(p.key))
            for key, c, p in zip(workloads, self.choices, self.problems, strict=True)
        }

    def audit_kernels(self) -> None:
        """Audit the shipped kernels, if requested and the search was complete."""
        if self.audit and self.tuner.complete:
            self.audits = audit_choices(self.tuner, self.problems, self.choices, self.audit, self.settings)

    def _prepare(self, share: float) -> None:
        """Stop speculative builds, to free the workers for the search.

        Where there is no time left for a search, wait for the ranking of spaces and build the cost model's choices.
        """
        if self.budget.over(share) and self._builds_ahead and not self._known_only:
            latest = max(self.budget.latest, self.budget.elapsed + ranking_seconds(len(self.problems)))
            self._preparation.rank(self._longest_first(self.problems), latest)
        else:
            self._preparation.end()

    def _reserve(self, kernels: int, new: int) -> None:
        """Reserve the seconds of building a plan of some kernels; `new` ones were never compiled."""
        rival = self.rebuild_seconds(kernels) if self.has_rival_plan else 0.0
        self.budget.needed = self._building_seconds(kernels, new) + rival

    def _building_seconds(self, kernels: int, new: int) -> float:
        return building_seconds(self.tuner.resources, self.target, kernels, new)

    def rebuild_seconds(self, kernels: int) -> float:
        """Return the estimated seconds to rebuild a known plan and compare it."""
        stages = sum(self.budget.spent.get(name, 0.0) for name in REPEATED_STAGES)
        return (
            stages
            + max(self._building_seconds(kernels, kernels // 2), LOWERING_SECONDS * kernels)
            + PLAN_SELECTION_SECONDS
        )

    @contextmanager
    def without_measurements(self) -> Iterator[None]:
        """Measure nothing in a block: known times and the cost model decide."""
        self._known_only, expired = True, self.tuner.resources.expired
        try:
            yield
        finally:
            self._known_only, self.tuner.resources.expired = False, expired
            self._answers.clear()

    @contextmanager
    def refining_partition(self, points: int) -> Iterator[None]:
        """Compare groups in a block by searches of up to `points` candidates.

        The rest of the budget is used. Where it ends such a search, the search before still counts as complete.
        """
        times, self.times = self.times, evolve(self.times, seconds={})
        rivalled, self.has_rival_plan = self.has_rival_plan, True
        self._quick = evolve(QUICK_SEARCH, batch=self.settings.batch, most=points, patience=self.settings.patience)
        self._answers.clear()
        try:
            with self.budget.restart_shares():
                yield
        finally:
            self.times, self._quick, self.has_rival_plan = times, QUICK_SEARCH, rivalled
            self._answers.clear()
            self.tuner.resources.expired = False

    def build(self, launches: Mapping[Keys, Sequence[Member]]) -> Mapping[Keys, KernelFunction]:
        """Return kernels built by workers, of groups and of shared launches."""
        jobs: dict[Hashable, Job] = {}
        for keys, members in launches.items():
            if len(members) > 1:
                jobs[keys] = bundle_job(self._joint_task(members), bundle_members(members))
            elif keys[0] in self._asked:
                jobs[keys] = kernel_job(self._asked[keys[0]], members[0][2].schedule)
        self._preparation.end()
        made = build_kernels(self.tuner.resources, jobs, self._preparation.in_progress)
        return {keys: made[keys] for keys in launches if keys in made}

    def _run(self, share: float) -> list[TunedChoice]:
        """Tune the tasks, those with the largest possible saving first; then measure each unmeasured one once."""
        weights = [self._gain(p) for p in self.problems]
        order = sorted(range(len(weights)), key=lambda n: -weights[n])
        ordered, replays = [self.problems[n] for n in order], self.decisions is not None
        found = dict(zip(order, self.tuner.run(ordered, self.settings, share, replays), strict=True))
        unseen = [n for n in order if found[n].seconds is None]
        if unseen and share and self.budget.is_limited and not self.tuner.frozen:
            # A candidate that is built for this measurement need not be built again for the plan.
            self._reserve(len(self.problems), len(unseen) // 2)
            if not self.budget.over(UNSEARCHED_SHARE):
                looked = self.tuner.run([self.problems[n] for n in unseen], SINGLE_MEASUREMENT, UNSEARCHED_SHARE)
                found |= dict(zip(unseen, looked, strict=True))
        if not replays:
            found = search_deeper(self.problems, found, self.tuner, self.settings, share)
        return [found[n] for n in range(len(weights))]

    def _gain(self, problem: TuningTask) -> float:
        """Return the seconds of the whole program that a kernel takes beyond its roofline.

        Without a measurement it is the whole cost by the model.
        """
        key = form_key(problem.form)
        if key not in self.times.seconds:
            seconds = self._costs[key] if key in self._costs else self._model(key, problem.form)
            return problem.uses * (Roofline(self.target).cost(problem.form) if isnan(seconds) else seconds)
        return problem.uses * max(0.0, self.times.seconds[key] - Roofline(self.target).cost(problem.form))

    def _model(self, key: Hashable, group: FusedGroup) -> float:
        """Return the cost model's value, which the database stores: it takes a while to compute."""
        if key not in self._costs:
            assert self._modelled is not None, "the pipeline asks for the evaluator first"
            name = digest(f"{self.target}\n{form_text(group)}")
            kept = self.tuner.resources.database.predicted_seconds(name)
            found = self._modelled.cost(group) if kept is None else kept
            if isnan(found):  # not evaluated in time, but may be later
                return found
            self._costs[key] = found
            if kept is None and found < inf:
                self.tuner.resources.database.keep_prediction(name, found)
        return self._costs[key]
