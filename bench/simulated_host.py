"""A simulated host: cores and GPUs whose jobs are done here, one after another, and take the processor's time that they
took, times by what that host is slower. What a process does between two jobs counts by its own processor time.
"""

from __future__ import annotations

import hashlib
import heapq
import pickle
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import count
from math import exp, inf
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field
from cuts.backends.cuda.compile import Toolchain
from cuts.ir.schedule import Schedule
from cuts.passes.model import bound, conflict_factor, rank
from cuts.passes.schedule import features_of, geometry_of
from cuts.search.bench import Timed
from cuts.search.build import Built, Done, Job, longest_of, wishes_of
from cuts.search.course import HERE
from cuts.search.data import Reference
from cuts.search.measure import DeviceAnswer, TimingTurns, Verdict
from cuts.search.problem import Problem, digest, schedule_text
from cuts.search.strategies import ProposingFactory

#: Seconds until workers answer that are copied from a program which imports the package (1.6 times what the import
#: takes here, 0.5 to 0.85, and the copies), and until a device does.
WORKER_START, DEVICE_START = 1.4, 3.0
#: Seconds that the device's process takes to check a kernel, the first of a problem with its data, to be asked for a
#: time, and to time a run besides the run itself (an H200's: 880 checks and the data of 73 problems took 3.1 s, 2,737
#: requests of three runs 1.1).
CHECK, FIRST_CHECK, ASK, RUN = 1.6e-3, 25e-3, 0.2e-3, 0.05e-3
#: Seconds that timing adds to a kernel.
OVERHEAD = 4e-6
#: Errors of the model's estimates: of all points of a structure, and of each by itself.
ERRORS = 0.25, 0.08


@define
class ProcessWatch:
    """Adds this process's time to the clock that is on."""

    on: Clock | None = None
    last: float = 0.0

    def turn(self, clock: Clock | None) -> Clock | None:
        """Switch another clock on, or none; return the one that was."""
        now = time.process_time()
        before, self.on = self.on, clock
        if before is not None:
            before.now += before.factor * (now - self.last)
        self.last = time.process_time()
        return before

    @contextmanager
    def running(self, clock: Clock | None) -> Iterator[None]:
        """Let a clock run while a block does, or none, as another process does it."""
        before = self.turn(clock)
        try:
            yield
        finally:
            self.turn(before)


@define
class Clock:
    """A simulated process's time."""

    watch: ProcessWatch
    factor: float = 1.0
    now: float = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        if self.watch.on is self:
            self.watch.turn(self)
        return self.now

    def until(self, moment: float) -> None:
        """Let time go on to a moment."""
        self.now = max(self(), moment)

    def running(self) -> AbstractContextManager[None]:
        """Let it run while a block does."""
        return self.watch.running(self)


@cache
def _tree() -> str:
    """Return a digest of what workers run: what another tree answered says nothing, and may not be readable."""
    root, found = Path(__file__).parent.parent, hashlib.sha256()
    for folder in ("backends", "ir", "ops", "passes", "search"):
        for path in sorted(p for p in (root / folder).rglob("*") if p.suffix in (".py", ".cuts", ".lark")):
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


