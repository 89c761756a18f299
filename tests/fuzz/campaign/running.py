"""Runs of the fuzzer over numbered graphs.

They have workers, a ledger that later runs continue, and reduced findings.

Each graph is one job of a worker process; a job that crashes is run again twice, one that hangs once, and is a finding
if it never ends otherwise. A finding is shrunk and written as a graph that `--replay` runs again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cuts.backends.devices import find_target
from cuts.frontends.graph_json import graph_to_json, load_graph
from cuts.ir.errors import atomic_write
from cuts.ir.graph import Graph
from cuts.ir.text import print_graph
from cuts.search.building.workers import Job, JobResult, Workers
from cuts.search.processes.child import Child
from cuts.tests.fuzz.campaign.asking import LIMIT, SERVICE, check_graph
from cuts.tests.fuzz.campaign.counting import GraphCounts
from cuts.tests.fuzz.checking import WAYS
from cuts.tests.fuzz.drawing import draw_graphs, shrunk
from cuts.tests.fuzz.reducing import reduce_graph
from cuts.tests.fuzz.service import Report

#: How often a graph is tried while Hypothesis shrinks it, and while it is cut down after that.
SHRINKING = 60
#: Graphs after which a ledger is written.
PART = 50


def reports(options: argparse.Namespace) -> Iterator[tuple[int, Graph, Report]]:
    """Check the given graphs and yield each report on completion."""
    workers = Workers(options.jobs, SERVICE)
    source = draw_graphs(options.seed, options.first, options.graphs)
    end = time.monotonic() + options.limit
    waiting: dict[int, tuple[Graph, int]] = {}
    exhausted = False
    try:
        while waiting or not exhausted:
            while not exhausted and workers.load < 2 * workers.size:
                number, graph = next(source, (-1, None))
                exhausted = graph is None or time.monotonic() > end
                if graph is not None and not exhausted:
                    waiting[number] = (graph, 0)
                    workers.submit(_job(options, number, graph))
            for done in workers.collect(5.0):
                number = done.job.owner
                graph, tries = waiting.pop(number)
                if done.error and tries < (1 if done.hung else 2):
                    print(f"graph {number}: {'hang' if done.hung else 'crash'}, tried again", flush=True)
                    waiting[number] = (graph, tries + 1)
                    workers.submit(_job(options, number, graph))
                else:
                    yield number, graph, _report(done)
    finally:
        workers.close()


def _job(options: argparse.Namespace, number: int, graph: Graph) -> Job:
    arguments = (options.target, graph_to_json(graph), number, ways_of(options.ways, number))
    return Job(number, "check", arguments, (number,), LIMIT)


def ways_of(kind: str, number: int) -> tuple[str, ...]:
    """Return the ways of computing a graph.

    These are all of them, or in turn the ways without a device plus one way with it.
    """
    interpreted, *launched = WAYS
    return WAYS if kind == "all" else (interpreted, launched[number % len(launched)])


def _report(done: JobResult) -> Report:
    if done.error:
        return Report(error=f"{'hang' if done.hung else 'crash'}: {done.error}")
    assert isinstance(done.value, Report)
    return done.value


def smallest(options: argparse.Namespace, number: int, graph: Graph, report: Report) -> tuple[Graph, Report]:
    """Return the smallest graph with the same finding, and its outcome."""
    child = Child(SERVICE)
    known: dict[str, Report] = {}

    def shows(candidate: Graph) -> bool:
        found = check_graph(child, options.target, candidate, number)
        known[graph_to_json(candidate)] = found
        return found.kind == report.kind

    try:
        least = reduce_graph(shrunk(options.seed, number, shows, SHRINKING), shows, SHRINKING)
    finally:
        child.close()
    return least, known.get(graph_to_json(least), report)


def fuzz(options: argparse.Namespace) -> int:
    """Run the fuzzer; return 1 where it found something."""
    counts = count_graphs(options)
    _write(options, _record(options, counts))
    print(counts.table)
    return 1 if counts.findings else 0


def fuzz_on(options: argparse.Namespace) -> int:
    """Continue a ledger until it has the requested number of graphs.

    The ledger is written after each part.
    """
    path: Path = options.ledger
    rows = json.loads(path.read_text(encoding="utf-8"))["parts"] if path.exists() else []
    known = {"seed": options.seed, "target": find_target(options.target).name, "ways": options.ways}
    own = [row for row in rows if {name: row.get(name, "all") for name in known} == known]
    first = max((row["until"] for row in own), default=options.first)
    end = time.monotonic() + options.limit
    while first < options.graphs and time.monotonic() < end:
        own_part = {"first": first, "graphs": min(options.part, options.graphs - first), "out": path}
        part = argparse.Namespace(**{**vars(options), **own_part, "limit": end - time.monotonic()})
        counts = count_graphs(part)  # graphs are begun in order, and those that were begun are finished
        row = {**_record(part, counts), "until": first + counts.graphs}
        rows, own, first = [*rows, row], [*own, row], row["until"]
        _write_whole(path, {"parts": rows})
        print(_total(own), flush=True)
    print("\n".join([*(f"finding {f['number']}: {f['text'][:300]}" for r in own for f in r["findings"]), _total(own)]))
    return 1 if any(row["findings"] for row in own) else 0


def _total(rows: Sequence[dict[str, Any]]) -> str:
    counts = {name: sum(row[name] for row in rows) for name in ("graphs", "nodes", "kernels", "ill-conditioned")}
    found = sum(len(row["findings"]) for row in rows)
    return ", ".join(f"{count} {name}" for name, count in {**counts, "findings": found}.items())


def _record(options: argparse.Namespace, counts: GraphCounts) -> dict[str, Any]:
    facts = {"seed": options.seed, "first": options.first, "target": find_target(options.target).name}
    return {**facts, "ways": options.ways, **counts.record}


def count_graphs(options: argparse.Namespace) -> GraphCounts:
    """Check the given graphs, and write the reduced form of each finding."""
    counts = GraphCounts()
    found: list[tuple[int, Graph, Report]] = []
    for number, graph, report in reports(options):
        counts.add(graph, report)
        if report.kind not in ("", "ill-conditioned"):
            found.append((number, graph, report))
            print(f"graph {number}: {report.kind}: {report.text[:500]}", flush=True)
        elif report.kind:
            print(f"graph {number}: single precision explains: {report.text[:300]}", flush=True)
        if counts.graphs % 100 == 0:
            print(f"{counts.graphs} graphs, {len(found)} findings, {time.monotonic() - counts.begin:.0f} s", flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
    for number, graph, report in sorted(found, key=lambda f: f[0]):
        least, shown = (graph, report) if options.no_shrink else smallest(options, number, graph, report)
        path = options.out.with_name(f"finding-{number}.json") if options.out else Path(f"finding-{number}.json")
        path.write_text(graph_to_json(least), encoding="utf-8")
        counts.findings.append(
            {"number": number, "kind": report.kind, "text": shown.text or report.text, "graph": path.name}
        )
    return counts


def replay(options: argparse.Namespace) -> int:
    """Check one graph from a file; return 1 where something differs."""
    graph = load_graph(options.replay)
    child = Child(SERVICE, options.bug)
    report = check_graph(child, options.target, graph, options.seed)
    child.close()
    print(print_graph(graph))
    for outcome in report.outcomes:
        print(f"{outcome.way}: {outcome.kernels} kernels, {', '.join(outcome.wrong) or 'right'}")
    print(report.error or f"{report.kind or 'no difference'}")
    return 1 if report.kind else 0


def _write(options: argparse.Namespace, record: dict[str, Any]) -> None:
    if options.out:
        _write_whole(options.out, record)


def _write_whole(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as draft:
        draft.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
