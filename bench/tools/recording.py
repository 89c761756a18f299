"""Recording of spaces: builds, checks and times pools of points.

Strategies can then be compared without a device. A pool has random legal points and those that a search visits first:
the cost model's best, and their neighbours, each schedule once. The order depends on the space and a seed only, not on
any time. Failed points are replaced by further random ones, until enough ran or there are no more. Alternatively, the
points of an earlier recording are timed on another device or by another version. Kernels with long unrolled code are
not compiled: 17 of 220 points of two pools took 38 % of the compiler's time, and none was fast.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from math import ceil, inf

import numpy as np
from attrs import asdict, define, evolve, field
from cuts.backends.source import unrolled_statements
from cuts.bench.tools.recorded_domain import recorded_domain
from cuts.ir import FULL_SHARE, CutsError, Schedule
from cuts.passes.schedule import Point, Space, best_points, candidate_of, make_space, neighbours
from cuts.search.analysis.sweeps import CandidateList
from cuts.search.building.factory import DRAW_LIMIT, BuildResult, ScoredCandidate, Worker, compile_candidate
from cuts.search.building.workers import JobResult
from cuts.search.learned.rank_points import select_candidates
from cuts.search.learned.recorded_spaces import RecordedPoint, RecordedSpace
from cuts.search.settings import Settings
from cuts.search.strategies import Place, place_of
from cuts.search.tasks.kernels import make_kernel
from cuts.search.tasks.sample_points import random_points
from cuts.search.tasks.tuning_task import TuningTask, schedule_text
from cuts.search.tuner.build_queue import BuildQueue
from cuts.search.tuner.executor import SearchExecutor
from cuts.search.tuner.task_record import Entry

#: Tasks whose points are built before the current one is finished.
PREFETCHED_TASKS = 4
#: Shares of a pool for the cost model's best points and for their neighbours; the rest is random.
BEST_SHARE, NEIGHBOUR_SHARE = 0.1, 0.4
#: Number of the cost model's best points whose neighbours are in the pool.
NUM_PARENTS = 24
#: Number of times that random points are drawn, each time twice as many, as several have the same schedule.
MAX_DRAWS = 4
#: Largest number of unrolled statements of a compiled kernel; the outcome of longer ones is `LONG_OUTCOME`.
MAX_STATEMENTS, LONG_OUTCOME = 2500, "long"
#: Seconds between two outputs of unfinished pools.
OUTPUT_SECONDS = 20.0
SERVICE = "cuts.bench.tools.recording:RecordingWorker"


class RecordingWorker(Worker):
    """Worker that also makes pools, and compiles no long code."""

    def build(self, problem: TuningTask, schedule: Schedule, longest: float = MAX_STATEMENTS) -> BuildResult:
        """Lower, print and compile one candidate."""
        return build_unless_long(problem, schedule)

    def pool(
        self, problem: TuningTask, model: str, count: int, seed: int, known: Collection[str], wanted: int
    ) -> list[ScoredCandidate]:
        """Return points of a task's pool with unknown schedules, after the best."""
        return pool(problem, model, count, seed, known, wanted)

    def again(self, problem: TuningTask, model: str, given: RecordedSpace) -> list[ScoredCandidate]:
        """Return the given points that are in a task's space."""
        return matching_points(problem, model, given)


def matching_points(problem: TuningTask, model: str, given: RecordedSpace) -> list[ScoredCandidate]:
    """Return points of an earlier recording that are in a task's space.

    They must have the same position in the space.
    """
    domain = recorded_domain(given, problem, model)
    legal = {place_of(point): point for point in domain.points}
    found = (legal.get((point.structure, point.places)) for point in given.points)
    return [domain.candidate_at(point) for point in found if point is not None]


def evaluation_points(space: RecordedSpace, seed: int) -> RecordedSpace:
    """Return the points of a recorded space for an evaluation of orders.

    They are in a random order after the fastest, so that a recording that ends early is no selection. The times, which
    are another machine's, are left out.
    """
    times = {p.schedule: p.seconds for p in space.points if p.seconds is not None}
    named = {p.schedule: p for p in space.points}
    first, *others = [
        RecordedPoint(text, named[text].structure, named[text].places, "") for text, _ in select_candidates(times)
    ]
    shuffled = (others[k] for k in np.random.default_rng(seed).permutation(len(others)))
    return evolve(space, points=(first, *shuffled), version={})