@define
class JobMemory:
    """What jobs answered, and what they took; kernels' estimates by the digests of their sources."""

    folder: Path
    estimates: dict[str, tuple[float, float, str]] = field(factory=dict)
    spent: defaultdict[str, float] = field(factory=lambda: defaultdict(float))
    counts: Counter[str] = field(factory=Counter)
    answers: dict[str, tuple[bytes, float]] = field(factory=dict)

    def answer(self, job: Job) -> tuple[Any, float]:
        """Return what a worker answers, and the seconds that takes it."""
        if job.method == "build":
            value, seconds = self._built(job)
        elif job.method == "go_on":
            return self._gone_on(job)
        else:
            value, seconds = self._known(job)
        self.spent[job.method] += seconds
        self.counts[job.method] += 1
        return value, seconds

    def _known(self, job: Job) -> tuple[Any, float]:
        key = hashlib.sha256(pickle.dumps((job.method, job.arguments))).hexdigest()
        if key not in self.answers:
            path = self.folder / "answers" / _tree() / key
            if path.exists():
                self.answers[key] = pickle.loads(path.read_bytes())
            else:
                begun = time.process_time()
                value = getattr(ProposingFactory(), job.method)(*job.arguments)
                self.answers[key] = pickle.dumps(value), time.process_time() - begun
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(pickle.dumps(self.answers[key]))
        data, seconds = self.answers[key]
        return pickle.loads(data), seconds

    def _gone_on(self, job: Job) -> tuple[list[tuple[Schedule, Built]], float]:
        problem, asked, hasty = job.arguments
        assert isinstance(hasty, bool), "whether long kernels are left out"
        (proposals, _), spent = self.answer(Job(None, "propose", (problem, asked)))
        found = []
        for candidate in (scored.candidate for scored in proposals):
            wishes = wishes_of(candidate, hasty, longest_of(candidate))
            built, seconds = self.answer(Job(None, "build", (problem, *wishes)))
            found.append((candidate.schedule, built))
            spent += seconds
        return found, spent

    def _built(self, job: Job) -> tuple[Built, float]:
        begun = time.process_time()
        before = self.spent["compile"], self.spent["really"]
        built: Built = getattr(ProposingFactory(), job.method)(*job.arguments)
        taken = time.process_time() - begun - (self.spent["really"] - before[1])
        problem, schedule = job.arguments[:2]
        assert isinstance(problem, Problem) and isinstance(schedule, Schedule), "that is what is built"
        text = schedule_text(schedule)
        self.spent["make"] += taken
        form, target = problem.form, problem.target
        features, sizes = features_of(form, schedule, target), geometry_of(form, schedule)
        found = bound(features, target)
        estimate = rank(features, found, target, conflict_factor(form, sizes, target))
        known = float(estimate), float(found.time), f"{problem.key} {text}"
        # Equal kernels of two points take the same time, whichever was made last.
        self.estimates[built.source] = min(self.estimates.get(built.source, known), known, key=lambda each: each[-1])
        return built, taken + self.spent["compile"] - before[0]

    def compiled(self, source: str, arch: str, timeout: float, compiler: Toolchain) -> tuple[bytes, str]:
        """Compile, or return what was compiled before, at what it took then."""
        path = self.folder / "compiled" / digest(f"{compiler.version}\n{arch}\n{source}")
        begun = time.process_time()
        if path.exists():
            code, log, seconds = pickle.loads(path.read_bytes())
        else:
            code, log = compiler.compile(source, arch, timeout)
            seconds = time.process_time() - begun
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(pickle.dumps((code, log, seconds)))
        self.spent["compile"] += seconds
        self.counts["compile"] += 1
        self.spent["really"] += time.process_time() - begun
        return code, log


@define
class _Slot:
    free: float
    end: float = 0.0
    done: Done | None = None


@define
class SimulatedWorkers:
    """Workers that get a job when this process looks at them, and take the time that it took here."""

    clock: Clock
    size: int
    memory: JobMemory
    factor: float
    slots: list[_Slot] = field(init=False)
    queue: list[tuple[tuple[float, ...], int, Job]] = field(factory=list)
    numbers: Iterator[int] = field(factory=count)
    lasting: list[Done] = field(factory=list)
    busy: float = 0.0
    name: str = "Worker"
    log: list[tuple[float, float, str]] = field(factory=list)

    @slots.default
    def _start(self) -> list[_Slot]:
        return [_Slot(self.clock() + WORKER_START) for _ in range(self.size)]

    @property
    def load(self) -> int:
        """Jobs queued or under way."""
        return len(self.queue) + sum(slot.done is not None for slot in self.slots)

    def submit(self, job: Job) -> None:
        """Put a job into the queue."""
        heapq.heappush(self.queue, (job.priority, next(self.numbers), job))
        self._assign()

    def collect(self, timeout: float) -> list[Done]:
        """Return what is done; wait for something, but no longer than `timeout`."""
        self._assign()
        ends = [slot.end for slot in self.slots if slot.done is not None]
        if ends:
            self.clock.until(min(min(ends), self.clock() + timeout))
        elif timeout:
            self.clock.until(self.clock() + timeout)
        now, found = self.clock(), []
        for slot in self.slots:
            if slot.done is not None and slot.end <= now:
                found.append(slot.done)
                slot.done = None
                pickle.loads(pickle.dumps(found[-1].value))  # this process reads what the worker wrote
        self._assign()
        return [done for done in found if done.job is not None]

    def drop(self, lasting: bool = False) -> list[Job]:
        """Forget what is queued, and what comes of what is under way."""
        lasts = [entry for entry in self.queue if entry[-1].lasting]
        self.queue = [] if lasting else lasts
        heapq.heapify(self.queue)
        for slot in self.slots:
            if slot.done is not None and slot.done.job is not None and not slot.done.job.lasting:
                slot.done = Done(None)  # type: ignore[arg-type]
        return [entry[-1] for entry in lasts] if lasting else []

    def close(self) -> None:
        """Forget all jobs."""
        self.queue.clear()

    def _assign(self) -> None:
        for slot in self.slots:
            if slot.done is None and self.queue:
                _, _, job = heapq.heappop(self.queue)
                pickle.dumps((job.method, job.arguments))
                with self.clock.watch.running(None):
                    value, seconds = self.memory.answer(job)
                begun = max(self.clock(), slot.free)
                slot.end = slot.free = begun + self.factor * seconds
                slot.done = Done(job, value, seconds=self.factor * seconds)
                self.busy += self.factor * seconds
                self.log.append((begun, slot.end, job.method))
                HERE.note(f"{self.name} {job.method}", begun, slot.end)


