"""Course of a compilation as trace events, which Perfetto and Chrome show.

stages of the compilation        slices on one track, one inside another
searches of kernels              a counter: time of the plan by the best candidates so far
processes                        a counter for each kind of work: busy processes in a slice of time
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...ir import Budget
from .curve import SearchTrace
from .timeline import SLICE_SECONDS, Busy

#: Tracks of the trace: the compiling process and its stages.
_PROCESS, _STAGES = 1, 1


def trace_events(budget: Budget, searches: Sequence[SearchTrace], activity: Mapping[str, Busy]) -> dict[str, Any]:
    """Return a compilation's trace in the JSON form of trace events.

    `activity` is that of the timeline, by the clock of the budget.
    """
    events = [
        {"name": "process_name", "ph": "M", "pid": _PROCESS, "args": {"name": "cuts"}},
        {"name": "thread_name", "ph": "M", "pid": _PROCESS, "tid": _STAGES, "args": {"name": "stages"}},
        *_stage_events(budget),
        *(each for number, search in enumerate(searches) for each in _search_events(number, search)),
        *(each for kind, busy in activity.items() for each in _busy_events(kind, busy, budget.begun)),
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _stage_events(budget: Budget) -> Iterator[dict[str, Any]]:
    """Yield a slice for each stage."""
    for name, begin, end in budget.stages:
        times = {"ts": _microseconds(begin - budget.begun), "dur": _microseconds(end - begin)}
        yield {"name": name, "ph": "X", "pid": _PROCESS, "tid": _STAGES, **times}


def _search_events(number: int, search: SearchTrace) -> Iterator[dict[str, Any]]:
    """Yield the plan's time at each improvement."""
    for elapsed, seconds in search.points():
        yield _counter(f"search {number + 1}: time of the kernels, us", elapsed, _microseconds(seconds))


def _busy_events(kind: str, busy: Busy, begun: float) -> Iterator[dict[str, Any]]:
    """Yield the average number of busy processes in each slice of time, and zero after a gap."""
    for number, seconds in sorted(busy.seconds.items()):
        start = number * SLICE_SECONDS - begun
        yield _counter(f"busy: {kind}", start, seconds / SLICE_SECONDS)
        if number + 1 not in busy.seconds:
            yield _counter(f"busy: {kind}", start + SLICE_SECONDS, 0.0)


def _counter(name: str, elapsed: float, value: float) -> dict[str, Any]:
    times = {"ts": max(0.0, _microseconds(elapsed))}
    return {"name": name, "ph": "C", "pid": _PROCESS, **times, "args": {"value": round(value, 3)}}


def _microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 3)
