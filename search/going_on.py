"""What searches try next, made ready before they begin: a short search has tried the first points of a kernel, and what
the last one tries behind them follows from their times alone.

Between the two this process decides what a plan is made of, for seconds in which it asks workers for nothing. So each
of them goes on with kernels that the plan has by what is known then, one job a kernel: this process has no time to give
out shorter ones. What does not ship was built in vain, by workers that nothing else was asked of.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf

from attrs import define, field

from .build import COMPILE_LIMIT, Done, Job
from .earlier_results import order_of
from .final_round import space_key
from .problem import Problem, schedule_text
from .resources import Resources
from .rounds import batch_of
from .settings import Settings
from .strategies import request_behind

#: The priority of going on: behind what makes a plan ready.
PRIORITY = (2.0, 2.0)


@define
class GoingOn:
    """Has workers go on with problems that a short search has looked at, as the last search will, which waits for what
    they are at.
    """

    resources: Resources
    settings: Settings
    waiting: int = field(default=0, init=False)
    _asked: set[str] = field(factory=set, init=False)

    def begin(self, problems: Sequence[Problem], spared: int = 0) -> None:
        """Have what problems try next proposed and built, those in front first, and not again where that was asked for;
        of so many problems only that workers which are `spared` have nothing to do with it.
        """
        resources, settings = self.resources, self.settings
        count = batch_of(settings, 1, resources.builder.size, len(problems))
        new = [problem for problem in problems if problem.key not in self._asked]
        for place, problem in enumerate(new[: max(0, resources.builder.size - spared)] if spared else new):
            trials = resources.database.trials(problem)
            times = {t.schedule: inf if t.seconds is None else t.seconds for t in trials if t.holds}
            ranked = resources.ranked.get(space_key(problem, settings), ())
            order = order_of(resources.database, problem, settings)
            asked = request_behind(settings, ranked, times, count, order)
            if asked is not None:
                self.waiting += 1
                self._asked.add(problem.key)
                resources.going_on.add(problem.key)
                wishes, limit = (problem, asked, settings.hasty), (1 + count) * COMPILE_LIMIT
                job = Job(partial(self._gone_on, problem), "go_on", wishes, (*PRIORITY, float(place)), limit, True)
                resources.builder.submit(job)

    def forget(self, dropped: Sequence[Job]) -> None:
        """Take in that some jobs will not be done."""
        for job in dropped:
            if job.method == "go_on" and isinstance(problem := job.arguments[0], Problem):
                self._asked.discard(problem.key)
                self._over(problem)

    def _gone_on(self, problem: Problem, done: Done) -> None:
        """Keep what was built; whether one that is too long is worth it the search itself says."""
        self._over(problem)
        built = [(schedule, each) for schedule, each in done.value or () if each.outcome != "long"]
        for schedule, each in built:
            place = problem.key, schedule_text(schedule)
            self.resources.keep_built(place, each, done.seconds / len(built), ahead=True)

    def _over(self, problem: Problem) -> None:
        self.waiting -= 1
        self.resources.going_on.discard(problem.key)
