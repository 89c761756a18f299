"""Speculative builds: idle workers prepare the kernels of the current plan.

While this process decides about the groups of a graph, they rank the spaces of these kernels and build the first
candidate of each. The end of a budget then finds little unfinished work, and the device has candidates to time as soon
as groups are decided.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial

from attrs import define, field

from ...passes.fusion import form_key
from ..building import BuildResult, JobResult, ScoredCandidate
from ..settings import Settings
from ..tasks import TuningTask
from ..tuner import SearchExecutor, space_key
from .plan_builds import POLL_SECONDS, Place, job_place, kernel_place
from .speculative_search import SpeculativeSearch

#: Largest number of candidates of a task that are built until the compiler accepts one.
MAX_BUILD_ATTEMPTS = 3
#: Tasks whose spaces a worker ranks in one job, as this process may have no time for it for a while, and the priorities
#: of speculative jobs, below all awaited ones.
TASKS_PER_RANKING, RANKING_PRIORITY, BUILD_PRIORITY = 3, (2.0, 0.0), (2.0, 1.0)
#: Seconds between two checks of the workers' results.
CHECK_SECONDS = 0.05


@define
class SpeculativeBuild:
    """Speculative builds of tasks by workers.

    All spaces are ranked before a kernel is built, so that an unmeasured kernel is at least the cost model's choice.
    `coming` has the kernels that workers have yet to build.
    """

    executor: SearchExecutor
    settings: Settings
    unranked: set[str] = field(factory=set)
    unbuilt: set[str] = field(factory=set)
    in_progress: set[Place] = field(factory=set)
    searches_ahead: SpeculativeSearch = field(init=False)
    _built: set[Hashable] = field(factory=set)
    _last_check: float = field(default=0.0, init=False)

    @searches_ahead.default
    def _default_searches_ahead(self) -> SpeculativeSearch:
        return SpeculativeSearch(self.executor, self.settings)

    @property
    def missing(self) -> int:
        """Number of requested tasks that are not built yet."""
        return len(self.unbuilt)

    def has_built(self, form: Hashable) -> bool:
        """Return whether a kernel of a form was built, by key."""
        return form in self._built

    def begin(self, problems: Sequence[TuningTask], whole: bool = True) -> None:
        """Have new tasks built in order, or only ranked unless `whole`."""
        ranked = self.executor.memory.ranked
        missing = [p for p in problems if space_key(p, self.settings) not in ranked and p.key not in self.unbuilt]
        self.unranked.update(p.key for p in missing)
        self.unbuilt.update(p.key for p in missing)
        settings, count = self.settings, max(1, self.settings.first)
        for number in range(0, len(missing), TASKS_PER_RANKING):
            some = missing[number : number + TASKS_PER_RANKING]
            wishes = [self.executor.memory.ranking(p, settings.pruning, count, settings.correction) for p in some]
            self._submit("rank_each", (wishes,), RANKING_PRIORITY, partial(self._take_ranking, some, whole))

    def receive(self) -> None:
        """Receive results at intervals, so that workers get further jobs."""
        now = self.executor.elapsed
        if (self.unbuilt or self.searches_ahead.waiting) and now >= self._last_check + CHECK_SECONDS:
            self._last_check = now
            self._receive(0.0)

    def rank(self, problems: Sequence[TuningTask], until: float) -> None:
        """Wait for the ranking of tasks' spaces, at most `until`."""
        self.begin(problems)
        keys = {problem.key for problem in problems}
        while not (self.executor.interrupted or keys.isdisjoint(self.unranked)) and self.executor.elapsed < until:
            self._receive(POLL_SECONDS)

    def end(self) -> None:
        """Cancel all jobs that are not running."""
        if self.unbuilt or self.searches_ahead.waiting:
            forgotten = self.executor.drop(lasting=True)
            self.searches_ahead.forget(forgotten)
            self.in_progress.difference_update(job_place(job) for job in forgotten if job.method == "build")
        self.unranked.clear()
        self.unbuilt.clear()

    def _receive(self, timeout: float) -> None:
        with self.executor.interruptible():
            self.executor.receive(timeout)

    def _submit(
        self, method: str, arguments: tuple[object, ...], priority: tuple[float, ...], take: Callable[[JobResult], None]
    ) -> None:
        self.executor.submit(take, method, *arguments, priority=priority, lasting=True)

    def _take_ranking(self, problems: Sequence[TuningTask], whole: bool, done: JobResult) -> None:
        """Store the best candidates of tasks, and have the first of each built if it is still needed."""
        self.unranked.difference_update(p.key for p in problems)
        found = [(p, ranked) for p, ranked in zip(problems, done.value or (), strict=False) if ranked]
        building = {p.key for p, _ in found if whole}
        for problem, ranked in found:
            self.executor.memory.ranked.setdefault(space_key(problem, self.settings), list(ranked))
            if problem.key in building & self.unbuilt:
                self._build(problem, ranked[:MAX_BUILD_ATTEMPTS])
        self.unbuilt.difference_update({p.key for p in problems} - building)

    def _build(self, problem: TuningTask, ranked: Sequence[ScoredCandidate]) -> None:
        """Have the first of some candidates built, or the next one where the compiler rejects it."""
        schedule = ranked[0].candidate.schedule
        self.in_progress.add(kernel_place(problem, schedule))
        self._submit("build", (problem, schedule), BUILD_PRIORITY, partial(self._take_built, problem, ranked))

    def _take_built(self, problem: TuningTask, ranked: Sequence[ScoredCandidate], done: JobResult) -> None:
        """Store a built kernel; remove a rejected candidate from the ranking."""
        first, rest = ranked[0], ranked[1:]
        place, key = kernel_place(problem, first.candidate.schedule), space_key(problem, self.settings)
        self.in_progress.discard(place)
        if isinstance(done.value, BuildResult) and done.value.outcome == "ok":
            self.executor.memory.keep_built(place, done.value, done.seconds, ahead=True)
            self.unbuilt.discard(problem.key)
            self._built.add(form_key(problem.form))
            return
        self.executor.memory.ranked[key] = [each for each in self.executor.memory.ranked[key] if each != first]
        if rest and problem.key in self.unbuilt:
            self._build(problem, rest)
        else:
            self.unbuilt.discard(problem.key)
