"""Random graphs, fused and unfused, against the float64 reference; and how many planted bugs that finds.

    python bench/fuzz.py --graphs 2000 --seed 1 --jobs 16 --target cuda --out bench/results/fuzz.json
    python bench/fuzz.py --graphs 20000 --seed 5 --jobs 2 --ways one --ledger fuzz-opencl.json
    python bench/fuzz.py --planted --graphs 300 --jobs 2 --out bench/results/planted.json
    python bench/fuzz.py --replay finding-17.json --seed 17

Graph number n of a seed is the same everywhere, so a long run can be made in parts (`--first`). With `--ledger` this
goes by itself: the file says which graphs of which seed were checked on which target, each call goes on behind them,
and what it finds is kept every fifty graphs (`--part`), so it can be broken off at any time. Each graph is one job
of a worker process; a job that crashes is run again twice, one that hangs once, and is a finding if it never ends
otherwise. A finding is shrunk, unless `--no-shrink` is given, and written beside `--out` as a graph that `--replay`
runs again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field
from cuts.backends.devices import find_target
from cuts.bench.tools.records import exit_code, write_records
from cuts.frontends.graph_json import graph_to_json
from cuts.ir.errors import BackendError
from cuts.ir.graph import Graph
from cuts.search.build import Done, Job, Workers
from cuts.search.child import Child, Lost
from cuts.tests.fuzz.checking import WAYS
from cuts.tests.fuzz.drawing import drawn, shrunk
from cuts.tests.fuzz.reducing import reduced
from cuts.tests.fuzz.service import Report

SERVICE = "cuts.tests.fuzz.service:Fuzzer"
#: How often a graph is tried while Hypothesis shrinks it, and while it is cut down behind that.
SHRINKING = 60
#: Seconds that one graph may take, in all ways together.
LIMIT = 120.0
#: Graphs behind which a ledger is written.
PART = 50


@define
class GraphCounts:
    """What a run has seen so far."""

    graphs: int = 0
    nodes: int = 0
    kernels: int = 0
    ill: int = 0
    levels: Counter[str] = field(factory=Counter)
    operations: Counter[str] = field(factory=Counter)
    findings: list[dict[str, Any]] = field(factory=list)
    machines: list[Mapping[str, object]] = field(factory=list)
    begin: float = field(factory=time.monotonic)

    def add(self, graph: Graph, report: Report) -> None:
        """Count a graph and what became of it."""
        self.graphs += 1
        self.nodes += len(graph.nodes)
        self.operations.update(node.op for node in graph.nodes)
        self.ill += report.kind == "ill-conditioned"
        self.machines += [machine for machine in report.machines if machine not in self.machines]
        for outcome in report.outcomes:
            self.kernels += outcome.kernels
            self.levels.update({f"{outcome.way}, {level}": count for level, count in outcome.levels.items()})

    @property
    def table(self) -> str:
        """The run in a few lines."""
        levels = ", ".join(f"{count} {name}" for name, count in sorted(self.levels.items()))
        lines = [
            f"graphs       {self.graphs} ({self.nodes} nodes, {len(self.operations)} operations)",
            f"kernels      {self.kernels}",
            f"groups       {levels}",
            f"findings     {len(self.findings)}",
            f"ill-posed    {self.ill} (single precision explains what differs)",
            f"seconds      {time.monotonic() - self.begin:.0f}",
        ]
        return "\n".join([*(f"finding {f['number']}: {f['text'][:300]}" for f in self.findings), *lines])

    @property
    def record(self) -> dict[str, Any]:
        """The run as JSON values."""
        return {
            "graphs": self.graphs, "nodes": self.nodes, "kernels": self.kernels,
            "groups": dict(sorted(self.levels.items())), "operations": dict(self.operations.most_common()),
            "findings": self.findings, "ill-conditioned": self.ill,
            "machines": self.machines, "seconds": round(time.monotonic() - self.begin, 1),
        }  # fmt: skip


def reports(options: argparse.Namespace) -> Iterator[tuple[int, Graph, Report]]:
    """Check the graphs that are asked for and yield what became of each, as it is known."""
    workers = Workers(options.jobs, SERVICE)
    source = drawn(options.seed, options.first, options.graphs)
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
    """Return the ways in which a graph is computed: all, or without a device and in one of those with it, in turn."""
    interpreted, *launched = WAYS
    return WAYS if kind == "all" else (interpreted, launched[number % len(launched)])


def _report(done: Done) -> Report:
    if done.error:
        return Report(error=f"{'hang' if done.hung else 'crash'}: {done.error}")
    assert isinstance(done.value, Report)
    return done.value


def asked(child: Child, seconds: float, method: str, *arguments: Any) -> Report:
    """Ask a process for a report; one that ends instead tells of something too."""
    try:
        report = child.call(seconds, method, *arguments)
    except Lost as lost:
        return Report(error=f"{'hang' if lost.hung else 'crash'}: {lost}")
    except BackendError as error:
        child.kill()
        return Report(error=str(error))
    assert isinstance(report, Report)
    return report


def checked(child: Child, target: str, graph: Graph, seed: int, ways: Sequence[str] = WAYS) -> Report:
    """Check one graph in a process of its own."""
    report = asked(child, LIMIT, "check", target, graph_to_json(graph), seed, tuple(ways))
    if report.error:
        child.kill()  # a device that a kernel has broken answers nothing any more
    return report


def smallest(options: argparse.Namespace, number: int, graph: Graph, report: Report) -> tuple[Graph, Report]:
    """Return the least graph that shows the same kind of finding, and what it shows."""
    child = Child(SERVICE)
    known: dict[str, Report] = {}

    def shows(candidate: Graph) -> bool:
        found = checked(child, options.target, candidate, number)
        known[graph_to_json(candidate)] = found
        return found.kind == report.kind

    try:
        least = reduced(shrunk(options.seed, number, shows, SHRINKING), shows, SHRINKING)
    finally:
        child.close()
    return least, known.get(graph_to_json(least), report)


def fuzz(options: argparse.Namespace) -> int:
    """Run the fuzzer; return 1 where it found something."""
    counts = counted(options)
    _write(options, _record(options, counts))
    print(counts.table)
    return 1 if counts.findings else 0


def fuzz_on(options: argparse.Namespace) -> int:
    """Go on where the ledger ends, part by part, until it has as many graphs of the seed as are asked for."""
    path: Path = options.ledger
    rows = json.loads(path.read_text(encoding="utf-8"))["parts"] if path.exists() else []
    known = {"seed": options.seed, "target": find_target(options.target).name, "ways": options.ways}
    own = [row for row in rows if {name: row.get(name, "all") for name in known} == known]
    first = max((row["until"] for row in own), default=options.first)
    end = time.monotonic() + options.limit
    while first < options.graphs and time.monotonic() < end:
        own_part = {"first": first, "graphs": min(options.part, options.graphs - first), "out": path}
        part = argparse.Namespace(**{**vars(options), **own_part, "limit": end - time.monotonic()})
        counts = counted(part)  # graphs are begun in order, and those that were begun are finished
        row = {**_record(part, counts), "until": first + counts.graphs}
        rows, own, first = [*rows, row], [*own, row], row["until"]
        write_records(path, "parts", rows)
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


def counted(options: argparse.Namespace) -> GraphCounts:
    """Check the graphs that are asked for, and write the shrunk form of each that shows something."""
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
    from cuts.frontends.graph_json import load_graph
    from cuts.ir.graph_text import print_graph

    graph = load_graph(options.replay)
    child = Child(SERVICE, options.bug)
    report = checked(child, options.target, graph, options.seed)
    child.close()
    print(print_graph(graph))
    for outcome in report.outcomes:
        print(f"{outcome.way}: {outcome.kernels} kernels, {', '.join(outcome.wrong) or 'right'}")
    print(report.error or f"{report.kind or 'no difference'}")
    return 1 if report.kind else 0


def _write(options: argparse.Namespace, record: dict[str, Any]) -> None:
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--graphs", type=int, default=200, help="graphs to check, or to try on each planted bug")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first graph")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="seconds behind which no further graph is begun"
    )
    parser.add_argument("--target", default="opencl")
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--ways",
        choices=("all", "one"),
        default="all",
        help="compute a graph in all ways, or in one of them on the device",
    )
    parser.add_argument("--ledger", type=Path, help="a file of what has been checked, to go on behind it")
    parser.add_argument("--part", type=int, default=PART, help="graphs behind which the ledger is written")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--planted", action="store_true", help="plant one bug after another and see which are found")
    parser.add_argument(
        "--bug",
        default="",
        help="with --planted: only bugs whose name has one of these texts (a|b); with --replay: a bug's name",
    )
    parser.add_argument("--replay", type=Path, help="a graph.json to check")
    options = parser.parse_args(arguments)
    if options.replay:
        return replay(options)
    if options.planted:
        from cuts.tests.fuzz.detect_planted import hunt

        return hunt(options)
    return fuzz_on(options) if options.ledger else fuzz(options)


if __name__ == "__main__":
    sys.exit(exit_code(main))
