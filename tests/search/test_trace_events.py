"""Course of a compilation as trace events."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path

from attrs import define
from cuts.cli import main
from cuts.ir import Budget
from cuts.search.trace import SearchTrace, Timeline, trace_events

EXAMPLES = Path(__file__).parents[2] / "examples"


@define
class Clock:
    """Clock that a test sets."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@define
class Kernel:
    """Kernel under search."""

    seconds: float = inf
    uses: int = 2


def test_stages_searches_and_activity_are_events() -> None:
    clock = Clock()
    budget = Budget(10.0, clock)
    clock.now = 101.0
    with budget.stage("schedule"):
        clock.now = 103.5
    kernel, timeline = Kernel(), Timeline()
    search = SearchTrace([kernel])
    search.note(1.0)
    kernel.seconds = 2e-6
    search.end(2.0, [5e-6])
    timeline.note("build", 101.0, 101.75)
    events = trace_events(budget, [search], timeline.done)["traceEvents"]
    (stage,) = (each for each in events if each["ph"] == "X")
    assert (stage["name"], stage["ts"], stage["dur"]) == ("schedule", 1e6, 2.5e6)
    counters = [(each["name"], each["ts"], each["args"]["value"]) for each in events if each["ph"] == "C"]
    assert counters == [
        ("search 1: time of the kernels, us", 1e6, 10.0),
        ("search 1: time of the kernels, us", 2e6, 4.0),
        ("busy: build", 1e6, 1.0),
        ("busy: build", 1.5e6, 0.5),
        ("busy: build", 2e6, 0.0),
    ]


def test_a_compilation_writes_its_trace(tmp_path: Path) -> None:
    words = ["--target", "reference", "-o", str(tmp_path / "plan"), "--trace", str(tmp_path / "trace.json")]
    assert main(["compile", str(EXAMPLES / "perceptron.json"), *words]) == 0
    found = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert {"import", "save"} <= {each["name"] for each in found if each["ph"] == "X"}
    assert all(each["ts"] >= 0 for each in found if "ts" in each)
