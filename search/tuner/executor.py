"""Executor of a session: prioritised jobs, workers, a device, a deadline.

A job is sent with its receiver, which takes the answer when it arrives; `receive` passes arrived answers on. Workers
and device are started on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from attrs import define

from ...ir import FULL_SHARE, Budget
from ..building import COMPILE_LIMIT, CandidateBuilder, Job, JobResult
from ..database import Database
from ..measurement import Bench
from ..processes import SessionEnded
from ..trace import Statistics
from .memory import SearchMemory
from .task_record import TaskRecord

#: Seconds between two checks of the budget while workers are awaited.
POLL_SECONDS = 0.05

S = TypeVar("S")
T = TypeVar("T")
#: Receiver of a worker's answer.
Receiver = Callable[[JobResult], None]


@define(eq=False)
class WorkerQueries(Generic[T]):
    """Queries that workers answer in parallel: answers so far, and missing ones."""

    found: list[T | None]
    waiting: set[int]

    def answer(self, number: int, value: T | None) -> None:
        """Store an answer."""
        self.found[number] = value
        self.waiting.discard(number)


class SearchExecutor:
    """Workers and device of a session, until its budget ends or `close`.

    A run ends when its share of the budget is used up, which `expired` remembers. `monitor` is called with the searched
    tasks after each event. `queries` has the pending queries to workers, `has_answered` says that a worker has
    answered a query or a speculative job. `on_idle` is called once, when a search only waits for running jobs of
    workers and device.
    """

    def __init__(
        self,
        database: Database,
        builder: Callable[[], CandidateBuilder],
        bench: Callable[[], Bench],
        budget: Budget | float | None = None,
        monitor: Callable[[SearchExecutor, Sequence[TaskRecord]], None] = lambda executor, tasks: None,
    ) -> None:
        self.database = database
        self.budget = budget if isinstance(budget, Budget) else Budget.of(budget)
        self.statistics = Statistics(clock=self.budget.clock)
        self.memory = SearchMemory(self.statistics)
        self.expired = False
        self.queries: list[WorkerQueries[Any]] = []
        self.has_answered = False
        self.on_idle: Callable[[Sequence[TaskRecord]], None] | None = None
        self._makers = builder, bench
        self._builder: CandidateBuilder | None = None
        self._bench: Bench | None = None
        self._monitor = monitor

    # ---- workers and device

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
        return self.started and bool(self.has_answered or self.memory.ranked or self.statistics.building[1])

    def start(self) -> None:
        """Start the workers, without waiting for them."""
        if self._builder is None:
            self._builder = self._makers[0]()

    def close(self) -> None:
        """End the workers and release the device."""
        self.memory.trusted.clear()
        self.memory.searched_ahead.clear()
        self.queries.clear()
        self.has_answered = False
        for part in (self._builder, self._bench):
            if part is not None:
                part.close()
        self._builder = self._bench = None

    # ---- time

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

    def pause(self, share: float = FULL_SHARE) -> float:
        """Return the seconds to wait before the next check of the budget."""
        return min(0.1, self.budget.remaining(share))

    def over(self, share: float = FULL_SHARE) -> bool:
        """Return whether a share of the budget is used up; note it."""
        return self.expire(self.budget.over(share))

    def expire(self, early: bool = True) -> bool:
        """Note whether a run ends early, and return it."""
        self.expired = self.expired or early
        return early

    @contextmanager
    def ending_early(self, counts_before: bool = True) -> Iterator[None]:
        """Run a block whose early end does not count."""
        before = self.expired and counts_before
        try:
            yield
        finally:
            self.expired = before

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
            self.expire()
            self.close()

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

    # ---- jobs

    def submit(
        self,
        receiver: Receiver,
        method: str,
        *arguments: object,
        priority: tuple[float, ...] = (),
        limit: float = COMPILE_LIMIT,
        lasting: bool = False,
    ) -> None:
        """Queue a job of the workers, small priorities first.

        A `lasting` job survives a `drop`.
        """
        self.builder.submit(Job(receiver, method, arguments, priority, limit, lasting))

    def receive(self, timeout: float = 0.0) -> bool:
        """Pass arrived answers to their receivers; return whether any arrived.

        Those of speculative jobs do not count. Wait for one, at most `timeout` seconds.
        """
        arrived = self.builder.collect(timeout)
        for done in arrived:
            self.has_answered = self.has_answered or done.job.lasting
            done.job.owner(done)
        return any(not done.job.lasting for done in arrived)

    def drop(self, lasting: bool = False) -> list[Job]:
        """Drop queued jobs, with `lasting` also the lasting ones, and return these.

        Running jobs may finish.
        """
        self.queries.clear()
        return [] if self._builder is None else self._builder.drop(lasting)

    def drop_queries(self) -> None:
        """Drop pending queries: workers' further answers are for other callers."""
        if self.queries:
            self.drop()

    def ask(
        self,
        method: str,
        asked: Sequence[S],
        here: Callable[[S], T],
        share: float,
        priority: tuple[float, ...] = (),
        patient: bool = False,
    ) -> Callable[[], list[T | None]]:
        """Have workers answer queries; return a function that waits for the answers.

        Workers begin with the last query. This process answers queries too, from the other end, until the first worker
        has answered, because workers take a while to start or still do earlier jobs. It does not where workers have no
        other work: they would wait for this process. Answers are awaited until `share` of the budget is used up.
        Without a budget the plan depends on all answers: a `patient` caller waits until the budget is overdue.
        """

        def over() -> bool:
            return self.interrupted if patient and not self.budget.overdue() else self.over(share)

        asking: WorkerQueries[T] = WorkerQueries([None] * len(asked), set(range(len(asked))))

        def take(number: int, done: JobResult) -> None:
            self.has_answered = True
            asking.answer(number, done.value)

        with self.interruptible():
            for number in reversed(range(len(asked))) if not over() else ():
                self.submit(partial(take, number), method, asked[number], priority=priority)
            self.queries.append(asking)

        def wait() -> list[T | None]:
            with self.interruptible():
                alone = not self.has_answered or len(self.queries) > 1
                while asking in self.queries and asking.waiting and not over():
                    alone = not self.receive(0.0 if alone else self.pause(share) or POLL_SECONDS) and alone
                    if alone and asking.waiting:
                        number = min(asking.waiting)
                        asking.answer(number, here(asked[number]))
                while asking in self.queries and asking.waiting and self.receive():
                    pass  # answers that arrived while this process computed one
            self.queries = [each for each in self.queries if each is not asking]
            if not self.queries:
                self.drop()
            return asking.found

        return wait
