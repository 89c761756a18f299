"""Tuner: finds the fastest schedule of each kernel by measurement.

A search respects a time budget and has an answer at any moment. It starts with the best candidates by the cost model.
While workers build candidates, the device checks and times those that are ready. A candidate that is much slower than
the best so far is dropped after three runs. When a batch has been measured, the strategy proposes the next one, until
time or patience is used up or every remaining candidate is proven slower. The few fastest are then timed in turns, and
ties are broken by rule, so that noise does not choose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Protocol

from attrs import frozen

from ...ir import ALGORITHMS_SHARE, FULL_SHARE, SCHEDULES_SHARE, Target, UsageError
from ...passes import (
    CandidateSubgraph,
    CostRequest,
    CostResult,
    MemberRow,
    SubgraphKernels,
    evaluate_costs,
    partition_subgraph,
    schedule_row,
)
from ...passes.schedule import Candidate
from ..building import Factory
from ..database import KernelTime
from ..settings import QUICK_SEARCH, Settings, TunedChoice
from ..tasks import BundleMember, KernelSpec, TuningTask, measurement_key, schedule_text
from ..trace import SearchTrace, Statistics
from .earlier_results import best_stored_choice, finished_choice, predicted_choices, transferred_choice
from .executor import SearchExecutor
from .launches import measure_launches
from .loop import TuningLoop
from .task_record import TaskRecord

#: Priority of jobs that are not needed at once.
LOW_PRIORITY = 1.0


class Searches(Protocol):
    """Search over several tuning tasks at once."""

    def run(self, tasks: Sequence[TaskRecord]) -> dict[str, TunedChoice]:
        """Return a choice for every task, by its key."""
        ...

    def search(self, tasks: Sequence[TaskRecord]) -> SearchTrace:
        """Search until each task has its choice or the run must end."""
        ...


@frozen
class Tuner:
    """Answer from the tuning database and search for the missing kernels.

    `run` returns a choice for each task in every case. After an interrupt or the end of the budget, every further run
    answers from known results. A `frozen` tuner never searches; one that `guesses` takes the cost model's choice where
    no result is known; one that searches `anew` takes no finished result of an earlier session. `make_search` makes
    the search, which runs here or at several places.
    """

    executor: SearchExecutor
    frozen: bool = False
    guesses: bool = False
    anew: bool = False
    make_search: Callable[[SearchExecutor, Settings, float], Searches] = TuningLoop

    @property
    def statistics(self) -> Statistics:
        """Statistics of all searches so far."""
        return self.executor.statistics

    @property
    def complete(self) -> bool:
        """True if every search so far ran to its end."""
        return self.executor.complete

    @property
    def is_local(self) -> bool:
        """True if only this process and its workers search for kernels."""
        return self.make_search is TuningLoop and not self.frozen

    def begin(self) -> None:
        """Start workers and the device early where time is limited."""
        if self.executor.budget.is_limited and not self.frozen:
            self.executor.start()

    def run(
        self,
        problems: Sequence[TuningTask],
        settings: Settings | None = None,
        share: float = FULL_SHARE,
        accept_known: bool = False,
        search_again: bool = False,
    ) -> list[TunedChoice]:
        """Return a choice for every task; equal tasks are searched once.

        The run ends when `share` of the budget is used up. With `accept_known`, the best result of an unfinished
        search is accepted. With `search_again`, tasks are searched although a finished search has a result.

        Raises `UsageError` where only known results may be used and one is missing.
        """
        executor = self.executor
        unique = {p.key: p for p in problems}
        with self.statistics.phase("database"):
            again = {key for key in unique if search_again or (self.anew and key not in executor.memory.searched)}
            kept = {key: finished_choice(executor.database, p) for key, p in unique.items() if key not in again}
        found = {key: choice for key, choice in kept.items() if choice is not None}
        if self.frozen or accept_known:  # an unfinished search has an answer too
            database = executor.database
            known = {p.key: best_stored_choice(self._task(p), database) for p in unique.values() if p.key not in found}
            found |= {key: choice for key, choice in known.items() if choice is not None}
        if self.frozen and accept_known:  # nothing can be measured, so the best of other machines is the best guess
            hinted = {p.key: transferred_choice(executor.database, p) for p in unique.values() if p.key not in found}
            found |= {key: choice for key, choice in hinted.items() if choice is not None}
        if self.frozen and self.guesses:
            guessed = [p for p in unique.values() if p.key not in found]
            found |= dict(zip([p.key for p in guessed], predicted_choices(guessed), strict=True))
        self.statistics.problems += 0 if search_again else len(unique)
        self.statistics.hits += len(found)
        missing = [problem for key, problem in unique.items() if key not in found]
        if missing and self.frozen:
            raise UsageError(
                f"{len(missing)} of {len(unique)} kernels are not in the tuning database; the first is "
                f"{missing[0].key[:12]},"
                f" {missing[0].label or 'without a name'}",
                hint="tune the same model for the same target with the same compiler once without --frozen",
            )
        if missing:
            found |= self.make_search(executor, settings or Settings(), share).run([self._task(p) for p in missing])
            executor.memory.searched.update(problem.key for problem in missing)
        return [found[p.key] for p in problems]

    def _task(self, problem: TuningTask) -> TaskRecord:
        return TaskRecord(problem, stored={t.schedule: t for t in self.executor.database.measurements(problem)})

    def estimate(
        self, problems: Sequence[TuningTask], settings: Settings, share: float = FULL_SHARE
    ) -> list[float | None]:
        """Return the estimated seconds of each task, by a short search.

        The estimate is None where the budget left no time. Estimates are stored separately from later, better times, so
        that every further session decides the same as long as the source of the kernels is the one that was measured.
        """
        kept = {p.key: (p, self.executor.database.time(_estimate_name(p, settings))) for p in problems}
        times = {key: (KernelSpec(p, time.schedule), time) for key, (p, time) in kept.items() if time is not None}
        known: dict[str, float | None] = {**self._valid_times(times, share)}
        missing = {p.key: p for p in problems if p.key not in known}
        if missing and not self.frozen:
            known |= self._search_estimates(list(missing.values()), settings, share)
        return [known.get(p.key) for p in problems]

    def _valid_times(self, times: Mapping[str, tuple[KernelSpec, KernelTime]], share: float) -> dict[str, float]:
        """Return the times, in seconds by key, of kernels whose source is still the one that was measured.

        Workers print sources that this version has not printed yet, within the budget.
        """
        database = self.executor.database
        known = database.current_sources([written.name for written, _ in times.values()])
        asked = [written for written, _ in times.values() if written.name not in known]
        if asked:
            here = Factory().source
            found = [*map(here, asked)] if self.frozen else self.executor.ask("source", asked, here, share)()
            new = {w.name: source for w, source in zip(asked, found, strict=True) if source is not None}
            database.note_sources(new)
            known |= new
        held = {key: time.seconds for key, (written, time) in times.items() if known.get(written.name) == time.source}
        self.statistics.stale += sum(key not in held and w.name in known for key, (w, _) in times.items())
        return held

    def _search_estimates(
        self, problems: Sequence[TuningTask], settings: Settings, share: float
    ) -> dict[str, float | None]:
        """Search for missing estimates and store them; the estimate of an interrupted search is returned but not
        stored.

        The result of a long search is no estimate: a group with a short search would lose against it, and with it every
        other partition.
        """
        found: dict[str, float | None] = {}
        tasks = [self._task(p) for p in problems]
        self.make_search(self.executor, settings, share).search(tasks)
        for task in tasks:
            key, choice = task.problem.key, task.choice
            if choice is not None and choice.seconds is not None:
                found[key] = choice.seconds
                self._keep_estimate(task.problem, settings, choice)
        cut = {t.problem.key: t.seconds for t in tasks if t.problem.key not in found and t.seconds < inf}
        return found | cut

    def _keep_estimate(self, problem: TuningTask, settings: Settings, choice: TunedChoice) -> None:
        """Store a measured time with the source that was measured."""
        database, schedule = self.executor.database, schedule_text(choice.candidate.schedule)
        point = measurement_key(problem.key, schedule)
        source = database.current_sources([point]).get(point)
        if source is not None and choice.seconds is not None:
            database.keep_time(_estimate_name(problem, settings), KernelTime(choice.seconds, source, schedule))

    def time_launches(self, launches: Sequence[tuple[TuningTask, Sequence[BundleMember]]]) -> list[float | None]:
        """Return the seconds of each launch of several groups.

        The value is infinity where a launch fails and None where the budget left no time. The task of a launch is the
        joint computation of its groups.
        """
        database = self.executor.database
        wanted = [KernelSpec(problem, members=tuple(members)) for problem, members in launches]
        names = [written.name for written in wanted]
        times = {n: (w, time) for n, w in zip(names, wanted, strict=True) if (time := database.time(n)) is not None}
        known = self._valid_times(times, FULL_SHARE)
        missing = {n: launch for n, launch in zip(names, launches, strict=True) if n not in known}
        if missing and not self.frozen:
            with self.executor.interruptible():
                for name, taken in measure_launches(self.executor, missing):
                    known[name] = taken.seconds
                    database.keep_time(name, taken)
                    database.note_sources({name: taken.source})
        return [known.get(name) for name in names]

    def overhead(self, target: Target) -> float:
        """Return the seconds that timing adds to a kernel of a target.

        The value is stored, so that every further session decides the same.
        """
        key = f"overhead {target.name}"
        kept = self.executor.database.cost(key)
        if kept is None:
            if self.frozen or self.executor.budget.over():
                return 0.0
            with self.executor.interruptible():
                kept = self.executor.bench.overhead()
                self.executor.database.keep_cost(key, kept)
        return kept or 0.0

    def plan(self, fragments: Sequence[CandidateSubgraph]) -> Callable[[], list[SubgraphKernels]]:
        """Have workers partition small graphs; return a function that waits.

        A result is None where the budget left no time.
        """
        with self.statistics.phase("algorithms"):
            wait = self.executor.ask(
                "plan", fragments, partition_subgraph, ALGORITHMS_SHARE, (LOW_PRIORITY,), patient=True
            )

        def wait_timed() -> list[SubgraphKernels]:
            with self.statistics.phase("algorithms"):
                return wait()

        return wait_timed

    def price(self, pricings: Sequence[CostRequest]) -> Callable[[], list[CostResult | None]]:
        """Have workers evaluate groups' cost; return a function that waits.

        A result is None where the budget left no time. Without a budget the plan depends on all of them.
        """
        if not self.executor.started:  # there is no other work for them
            return list
        return self.executor.ask("price", pricings, evaluate_costs, SCHEDULES_SHARE, patient=True)

    def schedule_bundles(self, rows: Sequence[MemberRow]) -> Sequence[Sequence[Candidate] | None]:
        """Return the kernels of rows of groups that share launches, by workers.

        A row is None where the budget left no time or no workers run.
        """
        if not self.executor.started:
            return [None] * len(rows)
        return self.executor.ask("bundle_row", rows, schedule_row, FULL_SHARE, patient=True)()


def _estimate_name(problem: TuningTask, settings: Settings) -> str:
    """Return the database key of an estimate; estimates of longer searches have keys of their own."""
    return (
        f"estimate of {settings.most} {problem.key}" if settings.most > QUICK_SEARCH.most else f"estimate {problem.key}"
    )
