"""Recording of spaces: builds, checks and times pools of points.

Strategies can then be compared without a device. A pool has random legal points and those that a search visits first:
the cost model's best, and their neighbours, each schedule once. The order depends on the space and a seed only, not on
any time. Kernels with long unrolled code are not compiled. A *whole* pool has every legal point of a small space, that
of the DeepCuts paper where operands are staged (Table 4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from math import inf

import numpy as np
from attrs import asdict, define, evolve, field, filters
from cuts.backends.source import unrolled_statements
from cuts.ir import CoreCoefficients, CostCoefficients, CutsError, Pruning, Schedule
from cuts.passes.geometry import ScheduleParameter, ScheduleTemplate
from cuts.passes.schedule import (
    Point,
    Space,
    best_points,
    candidate_of,
    columns_of,
    evaluate,
    make_space,
    neighbours,
)
from cuts.search.analysis.sweeps import CandidateList
from cuts.search.building.factory import DRAW_LIMIT, BuildResult, ScoredCandidate, Worker, compile_candidate
from cuts.search.building.workers import JobResult
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
SERVICE, WHOLE_SERVICE = (f"cuts.bench.tools.recording:{name}Worker" for name in ("Recording", "WholeSpace"))


class RecordingWorker(Worker):
    """Worker that also makes pools, and compiles no long code."""

    def build(self, problem: TuningTask, schedule: Schedule, longest: float = MAX_STATEMENTS) -> BuildResult:
        """Lower, print and compile one candidate."""
        return build_unless_long(problem, schedule)

    def pool(self, problem: TuningTask, pruning: Pruning, count: int, seed: int) -> list[ScoredCandidate]:
        """Return the points of a task's pool."""
        return pool(problem, pruning, count, seed)


class WholeSpaceWorker(Worker):
    """Worker whose pools are whole spaces; it compiles code of any length."""

    def pool(self, problem: TuningTask, pruning: Pruning, count: int, seed: int) -> list[ScoredCandidate]:
        """Return every point of a small space, in a random order."""
        space = make_space(problem.form, problem.target)
        points = list(paper_points(space))
        order = np.random.default_rng(seed).permutation(len(points))
        return list(_distinct(space, (points[k] for k in order), set()))


def paper_points(space: Space) -> Iterator[Point]:
    """Yield a group's legal points with the parameters of DeepCuts.

    Those are Tables 3 and 4: tile sizes are powers of two, all operands are staged in their natural order, the first
    reduced axis (channels) is divided and the others are whole, and code is the *normal* variant. A group that stages
    nothing has its whole space.
    """
    staged = [k for k, template in enumerate(space.templates) if _is_staged_whole(template)]
    separate = max(staged, key=lambda k: len(space.templates[k].parameters), default=None)
    for k in range(len(space.templates)) if separate is None else (separate,):
        template = space.templates[k]
        kept = [range(len(p.values)) if separate is None else _paper_values(p) for p in template.parameters]
        table = np.stack([each.reshape(-1) for each in np.meshgrid(*kept, indexing="ij")], axis=1)
        legal = evaluate(space, template, columns_of(template, table), 0).legal
        yield from (Point(0.0, k, tuple(map(int, row))) for row in table[legal])


def _is_staged_whole(template: ScheduleTemplate) -> bool:
    """Return whether threads with own reductions read all operands from shared memory."""
    segments = template.segments
    return all(any(s.staged) and not s.mma and not s.reduction_threads for s in segments) and all(
        set(staged) >= {0, 1} for s in segments for staged in s.staged
    )


def _paper_values(parameter: ScheduleParameter) -> list[int]:
    """Return the positions of the values of a parameter that the paper's space has."""
    values, own = parameter.values, parameter.names[0].rpartition(".")[2]
    if len(parameter.names) == 3:  # threads, thread tile, vector: the widest vector of each tile
        widest = {value[:2]: position for position, value in sorted(enumerate(values), key=lambda each: each[1])}
        return sorted(position for (_, tile), position in widest.items() if tile & (tile - 1) == 0)
    if own == "c0":
        return list(range(len(values)))
    return [len(values) - 1 if own.startswith("c") and own[1:].isdigit() else 0]


def build_unless_long(problem: TuningTask, schedule: Schedule) -> BuildResult:
    """Lower, print and compile one candidate unless its text is long."""
    try:
        kernel = make_kernel(problem, schedule)
    except CutsError as error:
        return BuildResult(None, outcome="failed", message=error.message.splitlines()[0])
    if (statements := unrolled_statements(kernel.source)) > MAX_STATEMENTS:
        return BuildResult(None, outcome=LONG_OUTCOME, message=f"{statements} statements")
    return compile_candidate(problem, lambda: kernel)


