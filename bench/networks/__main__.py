"""The evaluation of DeepCuts (section 7): the eight models of Table 10 beside PyTorch and its compiler, strict fp32.

    python -m cuts.bench.networks --limit 450 --budget 20     # on a GPU: what the ledger lacks, small batches first
    python -m cuts.bench.networks --only resnet-50:1 bert-base:64 --systems "cuts mixed" "cuts fusion" PyTorch
    python -m cuts.bench.networks --table                     # times, wins, means, breakdown of the ledger
    python -m cuts.bench.networks --add FILE.json --readme README.md docs/performance.md --figure docs/evaluation.svg

Rows go to a JSON file as they come (`--out`); a call goes on where the file ends, and ends behind `--limit` seconds.
With `--pack FILE` the plans that were found are exported at the end, so that a later session begins with them
(`cuts cache import FILE`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import groupby
from pathlib import Path
from time import monotonic

from cuts.bench.records import circumstances, exit_code, read_rows
from cuts.ir import CutsError
from cuts.search import export_pack, open_database

from . import tables
from .ledger import LEDGER, keep, missing, wanted
from .models import ModelWorkload
from .systems import OURS, SYSTEMS, USUAL, Case, Row, run


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="MODEL:BATCH",
        help="or MODEL:training; with =SECONDS behind it, that is its budget",
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
    """Measure what is missing, as long as there is time, and yield the rows."""
    torch, start = import_module("torch"), monotonic()
    gpu = torch.cuda.get_device_name()
    pairs = wanted(options.only, options.systems)
    pairs = pairs if options.again else missing(read_rows(options.out), pairs, gpu)
    for workload, group in groupby(pairs, key=lambda pair: pair[0]):
        case = None
        for _, system in group:
            budget = workload.budget or options.budget
            needs = SYSTEMS[system].least + (budget if system in OURS else 0.0)
            if monotonic() - start + needs > options.limit:
                return
            row: Row = {"model": workload.model.name, "task": workload.task, "batch": workload.batch, "system": system}
            try:
                case = case or _case(workload, torch, budget)
                row |= run(case, system)
            except (RuntimeError, CutsError) as error:  # of one system; the others go on
                row["failure"] = (str(error).splitlines() or [type(error).__name__])[0][:300]
            torch.cuda.empty_cache()
            yield row | circumstances(gpu, options.commit)


def _case(workload: ModelWorkload, torch: object, budget: float) -> Case:
    return Case(workload, workload.model.make(workload.batch, False), torch, budget)


def line(row: Row) -> str:
    """Return a row as a line of text."""
    label = f"{row['model']} b{row['batch']} {row['task']}"
    if "failure" in row:
        return f"{label:<32}{row['system']:<17}failed: {row['failure']}"
    facts = f"{row['ms']:>10.3f} ms  spread {row['spread']:.1%}  error {row['error']:.1e}  {row['seconds']:.1f} s"
    return f"{label:<32}{row['system']:<17}{facts}"


def show(rows: list[Row]) -> None:
    """Print all that the ledger says."""
    means = "\n".join(f"{name}: {mean:.2f} of {count}" for name, (mean, count) in tables.speedups(rows).items())
    print(tables.times(rows), tables.winners_table(rows), means, tables.breakdowns(rows), sep="\n\n")


def main() -> int:
    """Measure, or show what was measured; 1 where a row failed."""
    options = arguments()
    for path in options.add:
        for row in read_rows(path):
            keep(options.out, row)
    rows = read_rows(options.out)
    for path in options.readme:
        path.write_text(tables.with_table(path.read_text("utf-8"), rows), "utf-8")
    if options.figure:
        from .figure import draw

        draw(rows, options.figure)
    if options.table:
        show(rows)
    if options.add or options.readme or options.figure or options.table:
        return 0
    failed = 0
    for row in measure(options):
        failed += "failure" in row
        keep(options.out, row)
        print(line(row), flush=True)
        if options.pack and row["system"] in OURS:
            export_pack(open_database(), options.pack)
    show(read_rows(options.out))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(exit_code(main))
