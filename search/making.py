"""Making the kernels of a plan: those that workers built to be timed are there, and workers make the others side by
side. What that takes is known from what they took so far. Where there is no search, workers of its own plan
for a graph.

While this process decides about the groups of a graph, workers that have nothing else to do prepare the kernels that
its plan has so far: they rank their spaces and build the first point of each. So what is decided last is not what the
end of a budget finds undone, and the device has something to time as soon as groups are decided.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from attrs import define, field

from ..ir import FusedGroup, KernelFunction, Schedule, Target, cores
from ..passes import Alike, Fragment, PlanningHere, Priced
from ..passes.fusion import form_key
from ..passes.schedule import Candidate
from .build import COMPILE_LIMIT, Built, Done, Job, Scored, Workers
from .final_round import space_key
from .going_on import GoingOn
from .kernels import BundleMember, launch_name
from .problem import Problem, schedule_text
from .resources import Resources
from .settings import Settings

#: Seconds that a kernel takes to be lowered and printed, those that a core takes to compile it, and those that this
#: process takes for it behind its schedule: for its launch, its record, its buffers and its place in a plan. The first
#: two until workers have built some (163 kernels of a training step of ResNet-50 took 6.2 to be lowered, and 6.9 to be
#: compiled by 16 cores, on an H200's host). The last was 17 ms on a simulated host (8.3 s for 491 kernels of
#: DenseNet-121's step), nearly twice that where cores were busy; as each is printed once for records, 2.4 s are left
#: there behind the last kernel of 413 now, and a step that kept 30 ms back for each ended 10 s early on an H200's host.
LOWERED, COMPILED, RECORDED = 0.04, 0.7, 0.02
#: Of fewer kernels this process makes all that are not there.
FEW = 3
#: Points of a problem that are built until there is one that the compiler does not refuse.
TRIED = 3
#: Problems whose spaces a worker ranks at once, as this process may have no time for it for a while, and the priorities
#: of what it does to prepare kernels: behind everything that is waited for.
TOGETHER, RANKING, BUILDING = 3, (2.0, 0.0), (2.0, 1.0)
#: Seconds between two glances at what workers have prepared.
GLANCE = 0.05
#: A problem and a schedule of it, or the name of a launch: what a kernel is of.
Place: TypeAlias = tuple[str, str]
#: Seconds between two looks at whether time is over, and the priority of what is needed now.
PAUSE, NOW = 0.05, -3.0
#: Questions, and processors, from which on workers are worth their start: each imports what it needs for a second; a
#: fragment is cut in half a second, a point chosen in a sixth of one.
WORTH = 4
#: What workers of a planner host: they compile nothing.
PLANNING = "cuts.search.build:Worker"
#: Nodes of a graph from which on workers start while its groups are formed, and most workers.
MANY, MOST = 24, 8


def make_kernels(
    resources: Resources, wanted: Mapping[Hashable, Job], coming: Collection[Place] = ()
) -> dict[Hashable, KernelFunction]:
    """Return the kernels of some jobs, `alone` or `together`, that workers have made, or make now, as far as time
    reaches; one that fails is left out. Of those that are `coming`, which shrinks, workers are at the kernels anyway.
    """
    missing = {job.owner: job for job in wanted.values() if job.owner not in resources.made}
    if len(missing) >= FEW and resources.answered and not _target(next(iter(missing.values()))).on_host:
        _have_made(resources, missing, coming)
    return {key: resources.made[job.owner] for key, job in wanted.items() if job.owner in resources.made}


def alone(problem: Problem, schedule: Schedule) -> Job:
    """Return the job of making the kernel of a problem, for its place among those that are made."""
    return Job(_place(problem, schedule), "build", (problem, schedule), (NOW,))


def together(problem: Problem, members: Sequence[BundleMember]) -> Job:
    """Return the job of making the kernel of a launch of several groups, for its place among those that are made."""
    return Job((launch_name(problem, members), ""), "bundle", (problem, members), (NOW,))


def _place(problem: Problem, schedule: Schedule) -> Place:
    return problem.key, schedule_text(schedule)


def _place_of(job: Job) -> Place:
    problem, schedule = job.arguments
    assert isinstance(problem, Problem) and isinstance(schedule, Schedule), "that is what is built"
    return _place(problem, schedule)


def _target(job: Job) -> Target:
    problem = job.arguments[0]
    assert isinstance(problem, Problem)
    return problem.target


def _have_made(resources: Resources, missing: Mapping[Place, Job], coming: Collection[Place]) -> None:
    """Let workers make kernels until the budget ends, and behind that no longer than this process would take."""
    budget, waiting, asked = resources.budget, set(missing), set[Place]()
    target = _target(next(iter(missing.values())))
    end = max(budget.seconds, budget.elapsed + making_seconds(resources, target, len(missing), len(missing)))
    resources.let_go()
    with resources.interruptible():
        while waiting and not resources.interrupted and budget.elapsed < end:
            for place in waiting.difference(asked, coming if resources.builder.load else ()):
                resources.builder.submit(missing[place])
                asked.add(place)
            for done in resources.collect(PAUSE):
                if done.job.owner in waiting:
                    waiting.discard(done.job.owner)
                    if isinstance(done.value, Built):
                        resources.keep_built(done.job.owner, done.value, done.seconds)
                else:
                    resources.take_in(done)
            waiting -= resources.made.keys()
    if waiting:
        resources.drop()


def making_seconds(resources: Resources, target: Target, kernels: int, new: int) -> float:
    """Return about what it takes to make a plan of some kernels, of which some are not made yet: as long as workers
    took for others of this compilation, all cores together, where they have built any.
    """
    spent, count = resources.statistics.building
    each = spent / count if count else LOWERED + (COMPILED if target.dialect == "cuda" else 0.0)
    alone = target.on_host or not resources.started  # this process lowers them one after another
    return RECORDED * kernels + each * new / cores() + (LOWERED * kernels if alone else 0.0)


class PlanningAside(PlanningHere):
    """Workers that plan a graph for which nothing is measured; what they do not answer is planned here.

    They are started `ahead` where a graph has so many nodes that they will be asked, else when they are; not on few
    `processors`.
    """

    def __init__(self, nodes: int = 0, processors: int | None = None) -> None:
        self._count = min(processors or cores(), MOST)
        self._workers: Workers | None = None
        if nodes >= MANY and self._count >= WORTH:
            self._workers = Workers(self._count, PLANNING)

    def __enter__(self) -> PlanningAside:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._workers is not None:
            self._workers.close()

    def cut(self, fragments: Sequence[Fragment]) -> Sequence[Priced]:
        """Return the kernels of each fragment."""
        found = self._answers("plan", [(fragment,) for fragment in fragments])
        missing = [number for number in range(len(fragments)) if number not in found]
        found.update(zip(missing, super().cut([fragments[number] for number in missing]), strict=True))
        return [found[number] for number in range(len(fragments))]

    def choose(self, forms: Sequence[FusedGroup], target: Target) -> Sequence[Candidate | None]:
        """Return the best point of each group by the model."""
        found = self._answers("choose", [(form, target) for form in forms])
        return [found.get(number) for number in range(len(forms))]

    def schedule_alike(self, rows: Sequence[Alike]) -> Sequence[Sequence[Candidate] | None]:
        """Return the kernels of each row as one of several in a launch."""
        found = self._answers("bundle_row", [(row,) for row in rows])
        return [found.get(number) for number in range(len(rows))]

    def _answers(self, method: str, asked: Sequence[tuple[object, ...]]) -> dict[int, Any]:
        """Return what workers answer to questions, by their numbers; errors are no answers."""
        if min(len(asked), self._count) < WORTH:
            return {}
        if self._workers is None:
            self._workers = Workers(min(self._count, len(asked)), PLANNING)
        for number, arguments in enumerate(asked):
            self._workers.submit(Job(number, method, arguments))
        done: list[Done] = []
        while len(done) < len(asked):
            done += self._workers.collect(COMPILE_LIMIT)
        return {each.job.owner: each.value for each in done if not each.error}


@define
class Preparation:
    """Has workers make problems ready, and takes in what they have: all spaces are ranked before a kernel is built, so
    that whatever time cuts short, what is not measured is the model's choice. `coming` has the kernels that they were
    told to build and have not.
    """

    resources: Resources
    settings: Settings
    unranked: set[str] = field(factory=set)
    unbuilt: set[str] = field(factory=set)
    coming: set[Place] = field(factory=set)
    further: GoingOn = field(init=False)
    _built: set[Hashable] = field(factory=set)
    _looked: float = field(default=0.0, init=False)

    @further.default
    def _none_yet(self) -> GoingOn:
        return GoingOn(self.resources, self.settings)

    @property
    def missing(self) -> int:
        """How many of the problems that are to be made ready are not."""
        return len(self.unbuilt)

    def has_built(self, form: Hashable) -> bool:
        """Whether a kernel of a group was made ready, which is told by its form."""
        return form in self._built

    def begin(self, problems: Sequence[Problem], whole: bool = True) -> None:
        """Have problems made ready that are not, those in front first; only ranked, where they are not to be ready
        as a `whole`.
        """
        ranked = self.resources.ranked
        missing = [p for p in problems if space_key(p, self.settings) not in ranked and p.key not in self.unbuilt]
        self.unranked.update(p.key for p in missing)
        self.unbuilt.update(p.key for p in missing)
        settings, count = self.settings, max(1, self.settings.first)
        for number in range(0, len(missing), TOGETHER):
            some = missing[number : number + TOGETHER]
            wishes = [self.resources.ranking(p, settings.model, count, settings.correction) for p in some]
            self._submit("rank_each", (wishes,), RANKING, partial(self._keep_ranked, some, whole))

    def look(self) -> None:
        """Take in what is ready, now and then, so that workers go on."""
        now = self.resources.elapsed
        if (self.unbuilt or self.further.waiting) and now >= self._looked + GLANCE:
            self._looked = now
            self._take_in(0.0)

    def rank(self, problems: Sequence[Problem], until: float) -> None:
        """Wait for the spaces of problems to be ranked, no longer than until a moment of the budget."""
        self.begin(problems)
        keys = {problem.key for problem in problems}
        while not (self.resources.interrupted or keys.isdisjoint(self.unranked)) and self.resources.elapsed < until:
            self._take_in(PAUSE)

    def end(self) -> None:
        """Have nothing more made ready than what workers are at."""
        if self.unbuilt or self.further.waiting:
            forgotten = self.resources.drop(lasting=True)
            self.further.forget(forgotten)
            self.coming.difference_update(_place_of(job) for job in forgotten if job.method == "build")
        self.unranked.clear()
        self.unbuilt.clear()

    def _take_in(self, timeout: float) -> None:
        with self.resources.interruptible():
            for done in self.resources.collect(timeout):
                self.resources.take_in(done)

    def _submit(
        self, method: str, arguments: tuple[object, ...], priority: tuple[float, ...], take: Callable[[Done], None]
    ) -> None:
        self.resources.builder.submit(Job(take, method, arguments, priority, lasting=True))

    def _keep_ranked(self, problems: Sequence[Problem], whole: bool, done: Done) -> None:
        """Keep the best points of problems, and have a kernel of the first of each built; not of those that need none
        any more.
        """
        self.unranked.difference_update(p.key for p in problems)
        found = [(p, ranked) for p, ranked in zip(problems, done.value or (), strict=False) if ranked]
        building = {p.key for p, _ in found if whole}
        for problem, ranked in found:
            self.resources.ranked.setdefault(space_key(problem, self.settings), list(ranked))
            if problem.key in building & self.unbuilt:
                self._build(problem, ranked[:TRIED])
        self.unbuilt.difference_update({p.key for p in problems} - building)

    def _build(self, problem: Problem, ranked: Sequence[Scored]) -> None:
        """Have the kernel of the first of some points built, or of the next one where the compiler refuses it."""
        schedule = ranked[0].candidate.schedule
        self.coming.add(_place(problem, schedule))
        self._submit("build", (problem, schedule), BUILDING, partial(self._keep_built, problem, ranked))

    def _keep_built(self, problem: Problem, ranked: Sequence[Scored], done: Done) -> None:
        """Keep what was built of a problem; what the compiler refused is in no list of points."""
        first, rest = ranked[0], ranked[1:]
        place, key = _place(problem, first.candidate.schedule), space_key(problem, self.settings)
        self.coming.discard(place)
        if isinstance(done.value, Built) and done.value.outcome == "ok":
            self.resources.keep_built(place, done.value, done.seconds, ahead=True)
            self.unbuilt.discard(problem.key)
            self._built.add(form_key(problem.form))
            return
        self.resources.ranked[key] = [each for each in self.resources.ranked[key] if each != first]
        if rest and problem.key in self.unbuilt:
            self._build(problem, rest)
        else:
            self.unbuilt.discard(problem.key)
