"""What searches work with: the database, workers and a device that are made when they are first needed, and time that
runs out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from attrs import define

from ..ir import WHOLE, Budget, KernelFunction, Schedule
from ..passes.fusion import form_key
from ..passes.schedule import FIRST, Point
from .bench import Bench
from .build import Built, CandidateBuilder, Done, Job, Scored
from .child import Ended
from .database import Database
from .learned import LearnedOrder
from .problem import Problem, schedule_text
from .settings import Statistics
from .task import SearchTask

T = TypeVar("T")


@define(eq=False)
class Asking(Generic[T]):
    """Questions that workers answer side by side: the answers so far, and whose are missing."""

    found: list[T | None]
    waiting: set[int]

    def answer(self, number: int, value: T | None) -> None:
        """Take in an answer."""
        self.found[number] = value
        self.waiting.discard(number)


class Resources:
    """Workers, device, database, budget and statistics of all searches of a session.

    Workers and device are kept for further searches until `close`. A run ends when a `share` of the budget is used up.
    `monitor` is called with the problems that are searched for whenever something happened. `ranked` has the best
    points of spaces that were ranked, `climbed` those of groups that were searched by the model for their costs,
    `trusted` the problems whose simple kernel the device knows to be right. `asking`
    has what workers were asked side by side and somebody still waits for, `answering` says that a worker has answered.
    `made` has the kernels that workers built, by problem and schedule or by the name of a launch, `ready` those that
    were built before anybody asked, as the device gets them. Workers are `going_on` with problems that are searched for
    later; of those `compared` a short search knows the first points. What a search calls once, when it only waits for
    what workers and device are at, is `idle`.
    """

    def __init__(
        self,
        database: Database,
        builder: Callable[[], CandidateBuilder],
        bench: Callable[[], Bench],
        budget: Budget | float | None = None,
        monitor: Callable[[Resources, Sequence[SearchTask]], None] = lambda resources, tasks: None,
    ) -> None:
        self.database = database
        self.budget = budget if isinstance(budget, Budget) else Budget.of(budget)
        self.share = WHOLE
        self.statistics = Statistics(clock=self.budget.clock)
        self.expired = False
        self.ranked: dict[Hashable, list[Scored]] = {}
        self.climbed: dict[Hashable, Sequence[Point]] = {}
        self.trusted: set[str] = set()
        self.asking: list[Asking[Any]] = []
        self.answering = False
        self.made: dict[tuple[str, str], KernelFunction] = {}
        self.ready: dict[tuple[str, str], Built] = {}
        self.going_on: set[str] = set()
        self.compared: set[str] = set()
        self.idle: Callable[[Sequence[SearchTask]], None] | None = None
        self._makers = builder, bench
        self._builder: CandidateBuilder | None = None
        self._bench: Bench | None = None
        self._monitor = monitor

    @property
    def builder(self) -> CandidateBuilder:
        """The workers."""
        self.start()
        assert self._builder is not None
        return self._builder

    @property
    def bench(self) -> Bench:
        """The device."""
        if self._bench is None:
            self._bench = self._makers[1]()
        return self._bench

    @property
    def opened(self) -> bool:
        """Whether there is a device."""
        return self._bench is not None

    @property
    def started(self) -> bool:
        """Whether there are workers."""
        return self._builder is not None

    @property
    def answered(self) -> bool:
        """Whether there are workers, and they have done anything yet."""
        return self.started and bool(self.answering or self.ranked or self.statistics.building[1])

    def start(self) -> None:
        """Start the workers, without waiting for them."""
        if self._builder is None:
            self._builder = self._makers[0]()

    @property
    def interrupted(self) -> bool:
        """Whether somebody ended the session early."""
        return self.budget.stopped

    @property
    def complete(self) -> bool:
        """Whether every search so far was brought to its end."""
        return not (self.interrupted or self.expired)

    @property
    def elapsed(self) -> float:
        """Seconds since the session began."""
        return self.budget.elapsed

    @property
    def pause(self) -> float:
        """Seconds that may be spent waiting before it is looked whether the run is over."""
        return min(0.1, self.budget.left(self.share))

    def over(self, share: float | None = None) -> bool:
        """Whether the run must end, or a share of the budget is used up; that it had to is remembered."""
        over = self.budget.over(self.share if share is None else share)
        self.expired = self.expired or over
        return over

    def ranking(self, problem: Problem, model: str, count: int, correction: LearnedOrder | None) -> tuple[Any, ...]:
        """Return what a worker is asked for the best points of a problem: with them, where it is them that were found
        for its cost.
        """
        same = (model, count, correction) == ("bound", FIRST, None)
        return problem, model, count, correction, self.climbed.get(form_key(problem.form), ()) if same else ()

    def report(self, tasks: Sequence[SearchTask]) -> None:
        """Tell the monitor how far the problems are."""
        self._monitor(self, tasks)

    @contextmanager
    def where_idle(self, then: Callable[[Sequence[SearchTask]], None] | None) -> Iterator[None]:
        """Have something done, once, when a search in a block leaves workers without work."""
        self.idle = then
        try:
            yield
        finally:
            self.idle = None

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let an interrupt, or the end of the budget, end a block; whoever was asked for something then is let go."""
        try:
            yield
        except KeyboardInterrupt:
            self.budget.stop()
            self.close()
        except Ended:
            self.expired = True
            self.close()

    def collect(self, timeout: float) -> list[Done]:
        """Return what workers have done since the last call, but what they made ready ahead, which is taken in; wait
        for something, but no longer than `timeout`.
        """
        found = []
        for done in self.builder.collect(timeout):
            if done.job.lasting:
                self.answering = True
                done.job.owner(done)
            else:
                found.append(done)
        return found

    def take_in(self, done: Done) -> bool:
        """Take in an answer to what was asked side by side, and none to what a search left behind; say whether a worker
        gave it.
        """
        self.answering = True
        asking, number = done.job.owner if isinstance(done.job.owner, tuple) else (None, 0)
        if not isinstance(asking, Asking):
            return False
        asking.answer(number, done.value)
        return True

    def keep_made(self, problem: Problem, schedule: Schedule, done: Done) -> None:
        """Keep what a worker built, and what that took."""
        if isinstance(done.value, Built):
            self.keep_built((problem.key, schedule_text(schedule)), done.value, done.seconds)

    def keep_built(self, place: tuple[str, str], built: Built, seconds: float, ahead: bool = False) -> None:
        """Keep a kernel that took so many seconds to be built; whole, where that was done `ahead` of being asked."""
        self.statistics.note_built(seconds)
        if built.kernel is not None:
            self.made[place] = built.kernel
        if ahead:
            self.ready[place] = built

    def close_asking(self, asking: Asking[Any]) -> None:
        """Wait for some answers no longer; forget what was asked of the workers where nobody waits for others."""
        self.asking = [each for each in self.asking if each is not asking]
        if not self.asking:
            self.drop()

    def let_go(self) -> None:
        """Forget what workers were asked side by side: what they answer from now on is for somebody else."""
        if self.asking:
            self.drop()

    def drop(self, lasting: bool = False) -> list[Job]:
        """Forget what was asked of the workers, what they should make ready ahead only where that is said, which is
        returned; what they are at they may finish.
        """
        self.asking.clear()
        return [] if self._builder is None else self._builder.drop(lasting)

    def close(self) -> None:
        """End the workers and give the device back."""
        self.trusted.clear()
        self.asking.clear()
        self.going_on.clear()
        self.answering = False
        for part in (self._builder, self._bench):
            if part is not None:
                part.close()
        self._builder = self._bench = None
