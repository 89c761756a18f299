"""Building candidates ahead of the device: worker processes rank points, lower, print and compile them,
each with a time limit.
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
from ..ir import CutsError, FusedGroup, KernelFunction, Schedule, Target, cores
from ..passes import Alike, Fragment, Priced, Prices, Pricing, cut_fragment, price, scheduled_alike
from ..passes.schedule import Candidate, Point, best_points, candidate_of, choose, choose_soon, make_space
from .child import START_LIMIT, Child, Lost
from .copies import Nursery
from .data import Reference, make_reference
from .kernels import BundleMember, Written, make_bundle, make_kernel
from .learned import LearnedOrder, recalled_points, rescored
from .memory import collect_seldom
from .problem import Problem, digest, schedule_text
from .proof import Proof, prove, simple_schedule
from .sample_points import Drawn, draw

#: Seconds that one candidate may take to be lowered and compiled.
COMPILE_LIMIT = 30.0
#: Statements of an unrolled text that take a compiler long, and the seconds by the model below which a kernel of more
#: hardly ever wins: of 400 winners on an H200 that take less, 6 had more; of 228 that take longer, 56, but none 3300.
LONG, LONGEST, BRIEF = 2500, 3300, 20e-6
#: Seconds in which some thousand points must be drawn from a space.
DRAW_LIMIT = 300.0
#: What may be asked again where it was dropped, as one search follows another.
AGAIN = ("rank", "refer", "simple", "build")
#: Workers from which on it is faster to copy one process than to start each as a program.
MANY = 2
#: Of how many times as many points of the model the best are chosen by what was learned.
WIDER = 8


@frozen
class Scored:
    """A candidate, and the point of the group's full space that it is where that is known."""

    point: Point | None
    candidate: Candidate


@frozen
class Built:
    """A candidate as the device gets it, or why it was refused: "failed", "spilled", "timeout" or "long"."""

    kernel: KernelFunction | None
    binary: bytes | None = None
    registers: int = 0
    spill_bytes: int = 0
    outcome: str = "ok"
    message: str = ""

    @property
    def source(self) -> str:
        """A digest of the source text, by which a stored result is tied to the code that it was measured with."""
        return digest(self.kernel.source) if self.kernel else ""


class Factory:
    """What a worker process hosts: it turns points into kernels."""

    def rank(
        self,
        problem: Problem,
        model: str,
        count: int,
        correction: LearnedOrder | None = None,
        known: Sequence[Point] = (),
    ) -> list[Scored]:
        """Return the best points of a problem by a model, best first; those of a wider choice, and of what was fast on
        another machine, where what was learned corrects the model. They need not be found where they are `known`.
        """
        space = make_space(problem.form, problem.target)
        wide = count if correction is None else WIDER * count
        points: Iterable[Point] = known or best_points(problem.form, problem.target, model, wide)
        if correction is not None:
            every = {(p.structure, p.places): p for p in (*recalled_points(space, correction, model), *points)}
            points = sorted(rescored(space, list(every.values()), correction))[:count]
        return [Scored(p, candidate_of(space, p)) for p in points]

    def rank_each(self, wishes: Sequence[tuple[Any, ...]]) -> list[list[Scored]]:
        """Return the best points of each of some problems, as `rank` is asked for them; none where no point is
        legal.
        """
        return [self._ranked(wish) for wish in wishes]

    def _ranked(self, wish: tuple[Any, ...]) -> list[Scored]:
        try:
            return self.rank(*wish)
        except CutsError:
            return []

    def soon(self, problem: Problem) -> list[Scored]:
        """Return the best of a few points of a problem by the model.

        Raises `PassError` where no point is legal.
        """
        return [Scored(None, choose_soon(problem.form, problem.target))]

    def plan(self, fragment: Fragment) -> Priced:
        """Return the kernels that a small graph is cut into."""
        return cut_fragment(fragment)

    def choose(self, form: FusedGroup, target: Target) -> Candidate:
        """Return the best point of a group by the model."""
        return choose(form, target)[0]

    def alike(self, row: Alike) -> list[Candidate]:
        """Return kernels as one of several in a launch."""
        return scheduled_alike(row)

    def price(self, pricing: Pricing) -> Prices:
        """Return what groups over one iteration space cost by the model."""
        return price(pricing)

    def refer(self, problem: Problem) -> Reference | None:
        """Return what the outputs must be, evaluated in float64."""
        return make_reference(problem)

    def simple(self, problem: Problem) -> Schedule | None:
        """Return a schedule that is simple enough to be trusted:
        nothing staged, little unrolled, a few warps a block.
        """
        return simple_schedule(problem.form, problem.target)

    def prove(self, problem: Problem, best: float) -> Proof:
        """Return how much of the space is proven slower than a time."""
        return prove(problem, best)

    def draw(self, problem: Problem, model: str, count: int, seed: int) -> Drawn:
        """Return random legal points of a problem's space, all of them where there are no more."""
        return draw(problem, model, count, seed)

    def build(self, problem: Problem, schedule: Schedule, longest: float = inf) -> Built:
        """Lower, print and compile one candidate; a kernel that spills registers is refused, and one of more unrolled
        statements than the longest is not compiled.
        """
        return compiled(problem, lambda: make_kernel(problem, schedule), longest)

    def bundle(self, problem: Problem, members: Sequence[BundleMember]) -> Built:
        """Lower, print and compile groups that share a launch, which together are the problem."""
        return compiled(problem, lambda: make_bundle(problem, members))

    def source(self, written: Written) -> str:
        """Return the digest of the text that this version writes; nothing where it writes none."""
        return Built(written.kernel()).source


