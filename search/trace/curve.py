"""Best times of kernels over the time of a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Protocol

from attrs import define, field

#: Seconds between two samples, at least.
MIN_SAMPLE_SECONDS = 0.05


class ReportedKernel(Protocol):
    """Kernel under search: number of launches and best time so far.

    The time is infinity without a measurement.
    """

    @property
    def uses(self) -> int: ...

    @property
    def seconds(self) -> float: ...


@define
class SearchTrace:
    """Trace of a search: times of all kernels at each improvement.

    Moments are seconds since the compilation began. The cost model's predictions are known when the search has ended.
    """

    tasks: Sequence[ReportedKernel]
    times: list[tuple[float, list[float]]] = field(factory=list)
    expected: Sequence[float] = ()

    def note(self, elapsed: float) -> None:
        """Store the current times."""
        if self.times and elapsed - self.times[-1][0] < MIN_SAMPLE_SECONDS:
            return
        now = [task.seconds for task in self.tasks]
        if not self.times or now != self.times[-1][1]:
            self.times.append((elapsed, now))

    def end(self, elapsed: float, expected: Sequence[float]) -> None:
        """Store the final times and the cost model's predictions."""
        self.times.append((elapsed, [task.seconds for task in self.tasks]))
        self.expected = expected

    def points(self) -> Iterator[tuple[float, float]]:
        """Yield seconds since the start and the kernels' total time then.

        A kernel without a measurement counts with its prediction.
        """
        for elapsed, times in self.times if self.expected else ():
            known = [e if t == inf else t for t, e in zip(times, self.expected, strict=True)]
            yield elapsed, sum(task.uses * t for task, t in zip(self.tasks, known, strict=True))
