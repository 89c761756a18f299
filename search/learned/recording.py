"""Recording spaces: of each problem a pool of points is built, checked and timed, so that strategies can be compared
later without a device.

A pool is random legal points and those that a search would look at first: the model's best, and the neighbours of
these. Which points are in it depends on the space and a seed only, not on any time. Instead of a pool the points of an
earlier recording may be given, so that the same points are timed on another device or by another version. Kernels whose
text is long once its loops are unrolled are not compiled: 17 of 220 points of two pools took 38 % of the compiler's
time; 14 of them spilled registers, and the others took four times as long as the best.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf

import numpy as np
from attrs import asdict, define, evolve, field

from ...backends.source import unrolled_statements
from ...ir import WHOLE, CutsError, PassError, Schedule
from ...passes.schedule import Point, best_points, candidate_of, make_space, neighbours
from ..build import DRAW_LIMIT, Built, Done, Scored, Worker, compiled
from ..kernels import make_kernel
from ..problem import Problem, schedule_text
from ..resources import Resources
from ..sample_points import random_points
from ..settings import Settings
from ..strategies import place_of
from ..sweeps import PointList
from ..task import Entry
from ..trials import Trials
from .pool import ground_of
from .rank_points import looked_at
from .recorded import RecordedPoint, RecordedSpace

#: Problems whose points are made and built ahead of the one that is timed.
AHEAD = 4
#: The part of a pool that the model orders first, and of its neighbours; the rest is random.
BEST, NEAR = 0.1, 0.4
#: Points of the model's order whose neighbours are in the pool.
PARENTS = 24
#: Statements of an unrolled text from which on a kernel is not compiled; its outcome is then `LONG`.
MOST, LONG = 2500, "long"
#: Seconds after which what there is of a pool under way is handed out again.
EACH = 20.0
SERVICE = "cuts.search.learned.recording:RecordingWorker"


class RecordingWorker(Worker):
    """A worker that makes pools too, and does not compile what is too long."""

    def build(self, problem: Problem, schedule: Schedule, longest: float = MOST) -> Built:
        """Lower, print and compile one candidate."""
        return built_short(problem, schedule)

    def pool(self, problem: Problem, model: str, count: int, seed: int) -> list[Scored]:
        """Return the points of a problem's pool, the model's best first."""
        return pool(problem, model, count, seed)

    def again(self, problem: Problem, model: str, given: RecordedSpace) -> list[Scored]:
        """Return the given points that a problem's space has too."""
        return again(problem, model, given)


def again(problem: Problem, model: str, given: RecordedSpace) -> list[Scored]:
    """Return those points of an earlier recording that a problem's space has too, at the same place, as they were
    given.
    """
    ground = ground_of(given, problem, model)
    legal = {place_of(point): point for point in ground.points}
    found = (legal.get((point.structure, point.places)) for point in given.points)
    return [ground.scored(point) for point in found if point is not None]


def evaluated(space: RecordedSpace, seed: int) -> RecordedSpace:
    """Return of a recorded space what an order is judged by, in a random order behind the fastest, so that what there
    is of a recording that ends early is no choice; its times, which are another machine's, are left out.
    """
    times = {p.schedule: p.seconds for p in space.points if p.seconds is not None}
    named = {p.schedule: p for p in space.points}
    first, *others = [
        RecordedPoint(text, named[text].structure, named[text].places, "") for text, _ in looked_at(times)
    ]
    shuffled = (others[k] for k in np.random.default_rng(seed).permutation(len(others)))
    return evolve(space, points=(first, *shuffled), version={})


def built_short(problem: Problem, schedule: Schedule) -> Built:
    """Lower and print one candidate, and compile it where its text is short enough."""
    try:
        kernel = make_kernel(problem, schedule)
    except CutsError as error:
        return Built(None, outcome="failed", message=error.message.splitlines()[0])
    if (statements := unrolled_statements(kernel.source)) > MOST:
        return Built(None, outcome=LONG, message=f"{statements} statements")
    return compiled(problem, lambda: kernel)


def pool(problem: Problem, model: str, count: int, seed: int) -> list[Scored]:
    """Return about `count` legal points of a problem's space: the model's best, their neighbours, random ones."""
    space = make_space(problem.form, problem.target)
    best = list(best_points(problem.form, problem.target, model, max(1, round(BEST * count))))
    near = sorted(neighbours(space, best[:PARENTS], model))
    drawn = random_points(space, count, model, seed)
    chosen: dict[tuple[int, tuple[int, ...]], Point] = {}
    for points, most in ((best, len(best)), (near, round(NEAR * count)), (drawn, count)):
        before = len(chosen)
        for point in points:
            if len(chosen) >= min(count, before + most):
                break
            chosen.setdefault((point.structure, point.places), point)
    return [Scored(p, candidate_of(space, p)) for p in chosen.values()]


