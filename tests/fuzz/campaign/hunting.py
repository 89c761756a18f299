"""Detection rate of planted bugs.

Each bug is planted in a process of its own, which then checks graphs until one shows it, or batches of the sweep, or
runs the tests that hold the law which it breaks (`Bug.seen`).

Two of the fuzzer's comparisons are tried, for they detect most for their time: interpreted normal forms (milliseconds,
so on all graphs, unless the bug sits in later stages), then kernels at random points (on a tenth of the graphs, or on
half of them).
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Lock
from typing import Any

from attrs import define, field, frozen
from cuts.ir.graph import Graph
from cuts.ops import Registry
from cuts.search.processes.child import Child
from cuts.tests.fuzz.campaign.asking import SERVICE, ask_child, check_graph
from cuts.tests.fuzz.drawing import draw_graphs
from cuts.tests.fuzz.planted_bugs import BUGS
from cuts.tests.fuzz.planting import Bug
from cuts.tests.fuzz.sweep.running import batches_of_round

#: Seconds that a batch of the sweep or a file of tests may take; the sweep's seed, and sets of numbers.
LAWS, SEED, SETS = 600.0, 1, 8
#: Modules that work on the results of lowering.
LATE_STAGES = (
    "passes.lowering.",
    "passes.assemble",
    "passes.results",
    "passes.fusion.grouping.groups:form_key",
    "backends.",
    "runtime.",
    "ir.affine.addresses",
)


@frozen
class Catch:
    """Outcome of a planted bug.

    It holds the kind of finding and the number of the graph that showed it, or nothing.
    """

    bug: Bug
    tried: int
    seconds: float
    kind: str = ""
    way: str = ""
    graph: int = -1
    text: str = ""

    @property
    def record(self) -> dict[str, Any]:
        """The catch as JSON values."""
        found = {"kind": self.kind, "way": self.way, "graph": self.graph, "text": self.text[:200]} if self.kind else {}
        facts = {"area": self.bug.area, "where": self.bug.where, "what": self.bug.what, "caught": bool(self.kind)}
        return {**facts, "graphs": self.tried, "seconds": round(self.seconds, 1), **found}


@define
class Hunt:
    """Graphs and batches to try on every bug, and those without findings."""

    target: str
    graphs: Sequence[tuple[int, Graph]]
    batches: Sequence[int] = ()
    clean: dict[tuple[int, str], bool] = field(factory=dict)
    known_failures: dict[tuple[Any, ...], bool] = field(factory=dict)
    sound: Child = field(factory=lambda: Child(SERVICE))
    lock: Lock = field(factory=Lock)

    def catch(self, bug: Bug) -> Catch:
        """Look for a bug where it is to be seen."""
        child = Child(SERVICE, bug.name)
        try:
            if bug.seen == "graphs":
                return self._by_graphs(bug, child)
            calls = [("tests", bug.seen)]
            if bug.seen == "sweep":
                words = tuple(re.findall("[a-z]+[0-9]*", f"{bug.where} {bug.what}"))
                calls = [("sweep", self.target, SEED, 0, 4 * SETS, words)]  # type: ignore[list-item]
                calls += [("sweep", self.target, SEED, number, SETS) for number in self.batches]  # type: ignore[misc]
            return self._by_calls(bug, child, calls)
        finally:
            child.close()

    def _by_calls(self, bug: Bug, child: Child, calls: Sequence[tuple[Any, ...]]) -> Catch:
        """Ask for one report after another until one tells of something that is not there without the bug."""
        begin = time.monotonic()
        for tried, call in enumerate(calls, 1):
            report = ask_child(child, LAWS, *call)
            if report.kind and not self._tells(call):
                return Catch(bug, tried, time.monotonic() - begin, report.kind, str(call[0]), tried, report.text)
        return Catch(bug, len(calls), time.monotonic() - begin)

    def _tells(self, call: tuple[Any, ...]) -> bool:
        """Return whether the unchanged compiler fails on a batch or a file of tests."""
        with self.lock:
            if call not in self.known_failures:
                self.known_failures[call] = bool(ask_child(self.sound, LAWS, *call).kind)
            return self.known_failures[call]

    def _by_graphs(self, bug: Bug, child: Child) -> Catch:
        """Try graphs until one shows a bug."""
        begin = time.monotonic()
        rounds = [("by chance", self.graphs[: len(self.graphs) // 2])]
        if not bug.where.startswith(LATE_STAGES):
            rounds = [("interpreted", self.graphs), ("by chance", self.graphs[: len(self.graphs) // 10])]
        tried = 0
        for way, graphs in rounds:
            for number, graph in graphs:
                tried += 1
                report = check_graph(child, self.target, graph, number, (way,))
                if report.kind not in ("", "ill-conditioned") and self._is_clean(number, graph, way):
                    return Catch(bug, tried, time.monotonic() - begin, report.kind, way, number, report.text)
        return Catch(bug, tried, time.monotonic() - begin)

    def _is_clean(self, number: int, graph: Graph, way: str) -> bool:
        """Return whether the unchanged compiler passes a graph."""
        with self.lock:
            if (number, way) not in self.clean:
                self.clean[number, way] = check_graph(self.sound, self.target, graph, number, (way,)).kind in (
                    "",
                    "ill-conditioned",
                )
            return self.clean[number, way]


def hunt(options: argparse.Namespace) -> int:
    """Plant every requested bug; return 1 where one in twenty stays unfound."""
    bugs = [b for b in BUGS if any(text in f"{b.area}: {b.name}" for text in options.bug.split("|"))]
    begin = time.monotonic()
    graphs = list(
        draw_graphs(options.seed, options.first, options.graphs if any(b.seen == "graphs" for b in bugs) else 0)
    )
    search = Hunt(options.target, graphs, range(0, batches_of_round(Registry.builtin()), 4))
    caught: list[Catch] = []
    with ThreadPoolExecutor(max(1, options.jobs)) as pool:
        for done in as_completed([pool.submit(search.catch, bug) for bug in bugs]):
            catch = done.result()
            caught.append(catch)
            print(
                f"{'caught' if catch.kind else 'MISSED'} {catch.tried:>4} graphs  {catch.seconds:>6.1f} s  "
                f"{catch.bug.name}",
                flush=True,
            )
            if options.out:
                _write(options, caught, begin)
    search.sound.close()
    caught.sort(key=lambda c: bugs.index(c.bug))
    found = sum(bool(c.kind) for c in caught)
    for catch in caught:
        if not catch.kind:
            print(f"missed: {catch.bug.area}: {catch.bug.name}")
    for area in dict.fromkeys(c.bug.area for c in caught):
        own = [c for c in caught if c.bug.area == area]
        print(f"{area:<12}{sum(bool(c.kind) for c in own):>4} of {len(own)}")
    print(f"{'all':<12}{found:>4} of {len(caught)} planted bugs caught, {time.monotonic() - begin:.0f} s")
    return int(found < 0.95 * len(caught))


def _write(options: argparse.Namespace, caught: Sequence[Catch], begin: float) -> None:
    """Write the outcomes of the bugs; those of an earlier run stay while the bugs are still planted."""
    facts = {"target": options.target, "seed": options.seed, "of": options.graphs}
    rows = {row["name"]: row for row in json.loads(options.out.read_text())["bugs"]} if options.out.exists() else {}
    rows |= {c.bug.name: {"name": c.bug.name, **c.record, **facts} for c in caught}
    kept = [rows[b.name] for b in BUGS if b.name in rows]
    record = {
        "planted": len(kept),
        "caught": sum(row["caught"] for row in kept),
        "seconds": round(time.monotonic() - begin, 1),
        "bugs": kept,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
