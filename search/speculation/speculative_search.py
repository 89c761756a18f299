"""Speculative search: workers build the next candidates before a search begins.

A short search has tried the first candidates of a kernel; the next proposals of the final search follow from their
times alone. In between this process decides the plan for seconds, during which workers would be idle. Each works on
kernels that the current plan has, one job a kernel: this process has no time to hand out shorter jobs. The work for
kernels that do not ship is lost, but the workers had no other work.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf

from attrs import define, field

from ..building import COMPILE_LIMIT, Job, JobResult
from ..settings import Settings
from ..strategies import next_request
from ..tasks import TuningTask, schedule_text
from ..tuner import SearchExecutor, batch_size, learned_order, space_key

#: Priority of a speculative search, below speculative builds of the plan.
PRIORITY = (2.0, 2.0)


@define
class SpeculativeSearch:
    """Continuation of tasks' short searches by workers, as the final search will.

    The final search waits for unfinished jobs of this kind.
    """

    executor: SearchExecutor
    settings: Settings
    waiting: int = field(default=0, init=False)
    _requested: set[str] = field(factory=set, init=False)

    def begin(self, problems: Sequence[TuningTask], spared: int = 0) -> None:
        """Have the next candidates of new tasks proposed and built, in order.

        With `spared` workers, only as many tasks as other workers are taken.
        """
        executor, settings = self.executor, self.settings
        count = batch_size(settings, 1, executor.builder.size, len(problems))
        new = [problem for problem in problems if problem.key not in self._requested]
        for place, problem in enumerate(new[: max(0, executor.builder.size - spared)] if spared else new):
            trials = executor.database.measurements(problem)
            times = {t.schedule: inf if t.seconds is None else t.seconds for t in trials if t.holds}
            ranked = executor.memory.ranked.get(space_key(problem, settings), ())
            order = learned_order(executor.database, problem, settings)
            asked = next_request(settings, ranked, times, count, order)
            if asked is not None:
                self.waiting += 1
                self._requested.add(problem.key)
                executor.memory.searched_ahead.add(problem.key)
                wishes, limit = (problem, asked, settings.hasty), (1 + count) * COMPILE_LIMIT
                executor.submit(
                    partial(self._take_built, problem),
                    "go_on",
                    *wishes,
                    priority=(*PRIORITY, float(place)),
                    limit=limit,
                    lasting=True,
                )

    def forget(self, dropped: Sequence[Job]) -> None:
        """Forget jobs that are cancelled."""
        for job in dropped:
            if job.method == "go_on" and isinstance(problem := job.arguments[0], TuningTask):
                self._requested.discard(problem.key)
                self._finish(problem)

    def _take_built(self, problem: TuningTask, done: JobResult) -> None:
        """Keep built candidates; the search itself decides about those with long code."""
        self._finish(problem)
        built = [(schedule, each) for schedule, each in done.value or () if each.outcome != "long"]
        for schedule, each in built:
            place = problem.key, schedule_text(schedule)
            self.executor.memory.keep_built(place, each, done.seconds / len(built), ahead=True)

    def _finish(self, problem: TuningTask) -> None:
        self.waiting -= 1
        self.executor.memory.searched_ahead.discard(problem.key)
