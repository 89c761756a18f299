"""Tuning loop: measures batches of candidates for several tasks at once.

The best candidates by the cost model come first, then the proposals of the strategy, batch after batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf

from ...ir import UNSEARCHED_SHARE, PassError, processor_count
from ...passes.schedule import make_space
from ..building import Job, JobResult, ScoredCandidate
from ..processes import one_thread
from ..settings import (
    FIRST_CANDIDATES,
    MAX_NEW_KERNEL_SHARE,
    QUICK_CANDIDATES,
    SECONDS_PER_NEW_KERNEL,
    Settings,
    TunedChoice,
)
from ..strategies import ProposalRequest, Proposer, make_strategy, request_of
from ..trace import SearchTrace
from .build_queue import BuildQueue
from .earlier_results import hints, learned_order
from .final_ranking import FinalRanking, best_known, space_key
from .resources import Resources
from .task_record import TaskRecord

#: Fewest candidates that are ranked, so that a short search has enough for a longer one, and alternatives where the
#: first ones fail.
MIN_RANKED_CANDIDATES = Settings().first
#: Largest factor on the batch size where few searches go on.
MAX_BATCH_FACTOR = 3
#: Tasks whose first candidates are built together under a budget, before those of the next ones.
BATCH = 16
#: Share of a batch that may be unfinished when the next one is proposed.
MAX_PENDING_SHARE = 0.34
#: Fewest workers for which proposals are made by a worker: fewer have enough to do.
MIN_PROPOSING_WORKERS = 4
#: Seconds in which spaces without any results are ranked after the end of the budget.
OVERTIME_RANKING_SECONDS = 2.0
#: Seconds that this process takes to choose the best of a few candidates of a space; workers are awaited as long (105
#: spaces took it 7 s on an H200's host).
QUICK_CHOICE_SECONDS = 0.07
#: Seconds that a core takes to rank a space; all spaces together get at most OVERTIME_RANKING_SECONDS after the end of
#: the budget. A kernel that was never measured is then the cost model's choice.
RANKING_SECONDS = 0.5


def ranking_seconds(spaces: int) -> float:
    """Return the seconds for ranking spaces after the budget's end."""
    return min(OVERTIME_RANKING_SECONDS, RANKING_SECONDS * spaces / processor_count())


