"""Timeline of processes, by half seconds."""

from __future__ import annotations

import pytest
from cuts.search.processes.child import Child
from cuts.search.trace import HERE, SLICE_SECONDS, Timeline


def test_work_counts_in_every_slice_it_touches() -> None:
    timeline = Timeline()
    timeline.note("build", 0.8 * SLICE_SECONDS, 2.5 * SLICE_SECONDS)
    timeline.note("build", 2.5 * SLICE_SECONDS, 2.75 * SLICE_SECONDS)
    busy = timeline.done["build"]
    assert busy.seconds == pytest.approx({0: 0.2 * SLICE_SECONDS, 1: SLICE_SECONDS, 2: 0.75 * SLICE_SECONDS})
    assert busy.counts == {2: 2}
    assert (busy.first, busy.last) == (0.8 * SLICE_SECONDS, 2.75 * SLICE_SECONDS)


def test_other_process_is_reported_once_and_separately() -> None:
    other, timeline = Timeline(), Timeline()
    other.note("build", 0.0, 0.25)
    timeline.note("build", 0.0, 0.125)
    timeline.merge(other.take(), "device 1")
    timeline.merge(other.take(), "device 1")
    assert {kind: busy.seconds for kind, busy in timeline.done.items()} == {
        "build": {0: 0.125},
        "device 1 build": {0: 0.25},
    }


def test_child_reports_its_work_with_answers() -> None:
    HERE.take()
    child = Child("cuts.tests.search.services:Slow")
    try:
        child.call(20.0, "nap", 0.1)
    finally:
        child.close()
    (busy,) = (busy for kind, busy in HERE.done.items() if kind == "Slow nap")
    assert sum(busy.seconds.values()) >= 0.1
    assert sum(busy.counts.values()) == 1
