"""Do the times of small kernels depend on the process that measures them? Points of the smallest audited operations are
timed by several processes, one after another, each with data of its own at addresses of its own.

    python bench/placements.py --processes 8 --out bench/results/placements.json

Points are the fastest of the audit (`bench/results/audit.json`) and the model's first ones. In each process all points
of an operation are timed in turns, ten times five runs. A row has the median of each process, how far these lie apart,
and the distance of quartiles within a process, both as parts of the median: where the former is larger, a choice
between points holds for one process, which may be one placement of its data.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

from cuts.backends import Timing
from cuts.backends.devices import find_target
from cuts.bench.audit import audit_cases, problems_of
from cuts.bench.records import Row, circumstances, exit_code, read_rows, write_rows
from cuts.ir import Schedule
from cuts.ir.text import parse_ir
from cuts.passes.schedule import best_points, make_space
from cuts.search.bench import DeviceBench
from cuts.search.build import Built, Job, Workers
from cuts.search.problem import Problem, schedule_text
from cuts.search.strategies import FullSpace

#: What an audit found.
AUDIT = Path(__file__).parent / "results" / "audit.json"
#: Operations that are looked at unless others are named.
OPERATIONS = ("batch norm", "max pool", "transpose", "softmax 16x64", "average pool", "batched", "relu", "square")
#: Turns in each process, and runs of each point in one.
TURNS, RUNS = 10, 5


def points_of(problem: Problem, known: Sequence[str], count: int) -> list[Schedule]:
    """Return schedules that are known to be fast, and the model's first ones, so many in all."""
    space = FullSpace(make_space(problem.form, problem.target))
    first = [space.scored(p).candidate.schedule for p in best_points(problem.form, problem.target, "bound", count)]
    parsed = [found for found in map(parse_ir, known) if isinstance(found, Schedule)]
    return list({schedule_text(schedule): schedule for schedule in (*parsed, *first)}.values())[:count]


def built(wanted: Mapping[tuple[int, int], tuple[Problem, Schedule]]) -> dict[tuple[int, int], Built]:
    """Build points side by side; what cannot be built is left out."""
    workers, found, missing = Workers(), dict[tuple[int, int], Built](), set(wanted)
    try:
        for place, (problem, schedule) in wanted.items():
            workers.submit(Job(place, "build", (problem, schedule)))
        while missing:
            for done in workers.collect(1.0):
                missing.discard(done.job.owner)
                if isinstance(done.value, Built) and done.value.outcome == "ok":
                    found[done.job.owner] = done.value
    finally:
        workers.close()
    return found


def timed(problems: Sequence[Problem], points: Mapping[tuple[int, int], Built]) -> dict[tuple[int, int], list[float]]:
    """Time all points in a process of its own; those that are not right are left out."""
    samples: dict[tuple[int, int], list[float]] = {}
    bench = DeviceBench(problems[0].target)
    try:
        for number, problem in enumerate(problems):
            mine = [place for place in points if place[0] == number]
            right = [place for place in mine if bench.check(problem, points[place]).outcome == "ok"]
            for place in right * TURNS:
                samples.setdefault(place, []).extend(bench.sample(problem, points[place], RUNS).samples)
    finally:
        bench.close()
    return samples


def main() -> None:
    """Measure and print a line for each point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--points", type=int, default=5, help="of each operation")
    parser.add_argument("--only", nargs="*", default=list(OPERATIONS), metavar="TEXT")
    parser.add_argument("--commit", default="", help="what rows say of the version, where there is no git")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "placements.json")
    options = parser.parse_args()
    target = find_target(options.target)
    cases = [case for case in audit_cases() if any(text in f"{case.kind} {case.name}" for text in options.only)]
    problems = problems_of(cases, target)
    audited = {row["name"]: row["fastest"]["schedule"] for row in read_rows(AUDIT)}
    wanted = {
        (number, place): (problem, schedule)
        for number, (case, problem) in enumerate(zip(cases, problems, strict=True))
        for place, schedule in enumerate(points_of(problem, [audited[case.name]], options.points))
    }
    points = built(wanted)
    runs = [timed(problems, points) for _ in range(options.processes)]
    rows: list[Row] = []
    print(f"{'operation':<28}{'apart':>7}{'within':>8}  medians of processes, us")
    for place in points:
        own = [run[place] for run in runs if place in run]
        medians = [median(samples) for samples in own]
        apart = (max(medians) - min(medians)) / median(medians) if medians else 0.0
        within = fmean(Timing(tuple(samples)).spread for samples in own) if own else 0.0
        rows.append({
            "operation": cases[place[0]].name, "schedule": schedule_text(wanted[place][1]),
            "medians us": [round(1e6 * each, 3) for each in medians],
            "apart": round(apart, 3), "within": round(within, 3), **circumstances(target.name, options.commit),
        })  # fmt: skip
        print(f"{cases[place[0]].name:<28}{apart:>7.3f}{within:>8.3f}  {rows[-1]['medians us']}")
    write_rows(options.out, rows)


if __name__ == "__main__":
    sys.exit(exit_code(main))