def batch_size(settings: Settings, turn: int, workers: int, going: int) -> int:
    """Return the number of candidates of a round, where `going` searches run."""
    limit = max(
        MAX_BATCH_FACTOR * settings.batch, workers // max(1, going)
    )  # a round takes no longer with candidates for idle workers
    return max(settings.batch, min(limit, (1 + turn) * workers // max(1, going)))


class TuningLoop:
    """Search over all tasks at once, until choice or time limit."""

    def __init__(self, resources: Resources, settings: Settings) -> None:
        self._resources = resources
        self._settings = settings
        self._trials = BuildQueue(resources, settings)
        self._ending = FinalRanking(self._trials)

    def run(self, tasks: Sequence[TaskRecord]) -> dict[str, TunedChoice]:
        """Return a choice for every task, by its key."""
        record, ranked = self.search(tasks), self._resources.ranked
        if self._resources.expired and self._resources.share and not self._resources.interrupted:
            ranked = self._rank(tasks)
        database = self._resources.database
        found = {t.problem.key: t.choice or best_known(t, self._settings, database, ranked) for t in tasks}
        record.end(self._resources.elapsed, [found[t.problem.key].candidate.score for t in tasks])
        return found

    def search(self, tasks: Sequence[TaskRecord]) -> SearchTrace:
        """Search until each task has its choice or the run must end.

        An early end leaves the last tasks without a choice.
        """
        if self._resources.budget.is_limited:  # where the budget ends early, the first tasks have results
            for number, task in enumerate(tasks):
                task.place = number // BATCH
        self._trials.batches = 1 + max((task.place for task in tasks), default=0)
        record = SearchTrace(tasks)
        if self._settings.final:
            self._resources.statistics.searches.append(record)
        self._resources.drop_queries()
        with self._resources.interruptible():
            for task in tasks if not self._resources.over() else ():
                self.begin(task)
            while any(t.choice is None for t in tasks) and not (
                self._resources.over() or self._must_measure_unseen(tasks)
            ):
                self.step(tasks)
                for error in (t.error for t in tasks if t.error is not None):
                    raise error
                self._run_idle_callback(tasks)
                self._resources.report(tasks)
                record.note(self._resources.elapsed)
        if any(t.choice is None for t in tasks):
            self._resources.drop()
        return record

    def _run_idle_callback(self, tasks: Sequence[TaskRecord]) -> None:
        """Run the idle callback when most tasks have their choice and workers and device have an empty queue."""
        resources, builder = self._resources, self._resources.builder
        if resources.on_idle is None or builder.load >= builder.size or self._trials.runner.running:
            return
        if 2 * sum(task.choice is None for task in tasks) <= len(tasks):
            then, resources.on_idle = resources.on_idle, None
            then(tasks)

    def _must_measure_unseen(self, tasks: Sequence[TaskRecord]) -> bool:
        """Return whether the rest of the budget is needed to measure each unmeasured kernel once.

        These come before further candidates of others: a kernel that never ran was never checked.
        """
        resources, budget = self._resources, self._resources.budget
        if not (budget.is_limited and self._settings.final and 0.0 < resources.share < UNSEARCHED_SHARE):
            return False
        unseen = sum(task.choice is None and task.seconds == inf for task in tasks)
        must = budget.remaining(UNSEARCHED_SHARE) < min(
            SECONDS_PER_NEW_KERNEL * unseen, MAX_NEW_KERNEL_SHARE * budget.seconds
        )
        resources.expired = resources.expired or must
        return must

    def step(self, tasks: Sequence[TaskRecord]) -> None:
        """Collect workers' answers, measure one candidate, and advance idle tasks.

        A failure that ends a single search is stored in its `error`.
        """
        self._trials.step(tasks)
        for task in tasks:
            if (task.idle or self._may_propose_early(task)) and task.problem.key not in self._resources.searched_ahead:
                self._advance(task, self._batch(task, tasks))
                self._trials.loop.receive()  # workers continue: a proposal takes as long as some of their jobs
                self._trials.runner.receive()

    def _may_propose_early(self, task: TaskRecord) -> bool:
        """Return whether the next batch is proposed before the last one is complete, as workers are idle.

        Not where the pending results may end the search.
        """
        pending, builder = task.waiting + len(task.ready), self._resources.builder
        if task.strategy is None or task.ending or task.asking or task.unknown or task.untrusted:
            return False
        if (
            not 0 < pending <= MAX_PENDING_SHARE * (len(task.entries) - task.tried)
            or not MIN_PROPOSING_WORKERS <= builder.size > builder.load
        ):
            return False
        better = task.seconds < task.reached * (1 - self._settings.tie)
        return task.seconds < inf and (better or task.stale < self._settings.patience)

    def _rank(self, tasks: Sequence[TaskRecord]) -> dict[Hashable, list[ScoredCandidate]]:
        """Return ranked candidates of all spaces, after ranking those without any results.

        Where nothing could be measured, a kernel is at least as good as without a search. The time for this was
        reserved in the budget, and a little more is taken. The best of a few candidates come first. They are awaited as
        long as this process would take to choose them itself.
        """
        missing = {space_key(task.problem, self._settings): task.problem for task in tasks if self._is_unranked(task)}
        ranked, soon = self._resources.ranked, dict[Hashable, list[ScoredCandidate]]()
        self._resources.drop_queries()
        with self._resources.interruptible():
            for key, problem in missing.items():
                wishes = self._resources.ranking(
                    problem, self._settings.model, MIN_RANKED_CANDIDATES, self._settings.correction
                )
                self._resources.builder.submit(Job(key, "soon", (problem,), (-1.0,)))
                self._resources.builder.submit(Job(key, "rank", wishes, (0.0,)))
            end = max(self._resources.budget.latest, self._resources.elapsed + ranking_seconds(len(missing)))
            latest = max(end + OVERTIME_RANKING_SECONDS, self._resources.elapsed + QUICK_CHOICE_SECONDS * len(missing))
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

    def _is_unranked(self, task: TaskRecord) -> bool:
        ranked = task.first or task.lost or space_key(task.problem, self._settings) in self._resources.ranked
        return not ranked and task.choice is None and task.best is None

    def begin(self, task: TaskRecord) -> None:
        """Begin the search for a task; others may run already."""
        task.begun = self._resources.budget.clock()
        self._resources.database.register(task.problem)
        self._trials.prepare_reference(task)
        task.order = learned_order(self._resources.database, task.problem, self._settings)
        known = self._resources.ranked.get(space_key(task.problem, self._settings))
        if known is not None and task.order is self._settings.correction and len(known) >= self._settings.first:
            self._start(task, known)
            return
        count = self._settings.first if self._settings.final else max(MIN_RANKED_CANDIDATES, self._settings.first)
        wanted = self._resources.ranking(task.problem, self._settings.model, count, task.order)[1:]
        # Under a budget all spaces are ranked first: an unmeasured kernel is then at least the cost model's choice.
        first = -1.0 if self._resources.budget.is_limited and self._settings.final else task.place
        self._trials.loop.submit(task, lambda done: self._take_ranking(task, done), "rank", (first, -2.0), *wanted)

    def _take_ranking(self, task: TaskRecord, done: JobResult) -> None:
        """Begin with hints of other machines, then the cost model's order.

        Where the worker was lost, only the simple kernel is left; where no schedule fits, that is the task's error.
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

    def _start(self, task: TaskRecord, ranked: Sequence[ScoredCandidate]) -> None:
        """Make the strategy and propose the first candidates."""
        with self._resources.statistics.phase("make spaces"):
            space = make_space(task.problem.form, task.problem.target)
        task.points = space.size
        self._resources.statistics.points += space.size
        task.first = list(ranked[: max(1, self._settings.first)])
        settings = self._settings
        task.strategy = make_strategy(
            settings.strategy, space, ranked, settings.model, settings.seed, settings.aided, task.order,
            self._initial_count(task),
        )  # fmt: skip
        known = hints(self._resources.database, task.problem) if settings.remembers else []
        self._trials.propose(task, [*known, *self._propose(task, self._settings.first)])

    def _initial_count(self, task: TaskRecord) -> int:
        """Return the number of the cost model's candidates that a search by expected improvement begins with.

        Those that a short search has built are free information. The number is the same when an interrupted session
        resumes.
        """
        if not self._settings.final:
            self._resources.quickly_searched.update(
                [task.problem.key] if self._settings.first >= QUICK_CANDIDATES else []
            )
            return self._settings.first
        return QUICK_CANDIDATES if task.problem.key in self._resources.quickly_searched else FIRST_CANDIDATES

    def _propose(self, task: TaskRecord, count: int) -> list[ScoredCandidate]:
        assert task.strategy is not None, "a search has begun that is asked for points"
        with one_thread(), self._resources.statistics.phase("propose"):
            return task.strategy.propose(task.observations(), task.seconds, count)

    def _batch(self, task: TaskRecord, tasks: Sequence[TaskRecord]) -> int:
        """Return the number of candidates that a task proposes at once.

        It is larger under a budget where few searches run and workers would be idle, and grows with the rounds of this
        search. A search that only waits for its pruning certificate does not count.
        """
        going = sum(t.choice is None and not t.ending for t in tasks)
        if not self._resources.budget.is_limited:
            return self._settings.batch
        return batch_size(self._settings, task.round, self._resources.builder.size, going)

    def _round_size(self, task: TaskRecord, batch: int) -> int:
        """Return the number of candidates of a round, including the last few that are fewer than a batch.

        A round takes as long for one candidate.
        """
        left = self._settings.most - len(task.entries)
        return left if left < batch + self._settings.batch else batch

    def _advance(self, task: TaskRecord, batch: int) -> None:
        """Propose the next batch, or end the search."""
        if task.ending:
            self._ending.end(task)
            return
        begins = (
            task.seconds == inf and len(task.entries) < MIN_RANKED_CANDIDATES
        )  # the next in order replace failed ones
        if not begins and self._trials.build_long(task):
            return
        if task.seconds < task.reached * (1 - self._settings.tie):
            task.stale, task.unsuccessful = 0, 0
        else:
            task.stale, task.unsuccessful = task.stale + 1, task.unsuccessful + len(task.entries) - task.tried
        task.reached, task.tried = min(task.reached, task.seconds), len(task.entries)
        task.round += 1
        room = self._round_size(task, batch)
        if begins:
            task.stale, room = 0, self._settings.first
        if room <= 0 or self._is_out_of_patience(task) or task.strategy is None:
            self._ending.begin(task)
        elif (asked := self._request(task, room)) is not None:
            task.asking = True
            self._trials.loop.submit(
                task, lambda done: self._take_proposals(task, room, done), "propose", (-3.0,), asked
            )
        else:
            self._continue_with(task, self._propose(task, room))

    def _is_out_of_patience(self, task: TaskRecord) -> bool:
        """Return whether enough candidates were tried without improvement.

        A hasty search counts proposals, another one counts candidates: with others beside it, it would otherwise end
        after a third of the candidates that it tries alone.
        """
        settings = self._settings
        if settings.hasty:
            return task.stale > settings.patience
        return task.unsuccessful >= (1 + settings.patience) * MAX_BATCH_FACTOR * settings.batch

    def _request(self, task: TaskRecord, room: int) -> ProposalRequest | None:
        """Return the proposal request for a worker; None where there are few workers or the strategy is not sent."""
        if self._resources.builder.size < MIN_PROPOSING_WORKERS or task.strategy is None:
            return None
        return request_of(self._settings, task.strategy, task.observations(), task.seconds, room, task.order)

    def _take_proposals(self, task: TaskRecord, room: int, done: JobResult) -> None:
        """Continue with a worker's proposals; where it failed, this process proposes."""
        task.asking = False
        if done.value is None or not isinstance(task.strategy, Proposer):
            self._continue_with(task, self._propose(task, room))
            return
        proposals, seen = done.value
        task.strategy.seen.update(seen)
        self._continue_with(task, proposals)

    def _continue_with(self, task: TaskRecord, proposals: Sequence[ScoredCandidate]) -> None:
        """Measure proposals; without any, try candidates with long code if nothing else ran, else end the search."""
        if proposals:
            self._trials.propose(task, proposals)
        elif not self._trials.build_long(task):
            self._ending.begin(task)
