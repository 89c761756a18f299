"""Workers: a pool of processes that do jobs in order of priority.

Each job has a time limit.
"""

from __future__ import annotations

import heapq
import time
from contextlib import suppress
from itertools import count as count_up
from math import inf
from multiprocessing.connection import wait
from typing import Any, Protocol

from attrs import define, evolve, frozen

from ...ir import CutsError, Schedule, processor_count
from ..processes import START_LIMIT, Child, ChildLost, ForkServer
from ..tasks import (
    TuningTask,
    schedule_text,
)
from .factory import COMPILE_LIMIT

#: Methods whose dropped jobs may be requested again, as one search follows another.
REUSABLE_METHODS = ("rank", "refer", "simple", "build")


@frozen
class Job:
    """Request to a worker: a method of `Factory`, arguments, and the receiver.

    Small priorities go first. A `lasting` job survives when others are dropped.
    """

    owner: Any
    method: str
    arguments: tuple[object, ...]
    priority: tuple[float, ...] = ()
    limit: float = COMPILE_LIMIT
    lasting: bool = False

    @property
    def text(self) -> str:
        """Key of a job whose answer may be requested again, else empty."""
        if self.method not in REUSABLE_METHODS or not isinstance(self.arguments[0], TuningTask):
            return ""
        wishes = (schedule_text(each) if isinstance(each, Schedule) else repr(each) for each in self.arguments[1:])
        return " ".join((self.method, self.arguments[0].key, *wishes))


@frozen
class JobResult:
    """Answer to a job, or its error; it took the worker `seconds`.

    `lost` says that the worker crashed or exceeded the job's limit (`hung`).
    """

    job: Job
    value: Any = None
    error: str = ""
    lost: bool = False
    hung: bool = False
    seconds: float = 0.0


class CandidateBuilder(Protocol):
    """Interface of a background job queue."""

    def submit(self, job: Job) -> None:
        """Queue a job."""
        ...

    def collect(self, timeout: float) -> list[JobResult]:
        """Return finished jobs; wait for one, at most `timeout` seconds."""
        ...

    @property
    def size(self) -> int:
        """Number of jobs that run at once."""
        ...

    @property
    def load(self) -> int:
        """Number of queued and running jobs."""
        ...

    def drop(self, lasting: bool = False) -> list[Job]:
        """Drop queued and running jobs; return the lasting ones dropped.

        A `lasting` job is dropped only if requested and not running. Dropped jobs get no answer unless submitted again.
        """
        ...

    def close(self) -> None:
        """Drop all jobs and end the workers."""
        ...


@define
class _Slot:
    child: Child
    job: Job | None = None
    number: int = 0
    begun: float = 0.0
    deadline: float = 0.0
    dropped: bool = False


