"""Records schedule spaces: builds, checks and times points of thirty operations.

    python -m cuts.bench spaces --out spaces --limit 150
    python -m cuts.bench spaces --out spaces --only memory --points 2050
    python -m cuts.bench spaces --out spaces --whole              # every legal point of three small spaces

Each space is a file with the version that recorded it. A call leaves out the operations with a whole recording, and
those without legal points.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from attrs import evolve
from cuts.backends.devices import find_target
from cuts.bench.operators.cases import listed_cases
from cuts.bench.operators.tuning import task_of
from cuts.bench.tools.recording import SERVICE, WHOLE_SERVICE, PoolRecorder
from cuts.bench.tools.records import circumstances
from cuts.ir.machine import Target
from cuts.search.building.workers import Workers
from cuts.search.database import Database
from cuts.search.learned.recorded_spaces import RecordedSpace, read_spaces, write_spaces
from cuts.search.measurement.bench import DeviceBench
from cuts.search.settings import Settings
from cuts.search.tasks.tuning_task import TuningTask
from cuts.search.tuner.executor import SearchExecutor


def file_of(folder: Path, name: str) -> Path:
    """Return the file of a space."""
    return folder / f"{re.sub('[^0-9a-z]+', '-', name.lower()).strip('-')}.json.gz"


def missing(target: Target, options: argparse.Namespace) -> list[TuningTask]:
    """Return requested operations without a whole recording."""
    every = [task_of(case, target) for case in listed_cases("whole" if options.whole else "strategies")]
    wanted = [p for p in every if not options.only or any(text in p.label for text in options.only)]
    files = {p.label: file_of(options.out, p.label) for p in wanted}
    return [p for p in wanted if not (files[p.label].exists() and read_spaces(files[p.label])[0].whole)]


def record(problems: Sequence[TuningTask], target: Target, options: argparse.Namespace) -> int:
    """Record operations within the time limit; return the exit code."""
    service = WHOLE_SERVICE if options.whole else SERVICE
    executor = SearchExecutor(
        Database(None), lambda: Workers(options.jobs, service), lambda: DeviceBench(target), budget=options.limit
    )
    begin, timed, found = time.monotonic(), 0, circumstances("", options.commit)
    version = {"commit": str(found["commit"]), "lowering": str(found["sources"])}
    try:
        recorder = PoolRecorder(executor, Settings(seed=options.seed), options.points)
        for space in recorder.run(problems):
            timed += space.timed
            write_spaces(file_of(options.out, space.label), [evolve(space, version=version)])
            print(line(space, timed / (time.monotonic() - begin)), flush=True)
    finally:
        executor.close()
    for label, reason in recorder.lost.items():
        print(f"{label}: no points can be drawn: {reason}", file=sys.stderr)
    return 1 if recorder.lost else 0


def line(space: RecordedSpace, speed: float) -> str:
    """Return a space's record in a line, with the recording's speed."""
    outcomes = dict(Counter(p.outcome for p in space.points))
    best = f"{1e6 * space.best:8.2f} us" if space.timed else "none"
    found = f"{space.label:<34}{space.timed:>6} timed of {len(space.points):>5}{'' if space.whole else ' (cut)':<7}"
    return f"{found}best {best}  {speed:6.1f} points/s  {outcomes}"


def main() -> int:
    """Record missing spaces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--only", nargs="*", default=[], metavar="TEXT", help="spaces whose name contains one of these")
    parser.add_argument("--commit", default="", help="the version in the records, where there is no git")
    parser.add_argument("--whole", action="store_true", help="every point of small spaces, and code of any length")
    parser.add_argument("--points", type=int, default=1300, help="points of each pool that run")
    parser.add_argument("--limit", type=float, default=150.0, metavar="SECONDS")
    parser.add_argument("--jobs", type=int, help="processes that compile; as many as cores")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("spaces"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options.out.mkdir(parents=True, exist_ok=True)
    target = find_target(options.target)
    return record(missing(target, options), target, options)
