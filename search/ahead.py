"""Kernels that are made ready ahead: while this process decides about the groups of a graph, workers that have nothing
else to do rank the spaces of the kernels that its plan has so far, and build the first point of each.

So what is decided last is not what the end of a budget finds undone: a plan ships whose kernels are there, and the
device has something to time as soon as groups are decided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import define, field

from .build import Done, Job, Ready
from .final_round import space_key
from .problem import Problem
from .resources import Resources
from .settings import Settings

#: Problems that a worker is given at once, as this process may have no time for it for a while, and their priority:
#: behind everything that is waited for.
TOGETHER, LAST = 3, 2.0
#: Seconds between two looks at what workers have made ready.
LOOK = 0.05


@define
class Ahead:
    """Has workers make problems ready, and takes in what they have."""

    resources: Resources
    settings: Settings
    jobs: int = 0
    _looked: float = field(default=0.0, init=False)

    def begin(self, problems: Sequence[Problem]) -> None:
        """Have problems made ready that are not, those in front first."""
        missing = [p for p in problems if space_key(p, self.settings) not in self.resources.ranked]
        wishes = (self.settings.model, max(1, self.settings.first), self.settings.correction)
        for number in range(0, len(missing), TOGETHER):
            some = missing[number : number + TOGETHER]
            self.resources.builder.submit(Job(self._taker(some), "ready", (some, *wishes), (LAST,), lasting=True))
            self.jobs += 1

    def look(self) -> None:
        """Take in what is ready, now and then, so that workers go on."""
        now = self.resources.elapsed
        if self.jobs and now >= self._looked + LOOK:
            self._looked = now
            with self.resources.interruptible():
                for done in self.resources.collect(0.0):
                    self.resources.take_in(done)

    def end(self) -> None:
        """Have nothing more made ready than what workers are at."""
        if self.jobs:
            self.resources.drop(lasting=True)
            self.jobs = 0

    def _taker(self, problems: Sequence[Problem]) -> Callable[[Done], None]:
        """Return what takes in an answer about problems."""

        def take(done: Done) -> None:
            self.jobs = max(0, self.jobs - 1)
            for problem, ready in zip(problems, done.value or (), strict=False):
                if isinstance(ready, Ready):
                    self._keep(problem, ready)

        return take

    def _keep(self, problem: Problem, ready: Ready) -> None:
        self.resources.ranked.setdefault(space_key(problem, self.settings), list(ready.ranked))
        self.resources.keep_built(problem, ready.ranked[0].candidate.schedule, ready.built, ready.seconds, ahead=True)
