"""Shared resources of searches: database, workers, device and budget.

Workers and device are started on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from attrs import define

from ...ir import FULL_SHARE, Budget, KernelFunction, Schedule
from ...passes.fusion import form_key
from ...passes.schedule import RANKED_POINTS, Point
from ..building import BuildResult, CandidateBuilder, Job, JobResult, ScoredCandidate
from ..database import Database
from ..learned import LearnedOrder
from ..measurement import Bench
from ..processes import SessionEnded
from ..tasks import TuningTask, schedule_text
from ..trace import Statistics
from .task_record import TaskRecord

T = TypeVar("T")


@define(eq=False)
class WorkerQueries(Generic[T]):
    """Queries that workers answer in parallel: answers so far, and missing ones."""

    found: list[T | None]
    waiting: set[int]

    def answer(self, number: int, value: T | None) -> None:
        """Store an answer."""
        self.found[number] = value
        self.waiting.discard(number)


class Resources:
    """Workers, device, database, budget and statistics of all searches of a session.

    Workers and device live until `close`. A run ends when `share` of the budget is used up. `monitor` is called with
    the searched tasks after each event. `ranked` has the best candidates of ranked spaces, `hill_climbed` those that a
    hill climb found for the cost of a group, `trusted` the tasks whose simple kernel was checked. `queries` has the
    pending queries to workers, `has_answered` says that a worker has answered. `kernels` has the kernels that workers
    built, by task and schedule or by the name of a launch; `ready` has speculatively built ones in the device's form.
    `searched_ahead` are the tasks of speculative searches, `quickly_searched` those whose first candidates a short
    search has measured. `on_idle` is called once, when a search only waits for running jobs of workers and device.
    """

    def __init__(
        self,
        database: Database,
        builder: Callable[[], CandidateBuilder],
        bench: Callable[[], Bench],
        budget: Budget | float | None = None,
        monitor: Callable[[Resources, Sequence[TaskRecord]], None] = lambda resources, tasks: None,
    ) -> None:
        self.database = database
        self.budget = budget if isinstance(budget, Budget) else Budget.of(budget)
        self.share = FULL_SHARE
        self.statistics = Statistics(clock=self.budget.clock)
        self.expired = False
        self.ranked: dict[Hashable, list[ScoredCandidate]] = {}
        self.hill_climbed: dict[Hashable, Sequence[Point]] = {}
        self.trusted: set[str] = set()
        self.queries: list[WorkerQueries[Any]] = []
        self.has_answered = False
        self.kernels: dict[tuple[str, str], KernelFunction] = {}
        self.ready: dict[tuple[str, str], BuildResult] = {}
        self.searched_ahead: set[str] = set()
        self.quickly_searched: set[str] = set()
        self.on_idle: Callable[[Sequence[TaskRecord]], None] | None = None
        self._makers = builder, bench
        self._builder: CandidateBuilder | None = None
        self._bench: Bench | None = None
        self._monitor = monitor

    @property
    def builder(self) -> CandidateBuilder:
        """Worker processes."""
        self.start()
        assert self._builder is not None
        return self._builder

    @property
    def bench(self) -> Bench:
        """Device that checks and times."""
        if self._bench is None:
            self._bench = self._makers[1]()
        return self._bench

    @property
    def opened(self) -> bool:
        """True if the device was opened."""
        return self._bench is not None

    @property
    def started(self) -> bool:
        """True if the workers were started."""
        return self._builder is not None

    @property
    def workers_answered(self) -> bool:
        """True if a worker has answered anything yet."""
        return self.started and bool(self.has_answered or self.ranked or self.statistics.building[1])

    def start(self) -> None:
        """Start the workers, without waiting for them."""
        if self._builder is None:
            self._builder = self._makers[0]()

    @property
    def interrupted(self) -> bool:
        """True if the session was interrupted."""
        return self.budget.stopped

    @property
    def complete(self) -> bool:
        """True if every search so far ran to its end."""
        return not (self.interrupted or self.expired)

    @property
    def elapsed(self) -> float:
        """Seconds since the session began."""
        return self.budget.elapsed

    @property
    def pause(self) -> float:
        """Seconds to wait before the next check of the budget."""
        return min(0.1, self.budget.remaining(self.share))

    def over(self, share: float | None = None) -> bool:
        """Return whether the run must end by its share of the budget.

        A run that had to end is remembered in `expired`.
        """
        over = self.budget.over(self.share if share is None else share)
        self.expired = self.expired or over
        return over

    def ranking(self, problem: TuningTask, model: str, count: int, correction: LearnedOrder | None) -> tuple[Any, ...]:
        """Return the arguments of a worker's ranking of a task.

        They include the candidates of the hill climb for its cost, where the settings are the same.
        """
        same = (model, count, correction) == ("bound", RANKED_POINTS, None)
        return problem, model, count, correction, self.hill_climbed.get(form_key(problem.form), ()) if same else ()

    def report(self, tasks: Sequence[TaskRecord]) -> None:
        """Show the monitor the state of the tasks."""
        self._monitor(self, tasks)

    @contextmanager
    def calling_when_idle(self, then: Callable[[Sequence[TaskRecord]], None] | None) -> Iterator[None]:
        """Call `then` once when a search in a block has idle workers."""
        self.on_idle = then
        try:
            yield
        finally:
            self.on_idle = None

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """End a block on an interrupt or at the budget's end.

        Pending jobs are dropped then.
        """
        try:
            yield
        except KeyboardInterrupt:
            self.budget.stop()
            self.close()
        except SessionEnded:
            self.expired = True
            self.close()

    def collect(self, timeout: float) -> list[JobResult]:
        """Return finished jobs since the last call, after at most `timeout` seconds.

        Speculative builds are passed to their owner instead.
        """
        found = []
        for done in self.builder.collect(timeout):
            if done.job.lasting:
                self.has_answered = True
                done.job.owner(done)
            else:
                found.append(done)
        return found

    def receive(self, done: JobResult) -> bool:
        """Store the answer to a query; return whether it is one.

        Answers to jobs of an ended search are dropped.
        """
        self.has_answered = True
        asking, number = done.job.owner if isinstance(done.job.owner, tuple) else (None, 0)
        if not isinstance(asking, WorkerQueries):
            return False
        asking.answer(number, done.value)
        return True

    def keep_kernel(self, problem: TuningTask, schedule: Schedule, done: JobResult) -> None:
        """Store a kernel that a worker built, and its build time."""
        if isinstance(done.value, BuildResult):
            self.keep_built((problem.key, schedule_text(schedule)), done.value, done.seconds)

    def keep_built(self, place: tuple[str, str], built: BuildResult, seconds: float, ahead: bool = False) -> None:
        """Store a kernel and its build time, with `ahead` for the device."""
        self.statistics.note_built(seconds)
        if built.kernel is not None:
            self.kernels[place] = built.kernel
        if ahead:
            self.ready[place] = built

    def close_queries(self, asking: WorkerQueries[Any]) -> None:
        """Stop waiting for some answers; without others pending, drop all queries."""
        self.queries = [each for each in self.queries if each is not asking]
        if not self.queries:
            self.drop()

    def drop_queries(self) -> None:
        """Drop pending queries: workers' further answers are for other callers."""
        if self.queries:
            self.drop()

    def drop(self, lasting: bool = False) -> list[Job]:
        """Drop queued jobs, with `lasting` also the lasting ones, and return these.

        Running jobs may finish.
        """
        self.queries.clear()
        return [] if self._builder is None else self._builder.drop(lasting)

    def close(self) -> None:
        """End the workers and release the device."""
        self.trusted.clear()
        self.queries.clear()
        self.searched_ahead.clear()
        self.has_answered = False
        for part in (self._builder, self._bench):
            if part is not None:
                part.close()
        self._builder = self._bench = None
