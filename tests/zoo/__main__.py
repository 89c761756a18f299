"""Zoo: architectures in small, forward and backward, against eager PyTorch.

    python -m cuts.tests.zoo --capture --out zoo.jsonl             # read only: seconds for each architecture
    python -m cuts.tests.zoo --library timm --shard 1/4 --limit 300 --out zoo.jsonl
    python -m cuts.tests.zoo bert vit --tasks forward

Each architecture runs in a process of its own, and adds a line of JSON to the file (`records.py`). Names that the file
has are left out, so that a long run can be continued; `--again` runs them too.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from cuts.backends.opencl import device
from cuts.tests.zoo.records import TASKS, is_right, read_records, summary, write_records
from cuts.tests.zoo.running import missing_library, run_all
from cuts.tests.zoo.table import LIBRARIES, select


def main(arguments: list[str] | None = None) -> int:
    """Run the request; return 1 for a wrong or missing result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of names; all architectures without one")
    parser.add_argument("--library", choices=LIBRARIES)
    parser.add_argument("--shard", default="1/1", help="K/N: the K-th of N parts")
    parser.add_argument("--sample", action="store_true", help="the sample of CI only")
    parser.add_argument("--capture", action="store_true", help="capture and read graphs, and compile nothing")
    parser.add_argument("--quick", action="store_true", help="have PoCL compile kernels without optimisation")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each architecture")
    parser.add_argument("--out", type=Path, help="file of lines of JSON")
    parser.add_argument("--again", action="store_true", help="run architectures that the file has, too")
    given = parser.parse_args(arguments)
    number, count = map(int, given.shard.split("/"))
    rows = select(given.names, given.library, (number, count), given.sample)
    done = set() if given.again or not given.out else {record["name"] for record in read_records(given.out)}
    rows = [row for row in rows if row.name not in done]
    for library in {row.library for row in rows}:
        missing_library(library)
    importlib.import_module("cuts.tests.zoo.checking")  # processes inherit imported modules
    if given.quick:
        device._OPTIONS = [*device._OPTIONS, "-cl-opt-disable"]
    failed = False
    for record in run_all(rows, given.tasks, given.limit, given.capture):
        print(summary(record), flush=True)
        failed |= "skipped" not in record and not (given.capture or all(is_right(record[task]) for task in given.tasks))
        if given.out:
            write_records(given.out, [*read_records(given.out), record])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