class Worker(Factory):
    """A factory in a process of its own, which gives way to the process that times."""

    def __init__(self) -> None:
        os.nice(5)
        collect_seldom()


def compiled(problem: Problem, make: Callable[[], KernelFunction], longest: float = inf) -> Built:
    """Make a kernel and compile it; one that spills registers is refused, and one that is too long not compiled."""
    try:
        kernel = make()
        if problem.target.dialect != "cuda":
            return Built(kernel)
        if (statements := unrolled_statements(kernel.source) if longest < inf else 0) > longest:
            return Built(None, outcome="long", message=f"{statements} statements once its loops are unrolled")
        cubin = compile_kernel(kernel, problem.target.arch, COMPILE_LIMIT)
    except CutsError as error:
        return Built(None, outcome="failed", message=error.message.splitlines()[0])
    if cubin.spill_bytes:
        message = f"{cubin.spill_bytes} bytes of registers spilled to memory"
        return Built(kernel, None, cubin.registers, cubin.spill_bytes, "spilled", message)
    return Built(kernel, cubin.code, cubin.registers)


def longest_of(candidate: Candidate) -> float:
    """Return how many statements the text of a candidate may have."""
    return LONG if candidate.score < BRIEF else LONGEST


def wishes_of(candidate: Candidate, hasty: bool, longest: float) -> tuple[Schedule, *tuple[float, ...]]:
    """Return what a worker is told of a candidate to build: a deeper search, which has the time, builds what one before
    it found too long.
    """
    return (candidate.schedule, *([longest] if longest < inf and hasty else []))


@frozen
class Job:
    """A request to a worker: a method of `Factory` with its arguments, and whom the answer is for;
    small priorities go first. One that is `lasting` is not forgotten with what others asked for.
    """

    owner: Any
    method: str
    arguments: tuple[object, ...]
    priority: tuple[float, ...] = ()
    limit: float = COMPILE_LIMIT
    lasting: bool = False

    @property
    def text(self) -> str:
        """What tells the job from others whose answers may be asked for again; nothing for what is about anything
        else.
        """
        if self.method not in AGAIN or not isinstance(self.arguments[0], Problem):
            return ""
        wishes = (schedule_text(each) if isinstance(each, Schedule) else repr(each) for each in self.arguments[1:])
        return " ".join((self.method, self.arguments[0].key, *wishes))


@frozen
class Done:
    """The answer to a job, or the error that took its place; `lost` says that the worker crashed or exceeded the job's
    limit (`hung`), so that there was no answer. It took the worker so many `seconds`.
    """

    job: Job
    value: Any = None
    error: str = ""
    lost: bool = False
    hung: bool = False
    seconds: float = 0.0


