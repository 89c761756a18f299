"""Build workers: processes that rank, lower, print and compile candidates.

Each job has a time limit. Builds run ahead of the device.
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count as count_up
from math import inf
from multiprocessing.connection import wait
from typing import Any, Protocol

from attrs import define, evolve, frozen

from ..backends.cuda import compile_kernel
from ..backends.source import unrolled_statements
from ..ir import CutsError, KernelFunction, Schedule, processor_count
from ..passes import (
    CandidateSubgraph,
    CostRequest,
    CostResult,
    MemberRow,
    ScheduleRequest,
    SubgraphKernels,
    evaluate_costs,
    partition_subgraph,
    schedule_row,
)
from ..passes.schedule import Candidate, Point, best_points, candidate_of, choose, choose_soon, make_space
from ..store import digest
from .child import START_LIMIT, Child, ChildLost
from .copies import ForkServer
from .data import Reference, make_reference
from .gc_tuning import reduce_garbage_collection
from .kernels import BundleMember, KernelSpec, make_bundle, make_kernel
from .learned import LearnedOrder, recalled_points, rescore
from .pruning_certificate import PruningCertificate, prove, simple_schedule
from .sample_points import SampledCandidates, draw
from .tuning_task import TuningTask, schedule_text

#: Seconds of lowering and compiling one candidate, at most.
COMPILE_LIMIT = 30.0
#: Largest number of unrolled statements of a kernel, for short and for long predicted times, and the seconds that
#: separate these (of 400 winners on an H200 below it, 6 had more; of 228 above, 56, but none 3300).
MAX_STATEMENTS_SHORT, MAX_STATEMENTS, SHORT_KERNEL_SECONDS = 2500, 3300, 20e-6
#: Seconds of sampling some thousand candidates of a space, at most.
DRAW_LIMIT = 300.0
#: Methods whose dropped jobs may be requested again, as one search follows another.
REUSABLE_METHODS = ("rank", "refer", "simple", "build")
#: Smallest number of workers for which forking is faster than starting programs.
MIN_FORKED_WORKERS = 2
#: Factor on the number of candidates that a learned order chooses from.
LEARNED_ORDER_FACTOR = 8


@frozen
class ScoredCandidate:
    """Candidate, and its point in the group's full space if known."""

    point: Point | None
    candidate: Candidate


@frozen
class BuildResult:
    """Built candidate for the device, or the reason for its rejection.

    The outcome is "ok", "failed", "spilled", "timeout" or "long".
    """

    kernel: KernelFunction | None
    binary: bytes | None = None
    registers: int = 0
    spill_bytes: int = 0
    outcome: str = "ok"
    message: str = ""

    @property
    def source(self) -> str:
        """Digest of the source text, which ties a result to code."""
        return digest(self.kernel.source) if self.kernel else ""