@define(eq=False)
class PoolTask(PointList):
    """The points of one pool; what is much slower than the first of the model's order is timed a few times only.
    `earlier` are those that an earlier recording got to.
    """

    chosen: Entry | None = None
    earlier: Mapping[str, RecordedPoint] = field(factory=dict)

    @property
    def best(self) -> Entry | None:
        """What the others are held against."""
        return self.chosen if self.chosen is not None and self.chosen.seconds < inf else None


@define
class PoolRecorder:
    """Times the pools of problems one after another, while workers build the points of those that follow: points that
    are `given`, or drawn ones. What was recorded `earlier` of a problem by the same version is not timed again.
    """

    resources: Resources
    settings: Settings
    count: int
    earlier: Callable[[Problem], RecordedSpace | None] = lambda problem: None
    given: Callable[[Problem], RecordedSpace | None] = lambda problem: None
    version: Mapping[str, str] = field(factory=dict)
    trials: Trials = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.trials = Trials(self.resources, evolve(self.settings, hasty=False))

    def run(self, problems: Sequence[Problem]) -> Iterator[RecordedSpace]:
        """Yield each space when its pool is timed, and what there is of the others now and then, and when the budget
        ends.
        """
        self.resources.share = WHOLE
        coming = enumerate(problems)
        begun: list[PoolTask] = []
        handed = time.monotonic()
        with self.resources.interruptible():
            while not self.resources.over():
                for turn, problem in islice(coming, AHEAD - len(begun)):
                    begun.append(PoolTask(problem, turn=turn))
                    self._begin(begun[-1])
                if not begun:
                    return
                self.trials.step(begun)
                self.resources.report(begun)
                for task in [t for t in begun if t.finished]:
                    begun.remove(task)
                    yield recorded(task, True, self.version)
                if time.monotonic() > handed + EACH:
                    yield from self._parts(begun)
                    handed = time.monotonic()
        self.resources.close()
        yield from self._parts(begun)

    def _begin(self, task: PoolTask) -> None:
        self.resources.database.register(task.problem)
        known = self.earlier(task.problem)
        if known is not None and (known.key, known.version) == (task.problem.key, self.version):
            task.earlier = {point.schedule: point for point in known.points}
        self.trials.refer(task)
        model, given = self.settings.model, self.given(task.problem)
        method, wanted = ("pool", (self.count, self.settings.seed)) if given is None else ("again", (given,))
        self.trials.loop.submit(
            task, lambda done: self._made(task, done), method, (-2.0, task.turn), model, *wanted, limit=DRAW_LIMIT
        )

    def _made(self, task: PoolTask, done: Done) -> None:
        if done.value is None:
            raise PassError(f"{task.problem.label or 'a kernel'}: no points can be drawn: {done.error}")
        for scored in done.value:
            text = schedule_text(scored.candidate.schedule)
            if text not in task.entries and (task.chosen is None or text not in task.earlier):
                entry = task.entries[text] = Entry(scored, text)
                task.chosen = task.chosen or entry
                self.trials.build(task, entry, task.turn)

    def _parts(self, tasks: Sequence[PoolTask]) -> Iterator[RecordedSpace]:
        """Yield what there is of pools under way, as far as there is anything new."""
        new = (task for task in tasks if any(e.outcome for e in task.entries.values()))
        return (recorded(task, False, self.version) for task in new)


def recorded(task: PoolTask, whole: bool, version: Mapping[str, str]) -> RecordedSpace:
    """Return what was found of a pool, now or earlier; points that nobody got to are left out."""
    new = {entry.text: _point(entry) for entry in task.entries.values() if entry.outcome}
    problem = task.problem
    target = asdict(problem.target, recurse=False)
    points = tuple({**task.earlier, **new}.values())
    machine = dict(problem.machine)
    return RecordedSpace(problem.label, problem.key, problem.work, machine, target, points, whole, version)


def _point(entry: Entry) -> RecordedPoint:
    point, built = entry.scored.point, entry.built
    assert point is not None, "pools know their points"
    ran = entry.outcome == "ok" and entry.samples
    return RecordedPoint(
        entry.text, point.structure, point.places, entry.outcome, entry.seconds if ran else None,
        round(entry.spread, 4), built.registers if built else 0, len(entry.samples),
    )  # fmt: skip
