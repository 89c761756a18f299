"""The search for several problems, in rounds: the best points by the model first, then what the strategy proposes,
batch after batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf

from ..ir import LOOK_SHARE, PassError, cores
from ..passes.schedule import make_space
from .build import Done, Job, Scored
from .copies import one_thread
from .course import Search
from .earlier_results import hints, order_of
from .final_round import Ending, best_known, space_key
from .resources import Resources
from .settings import BEGUN, COMPARED, LOOKED, LOOKING, Settings, TunedChoice
from .strategies import ProposalRequest, Proposer, make_strategy, request_of
from .task import SearchTask
from .trials import Trials

#: Fewest points that are ranked, so that a short search knows enough for a longer one, and what to try where the first
#: of them fail: the simple kernel took five times as long where the two that a short look has time for had failed.
RANKED = Settings().first
#: How many times as many points are proposed at once, at most, where few searches go on.
WIDE = 3
#: Problems whose first candidates are built together under a budget, before those of the next ones.
BATCH = 16
#: Part of a batch that may be on its way when the next one is proposed.
EARLY = 0.34
#: Workers from which on they are asked for proposals: fewer have enough to do.
SEVERAL = 4
#: Seconds in which spaces are ranked that nothing is known of, however late it is.
LATE = 2.0
#: Seconds that this process takes for the best of a few points of a space: workers are waited for as long (105 of them
#: took it 7 s on an H200's host).
SOON = 0.07
#: Seconds that a core takes to rank a space, at most LATE for all of them however late it is: what no clock has seen is
#: then what it is where nothing is measured.
RANKING = 0.5


def ranking_seconds(spaces: int) -> float:
    """Return the seconds that workers have to rank some spaces, however late it is."""
    return min(LATE, RANKING * spaces / cores())


def batch_of(settings: Settings, turn: int, workers: int, going: int) -> int:
    """Return how many points a search proposes at once in one of its rounds, where so many go on beside each other."""
    most = max(WIDE * settings.batch, workers // max(1, going))  # a round takes no longer for those that would be idle
    return max(settings.batch, min(most, (1 + turn) * workers // max(1, going)))


class Rounds:
    """Searches for all problems at once, until each has its choice or the run must end."""

    def __init__(self, resources: Resources, settings: Settings) -> None:
        self._resources = resources
        self._settings = settings
        self._trials = Trials(resources, settings)
        self._ending = Ending(self._trials)

    def run(self, tasks: Sequence[SearchTask]) -> dict[str, TunedChoice]:
        """Return a choice for every problem, by its key."""
        record, ranked = self.search(tasks), self._resources.ranked
        if self._resources.expired and self._resources.share and not self._resources.interrupted:
            ranked = self._rank(tasks)
        database = self._resources.database
        found = {t.problem.key: t.choice or best_known(t, self._settings, database, ranked) for t in tasks}
        record.end(self._resources.elapsed, [found[t.problem.key].candidate.score for t in tasks])
        return found

    def search(self, tasks: Sequence[SearchTask]) -> Search:
        """Search until each problem has its choice or the run must end, which leaves some without: those that come
        last.
        """
        if self._resources.budget.limited:  # whatever time cuts short, what comes first is known then
            for number, task in enumerate(tasks):
                task.place = number // BATCH
        self._trials.batches = 1 + max((task.place for task in tasks), default=0)
        record = Search(tasks)
        if self._settings.final:
            self._resources.statistics.searches.append(record)
        self._resources.let_go()
        with self._resources.interruptible():
            for task in tasks if not self._resources.over() else ():
                self.begin(task)
            while any(t.choice is None for t in tasks) and not (self._resources.over() or self._must_look(tasks)):
                self.turn(tasks)
                for error in (t.error for t in tasks if t.error is not None):
                    raise error
                self._leave_idle(tasks)
                self._resources.report(tasks)
                record.note(self._resources.elapsed)
        if any(t.choice is None for t in tasks):
            self._resources.drop()
        return record

    def _leave_idle(self, tasks: Sequence[SearchTask]) -> None:
        """Have done what is to be done when most problems have their choice, workers have nothing in their queue, and
        the device waits for them.
        """
        resources, builder = self._resources, self._resources.builder
        if resources.idle is None or builder.load >= builder.size or self._trials.measurements.under_way:
            return
        if 2 * sum(task.choice is None for task in tasks) <= len(tasks):
            then, resources.idle = resources.idle, None
            then(tasks)

    def _must_look(self, tasks: Sequence[SearchTask]) -> bool:
        """Whether no more is left than it takes to run each kernel once that no clock has seen, which then goes before
        further points of others: what never ran was never checked.
        """
        resources, budget = self._resources, self._resources.budget
        if not (budget.limited and self._settings.final and 0.0 < resources.share < LOOK_SHARE):
            return False
        unseen = sum(task.choice is None and task.seconds == inf for task in tasks)
        must = budget.left(LOOK_SHARE) < min(LOOKED * unseen, LOOKING * budget.seconds)
        resources.expired = resources.expired or must
        return must

    def turn(self, tasks: Sequence[SearchTask]) -> None:
        """Take in what workers did, check and time one candidate, and go on with those problems that wait for nothing.
        What ends a single search is its `error`.
        """
        self._trials.step(tasks)
        for task in tasks:
            if (task.idle or self._may_hurry(task)) and task.problem.key not in self._resources.going_on:
                self._advance(task, self._batch(task, tasks))
                self._trials.loop.take_in()  # workers go on meanwhile: a proposal takes as long as some of their jobs
                self._trials.measurements.look()

    def _may_hurry(self, task: SearchTask) -> bool:
        """Whether the next batch is proposed though a few of the last one are on their way, as workers have nothing to
        do. Not where the search may end by what these take.
        """
        left, builder = task.waiting + len(task.ready), self._resources.builder
        if task.strategy is None or task.ending or task.asking or task.unknown or task.untrusted:
            return False
        if not 0 < left <= EARLY * (len(task.entries) - task.tried) or not SEVERAL <= builder.size > builder.load:
            return False
        better = task.seconds < task.reached * (1 - self._settings.tie)
        return task.seconds < inf and (better or task.stale < self._settings.patience)

    def _rank(self, tasks: Sequence[SearchTask]) -> dict[Hashable, list[Scored]]:
        """Let the model order the points of spaces that nothing is known of: where nothing could be measured, a kernel
        is at least what it is without a search. That is worth what was kept back of the budget, and a little more. The
        best of a few points come first, and are waited for as long as this process would take, which would choose them
        one after the other, however late it is. Return the points of all spaces that are known now.
        """
        missing = {space_key(task.problem, self._settings): task.problem for task in tasks if self._unknown(task)}
        ranked, soon = self._resources.ranked, dict[Hashable, list[Scored]]()
        self._resources.let_go()
        with self._resources.interruptible():
            for key, problem in missing.items():
                wishes = self._resources.ranking(problem, self._settings.model, RANKED, self._settings.correction)
                self._resources.builder.submit(Job(key, "soon", (problem,), (-1.0,)))
                self._resources.builder.submit(Job(key, "rank", wishes, (0.0,)))
            end = max(self._resources.budget.latest, self._resources.elapsed + ranking_seconds(len(missing)))
            latest = max(end + LATE, self._resources.elapsed + SOON * len(missing))
            while missing and not self._resources.interrupted:
                if self._resources.elapsed >= (end if soon.keys() >= missing.keys() else latest):
                    break
                for done in self._resources.collect(0.1):
                    if done.job.owner in missing and done.value:
                        (soon if done.job.method == "soon" else ranked)[done.job.owner] = done.value
                    if done.job.method == "rank":
                        missing.pop(done.job.owner, None)
        if missing:
            self._resources.drop()
        return {**soon, **ranked}

    def _unknown(self, task: SearchTask) -> bool:
        ranked = task.first or task.lost or space_key(task.problem, self._settings) in self._resources.ranked
        return not ranked and task.choice is None and task.best is None

    def begin(self, task: SearchTask) -> None:
        """Begin the search for a problem; others may be under way."""
        task.begun = self._resources.budget.clock()
        self._resources.database.register(task.problem)
        self._trials.refer(task)
        task.order = order_of(self._resources.database, task.problem, self._settings)
        known = self._resources.ranked.get(space_key(task.problem, self._settings))
        if known is not None and task.order is self._settings.correction and len(known) >= self._settings.first:
            self._start(task, known)
            return
        count = self._settings.first if self._settings.final else max(RANKED, self._settings.first)
        wanted = self._resources.ranking(task.problem, self._settings.model, count, task.order)[1:]
        # Under a budget all spaces are ranked first: what is not measured then is the model's choice at least.
        first = -1.0 if self._resources.budget.limited and self._settings.final else task.place
        self._trials.loop.submit(task, lambda done: self._ranked(task, done), "rank", (first, -2.0), *wanted)

    def _ranked(self, task: SearchTask, done: Done) -> None:
        """Begin with hints of other machines, then the model's order. Where the worker was lost over the space, there
        is only the simple kernel; where no schedule fits, that is the task's error.
        """
        if done.lost:
            task.lost = done.error
            self._ending.begin(task)
            return
        if not done.value:
            task.error = PassError(f"{task.problem.label or 'a kernel'}: {done.error or 'no schedule fits the target'}")
            return
        self._resources.ranked[space_key(task.problem, self._settings)] = done.value
        self._start(task, done.value)

    def _start(self, task: SearchTask, ranked: Sequence[Scored]) -> None:
        """Make the strategy and propose the first candidates."""
        with self._resources.statistics.phase("make spaces"):
            space = make_space(task.problem.form, task.problem.target)
        task.points = space.size
        self._resources.statistics.points += space.size
        task.first = list(ranked[: max(1, self._settings.first)])
        settings = self._settings
        task.strategy = make_strategy(
            settings.strategy, space, ranked, settings.model, settings.seed, settings.aided, task.order,
            self._begins_with(task),
        )  # fmt: skip
        known = hints(self._resources.database, task.problem) if settings.remembers else []
        self._trials.propose(task, [*known, *self._proposed(task, self._settings.first)])

    def _begins_with(self, task: SearchTask) -> int:
        """Return how many of the model's points a search by expected gain begins with: those that a short search had
        built tell it something for nothing. It is the same where an interrupted session goes on.
        """
        if not self._settings.final:
            self._resources.compared.update([task.problem.key] if self._settings.first >= COMPARED else [])
            return self._settings.first
        return COMPARED if task.problem.key in self._resources.compared else BEGUN

    def _proposed(self, task: SearchTask, count: int) -> list[Scored]:
        assert task.strategy is not None, "a search has begun that is asked for points"
        with one_thread(), self._resources.statistics.phase("propose"):
            return task.strategy.propose(task.known(), task.seconds, count)

    def _batch(self, task: SearchTask, tasks: Sequence[SearchTask]) -> int:
        """Return how many points of a problem are proposed at once: more under a budget, where few searches go on and
        workers would have nothing to do, and the more the longer this one goes on already: round after round it would
        end by itself. One that only waits to be told what is proven goes on no more.
        """
        going = sum(t.choice is None and not t.ending for t in tasks)
        if not self._resources.budget.limited:
            return self._settings.batch
        return batch_of(self._settings, task.round, self._resources.builder.size, going)

    def _room(self, task: SearchTask, batch: int) -> int:
        """Return how many points a round has: with the last ones that a search may try where these are fewer than a
        batch, as a round takes as long for one point.
        """
        left = self._settings.most - len(task.entries)
        return left if left < batch + self._settings.batch else batch

    def _advance(self, task: SearchTask, batch: int) -> None:
        """Propose the next batch, or end the search."""
        if task.ending:
            self._ending.end(task)
            return
        begins = task.seconds == inf and len(task.entries) < RANKED  # the next in order take the place of what failed
        if not begins and self._trials.build_long(task):
            return
        if task.seconds < task.reached * (1 - self._settings.tie):
            task.stale, task.vain = 0, 0
        else:
            task.stale, task.vain = task.stale + 1, task.vain + len(task.entries) - task.tried
        task.reached, task.tried = min(task.reached, task.seconds), len(task.entries)
        task.round += 1
        room = self._room(task, batch)
        if begins:
            task.stale, room = 0, self._settings.first
        if room <= 0 or self._impatient(task) or task.strategy is None:
            self._ending.begin(task)
        elif (asked := self._request(task, room)) is not None:
            task.asking = True
            self._trials.loop.submit(task, lambda done: self._answered(task, room, done), "propose", (-3.0,), asked)
        else:
            self._go_on(task, self._proposed(task, room))

    def _impatient(self, task: SearchTask) -> bool:
        """Whether enough was tried in vain: so many proposals, however few points each has. A search that is not hasty
        counts points: side by side with others it would end behind a third of those that it tries by itself.
        """
        settings = self._settings
        if settings.hasty:
            return task.stale > settings.patience
        return task.vain >= (1 + settings.patience) * WIDE * settings.batch

    def _request(self, task: SearchTask, room: int) -> ProposalRequest | None:
        """Return what a worker is asked for proposals; nothing where there are few, or the strategy does not travel."""
        if self._resources.builder.size < SEVERAL or task.strategy is None:
            return None
        return request_of(self._settings, task.strategy, task.known(), task.seconds, room, task.order)

    def _answered(self, task: SearchTask, room: int, done: Done) -> None:
        """Go on with what a worker proposes; where it could not, this process does."""
        task.asking = False
        if done.value is None or not isinstance(task.strategy, Proposer):
            self._go_on(task, self._proposed(task, room))
            return
        proposals, seen = done.value
        task.strategy.seen.update(seen)
        self._go_on(task, proposals)

    def _go_on(self, task: SearchTask, proposals: Sequence[Scored]) -> None:
        """Try what is proposed; where nothing is, what was too long if nothing else ran, and else end the search."""
        if proposals:
            self._trials.propose(task, proposals)
        elif not self._trials.build_long(task):
            self._ending.begin(task)
