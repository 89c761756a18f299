"""Recording spaces: of each problem a pool of points is built, checked and timed, so that strategies can be compared
later without a device.

A pool is random legal points and those that a search would look at first: the model's best, and the neighbours of
these, each schedule once. Their order depends on the space and a seed only, not on any time; in place of those that
fail further ones are drawn, until as many ran as are wanted or there are no more. Instead of a pool the points of an
earlier recording may be given, so that the same points are timed on another device or by another version. Kernels whose
text is long once its loops are unrolled are not compiled: 17 of 220 points of two pools took 38 % of the compiler's
time; 14 of them spilled registers, and the others took four times as long as the best.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from math import ceil, inf

import numpy as np
from attrs import asdict, define, evolve, field

from ...backends.source import unrolled_statements
from ...ir import WHOLE, CutsError, Schedule
from ...passes.schedule import Point, Space, best_points, candidate_of, make_space, neighbours
from ..build import DRAW_LIMIT, Built, Done, Scored, Worker, compiled
from ..kernels import make_kernel
from ..problem import Problem, schedule_text
from ..resources import Resources
from ..sample_points import random_points
from ..settings import Settings
from ..strategies import Place, place_of
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
#: How often random points are drawn, each time twice as many, as several have the same schedule.
TURNS = 4
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

    def pool(
        self, problem: Problem, model: str, count: int, seed: int, known: Collection[str], wanted: int
    ) -> list[Scored]:
        """Return points of a problem's pool whose schedules are not known, behind the model's best."""
        return pool(problem, model, count, seed, known, wanted)

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


def pool(
    problem: Problem, model: str, count: int, seed: int, known: Collection[str] = (), wanted: int | None = None
) -> list[Scored]:
    """Return the points of a problem's pool of `count`, each schedule once: the model's best, their neighbours, and as
    many random ones as it takes, if there are. Where schedules are `known` it is the first `wanted` of the others,
    behind the model's best, which always comes first.
    """
    space = make_space(problem.form, problem.target)
    best = list(best_points(problem.form, problem.target, model, max(1, round(BEST * count))))
    near = sorted(neighbours(space, best[:PARENTS], model))
    drawn = chain.from_iterable(random_points(space, count << turn, model, seed) for turn in range(TURNS))
    seen: set[Place | str] = set()
    parts = (_distinct(space, points, seen) for points in (best, near, drawn))
    first, *others = next(parts)
    every = chain(others, islice(next(parts), round(NEAR * count)), next(parts))
    new = (scored for scored in every if schedule_text(scored.candidate.schedule) not in known)
    most = count if wanted is None else wanted
    return [first, *islice(new, most - (schedule_text(first.candidate.schedule) not in known))]


def _distinct(space: Space, points: Iterable[Point], seen: set[Place | str]) -> Iterator[Scored]:
    """Yield the points whose schedules were not seen yet."""
    for point in points:
        if place_of(point) not in seen:
            scored = Scored(point, candidate_of(space, point))
            text = schedule_text(scored.candidate.schedule)
            new = text not in seen
            seen |= {place_of(point), text}  # before it is handed out: nobody may ask for another one
            if new:
                yield scored


@define(eq=False)
class PoolTask(PointList):
    """The points of one pool; what is much slower than the first of the model's order is timed a few times only.
    `earlier` are those that an earlier recording got to, of the version `before`. Of the points that were `asked` for
    last a space that has no more gives fewer: it is `dry`.
    """

    chosen: Entry | None = None
    earlier: Mapping[str, RecordedPoint] = field(factory=dict)
    before: Mapping[str, str] = field(factory=dict)
    asked: float = inf
    dry: bool = False

    @property
    def best(self) -> Entry | None:
        """What the others are held against."""
        return self.chosen if self.chosen is not None and self.chosen.seconds < inf else None

    @property
    def found(self) -> dict[str, RecordedPoint]:
        """What became of its schedules, earlier or now; those that nobody got to are left out."""
        ended = ((text, entry) for text, entry in self.entries.items() if entry.outcome)
        return {**self.earlier, **{text: _point(entry) for text, entry in ended if text not in self.earlier}}

    def missing(self, count: int) -> int:
        """Return how many further points it takes until so many ran, if as many of them fail as so far."""
        found = self.found.values()
        ran = sum(point.seconds is not None for point in found)
        return max(0, ceil((count - ran) * len(found) / ran) if ran else count - len(found))

    def version(self, now: Mapping[str, str]) -> Mapping[str, str]:
        """Return which version recorded it, which are several where it was gone on with; with what the first kernel
        took then over what it took before.
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
    """Times the pools of problems one after another, while workers build the points of those that follow: points that
    are `given`, or drawn ones, of which `count` shall run. What was recorded `earlier` of a problem by the same version
    of what makes kernels is not timed again. Problems of which no points can be drawn are `lost`, for a reason.
    """

    resources: Resources
    settings: Settings
    count: int
    earlier: Callable[[Problem], RecordedSpace | None] = lambda problem: None
    given: Callable[[Problem], RecordedSpace | None] = lambda problem: None
    version: Mapping[str, str] = field(factory=dict)
    lost: dict[str, str] = field(factory=dict, init=False)
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
                for task in [t for t in begun if t.finished and not self._goes_on(t)]:
                    begun.remove(task)
                    if not task.lost:
                        yield recorded(task, True, self.version)
                if time.monotonic() > handed + EACH:
                    yield from self._parts(begun)
                    handed = time.monotonic()
        self.resources.close()
        yield from self._parts(begun)

    def _begin(self, task: PoolTask) -> None:
        self.resources.database.register(task.problem)
        known = self.earlier(task.problem)
        if known is not None and known.key == task.problem.key and same_kernels(known.version, self.version):
            task.earlier, task.before = {point.schedule: point for point in known.points}, known.version
        self.trials.refer(task)
        given = self.given(task.problem)
        if given is None:
            self._draw(task)
        else:
            self._ask(task, inf, "again", given)

    def _goes_on(self, task: PoolTask) -> bool:
        """Have further points drawn where too few ran; say whether there may be any."""
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
        self.trials.loop.submit(
            task, lambda done: self._made(task, done), method, (-2.0, task.turn), self.settings.model, *arguments,
            limit=DRAW_LIMIT,
        )  # fmt: skip

    def _made(self, task: PoolTask, done: Done) -> None:
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

    def _parts(self, tasks: Sequence[PoolTask]) -> Iterator[RecordedSpace]:
        """Yield what there is of pools under way, as far as there is anything new."""
        new = (task for task in tasks if any(e.outcome for e in task.entries.values()))
        return (recorded(task, False, self.version) for task in new)


def same_kernels(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return whether two versions make the same kernels of schedules."""
    return one.get("lowering") == other.get("lowering")


def recorded(task: PoolTask, whole: bool, version: Mapping[str, str]) -> RecordedSpace:
    """Return what was found of a pool, now or earlier; points that nobody got to are left out."""
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
    seconds = float(f"{entry.seconds:.6g}") if ran else None  # more digits are no news, and take a quarter of a file
    return RecordedPoint(
        entry.text, point.structure, point.places, entry.outcome, seconds,
        round(entry.spread, 4), built.registers if built else 0, len(entry.samples),
    )  # fmt: skip
