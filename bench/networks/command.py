"""Evaluation of DeepCuts (section 7): models beside PyTorch and its compilers.

    python -m cuts.bench networks --limit 450 --budget 20     # on a GPU: the missing rows, small batches first
    python -m cuts.bench networks --only resnet-50:1 bert-base:64:fp16 --systems "cuts mixed" "cuts fusion" PyTorch
    python -m cuts.bench networks --table                     # times, wins, means, breakdown

Without a precision models run in strict fp32; peers of half types run under autocast. Rows go to a JSON file (`--out`);
a call adds the missing rows until `--limit`. `--pack FILE` exports the tuned plans (`cuts cache import FILE`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest
from pathlib import Path
from time import monotonic

from cuts.bench.tools.records import Row, add_row_options, circumstances, read_rows
from cuts.search import export_pack, open_database
from cuts.search.processes.child import START_LIMIT

from . import tables
from .isolation import Bout
from .ledger import LEDGER, Pair, keep, missing, requested_pairs
from .systems import OURS, SYSTEMS, USUAL

#: Seconds that a row may end after the limit of the call.
MAX_OVERTIME_SECONDS = 10.0


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    says = "or MODEL:training; with :PRECISION after it; =SECONDS at the end is its own budget"
    parser.add_argument("--only", nargs="+", default=[], metavar="MODEL:BATCH", help=says)
    parser.add_argument("--systems", nargs="+", choices=tuple(SYSTEMS), default=list(USUAL))
    parser.add_argument("--budget", type=float, default=60.0, metavar="SECONDS", help="of each search of ours")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="export the plans that were found")
    add_row_options(parser, LEDGER.name)
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
            named = {"cuts_ms": row.get("ms")} if system in OURS else {"peers": {system: row.get("ms")}}
            yield bout.workload.identity | named | {"system": system} | row | circumstances(gpu, options.commit)
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
    label = f"{row['model']} b{row['batch']} {row['task']} {row['precision']}"
    if "failure" in row:
        return f"{label:<37}{row['system']:<17}failed: {row['failure']}"
    facts = f"{row['ms']:>10.3f} ms  spread {row['spread']:.1%}  error {row['error']:.1e}  {row['took']:.1f} s"
    return f"{label:<37}{row['system']:<17}{facts}"


def main() -> int:
    """Measure missing rows and print the tables; return 1 where one failed."""
    options = arguments()
    failed = 0
    for row in () if options.table else measure(options):
        failed += "failure" in row
        keep(options.out, row)
        print(line(row), flush=True)
        if options.pack and row["system"] in OURS:
            export_pack(open_database(), options.pack)
    rows = read_rows(options.out)
    print("\n\n".join(tables.all_tables(rows)))
    print(*(line(row) for row in rows if "failure" in row), sep="\n")
    return int(failed > 0)