def build_unless_long(problem: TuningTask, schedule: Schedule) -> BuildResult:
    """Lower, print and compile one candidate unless its text is long."""
    try:
        kernel = make_kernel(problem, schedule)
    except CutsError as error:
        return BuildResult(None, outcome="failed", message=error.message.splitlines()[0])
    if (statements := unrolled_statements(kernel.source)) > MAX_STATEMENTS:
        return BuildResult(None, outcome=LONG_OUTCOME, message=f"{statements} statements")
    return compile_candidate(problem, lambda: kernel)


def pool(
    problem: TuningTask, model: str, count: int, seed: int, known: Collection[str] = (), wanted: int | None = None
) -> list[ScoredCandidate]:
    """Return the points of a task's pool of `count`, each schedule once.

    These are the cost model's best, their neighbours, and random ones. Where schedules are `known`, only the first
    `wanted` others are returned, after the cost model's best, which always comes first.
    """
    space = make_space(problem.form, problem.target)
    best = list(best_points(problem.form, problem.target, model, max(1, round(BEST_SHARE * count))))
    near = sorted(neighbours(space, best[:NUM_PARENTS], model))
    drawn = chain.from_iterable(random_points(space, count << turn, model, seed) for turn in range(MAX_DRAWS))
    seen: set[Place | str] = set()
    parts = (_distinct(space, points, seen) for points in (best, near, drawn))
    first, *others = next(parts)
    every = chain(others, islice(next(parts), round(NEIGHBOUR_SHARE * count)), next(parts))
    new = (scored for scored in every if schedule_text(scored.candidate.schedule) not in known)
    most = count if wanted is None else wanted
    return [first, *islice(new, most - (schedule_text(first.candidate.schedule) not in known))]


def _distinct(space: Space, points: Iterable[Point], seen: set[Place | str]) -> Iterator[ScoredCandidate]:
    """Yield the points with new schedules."""
    for point in points:
        if place_of(point) not in seen:
            scored = ScoredCandidate(point, candidate_of(space, point))
            text = schedule_text(scored.candidate.schedule)
            new = text not in seen
            seen |= {
                place_of(point),
                text,
            }  # stored before the yield, so that a consumer that stops leaves a consistent set
            if new:
                yield scored


@define(eq=False)
class PoolTask(CandidateList):
    """Points of one pool.

    A point that is much slower than the cost model's first is timed a few times only. `earlier` are the results of an
    earlier recording by the version `before`. A space that gave fewer points than were `asked` for is `dry`.
    """

    chosen: Entry | None = None
    earlier: Mapping[str, RecordedPoint] = field(factory=dict)
    before: Mapping[str, str] = field(factory=dict)
    asked: float = inf
    dry: bool = False

    @property
    def best(self) -> Entry | None:
        """Candidate that the others are compared with."""
        return self.chosen if self.chosen is not None and self.chosen.seconds < inf else None

    @property
    def found(self) -> dict[str, RecordedPoint]:
        """Results by schedule, earlier and new ones."""
        ended = ((text, entry) for text, entry in self.entries.items() if entry.outcome)
        return {**self.earlier, **{text: _point(entry) for text, entry in ended if text not in self.earlier}}

    def missing(self, count: int) -> int:
        """Return the number of further points until `count` ran.

        The share of failures is assumed to stay the same.
        """
        found = self.found.values()
        ran = sum(point.seconds is not None for point in found)
        return max(0, ceil((count - ran) * len(found) / ran) if ran else count - len(found))

    def version(self, now: Mapping[str, str]) -> Mapping[str, str]:
        """Return the versions that recorded it, several where it was continued.

        It includes the ratio of the first kernel's time to its earlier time.
        """
        if not self.before or self.found.keys() == self.earlier.keys():
            return self.before or now
        commits = dict.fromkeys([*self.before.get("commit", "").split(", "), now.get("commit", "")])
        before = self.earlier.get(self.chosen.text) if self.chosen else None
        again = f"{self.chosen.seconds / before.seconds:.3f}" if self.chosen and before and before.seconds else ""
        ratios = [text for text in (self.before.get("first again", ""), again) if text]
        return {**now, "commit": ", ".join(commits)} | ({"first again": ", ".join(ratios)} if ratios else {})


