"""Builds of a plan's kernels by workers, on request and speculatively.

Kernels that workers built for timing are reused, and workers build the others in parallel; the time of that is
estimated from earlier builds. Without a search, workers of their own plan for a graph.

While this process decides about the groups of a graph, idle workers prepare the kernels of the current plan: they rank
their spaces and build the first candidate of each. The end of a budget then finds little unfinished work, and the
device has candidates to time as soon as groups are decided.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from attrs import define, field

from ...ir import KernelFunction, Schedule, Target, processor_count
from ...passes.fusion import form_key
from ..building import BuildResult, Job, JobResult, ScoredCandidate
from ..settings import Settings
from ..tasks import BundleMember, TuningTask, launch_name, schedule_text
from .final_ranking import space_key
from .resources import Resources
from .speculative_search import SpeculativeSearch

#: Seconds of a kernel for lowering and printing, for compilation by a core, and for this process after scheduling:
#: launch, record, buffers and place in a plan. The first two are used until workers have built some (163 kernels of a
#: training step of ResNet-50 took 6.2 s to lower, and 6.9 s to compile on 16 cores of an H200's host). The third took
#: 17 ms on a simulated host, nearly twice that with busy cores.
LOWERING_SECONDS, COMPILE_SECONDS, RECORD_SECONDS = 0.04, 0.7, 0.02
#: Number of missing kernels below which this process builds them itself.
MIN_WORKER_BUILDS = 3
#: Largest number of candidates of a task that are built until the compiler accepts one.
MAX_BUILD_ATTEMPTS = 3
#: Tasks whose spaces a worker ranks in one job, as this process may have no time for it for a while, and the priorities
#: of speculative jobs, below all awaited ones.
TASKS_PER_RANKING, RANKING_PRIORITY, BUILD_PRIORITY = 3, (2.0, 0.0), (2.0, 1.0)
#: Seconds between two checks of the workers' results.
CHECK_SECONDS = 0.05
#: Key of a kernel: a task and a schedule of it, or the name of a launch.
Place: TypeAlias = tuple[str, str]
#: Seconds between two checks of the budget, and the priority of kernels that are needed now.
POLL_SECONDS, URGENT_PRIORITY = 0.05, -3.0


def build_kernels(
    resources: Resources, wanted: Mapping[Hashable, Job], in_progress: Collection[Place] = ()
) -> dict[Hashable, KernelFunction]:
    """Return kernels of jobs, built by workers within the budget.

    The jobs come from `alone` or `bundle_job`. A kernel that fails is left out. Workers already build those that are
    `coming`, a set that shrinks.
    """
    missing = {job.owner: job for job in wanted.values() if job.owner not in resources.kernels}
    if (
        len(missing) >= MIN_WORKER_BUILDS
        and resources.workers_answered
        and not _target(next(iter(missing.values()))).on_host
    ):
        _build_by_workers(resources, missing, in_progress)
    return {key: resources.kernels[job.owner] for key, job in wanted.items() if job.owner in resources.kernels}


def kernel_job(problem: TuningTask, schedule: Schedule) -> Job:
    """Return the job that builds the kernel of a task."""
    return Job(_place(problem, schedule), "build", (problem, schedule), (URGENT_PRIORITY,))


def bundle_job(problem: TuningTask, members: Sequence[BundleMember]) -> Job:
    """Return the job that builds the kernel of a shared launch."""
    return Job((launch_name(problem, members), ""), "bundle", (problem, members), (URGENT_PRIORITY,))


def _place(problem: TuningTask, schedule: Schedule) -> Place:
    return problem.key, schedule_text(schedule)


def _place_of(job: Job) -> Place:
    problem, schedule = job.arguments
    assert isinstance(problem, TuningTask) and isinstance(schedule, Schedule), "that is what is built"
    return _place(problem, schedule)


def _target(job: Job) -> Target:
    problem = job.arguments[0]
    assert isinstance(problem, TuningTask)
    return problem.target


def _build_by_workers(resources: Resources, missing: Mapping[Place, Job], coming: Collection[Place]) -> None:
    """Build kernels by workers until the budget ends, or longer if this process would take longer."""
    budget, waiting, asked = resources.budget, set(missing), set[Place]()
    target = _target(next(iter(missing.values())))
    end = max(budget.seconds, budget.elapsed + building_seconds(resources, target, len(missing), len(missing)))
    resources.drop_queries()
    with resources.interruptible():
        while waiting and not resources.interrupted and budget.elapsed < end:
            for place in waiting.difference(asked, coming if resources.builder.load else ()):
                resources.builder.submit(missing[place])
                asked.add(place)
            for done in resources.collect(POLL_SECONDS):
                if done.job.owner in waiting:
                    waiting.discard(done.job.owner)
                    if isinstance(done.value, BuildResult):
                        resources.keep_built(done.job.owner, done.value, done.seconds)
                else:
                    resources.receive(done)
            waiting -= resources.kernels.keys()
    if waiting:
        resources.drop()


def building_seconds(resources: Resources, target: Target, kernels: int, new: int) -> float:
    """Return the estimated seconds to build a plan with `new` unbuilt kernels.

    The estimate uses the build times of this compilation, all cores together, if there are any.
    """
    spent, count = resources.statistics.building
    each = spent / count if count else LOWERING_SECONDS + (COMPILE_SECONDS if target.dialect == "cuda" else 0.0)
    alone = target.on_host or not resources.started  # this process lowers them one after another
    return RECORD_SECONDS * kernels + each * new / processor_count() + (LOWERING_SECONDS * kernels if alone else 0.0)


@define
class SpeculativeBuild:
    """Speculative builds of tasks by workers.

    All spaces are ranked before a kernel is built, so that an unmeasured kernel is at least the cost model's choice.
    `coming` has the kernels that workers have yet to build.
    """

    resources: Resources
    settings: Settings
    unranked: set[str] = field(factory=set)
    unbuilt: set[str] = field(factory=set)
    in_progress: set[Place] = field(factory=set)
    searches_ahead: SpeculativeSearch = field(init=False)
    _built: set[Hashable] = field(factory=set)
    _last_check: float = field(default=0.0, init=False)

    @searches_ahead.default
    def _default_searches_ahead(self) -> SpeculativeSearch:
        return SpeculativeSearch(self.resources, self.settings)

    @property
    def missing(self) -> int:
        """Number of requested tasks that are not built yet."""
        return len(self.unbuilt)

    def has_built(self, form: Hashable) -> bool:
        """Return whether a kernel of a form was built, by key."""
        return form in self._built

    def begin(self, problems: Sequence[TuningTask], whole: bool = True) -> None:
        """Have new tasks built in order, or only ranked unless `whole`."""
        ranked = self.resources.ranked
        missing = [p for p in problems if space_key(p, self.settings) not in ranked and p.key not in self.unbuilt]
        self.unranked.update(p.key for p in missing)
        self.unbuilt.update(p.key for p in missing)
        settings, count = self.settings, max(1, self.settings.first)
        for number in range(0, len(missing), TASKS_PER_RANKING):
            some = missing[number : number + TASKS_PER_RANKING]
            wishes = [self.resources.ranking(p, settings.model, count, settings.correction) for p in some]
            self._submit("rank_each", (wishes,), RANKING_PRIORITY, partial(self._take_ranking, some, whole))

    def receive(self) -> None:
        """Receive results at intervals, so that workers get further jobs."""
        now = self.resources.elapsed
        if (self.unbuilt or self.searches_ahead.waiting) and now >= self._last_check + CHECK_SECONDS:
            self._last_check = now
            self._receive(0.0)

    def rank(self, problems: Sequence[TuningTask], until: float) -> None:
        """Wait for the ranking of tasks' spaces, at most `until`."""
        self.begin(problems)
        keys = {problem.key for problem in problems}
        while not (self.resources.interrupted or keys.isdisjoint(self.unranked)) and self.resources.elapsed < until:
            self._receive(POLL_SECONDS)

    def end(self) -> None:
        """Cancel all jobs that are not running."""
        if self.unbuilt or self.searches_ahead.waiting:
            forgotten = self.resources.drop(lasting=True)
            self.searches_ahead.forget(forgotten)
            self.in_progress.difference_update(_place_of(job) for job in forgotten if job.method == "build")
        self.unranked.clear()
        self.unbuilt.clear()

    def _receive(self, timeout: float) -> None:
        with self.resources.interruptible():
            for done in self.resources.collect(timeout):
                self.resources.receive(done)

    def _submit(
        self, method: str, arguments: tuple[object, ...], priority: tuple[float, ...], take: Callable[[JobResult], None]
    ) -> None:
        self.resources.builder.submit(Job(take, method, arguments, priority, lasting=True))

    def _take_ranking(self, problems: Sequence[TuningTask], whole: bool, done: JobResult) -> None:
        """Store the best candidates of tasks, and have the first of each built if it is still needed."""
        self.unranked.difference_update(p.key for p in problems)
        found = [(p, ranked) for p, ranked in zip(problems, done.value or (), strict=False) if ranked]
        building = {p.key for p, _ in found if whole}
        for problem, ranked in found:
            self.resources.ranked.setdefault(space_key(problem, self.settings), list(ranked))
            if problem.key in building & self.unbuilt:
                self._build(problem, ranked[:MAX_BUILD_ATTEMPTS])
        self.unbuilt.difference_update({p.key for p in problems} - building)

    def _build(self, problem: TuningTask, ranked: Sequence[ScoredCandidate]) -> None:
        """Have the first of some candidates built, or the next one where the compiler rejects it."""
        schedule = ranked[0].candidate.schedule
        self.in_progress.add(_place(problem, schedule))
        self._submit("build", (problem, schedule), BUILD_PRIORITY, partial(self._take_built, problem, ranked))

    def _take_built(self, problem: TuningTask, ranked: Sequence[ScoredCandidate], done: JobResult) -> None:
        """Store a built kernel; remove a rejected candidate from the ranking."""
        first, rest = ranked[0], ranked[1:]
        place, key = _place(problem, first.candidate.schedule), space_key(problem, self.settings)
        self.in_progress.discard(place)
        if isinstance(done.value, BuildResult) and done.value.outcome == "ok":
            self.resources.keep_built(place, done.value, done.seconds, ahead=True)
            self.unbuilt.discard(problem.key)
            self._built.add(form_key(problem.form))
            return
        self.resources.ranked[key] = [each for each in self.resources.ranked[key] if each != first]
        if rest and problem.key in self.unbuilt:
            self._build(problem, rest)
        else:
            self.unbuilt.discard(problem.key)
