"""Record spaces for `bench/strategies.py`: pools of points of thirty operations are built, checked and timed.

    python bench/record_spaces.py --out spaces --points 2400 --limit 150

Each space becomes a file of the folder as soon as it is finished; what the folder has is not recorded again. When time
ends, what there is of the spaces under way is written too, and marked. Points a second are printed with every space.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cuts.backends.devices import find_target
from cuts.bench.records import exit_code
from cuts.bench.shapes import Case
from cuts.bench.strategy_cases import strategy_cases
from cuts.bench.tuned import group_of
from cuts.ir.target import Target
from cuts.search.bench import DeviceBench
from cuts.search.build import Workers
from cuts.search.database import Database
from cuts.search.learned.recorded import RecordedSpace, write_spaces
from cuts.search.learned.recording import SERVICE, Recorder
from cuts.search.problem import Problem, machine_of
from cuts.search.resources import Resources
from cuts.search.settings import Settings


def problem_of(case: Case, target: Target) -> Problem:
    """Return what is recorded: every case is one kernel."""
    group = group_of(case)
    assert group is not None, f"{case.key} is no single kernel"
    return Problem(group, {}, target, machine_of(target), f"{case.kind} {case.name}")


def file_of(folder: Path, name: str) -> Path:
    """Return the file of a space."""
    return folder / f"{re.sub('[^0-9a-z]+', '-', name.lower()).strip('-')}.json.gz"


def record(cases: Sequence[Case], target: Target, options: argparse.Namespace) -> int:
    """Record what is missing until time is over; return how many points were timed."""
    problems = [problem_of(case, target) for case in cases]
    resources = Resources(
        Database(None),
        lambda: Workers(options.jobs, SERVICE),
        lambda: DeviceBench(target),
        budget=options.limit,
    )
    begin, total = time.monotonic(), 0
    try:
        recorder = Recorder(resources, Settings(seed=options.seed), options.points)
        for space in recorder.run(problems):
            total += space.timed
            write_spaces(file_of(options.out, space.label), [space])
            print(line(space, total, time.monotonic() - begin), flush=True)
    finally:
        resources.close()
    return total


def line(space: RecordedSpace, total: int, seconds: float) -> str:
    """Return what was recorded of a space, and how fast."""
    outcomes = Counter(p.outcome for p in space.points)
    best = f"{1e6 * space.best:8.2f} us" if space.timed else "none"
    found = f"{space.label:<34}{space.timed:>6} timed of {len(space.points):>5}{'' if space.whole else ' (cut)':<7}"
    return f"{seconds:6.1f} s  {found}best {best}  {total / seconds:6.1f} points/s  {dict(outcomes)}"


def main() -> None:
    """Record what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--only", nargs="*", default=[], metavar="TEXT", help="spaces whose name contains one of these")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="leave out the first N operations")
    parser.add_argument("--points", type=int, default=2400, help="points of a pool")
    parser.add_argument("--limit", type=float, default=150.0, metavar="SECONDS")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("spaces"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    cases = [
        case
        for case in strategy_cases()[options.skip :]
        if not file_of(options.out, f"{case.kind} {case.name}").exists()
        and (not options.only or any(text in f"{case.kind} {case.name}" for text in options.only))
    ]
    record(cases, find_target(options.target), options)


if __name__ == "__main__":
    sys.exit(exit_code(main))
