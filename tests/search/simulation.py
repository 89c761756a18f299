"""Simulated GPU with workers and a clock of their own.

Jobs are done at once, but take simulated time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import count

from attrs import define, field
from cuts.ir.compiled import Budget, KernelFunction
from cuts.search.building.factory import BuildResult
from cuts.search.building.workers import Job, JobResult
from cuts.search.database import Database
from cuts.search.measurement.bench import ImmediateBench, Timed
from cuts.search.measurement.verdicts import Verdict
from cuts.search.tasks.tuning_task import TuningTask
from cuts.search.tuner.executor import SearchExecutor

from .fakes import answer_of

#: Simulated seconds of a job by its method.
SECONDS = {
    "plan": 0.5,
    "price": 0.5,
    "rank": 0.2,
    "soon": 0.05,
    "rank_each": 0.6,
    "refer": 0.2,
    "simple": 0.05,
    "build": 0.4,
    "go_on": 1.3,
    "propose": 0.02,
    "bundle": 0.6,
    "bundle_row": 0.2,
    "prove": 0.1,
}


@define
class FakeClock:
    """Time that advances by declared durations.

    `alarm` is called once `pipeline` seconds have passed.
    """

    now: float = 0.0
    ring: float = float("inf")
    alarm: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now

    def pass_by(self, seconds: float) -> None:
        """Let time go on."""
        self.now += seconds
        if self.now >= self.ring:
            self.ring = float("inf")
            self.alarm()

    def until(self, moment: float) -> None:
        """Let time go on to a moment, if that is to come."""
        if moment > self.now:
            self.pass_by(moment - self.now)

    def running(self) -> AbstractContextManager[None]:
        """Take no time for this process's work."""
        return nullcontext()


@define
class SimulatedWorkers:
    """Workers that take simulated time.

    Those of `lost` methods never answer, and are given up after a job's limit.
    """

    clock: FakeClock
    size: int = 4
    seconds: Mapping[str, float] = SECONDS
    lost: frozenset[str] = frozenset()
    queue: list[tuple[tuple[float, ...], int, float, Job]] = field(factory=list)
    running: list[tuple[float, int, JobResult]] = field(factory=list)
    numbers: count[int] = field(factory=count)
    free: list[float] = field(init=False)

    @free.default
    def _start(self) -> list[float]:
        return [self.clock() + 2.0] * self.size  # time in which a process imports the package

    @property
    def load(self) -> int:
        """Jobs queued or under way."""
        return len(self.queue) + len(self.running)

    def submit(self, job: Job) -> None:
        """Put a job into the queue."""
        heapq.heappush(self.queue, (job.priority, next(self.numbers), self.clock(), job))

    def collect(self, timeout: float) -> list[JobResult]:
        """Return finished jobs; let time advance to the next answer.

        It advances by no more than `timeout`.
        """
        end = self.clock() + (max(1e-6, timeout) if timeout else 0.0)  # a shorter one would leave the clock as it is
        while True:
            self._begin()
            found = []
            while self.running and self.running[0][0] <= self.clock():
                found.append(heapq.heappop(self.running)[2])
            if found or self.clock() >= end:
                return found
            coming = [end, *(t for t, _, _ in self.running[:1]), *([min(self.free)] if self.queue else [])]
            self.clock.pass_by(max(1e-9, min(t for t in coming if t > self.clock()) - self.clock()))

    def _begin(self) -> None:
        while self.queue and min(self.free) <= self.clock():
            _, number, since, job = heapq.heappop(self.queue)
            worker = self.free.index(min(self.free))
            hangs = job.method in self.lost
            taken = job.limit if hangs else self.seconds[job.method]
            answer = None if hangs else self._answer(job)
            done = JobResult(job, answer, "no answer" if hangs else "", lost=hangs, hung=hangs, seconds=taken)
            self.free[worker] = max(self.free[worker], since) + taken
            heapq.heappush(self.running, (self.free[worker], number, done))

    def _answer(self, job: Job) -> object:
        if job.method in ("refer", "prove"):
            return None
        now = self.clock.now
        answer = answer_of(job)
        self.clock.now = now  # it is another process whose time that is
        return answer

    def drop(self, lasting: bool = False) -> list[Job]:
        """Forget all jobs, lasting ones only on request."""
        lasts = [entry for entry in self.queue if entry[-1].lasting]
        self.queue = [] if lasting else lasts
        self.running = [entry for entry in self.running if entry[-1].job.lasting]
        heapq.heapify(self.queue)
        heapq.heapify(self.running)
        return [entry[-1] for entry in lasts] if lasting else []

    def close(self) -> None:
        """Forget all jobs, and wait for the processes to end."""
        self.queue.clear()
        self.running.clear()
        self.clock.pass_by(0.2)


@define(eq=False)
class SimulatedGPU(ImmediateBench):
    """Bench that takes simulated time: `cost` gives the seconds of a kernel."""

    clock: FakeClock
    cost: Callable[[KernelFunction], float]
    times: dict[str, float] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.clock.pass_by(3.0)  # time in which a driver makes a context

    def check(self, problem: TuningTask, built: BuildResult) -> Verdict:
        """Find every kernel right."""
        self.clock.pass_by(0.02)
        return Verdict("ok")

    def sample(self, problem: TuningTask, built: BuildResult, repeats: int) -> Timed:
        """Time a kernel."""
        assert built.kernel is not None
        seconds = self.cost(built.kernel)
        self.clock.pass_by(repeats * seconds + 1e-3)
        self.times[problem.key] = min(seconds, self.times.get(problem.key, float("inf")))
        return Timed((seconds,) * repeats)

    def close(self) -> None:
        """Wait for the process to end."""
        self.clock.pass_by(0.5)


def constant_time(kernel: KernelFunction) -> float:
    """Return the time of any kernel, unless a test gives another."""
    return 1e-4


def session(
    budget: Budget,
    clock: FakeClock,
    lost: frozenset[str] = frozenset(),
    cost: Callable[[KernelFunction], float] = constant_time,
    **slow: float,
) -> SearchExecutor:
    """Return executor of a simulated machine.

    `slow` gives methods of workers other seconds.
    """
    workers = lambda: SimulatedWorkers(clock, seconds={**SECONDS, **slow}, lost=lost)  # noqa: E731
    return SearchExecutor(Database(None), workers, lambda: SimulatedGPU(clock, cost), budget)
