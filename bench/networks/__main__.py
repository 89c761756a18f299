"""Evaluation of DeepCuts (section 7): Table 10's models in strict fp32.

PyTorch and its compiler are the peers.

    python -m cuts.bench networks --limit 450 --budget 20     # on a GPU: the missing rows, small batches first
    python -m cuts.bench networks --only resnet-50:1 bert-base:64 --systems "cuts mixed" "cuts fusion" PyTorch
    python -m cuts.bench networks --table                     # times, wins, means, breakdown
    python -m cuts.bench networks --add FILE.json --readme README.md --figure docs/evaluation.svg

Rows go to a JSON file (`--out`); a call adds the missing rows until `--limit`. `--pack FILE` exports the tuned plans
(`cuts cache import FILE`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest
from pathlib import Path
from time import monotonic

from cuts.bench.tools.records import circumstances, exit_code, read_rows
from cuts.search import export_pack, open_database
from cuts.search.processes.child import START_LIMIT

from . import tables
from .isolation import Bout
from .ledger import LEDGER, Pair, keep, missing, requested_pairs
from .systems import OURS, SYSTEMS, USUAL, Row

#: Seconds that a row may end after the limit of the call.
MAX_OVERTIME_SECONDS = 10.0


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="MODEL:BATCH",
        help="or MODEL:training; with =SECONDS after it, that is its budget",
    )
    parser.add_argument("--systems", nargs="+", choices=tuple(SYSTEMS), default=list(USUAL))
    parser.add_argument("--budget", type=float, default=60.0, metavar="SECONDS", help="of each search of ours")
    parser.add_argument("--limit", type=float, default=540.0, metavar="SECONDS", help="of the whole call")
    parser.add_argument("--out", type=Path, default=LEDGER, metavar="FILE", help="the ledger")
    parser.add_argument("--again", action="store_true", help="measure what the ledger has, too")
    parser.add_argument("--commit", default="", help="what rows say of the version, where there is no git")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="export the plans that were found")
    parser.add_argument("--table", action="store_true", help="only print what the ledger says")
    parser.add_argument(
        "--add", type=Path, nargs="+", default=[], metavar="FILE", help="only add rows of other ledgers"
    )
    parser.add_argument(
        "--readme", type=Path, nargs="+", default=[], metavar="FILE", help="only write the tables into documents"
    )
    parser.add_argument("--figure", type=Path, metavar="FILE", help="only draw the speed-ups, as an SVG")
    return parser.parse_args()


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Measure missing rows within the time limit, and yield them."""
    end = monotonic() + options.limit
    pairs = requested_pairs(options.only, options.systems)
    bouts = _bouts(pairs, options.budget)
    gpu = bouts[0].child.call(START_LIMIT, "gpu") if bouts else ""
    if not options.again:
        left = set(missing(read_rows(options.out), pairs, gpu))
        for bout in bouts:
            bout.systems = [system for system in bout.systems if (bout.workload, system) in left]
    bouts = [bout for bout in bouts if bout.systems]
    for bout, following in zip_longest(bouts, bouts[1:]):
        for system in bout.systems:
            if monotonic() + bout.expected_seconds(system) > end:
                continue
            row = bout.measure(system, end - monotonic() + MAX_OVERTIME_SECONDS)
            if following is not None:
                following.child.start()  # it prepares itself beside the peers of this one
            identity: Row = {
                "model": bout.workload.model.name,
                "task": bout.workload.task,
                "batch": bout.workload.batch,
            }
            yield identity | {"system": system} | row | circumstances(gpu, options.commit)
        bout.child.close()
    for bout in bouts:
        bout.child.close()


def _bouts(pairs: Sequence[Pair], budget: float) -> list[Bout]:
    """Return the workloads, each with its systems."""
    return [
        Bout(workload, [system for _, system in group], workload.budget or budget)
        for workload, group in groupby(pairs, key=lambda pair: pair[0])
    ]


def line(row: Row) -> str:
    """Return a row as a line of text."""
    label = f"{row['model']} b{row['batch']} {row['task']}"
    if "failure" in row:
        return f"{label:<32}{row['system']:<17}failed: {row['failure']}"
    facts = f"{row['ms']:>10.3f} ms  spread {row['spread']:.1%}  error {row['error']:.1e}  {row['took']:.1f} s"
    return f"{label:<32}{row['system']:<17}{facts}"


def main() -> int:
    """Measure, or show measured rows; return 1 where one failed."""
    options = arguments()
    for path in options.add:
        for row in read_rows(path):
            keep(options.out, row)
    rows = read_rows(options.out)
    for path in options.readme:
        path.write_text(tables.with_table(path.read_text("utf-8"), rows), "utf-8")
    if options.figure:
        from .tables import draw

        draw(rows, options.figure)
    if options.table:
        print(tables.all_tables(rows))
    if options.add or options.readme or options.figure or options.table:
        return 0
    failed = 0
    for row in measure(options):
        failed += "failure" in row
        keep(options.out, row)
        print(line(row), flush=True)
        if options.pack and row["system"] in OURS:
            export_pack(open_database(), options.pack)
    print(tables.all_tables(read_rows(options.out)))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(exit_code(main))