class Workers:
    """Pool of worker processes.

    A worker that ends or exceeds the limit of its job is replaced. A job whose worker ended is given to another worker
    once; a second crash, or an exceeded limit, costs that job only.
    """

    def __init__(self, count: int | None = None, service: str = "cuts.search.strategies.worker:SearchWorker") -> None:
        count = max(1, count or processor_count())
        self._fork_server = ForkServer(service.partition(":")[0]) if ForkServer.is_supported() else None
        self._slots = [_Slot(Child(service, fork_server=self._fork_server)) for _ in range(count)]
        for slot in self._slots:
            with suppress(OSError):  # started again by the first request
                slot.child.start()
        self._queue: list[tuple[tuple[float, ...], int, Job]] = []
        self._numbers = count_up()
        self._retried: set[int] = set()
        self._done: list[JobResult] = []
        self._unclaimed: dict[str, JobResult] = {}

    @property
    def size(self) -> int:
        """Number of jobs that run at once."""
        return len(self._slots)

    @property
    def load(self) -> int:
        """Number of queued and running jobs."""
        return len(self._queue) + sum(s.job is not None for s in self._slots)

    def submit(self, job: Job) -> None:
        """Queue a job; an idle worker starts on it at once.

        A job that was dropped while it was running gets the answer of that run.
        """
        if self._unclaimed or any(slot.dropped for slot in self._slots):
            text = job.text
            if text and text in self._unclaimed:
                self._done.append(evolve(self._unclaimed.pop(text), job=job))
                return
            for slot in self._slots:
                if text and slot.dropped and slot.job is not None and slot.job.text == text:
                    slot.job, slot.dropped = job, False
                    return
        heapq.heappush(self._queue, (job.priority, next(self._numbers), job))
        self._assign()

    def collect(self, timeout: float) -> list[JobResult]:
        """Return finished jobs; wait for one, at most `timeout` seconds."""
        self._assign()
        busy = [s for s in self._slots if s.job is not None]
        if busy and not self._done:
            soonest = min(s.deadline for s in busy) - time.monotonic()
            wait([s.child.connection for s in busy], max(0.0, min(timeout, soonest)))
        for slot in busy:
            if self._is_over(slot):
                self._finish(slot)
        self._assign()
        done, self._done = self._done, []
        return done

    def drop(self, lasting: bool = False) -> list[Job]:
        """Drop queued jobs, and return the lasting ones dropped.

        Running jobs finish without a receiver, except lasting ones.
        """
        lasts = [entry for entry in self._queue if entry[-1].lasting]
        self._queue = [] if lasting else lasts
        heapq.heapify(self._queue)
        self._unclaimed.update((done.job.text, done) for done in self._done if done.job.text and not done.lost)
        self._done = [done for done in self._done if done.job.lasting]
        for slot in self._slots:
            slot.dropped = slot.job is not None and not slot.job.lasting
        return [entry[-1] for entry in lasts] if lasting else []

    def close(self) -> None:
        """End all workers."""
        self._queue.clear()
        for slot in self._slots:
            slot.child.kill()
        if self._fork_server is not None:
            self._fork_server.close()

    def _assign(self) -> None:
        for slot in self._slots:
            while slot.job is None and self._queue:
                _, number, job = heapq.heappop(self._queue)
                try:
                    slot.child.send(job.method, *job.arguments)
                except ChildLost as lost:
                    if not self._put_back(job, number):
                        self._done.append(JobResult(job, error=str(lost), lost=True))
                    continue
                slot.job, slot.number, slot.dropped = job, number, False
                slot.begun, slot.deadline = time.monotonic(), inf

    def _put_back(self, job: Job, number: int) -> bool:
        """Put a job whose worker ended back into the queue, once; return whether that was done."""
        if number in self._retried:
            return False
        self._retried.add(number)
        heapq.heappush(self._queue, (job.priority, number, job))
        return True

    @staticmethod
    def _is_over(slot: _Slot) -> bool:
        """Return whether a job is answered, lost, or out of time.

        Its time begins when the process has started; the message that it has started is no answer.
        """
        child, job = slot.child, slot.job
        assert job is not None
        try:
            if slot.deadline == inf:
                if not child.ready(0):
                    return time.monotonic() > slot.begun + START_LIMIT
                slot.deadline = time.monotonic() + job.limit
            return time.monotonic() > slot.deadline or child.connection.poll(0)
        except (EOFError, OSError):
            return True

    def _finish(self, slot: _Slot) -> None:
        job, slot.job = slot.job, None
        assert job is not None
        begun = max(slot.begun, slot.deadline - job.limit) if slot.deadline < inf else slot.begun
        try:
            done = JobResult(job, slot.child.receive(0.0, start=0.0), seconds=time.monotonic() - begun)
        except ChildLost as lost:
            if not (lost.hung or slot.dropped) and self._put_back(job, slot.number):
                return
            reason = f"no answer in {job.limit:g} seconds" if lost.hung else str(lost)
            done = JobResult(job, error=reason, lost=True, hung=lost.hung)
        except CutsError as error:
            done = JobResult(job, error=error.message)
        if not slot.dropped:
            self._done.append(done)
        elif job.text and not done.lost:
            self._unclaimed[job.text] = done
        slot.dropped = False