class CandidateBuilder(Protocol):
    """Does jobs in the background."""

    def submit(self, job: Job) -> None:
        """Put a job into the queue."""
        ...

    def collect(self, timeout: float) -> list[Done]:
        """Return the jobs that have been done since the last call; wait for one, but no longer than `timeout`."""
        ...

    @property
    def size(self) -> int:
        """How many jobs run at once."""
        ...

    @property
    def load(self) -> int:
        """Jobs queued or under way."""
        ...

    def drop(self, lasting: bool = False) -> list[Job]:
        """Forget every job that is queued or under way, but those that are `lasting` only where that is said, and where
        no worker is at them: none of them is answered any more, unless it is asked again. Return the lasting ones.
        """
        ...

    def close(self) -> None:
        """Drop what is left and end the workers."""
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
    """A pool of worker processes; one that ends or exceeds the limit of its job is replaced. A job whose worker ended,
    for which it may be no reason, is done by another one; the second that ends, or one that exceeds the limit, costs
    that job only.
    """

    def __init__(self, count: int | None = None, service: str = "cuts.search.strategies.worker:SearchWorker") -> None:
        count = max(1, count or cores())
        self._nursery = Nursery(service.partition(":")[0]) if count >= MANY and Nursery.possible() else None
        self._slots = [_Slot(Child(service, nursery=self._nursery)) for _ in range(count)]
        for slot in self._slots:
            with suppress(OSError):  # it is tried again when it is asked for something
                slot.child.start()
        self._queue: list[tuple[tuple[float, ...], int, Job]] = []
        self._numbers = count_up()
        self._again: set[int] = set()
        self._done: list[Done] = []
        self._left: dict[str, Done] = {}

    @property
    def size(self) -> int:
        """How many jobs run at once."""
        return len(self._slots)

    @property
    def load(self) -> int:
        """Jobs queued or under way."""
        return len(self._queue) + sum(s.job is not None for s in self._slots)

    def submit(self, job: Job) -> None:
        """Put a job into the queue; an idle worker starts on it at once. What was asked before and dropped while a
        worker was at it has its answer, or gets it from that worker.
        """
        if self._left or any(slot.dropped for slot in self._slots):
            text = job.text
            if text and text in self._left:
                self._done.append(evolve(self._left.pop(text), job=job))
                return
            for slot in self._slots:
                if text and slot.dropped and slot.job is not None and slot.job.text == text:
                    slot.job, slot.dropped = job, False
                    return
        heapq.heappush(self._queue, (job.priority, next(self._numbers), job))
        self._assign()

    def collect(self, timeout: float) -> list[Done]:
        """Return finished jobs; wait for one, but no longer than `timeout`."""
        self._assign()
        busy = [s for s in self._slots if s.job is not None]
        if busy and not self._done:
            soonest = min(s.deadline for s in busy) - time.monotonic()
            wait([s.child.connection for s in busy], max(0.0, min(timeout, soonest)))
        for slot in busy:
            if self._over(slot):
                self._finish(slot)
        self._assign()
        done, self._done = self._done, []
        return done

    def drop(self, lasting: bool = False) -> list[Job]:
        """Forget what is queued, and return what of it is lasting; workers that are at something finish it for nobody,
        what is lasting for whom it is.
        """
        lasts = [entry for entry in self._queue if entry[-1].lasting]
        self._queue = [] if lasting else lasts
        heapq.heapify(self._queue)
        self._left.update((done.job.text, done) for done in self._done if done.job.text and not done.lost)
        self._done = [done for done in self._done if done.job.lasting]
        for slot in self._slots:
            slot.dropped = slot.job is not None and not slot.job.lasting
        return [entry[-1] for entry in lasts] if lasting else []

    def close(self) -> None:
        """End all workers."""
        self._queue.clear()
        for slot in self._slots:
            slot.child.kill()
        if self._nursery is not None:
            self._nursery.close()

    def _assign(self) -> None:
        for slot in self._slots:
            while slot.job is None and self._queue:
                _, number, job = heapq.heappop(self._queue)
                try:
                    slot.child.send(job.method, *job.arguments)
                except Lost as lost:
                    if not self._put_back(job, number):
                        self._done.append(Done(job, error=str(lost), lost=True))
                    continue
                slot.job, slot.number, slot.dropped = job, number, False
                slot.begun, slot.deadline = time.monotonic(), inf

    def _put_back(self, job: Job, number: int) -> bool:
        """Put a job whose worker ended back to its place in the queue, once; say whether that was done."""
        if number in self._again:
            return False
        self._again.add(number)
        heapq.heappush(self._queue, (job.priority, number, job))
        return True

    @staticmethod
    def _over(slot: _Slot) -> bool:
        """Whether a job has been answered, lost, or given its time; the time begins when the process has started, and
        that it has, which it says at any moment, is no answer.
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
            done = Done(job, slot.child.receive(0.0, start=0.0), seconds=time.monotonic() - begun)
        except Lost as lost:
            if not (lost.hung or slot.dropped) and self._put_back(job, slot.number):
                return
            reason = f"no answer in {job.limit:g} seconds" if lost.hung else str(lost)
            done = Done(job, error=reason, lost=True, hung=lost.hung)
        except CutsError as error:
            done = Done(job, error=error.message)
        if not slot.dropped:
            self._done.append(done)
        elif job.text and not done.lost:
            self._left[job.text] = done
        slot.dropped = False
