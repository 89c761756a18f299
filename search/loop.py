"""The loop that keeps workers and device busy: jobs go out, answers are handed on, and the device is told whose
candidate it takes next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from attrs import define, field, frozen

from .build import COMPILE_LIMIT, Done, Job
from .resources import Resources
from .task import SearchTask

#: Takes the answer of a worker.
Then = Callable[[Done], None]


@frozen
class _Request:
    """Whom the answer to a job is for."""

    task: SearchTask
    then: Then


@define
class DispatchLoop:
    """Sends jobs of problems to the workers, and chooses between problems that have something to measure."""

    resources: Resources
    _current: list[SearchTask] = field(factory=list, init=False)

    def submit(
        self,
        task: SearchTask,
        then: Then,
        method: str,
        priority: tuple[float, ...],
        *arguments: object,
        limit: float = COMPILE_LIMIT,
    ) -> None:
        """Have a worker do a job for a problem; `then` takes the answer when it is taken in."""
        task.waiting += 1
        self.resources.builder.submit(Job(_Request(task, then), method, (task.problem, *arguments), priority, limit))

    def take_in(self, timeout: float = 0.0) -> None:
        """Take in what the workers have done; wait for something, but no longer than `timeout`. What was asked before a
        search, and is answered only now, is for whoever asked.
        """
        for done in self.resources.collect(timeout):
            request = done.job.owner
            if isinstance(request, _Request):
                request.task.waiting -= 1
                request.then(done)
            else:
                self.resources.take_in(done)

    def next(
        self,
        tasks: Sequence[SearchTask],
        free: Callable[[SearchTask], bool] = lambda task: True,
        checked: Collection[SearchTask] = (),
    ) -> SearchTask | None:
        """Take in what was built, and return the problem of which a candidate is measured now, on a device that is
        `free`; none where nothing is ready. Where candidates of others are `checked` meanwhile, none is waited for.
        """
        ready = bool(checked) or any(t.measurable for t in tasks)
        with self.resources.statistics.phase("wait for workers"):
            self.take_in(0.0 if ready else self.resources.pause)
        waiting = [t for t in tasks if t.measurable and free(t)]
        if not waiting:
            return None
        # A problem whose data is in use on some device goes first, then the one that promises most.
        known = next((t for t in self._current if t in waiting), None)
        chosen = known or max(waiting, key=lambda t: (t.gain, t.weight, t.problem.key))
        self._current = [chosen, *(t for t in self._current if t in checked)]
        return chosen
