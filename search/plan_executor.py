"""Executor of a compilation: workers answer questions and build kernels ahead.

The time to build the kernels of the current plan is reserved in the budget, so that a search leaves enough.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import define, field

from ..ir import FusedGroup, KernelFunction, Target
from ..passes import (
    STATEMENT_STAGES,
    CandidateSubgraph,
    CostRequest,
    Keys,
    Member,
    MemberRow,
    ModelQuery,
    SubgraphKernels,
    Workload,
)
from ..passes.fusion import form_key
from .building import Job
from .group_costs import GroupCosts
from .speculation import LOWERING_SECONDS, SpeculativeBuild, build_kernels, building_seconds, bundle_job, kernel_job
from .tasks import TuningTask
from .tuner import Tuner, bundle_members, joint_task, ranking_end

#: Assumed share of a plan's kernels that are not built yet when its groups are known.
UNBUILT_SHARE = 0.25
#: Stages that a candidate plan of the same graph repeats, and the seconds of loading and timing two plans.
REPEATED_STAGES, PLAN_SELECTION_SECONDS = (*STATEMENT_STAGES, "layouts", "pack", "views", "split"), 1.5


def rebuild_seconds(tuner: Tuner, target: Target, kernels: int) -> float:
    """Return the estimated seconds to rebuild a known plan and compare it."""
    stages = sum(tuner.executor.budget.spent.get(name, 0.0) for name in REPEATED_STAGES)
    building = building_seconds(tuner.executor, target, kernels, kernels // 2)
    return stages + max(building, LOWERING_SECONDS * kernels) + PLAN_SELECTION_SECONDS


@define(eq=False)
class PlanExecutor:
    """Workers of a session for one compilation, whose groups have `costs`.

    They build ahead under a budget where they have no other work. `has_rival` says that another candidate plan of
    the graph follows, for which time is reserved.
    """

    target: Target
    tuner: Tuner
    costs: GroupCosts
    ahead: SpeculativeBuild
    machine: Mapping[str, str]
    builds_ahead: bool
    has_rival: bool = False
    _tasks: dict[Hashable, TuningTask] = field(factory=dict, init=False)

    # ---- questions

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
                    self.costs.known.modelled.setdefault(form_key(form), seconds)
                climbed = {form_key(form): points for form, points in kernels.points}
                self.tuner.executor.memory.hill_climbed.update(climbed)
            return found

        return wait_and_store

    def poll(self) -> None:
        """Receive finished builds."""
        self.ahead.receive()

    # ---- tasks

    def group_task(self, group: FusedGroup, label: str) -> TuningTask:
        """Return the tuning task of a group without other layouts."""
        return TuningTask(group, {}, self.target, self.machine, label)

    def task(self, workload: Workload) -> TuningTask:
        """Return the tuning task of a kernel."""
        nodes = ", ".join(workload.nodes)
        return TuningTask(workload.form, workload.storages, self.target, self.machine, nodes, workload.uses)

    def joint_task(self, members: Sequence[Member]) -> TuningTask:
        """Return the joint tuning task of the groups of a launch."""
        key = tuple((form_key(form), tuple(storages.items())) for form, storages, _ in members)
        if key not in self._tasks:
            self._tasks[key] = joint_task(members, self.target, self.machine)
        return self._tasks[key]

    # ---- builds

    def prepare(self, kernels: Callable[[], Iterable[Workload]], further: bool = False) -> None:
        """Have idle workers build the kernels of a plan, the slowest first.

        With `further`, they build the next candidates of the kernels' searches. Where searches run at several places,
        only the spaces are ranked.
        """
        if further:
            self.search_ahead([kernel.form for kernel in kernels()])
            return
        self.poll()
        if self.builds_ahead and not (self.tuner.executor.budget.overdue() or self.tuner.frozen):
            self.ahead.begin(self.costs.by_gain([*map(self.task, kernels())]), self.tuner.is_local)

    def search_ahead(self, groups: Sequence[FusedGroup], spared: int = 0) -> None:
        """Have a plan's next candidates built; some workers are `spared`."""
        if self.builds_ahead and self.tuner.is_local:
            problems = {p.key: p for p in (self.group_task(group, "a kernel of the plan") for group in groups)}
            self.ahead.searches_ahead.begin(self.costs.by_gain([*problems.values()]), spared)

    def begin_search(self, tasks: Mapping[Hashable, TuningTask], late: bool) -> None:
        """Stop speculative builds, to free the workers for a search.

        Its `tasks` are by the key of a kernel. Where it is too `late` for a search, wait for the ranking of spaces and
        build the cost model's choices.
        """
        self._tasks.update(tasks)
        if late and self.builds_ahead and self.tuner.is_local:
            latest = ranking_end(self.tuner.executor, len(tasks))
            self.ahead.rank(self.costs.by_gain([*tasks.values()]), latest)
        else:
            self.ahead.end()

    def build(self, launches: Mapping[Keys, Sequence[Member]]) -> Mapping[Keys, KernelFunction]:
        """Return kernels built by workers, of groups and of shared launches."""
        jobs: dict[Hashable, Job] = {}
        for keys, members in launches.items():
            if len(members) > 1:
                jobs[keys] = bundle_job(self.joint_task(members), bundle_members(members))
            elif keys[0] in self._tasks:
                jobs[keys] = kernel_job(self._tasks[keys[0]], members[0][2].schedule)
        self.ahead.end()
        made = build_kernels(self.tuner.executor, jobs, self.ahead.in_progress)
        return {keys: made[keys] for keys in launches if keys in made}

    # ---- reserved time

    @contextmanager
    def reserving_budget(self, kernels: int, seconds: float) -> Iterator[None]:
        """Reserve budget in a block for building a plan with `kernels` kernels.

        The groups of the plan are found in `seconds`, while workers build most kernels. After the block the time of the
        kernels that are not built yet is reserved.
        """
        executor = self.tuner.executor
        unbuilt = int(UNBUILT_SHARE * kernels)
        executor.budget.needed = seconds + building_seconds(executor, self.target, kernels, unbuilt)
        try:
            yield
        finally:
            self.reserve(kernels, self.ahead.missing)

    def reserve(self, kernels: int, new: int) -> None:
        """Reserve the seconds of building a plan with `new` kernels."""
        rival = rebuild_seconds(self.tuner, self.target, kernels) if self.has_rival else 0.0
        executor = self.tuner.executor
        executor.budget.needed = building_seconds(executor, self.target, kernels, new) + rival

    def reserve_for(self, forms: Iterable[FusedGroup]) -> None:
        """Reserve the seconds of building a plan's missing groups."""
        keys = [form_key(form) for form in forms]
        measured = self.costs.times.seconds
        self.reserve(len(keys), sum(key not in measured and not self.ahead.has_built(key) for key in keys))
