"""How the times of kernels fell while they were searched for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Protocol

from attrs import define, field

#: Seconds between two points, at least.
APART = 0.05


class Searched(Protocol):
    """A kernel that is searched for: how often it is launched, and what its best candidate takes so far, infinity
    where none was measured.
    """

    @property
    def uses(self) -> int: ...

    @property
    def seconds(self) -> float: ...


@define
class Search:
    """A search of several kernels: the times of all of them, whenever one fell, by the seconds since the compilation
    began. What the model expects of a kernel is known of all when the search has ended.
    """

    tasks: Sequence[Searched]
    times: list[tuple[float, list[float]]] = field(factory=list)
    expected: Sequence[float] = ()

    def note(self, elapsed: float) -> None:
        """Take down how far the kernels are."""
        if self.times and elapsed - self.times[-1][0] < APART:
            return
        now = [task.seconds for task in self.tasks]
        if not self.times or now != self.times[-1][1]:
            self.times.append((elapsed, now))

    def end(self, elapsed: float, expected: Sequence[float]) -> None:
        """Take down the end, and what the model expects of kernels that were not measured at first."""
        self.times.append((elapsed, [task.seconds for task in self.tasks]))
        self.expected = expected

    def points(self) -> Iterator[tuple[float, float]]:
        """Yield the seconds since the compilation began and what the kernels take together then: of one that was not
        measured yet, what the model expects.
        """
        for elapsed, times in self.times if self.expected else ():
            known = [e if t == inf else t for t, e in zip(times, self.expected, strict=True)]
            yield elapsed, sum(task.uses * t for task, t in zip(self.tasks, known, strict=True))