@define
class SimulatedGPU:
    """A device that finds every kernel right and takes what the model says, with errors."""

    clock: Clock
    memory: JobMemory
    ready: float = field(init=False)
    checking: tuple[str, DeviceAnswer] | None = None
    loaded: dict[str, float] = field(factory=dict)
    met: set[str] = field(factory=set)
    spent: defaultdict[str, float] = field(factory=lambda: defaultdict(float))

    @ready.default
    def _start(self) -> float:
        return self.clock() + DEVICE_START

    def prepare(self, problem: Problem, reference: Reference) -> None:
        """Take note of nothing."""

    def check(self, problem: Problem, built: Built) -> Verdict:
        """Find every kernel right."""
        self.begin(problem, built)
        return self.ended(inf)[0][1].verdict

    def start(self) -> None:
        """It was started when it was made."""

    @property
    def works(self) -> bool:
        """It does."""
        return True

    def free(self, problem: Problem) -> bool:
        """Whether it checks nothing."""
        return self.checking is None

    def begin(self, problem: Problem, built: Built | None, turns: TimingTurns | None = None) -> None:
        """Check a kernel, and time kernels, beside what this process does."""
        pickle.dumps((problem.key, built.kernel, built.binary, turns) if built is not None else turns)
        seconds, samples = 0.0, list[tuple[float, ...]]()
        if built is not None:
            assert built.kernel is not None, "only what was built is checked"
            seconds = CHECK if problem.key in self.met else FIRST_CHECK
            self.met.add(problem.key)
            self.loaded[built.kernel.name] = self.seconds(built)
        self.spent["check"] += seconds
        for name in turns.kernels if turns is not None else ():
            assert turns is not None, "it says what is timed"
            taken = self.loaded[name]
            samples.append((taken + OVERHEAD,) * turns.runs)
            timing = ASK + (turns.runs + 1) * (taken + RUN)
            self.spent["time"] += timing
            seconds += timing
            if len(samples) == 1 and taken + OVERHEAD > turns.most:
                break
        self.ready = max(self.ready, self.clock()) + seconds
        self.checking = problem.key, DeviceAnswer(Verdict("ok"), tuple(samples))

    def ended(self, timeout: float) -> list[tuple[str, DeviceAnswer]]:
        """Find the kernel right, and say what it takes, once that is done."""
        if self.checking is None or self.clock() + timeout < self.ready:
            self.clock.until(self.clock() + timeout)
            return []
        self.clock.until(self.ready)
        told, self.checking = self.checking, None
        return [told]

    def sample(self, problem: Problem, built: Built, repeats: int) -> Timed:
        """Time a kernel."""
        seconds = self.seconds(built)
        self._pass("time", ASK + (repeats + 1) * (seconds + RUN))
        return Timed((seconds + OVERHEAD,) * repeats)

    def overhead(self) -> float:
        """Time without loss."""
        return OVERHEAD

    def close(self) -> None:
        """There is nothing to end."""

    def seconds(self, built: Built) -> float:
        """Return what a kernel takes."""
        score, least, text = self.memory.estimates.get(built.source, (1e-5, 0.0, built.source))
        structure = "".join(c for c in text.partition(" ")[2] if not c.isdigit())
        return max(1.02 * least, score * exp(ERRORS[0] * _drawn(text[:64] + structure) + ERRORS[1] * _drawn(text)))

    def _pass(self, name: str, seconds: float) -> None:
        self.spent[name] += seconds
        self.ready = max(self.ready, self.clock()) + seconds
        self.clock.until(self.ready)


def _drawn(text: str) -> float:
    seed = int(digest(text)[:12], 16)
    return float(np.random.default_rng(seed).normal())