@define
class PoolRecorder:
    """Time pools one by one, while workers build the next ones.

    The points are `given` or drawn; `count` shall run. Results `earlier` recorded by the same version of the kernel
    generator are not timed again. Tasks without drawn points are `lost`, with a reason.
    """

    executor: SearchExecutor
    settings: Settings
    count: int
    earlier: Callable[[TuningTask], RecordedSpace | None] = lambda problem: None
    given: Callable[[TuningTask], RecordedSpace | None] = lambda problem: None
    version: Mapping[str, str] = field(factory=dict)
    lost: dict[str, str] = field(factory=dict, init=False)
    trials: BuildQueue = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.trials = BuildQueue(self.executor, evolve(self.settings, hasty=False))

    def run(self, problems: Sequence[TuningTask]) -> Iterator[RecordedSpace]:
        """Yield each space when timed, and unfinished ones at intervals.

        Unfinished ones are also yielded when the budget ends.
        """
        self.executor.share = FULL_SHARE
        remaining = enumerate(problems)
        begun: list[PoolTask] = []
        handed = time.monotonic()
        with self.executor.interruptible():
            while not self.executor.over():
                for turn, problem in islice(remaining, PREFETCHED_TASKS - len(begun)):
                    begun.append(PoolTask(problem, turn=turn))
                    self._begin(begun[-1])
                if not begun:
                    return
                self.trials.step(begun)
                self.executor.report(begun)
                for task in [t for t in begun if t.finished and not self._continue(t)]:
                    begun.remove(task)
                    if not task.lost:
                        yield recorded_space(task, True, self.version)
                if time.monotonic() > handed + OUTPUT_SECONDS:
                    yield from self._partial_spaces(begun)
                    handed = time.monotonic()
        self.executor.close()
        yield from self._partial_spaces(begun)

    def _begin(self, task: PoolTask) -> None:
        self.executor.database.register(task.problem)
        known = self.earlier(task.problem)
        if known is not None and known.key == task.problem.key and same_kernels(known.version, self.version):
            task.earlier, task.before = {point.schedule: point for point in known.points}, known.version
        self.trials.prepare_reference(task)
        given = self.given(task.problem)
        if given is None:
            self._draw(task)
        else:
            self._ask(task, inf, "again", given)

    def _continue(self, task: PoolTask) -> bool:
        """Have further points drawn where too few ran; return whether there may be any."""
        wanted = not (task.dry or task.lost) and task.missing(self.count) > 0
        if wanted:
            self._draw(task)
        return wanted

    def _draw(self, task: PoolTask) -> None:
        wanted = task.missing(self.count)
        known = frozenset((*task.earlier, *task.entries))
        self._ask(task, wanted, "pool", self.count, self.settings.seed, known, wanted)

    def _ask(self, task: PoolTask, wanted: float, method: str, *arguments: object) -> None:
        task.asked = wanted
        self.trials.submit(
            task, lambda done: self._add_points(task, done), method, (-2.0, task.turn), self.settings.model, *arguments,
            limit=DRAW_LIMIT,
        )  # fmt: skip

    def _add_points(self, task: PoolTask, done: JobResult) -> None:
        if done.value is None:
            task.lost = self.lost[task.problem.label] = done.error or "no points"
            return
        before = len(task.entries)
        for scored in done.value:
            text = schedule_text(scored.candidate.schedule)
            if text not in task.entries and (task.chosen is None or text not in task.earlier):
                entry = task.entries[text] = Entry(scored, text)
                task.chosen = task.chosen or entry
                self.trials.build(task, entry, task.turn)
        task.dry = len(task.entries) - before < task.asked

    def _partial_spaces(self, tasks: Sequence[PoolTask]) -> Iterator[RecordedSpace]:
        """Yield unfinished pools with new results."""
        new = (task for task in tasks if any(e.outcome for e in task.entries.values()))
        return (recorded_space(task, False, self.version) for task in new)


def same_kernels(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return whether two versions generate the same kernels."""
    return one.get("lowering") == other.get("lowering")


def recorded_space(task: PoolTask, whole: bool, version: Mapping[str, str]) -> RecordedSpace:
    """Return the recorded space of a pool, with earlier and new results."""
    problem = task.problem
    target = asdict(problem.target, recurse=False)
    points, machine = tuple(task.found.values()), dict(problem.machine)
    return RecordedSpace(
        problem.label, problem.key, problem.work, machine, target, points, whole, task.version(version)
    )


def _point(entry: Entry) -> RecordedPoint:
    point, built = entry.scored.point, entry.built
    assert point is not None, "pools know their points"
    ran = entry.outcome == "ok" and entry.samples
    seconds = (
        float(f"{entry.seconds:.6g}") if ran else None
    )  # more digits have no meaning, and take a quarter of a file
    return RecordedPoint(
        entry.text, point.structure, point.places, entry.outcome, seconds,
        round(entry.spread, 4), built.registers if built else 0, len(entry.samples),
    )  # fmt: skip
