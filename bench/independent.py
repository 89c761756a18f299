"""Graphs of another project's generator, NNSmith, against PyTorch and the reference.

    pip install nnsmith
    python bench/independent.py --graphs 2000 --jobs 2 --target opencl --ledger nnsmith-opencl.json

Graph n is the same wherever the same NNSmith, PyTorch and solver are. The ledger says which were checked: a run can be
broken off at any time and goes on behind them. A graph that cannot be drawn, or that PyTorch itself does not run, is
skipped; what is refused with an error of ours is counted, and no finding.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuts.bench.records import exit_code, write_rows
from cuts.search.build import Done, Job, Workers

if TYPE_CHECKING:
    from cuts.tests.fuzz.independent import Seen

SERVICE = "cuts.tests.fuzz.independent:Generator"
#: Seconds that one graph may take, and graphs behind which the ledger is written.
LIMIT, PART = 180.0, 20
Row = dict[str, Any]


def seen(options: argparse.Namespace, first: int, count: int) -> Iterator[tuple[int, Seen | str]]:
    """Check graphs and yield what became of each; a text where its process was lost."""
    workers = Workers(options.jobs, SERVICE)
    numbers = iter(range(first, first + count))
    exhausted = False
    try:
        while workers.load or not exhausted:
            while not exhausted and workers.load < 2 * workers.size:
                number = next(numbers, None)
                exhausted = number is None
                if number is not None:
                    workers.submit(Job(number, "check", (options.target, number), (number,), LIMIT))
            for done in workers.collect(5.0):
                yield done.job.owner, _answer(done)
    finally:
        workers.close()


def _answer(done: Done) -> Seen | str:
    if done.error:
        return f"{'hang' if done.hung else 'crash'}: {done.error}"
    found: Seen = done.value
    return found


def part(options: argparse.Namespace, first: int, count: int) -> Row:
    """Check some graphs and return the row of the ledger."""
    kinds: Counter[str] = Counter()
    operations: Counter[str] = Counter()
    findings, begin = [], time.monotonic()
    for number, report in seen(options, first, count):
        kind = "lost" if isinstance(report, str) else report.kind or "right"
        text = report if isinstance(report, str) else report.text
        kinds[kind] += 1
        operations.update(() if isinstance(report, str) else report.operations)
        if kind not in ("right", "skipped"):
            print(f"graph {number}: {kind}: {text[:500]}", flush=True)
        if kind not in ("right", "skipped", "refused", "ill-posed"):
            findings.append({"number": number, "kind": kind, "text": text[:1500]})
    return {
        "first": first, "until": first + count, "target": options.target, "kinds": dict(kinds),
        "operations": dict(operations.most_common()), "findings": findings,
        "seconds": round(time.monotonic() - begin, 1),
    }  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Go on where the ledger ends; return 1 where it has findings."""
    if importlib.util.find_spec("nnsmith") is None:
        print("NNSmith is not installed: pip install nnsmith", file=sys.stderr)
        return 2
    path: Path = options.ledger
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))["parts"] if path.exists() else []
    own = [row for row in rows if row["target"] == options.target]
    first, end = max((row["until"] for row in own), default=0), time.monotonic() + options.limit
    while first < options.graphs and time.monotonic() < end:
        row = part(options, first, min(PART, options.graphs - first))
        rows, own, first = [*rows, row], [*own, row], row["until"]
        write_rows(path, rows, "parts")
        print(_total(own), flush=True)
    print("\n".join([*(f"finding {f['number']}: {f['text'][:300]}" for r in own for f in r["findings"]), _total(own)]))
    return int(any(row["findings"] for row in own))


def _total(rows: list[Row]) -> str:
    kinds: Counter[str] = Counter()
    for row in rows:
        kinds.update(row["kinds"])
    operations = {name for row in rows for name in row["operations"]}
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    seconds = sum(row["seconds"] for row in rows)
    return f"{kinds.total()} graphs, {len(operations)} operations: {counts}; {seconds:.0f} s"


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--graphs", type=int, default=200, help="number behind the last graph")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--target", default="opencl")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds behind which no part is begun")
    parser.add_argument("--ledger", type=Path, default=Path("nnsmith.json"), help="the file of what was checked")
    return run(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(exit_code(main))
