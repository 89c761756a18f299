"""Tuning loop: propose, build, check, time, rank, stop.

    begin -> rank -> propose -> build -> check, time -> advance -> propose ... -> end -> choice

Several tasks are searched at once. Workers rank a task's space. The best candidates by the cost model are proposed
first, then those of the strategy, batch after batch (`proposals`). Workers build them (`build_queue`), a device checks
and times them (`runner`). A search ends when patience or candidates are used up: its fastest candidates are timed in
turns, ties are broken by rule, and a pruning certificate says how much of the rest of the space is proven slower
(`final_ranking`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from ...ir import FULL_SHARE, UNSEARCHED_SHARE, PassError, Schedule
from ...passes.schedule import assess, make_space
from ..building import JobResult, ScoredCandidate
from ..settings import MAX_NEW_KERNEL_SHARE, SECONDS_PER_NEW_KERNEL, Settings, TunedChoice
from ..strategies import Proposer, make_strategy
from ..trace import SearchTrace
from .build_queue import BuildQueue
from .earlier_results import faster_before, hints, learned_order
from .executor import SearchExecutor
from .final_ranking import best_known, space_key, winner_of
from .overtime_ranking import MIN_RANKED_CANDIDATES, rank_unranked
from .proposals import (
    initial_count,
    is_out_of_patience,
    may_propose_early,
    propose_here,
    round_size,
    worker_request,
)
from .runner import measurement_of
from .task_record import TaskRecord

#: Tasks whose first candidates are built together under a budget, before those of the next ones.
BATCH = 16


class TuningLoop:
    """Search over all tasks at once, until choice or time limit."""

    def __init__(self, executor: SearchExecutor, settings: Settings, share: float = FULL_SHARE) -> None:
        self._executor = executor
        self._settings = settings
        self._share = share
        self._queue = BuildQueue(executor, settings, share)

    def run(self, tasks: Sequence[TaskRecord]) -> dict[str, TunedChoice]:
        """Return a choice for every task, by its key."""
        executor = self._executor
        record, ranked = self.search(tasks), executor.memory.ranked
        if executor.expired and self._share and not executor.interrupted:
            ranked = rank_unranked(executor, self._settings, tasks)
        found = {t.problem.key: t.choice or best_known(t, self._settings, executor.database, ranked) for t in tasks}
        record.end(executor.elapsed, [found[t.problem.key].candidate.score for t in tasks])
        return found

    def search(self, tasks: Sequence[TaskRecord]) -> SearchTrace:
        """Search until each task has its choice or the run must end.

        An early end leaves the last tasks without a choice.
        """
        executor = self._executor
        if executor.budget.is_limited:  # where the budget ends early, the first tasks have results
            for number, task in enumerate(tasks):
                task.place = number // BATCH
        self._queue.batches = 1 + max((task.place for task in tasks), default=0)
        record = SearchTrace(tasks)
        if self._settings.final:
            executor.statistics.searches.append(record)
        executor.drop_queries()
        with executor.interruptible():
            for task in tasks if not executor.over(self._share) else ():
                self.begin(task)
            while any(t.choice is None for t in tasks) and not self._is_budget_used(tasks):
                self.step(tasks)
                for error in (t.error for t in tasks if t.error is not None):
                    raise error
                self._run_idle_callback(tasks)
                executor.report(tasks)
                record.note(executor.elapsed)
        if any(t.choice is None for t in tasks):
            executor.drop()
        return record

    def _is_budget_used(self, tasks: Sequence[TaskRecord]) -> bool:
        return self._executor.over(self._share) or self._must_measure_unseen(tasks)

    def step(self, tasks: Sequence[TaskRecord]) -> None:
        """Collect workers' answers, measure one candidate, and advance idle tasks.

        A failure that ends a single search is stored in its `error`.
        """
        self._queue.step(tasks)
        for task in tasks:
            idle = task.idle or may_propose_early(self._executor, self._settings, task)
            if idle and task.problem.key not in self._executor.memory.searched_ahead:
                self._advance(task, tasks)
                self._executor.receive()  # workers continue: a proposal takes as long as some of their jobs
                self._queue.runner.receive()

    # ---- rank

    def begin(self, task: TaskRecord) -> None:
        """Begin the search for a task; others may run already."""
        executor, settings = self._executor, self._settings
        task.begun = executor.budget.clock()
        executor.database.register(task.problem)
        self._queue.prepare_reference(task)
        task.order = learned_order(executor.database, task.problem, settings)
        known = executor.memory.ranked.get(space_key(task.problem, settings))
        if known is not None and task.order is settings.correction and len(known) >= settings.first:
            self._start(task, known)
            return
        count = settings.first if settings.final else max(MIN_RANKED_CANDIDATES, settings.first)
        wanted = executor.memory.ranking(task.problem, settings.pruning, count, task.order)[1:]
        # Under a budget all spaces are ranked first: an unmeasured kernel is then at least the cost model's choice.
        first = -1.0 if executor.budget.is_limited and settings.final else task.place
        self._queue.submit(task, lambda done: self._take_ranking(task, done), "rank", (first, -2.0), *wanted)

    def _take_ranking(self, task: TaskRecord, done: JobResult) -> None:
        """Begin with hints of other machines, then the cost model's order.

        Where the worker was lost, only the simple kernel is left; where no schedule fits, that is the task's error.
        """
        if done.lost:
            task.lost = done.error
            self._stop(task)
            return
        if not done.value:
            task.error = PassError(f"{task.problem.label or 'a kernel'}: {done.error or 'no schedule fits the target'}")
            return
        self._executor.memory.ranked[space_key(task.problem, self._settings)] = done.value
        self._start(task, done.value)

    # ---- propose

    def _start(self, task: TaskRecord, ranked: Sequence[ScoredCandidate]) -> None:
        """Make the strategy and propose the first candidates."""
        executor, settings = self._executor, self._settings
        with executor.statistics.phase("make spaces"):
            space = make_space(task.problem.form, task.problem.target)
        task.points = space.size
        executor.statistics.points += space.size
        task.first = list(ranked[: max(1, settings.first)])
        task.strategy = make_strategy(
            settings.strategy, space, ranked, settings.pruning, settings.seed, settings.aided, task.order,
            initial_count(executor, settings, task),
        )  # fmt: skip
        known = hints(executor.database, task.problem) if settings.remembers else []
        self._queue.propose(task, [*known, *propose_here(executor, task, settings.first)])

    def _advance(self, task: TaskRecord, tasks: Sequence[TaskRecord]) -> None:
        """Propose the next batch, or stop the search."""
        if task.ending:
            self._end(task)
            return
        room = round_size(self._executor, self._settings, task, tasks)
        begins = (
            task.seconds == inf and len(task.entries) < MIN_RANKED_CANDIDATES
        )  # the next in order replace failed ones
        if not begins and self._queue.build_long(task):
            return
        task.note_round(self._settings.tie)
        if begins:
            task.stale, room = 0, self._settings.first
        if room <= 0 or is_out_of_patience(self._settings, task) or task.strategy is None:
            self._stop(task)
        elif (asked := worker_request(self._executor, self._settings, task, room)) is not None:
            task.asking = True
            self._queue.submit(task, lambda done: self._take_proposals(task, room, done), "propose", (-3.0,), asked)
        else:
            self._continue_with(task, propose_here(self._executor, task, room))

    def _take_proposals(self, task: TaskRecord, room: int, done: JobResult) -> None:
        """Continue with a worker's proposals; where it failed, this process proposes."""
        task.asking = False
        if done.value is None or not isinstance(task.strategy, Proposer):
            self._continue_with(task, propose_here(self._executor, task, room))
            return
        proposals, seen = done.value
        task.strategy.seen.update(seen)
        self._continue_with(task, proposals)

    def _continue_with(self, task: TaskRecord, proposals: Sequence[ScoredCandidate]) -> None:
        """Measure proposals; without any, try candidates with long code if nothing else ran, else stop the search."""
        if proposals:
            self._queue.propose(task, proposals)
        elif not self._queue.build_long(task):
            self._stop(task)

    # ---- stop

    def _stop(self, task: TaskRecord) -> None:
        """Have the fastest candidates built and request the pruning certificate.

        Only candidates that an earlier session measured are not built yet. Where nothing ran, the simple kernel is
        tried.
        """
        task.ending = True
        queue = self._queue
        queue.propose(task, faster_before(task) if self._settings.remembers else [])
        if task.seconds == inf:
            priority = task.place, float(task.round)
            queue.submit(task, lambda done: self._try_simple(task, done.value), "simple", priority)
            return
        finalists = task.finalists(self._settings)
        if len(finalists) > 1:
            for entry in finalists:
                if entry.built is None:
                    queue.build(task, entry, task.round)
        if self._settings.prove:
            queue.submit(task, task.take_proof, "prove", (inf,), task.seconds)
        if task.idle:
            self._end(task)

    def _try_simple(self, task: TaskRecord, schedule: Schedule | None) -> None:
        """Try the simple kernel where all others failed."""
        if schedule is not None:
            candidate = assess(task.problem.form, schedule, task.problem.target)
            self._queue.propose(task, [ScoredCandidate(None, candidate)])

    def _end(self, task: TaskRecord) -> None:
        """Time the finalists in turns, which may take several steps, and choose."""
        database, statistics, settings = self._executor.database, self._executor.statistics, self._settings
        finalists = task.finalists(settings)
        turned, task.turned = task.turned, True
        several = len(finalists) > 1 and not turned
        if several and self._queue.runner.time_in_turns(task, finalists, settings.rounds):
            return
        task.choice = best_known(task, settings, database)
        task.ended = self._executor.budget.clock()
        winner = task.winner(settings)
        if task.proof is not None:
            statistics.legal += task.proof.legal
            statistics.slower += task.proof.slower
        if winner is None:
            return
        ran = [measurement_of(e) for e in finalists if e.outcome == "ok" and e.built is not None]
        database.record(task.problem, ran, today=True)
        if settings.final:
            database.finish(task.problem, winner_of(task, winner))

    # ---- the rest of the session

    def _run_idle_callback(self, tasks: Sequence[TaskRecord]) -> None:
        """Run the idle callback when most tasks have their choice and workers and device have an empty queue."""
        executor, builder = self._executor, self._executor.builder
        if executor.on_idle is None or builder.load >= builder.size or self._queue.runner.running:
            return
        if 2 * sum(task.choice is None for task in tasks) <= len(tasks):
            then, executor.on_idle = executor.on_idle, None
            then(tasks)

    def _must_measure_unseen(self, tasks: Sequence[TaskRecord]) -> bool:
        """Return whether the rest of the budget is needed to measure each unmeasured kernel once.

        These come before further candidates of others: a kernel that never ran was never checked.
        """
        executor, budget = self._executor, self._executor.budget
        if not (budget.is_limited and self._settings.final and 0.0 < self._share < UNSEARCHED_SHARE):
            return False
        unseen = sum(task.choice is None and task.seconds == inf for task in tasks)
        must = budget.remaining(UNSEARCHED_SHARE) < min(
            SECONDS_PER_NEW_KERNEL * unseen, MAX_NEW_KERNEL_SHARE * budget.seconds
        )
        return executor.expire(must)