def pool(problem: TuningTask, pruning: Pruning, count: int, seed: int) -> list[ScoredCandidate]:
    """Return the points of a task's pool of `count`, each schedule once.

    These are the cost model's best, which come first, their neighbours, and random ones.
    """
    space = make_space(problem.form, problem.target)
    best = list(best_points(problem.form, problem.target, pruning, max(1, round(BEST_SHARE * count))))
    near = sorted(neighbours(space, best[:NUM_PARENTS], pruning))
    drawn = chain.from_iterable(random_points(space, count << turn, pruning, seed) for turn in range(MAX_DRAWS))
    seen: set[Place | str] = set()
    first, others, rest = (_distinct(space, points, seen) for points in (best, near, drawn))
    return list(islice(chain(first, islice(others, round(NEIGHBOUR_SHARE * count)), rest), count))


def _distinct(space: Space, points: Iterable[Point], seen: set[Place | str]) -> Iterator[ScoredCandidate]:
    """Yield the points with new schedules."""
    for point in points:
        if place_of(point) not in seen:
            scored = ScoredCandidate(point, candidate_of(space, point))
            text = schedule_text(scored.candidate.schedule)
            new = text not in seen
            seen |= {place_of(point), text}  # before the yield: a consumer that stops leaves a consistent set
            if new:
                yield scored


@define(eq=False)
class PoolTask(CandidateList):
    """Points of one pool.

    A point that is much slower than the cost model's first is timed a few times only.
    """

    chosen: Entry | None = None

    @property
    def best(self) -> Entry | None:
        """Candidate that the others are compared with."""
        return self.chosen if self.chosen is not None and self.chosen.seconds < inf else None

    @property
    def built_points(self) -> list[RecordedPoint]:
        """Results of all points that were built."""
        return [_point(entry) for entry in self.entries.values() if entry.outcome]


@define
class PoolRecorder:
    """Time pools one by one, while workers build the next ones.

    A pool has `count` points. Tasks without drawn points are `lost`, with a reason.
    """

    executor: SearchExecutor
    settings: Settings
    count: int
    lost: dict[str, str] = field(factory=dict, init=False)
    trials: BuildQueue = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.trials = BuildQueue(self.executor, evolve(self.settings, hasty=False))

    def run(self, problems: Sequence[TuningTask]) -> Iterator[RecordedSpace]:
        """Yield each space when timed; unfinished ones when the budget ends."""
        remaining = enumerate(problems)
        begun: list[PoolTask] = []
        with self.executor.interruptible():
            while not self.executor.over():
                for turn, problem in islice(remaining, PREFETCHED_TASKS - len(begun)):
                    begun.append(PoolTask(problem, turn=turn))
                    self._begin(begun[-1])
                if not begun:
                    return
                self.trials.step(begun)
                self.executor.report(begun)
                for task in [t for t in begun if t.finished]:
                    begun.remove(task)
                    if not task.lost:
                        yield recorded_space(task, True)
        self.executor.close()
        yield from (recorded_space(task, False) for task in begun if task.built_points)

    def _begin(self, task: PoolTask) -> None:
        self.executor.database.register(task.problem)
        self.trials.prepare_reference(task)
        arguments = self.settings.pruning, self.count, self.settings.seed
        self.trials.submit(
            task, lambda done: self._add_points(task, done), "pool", (-2.0, task.turn), *arguments, limit=DRAW_LIMIT
        )

    def _add_points(self, task: PoolTask, done: JobResult) -> None:
        if done.value is None:
            task.lost = self.lost[task.problem.label] = done.error or "no points"
            return
        for scored in done.value:
            text = schedule_text(scored.candidate.schedule)
            entry = task.entries[text] = Entry(scored, text)
            task.chosen = task.chosen or entry
            self.trials.build(task, entry, task.turn)


def recorded_space(task: PoolTask, whole: bool) -> RecordedSpace:
    """Return the recorded space of a pool."""
    problem = task.problem
    numbers = filters.exclude(CostCoefficients, CoreCoefficients)
    target = asdict(problem.target, recurse=False, filter=numbers)
    return RecordedSpace(
        problem.label, problem.key, problem.work, dict(problem.machine), target, tuple(task.built_points), whole
    )


def _point(entry: Entry) -> RecordedPoint:
    point, built = entry.scored.point, entry.built
    assert point is not None, "pools know their points"
    ran = entry.outcome == "ok" and entry.samples
    seconds = float(f"{entry.seconds:.6g}") if ran else None  # more digits have no meaning, and make files longer
    return RecordedPoint(
        entry.text, point.structure, point.places, entry.outcome, seconds,
        round(entry.spread, 4), built.registers if built else 0, len(entry.samples),
    )  # fmt: skip