class Factory:
    """Object in a worker process: turns points into kernels."""

    def rank(
        self,
        problem: TuningTask,
        model: str,
        count: int,
        correction: LearnedOrder | None = None,
        known: Sequence[Point] = (),
    ) -> list[ScoredCandidate]:
        """Return the best candidates of a task by a model, best first.

        A learned `correction` chooses from more candidates and from the fast ones of another machine. Candidates that
        are `known` need not be found again.
        """
        space = make_space(problem.form, problem.target)
        wide = count if correction is None else LEARNED_ORDER_FACTOR * count
        points: Iterable[Point] = known or best_points(problem.form, problem.target, model, wide)
        if correction is not None:
            every = {(p.structure, p.places): p for p in (*recalled_points(space, correction, model), *points)}
            points = sorted(rescore(space, list(every.values()), correction))[:count]
        return [ScoredCandidate(p, candidate_of(space, p)) for p in points]

    def rank_each(self, wishes: Sequence[tuple[Any, ...]]) -> list[list[ScoredCandidate]]:
        """Return the best candidates of each task, for the arguments of `rank`.

        The list is empty where no point is legal.
        """
        return [self._rank_or_empty(wish) for wish in wishes]

    def _rank_or_empty(self, wish: tuple[Any, ...]) -> list[ScoredCandidate]:
        try:
            return self.rank(*wish)
        except CutsError:
            return []

    def soon(self, problem: TuningTask) -> list[ScoredCandidate]:
        """Return the best of a few candidates by the cost model.

        Raises `PassError` where no point is legal.
        """
        return [ScoredCandidate(None, choose_soon(problem.form, problem.target))]

    def plan(self, fragment: CandidateSubgraph) -> SubgraphKernels:
        """Return the kernels that a small graph is partitioned into."""
        return partition_subgraph(fragment)

    def choose(self, request: ScheduleRequest) -> Candidate:
        """Return the best candidate of a group by the cost model."""
        return choose(request.form, request.target)[0]

    def bundle_row(self, row: MemberRow) -> list[Candidate]:
        """Return the kernels of groups that share a launch."""
        return schedule_row(row)

    def price(self, pricing: CostRequest) -> CostResult:
        """Return the modelled cost of groups over one iteration space."""
        return evaluate_costs(pricing)

    def refer(self, problem: TuningTask) -> Reference | None:
        """Return the expected outputs, evaluated in float64."""
        return make_reference(problem)

    def simple(self, problem: TuningTask) -> Schedule | None:
        """Return a schedule that is simple enough to be trusted.

        It stages nothing, unrolls little and has a few warps a block.
        """
        return simple_schedule(problem.form, problem.target)

    def prove(self, problem: TuningTask, best: float) -> PruningCertificate:
        """Return the pruning certificate of a space for a time."""
        return prove(problem, best)

    def draw(self, problem: TuningTask, model: str, count: int, seed: int) -> SampledCandidates:
        """Return random legal candidates of a task, at most all."""
        return draw(problem, model, count, seed)

    def build(self, problem: TuningTask, schedule: Schedule, max_statements: float = inf) -> BuildResult:
        """Lower, print and compile one candidate.

        A kernel that spills registers is rejected; one with more than `longest` unrolled statements is not compiled.
        """
        return compile_candidate(problem, lambda: make_kernel(problem, schedule), max_statements)

    def bundle(self, problem: TuningTask, members: Sequence[BundleMember]) -> BuildResult:
        """Lower, print and compile groups that share a launch."""
        return compile_candidate(problem, lambda: make_bundle(problem, members))

    def source(self, written: KernelSpec) -> str:
        """Return the digest of the printed text, empty without one."""
        return BuildResult(written.kernel()).source


class Worker(Factory):
    """Factory in a low-priority process, to leave cores to the timing process."""

    def __init__(self) -> None:
        os.nice(5)
        reduce_garbage_collection()


def compile_candidate(
    problem: TuningTask, make: Callable[[], KernelFunction], max_statements: float = inf
) -> BuildResult:
    """Make and compile a kernel.

    A kernel that spills registers, or whose products wait for each other, is rejected, and one that is too long is not
    compiled.
    """
    try:
        kernel = make()
        if problem.target.dialect != "cuda":
            return BuildResult(kernel)
        if (statements := unrolled_statements(kernel.source) if max_statements < inf else 0) > max_statements:
            return BuildResult(None, outcome="long", message=f"{statements} statements once its loops are unrolled")
        cubin = compile_kernel(kernel, problem.target.arch, COMPILE_LIMIT)
    except CutsError as error:
        return BuildResult(None, outcome="failed", message=error.message.splitlines()[0])
    if cubin.serialised:
        return BuildResult(None, outcome="failed", message=cubin.serialised)
    if cubin.spill_bytes:
        message = f"{cubin.spill_bytes} bytes of registers spilled to memory"
        return BuildResult(kernel, None, cubin.registers, cubin.spill_bytes, "spilled", message)
    return BuildResult(kernel, cubin.code, cubin.registers)


def max_statements_of(candidate: Candidate) -> float:
    """Return the largest number of statements of a candidate's text."""
    return MAX_STATEMENTS_SHORT if candidate.score < SHORT_KERNEL_SECONDS else MAX_STATEMENTS


def build_arguments(candidate: Candidate, hasty: bool, longest: float) -> tuple[Schedule, *tuple[float, ...]]:
    """Return the arguments of a candidate's build job.

    A deeper search, which has the time, also builds long kernels.
    """
    return (candidate.schedule, *([longest] if longest < inf and hasty else []))


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
        self._fork_server = (
            ForkServer(service.partition(":")[0]) if count >= MIN_FORKED_WORKERS and ForkServer.is_supported() else None
        )
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
