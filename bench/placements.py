"""What the time of a small kernel depends on beside the kernel, and by what it is told best: points of the smallest
audited operations are timed by several processes, one after another, each at all places that `MeasuringDevice` gives
its data.

    python bench/placements.py --processes 8 --runs runs.json.gz --out bench/results/placements.json
    python bench/placements.py --table --runs bench/results/small_kernel_runs.json.gz

Points are the fastest of the audit (`bench/results/audit.json`) and the model's first ones. In each process all points
of an operation are timed in turns, so many runs at each place. A row has standard deviations, as parts of the time: of
what all points of an operation have in common in one process and at one place in it, which no choice between them
depends on, and of what a point has of its own at one place, or in one process in the mean of its places: so much is a
comparison of points wrong by that was made there. The latter has some of the scatter of runs, which is given alone too.
Then by how much the median and the trimmed mean of six and eighteen runs, as a search takes them at one place after
another, differ from what the point takes in that process. Runs are kept in a file of their own, in nanoseconds by
operation, process, point, turn and place; `--table` makes rows of those of an earlier call.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cuts.backends import Array, trimmed_mean
from cuts.backends.devices import find_target
from cuts.bench.audit import audit_cases, problems_of
from cuts.bench.records import Row, circumstances, exit_code, read_rows, write_rows
from cuts.ir import Schedule
from cuts.ir.text import parse_ir
from cuts.passes.schedule import best_points, check_schedule, make_space
from cuts.search.bench import DeviceBench
from cuts.search.build import Built, Job, Workers
from cuts.search.measure import PLACES
from cuts.search.problem import Problem, schedule_text
from cuts.search.strategies import FullSpace

#: What an audit found.
AUDIT = Path(__file__).parent / "results" / "audit.json"
#: Operations that are looked at unless others are named.
OPERATIONS = ("batch norm", "max pool", "transpose", "softmax 16x64", "average pool", "batched", "relu", "square")
#: Turns in each process, each with one run of every point at every place.
TURNS = 10
PARTS = ("process", "place", "point at one place", "point at all places", "scatter")
ERRORS = tuple((by, count) for by in ("median", "trimmed mean") for count in (6, 18))
NAMES = (*PARTS, *(f"{by} of {count}" for by, count in ERRORS))
#: Times that an error is looked at for each point and process.
DRAWS = 40


def points_of(problem: Problem, known: Sequence[str], count: int) -> list[Schedule]:
    """Return schedules that are known to be fast, on this target or on another, where it can run them, and the model's
    first ones, so many in all.
    """
    space = FullSpace(make_space(problem.form, problem.target))
    first = [space.scored(p).candidate.schedule for p in best_points(problem.form, problem.target, "bound", count)]
    parsed = [found for found in map(parse_ir, known) if isinstance(found, Schedule)]
    legal = [found for found in parsed if not check_schedule(problem.form, found, problem.target)]
    return list({schedule_text(schedule): schedule for schedule in (*legal, *first)}.values())[:count]


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


def timed(problems: Sequence[Problem], points: Mapping[tuple[int, int], Built]) -> dict[tuple[int, int], Array]:
    """Time all points in a process of its own; those that are not right are left out. Seconds by turn and place."""
    samples: dict[tuple[int, int], Array] = {}
    bench = DeviceBench(problems[0].target)
    try:
        for number, problem in enumerate(problems):
            mine = [place for place in points if place[0] == number]
            right = [place for place in mine if bench.check(problem, points[place]).outcome == "ok"]
            turns = {place: list[tuple[float, ...]]() for place in right}
            for place in right * TURNS:
                turns[place].append(tuple(bench.sample(problem, points[place], PLACES).samples))
            whole = {place: each for place, each in turns.items() if all(len(turn) == PLACES for turn in each)}
            samples.update((place, np.asarray(each)) for place, each in whole.items())
    finally:
        bench.close()
    return samples


def means(axis: int, seconds: Array) -> Array:
    """Return the trimmed means of runs that lie along an axis."""
    middle: Any = trimmed_mean
    return np.asarray(np.apply_along_axis(middle, axis, seconds))


def parts(seconds: Array) -> dict[str, float]:
    """Return the standard deviations of what times of one operation, by process, point, turn and place, depend on."""
    logs = np.log(means(2, seconds))
    common = logs.mean(axis=1)
    own = logs - common[:, None]
    own -= own.mean(axis=(0, 2), keepdims=True)
    one, other = (np.log(means(2, seconds[:, :, half::2])) for half in (0, 1))
    found = {
        "process": common.mean(axis=1).std(),
        "place": (common - common.mean(axis=1, keepdims=True)).std(),
        "point at one place": own.std(),
        "point at all places": own.mean(axis=2).std(),
        "scatter": (one - other).std() / 2,
    }
    return {name: round(float(deviation), 4) for name, deviation in found.items()}


def errors(seconds: Array) -> dict[str, float]:
    """Return the standard deviation of what so many runs, at one place after another, say of a point in a process."""
    whole = means(2, seconds).mean(axis=2)
    drawn, (turns, places) = np.random.default_rng(0), seconds.shape[2:]
    found = {}
    for by, count in ERRORS:
        at = np.arange(count) % places
        taken = np.asarray([seconds[:, :, drawn.integers(turns, size=count), at] for _ in range(DRAWS)])
        told = np.median(taken, axis=3) if by == "median" else means(3, taken)
        found[f"{by} of {count}"] = round(float(np.log(told / whole).std()), 4)
    return found


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Time everything, and return the runs with what they are of."""
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
    operations = []
    for number, case in enumerate(cases):
        mine = [place for place in sorted(points) if place[0] == number and all(place in run for run in runs)]
        if not mine:
            print(f"{case.name}: no point ran", file=sys.stderr)
            continue
        taken = np.asarray([[run[place] for place in mine] for run in runs])
        schedules = [schedule_text(wanted[place][1]) for place in mine]
        operations.append(
            {"operation": case.name, "schedules": schedules, "ns": np.rint(1e9 * taken).astype(int).tolist()}
        )
    return {"circumstances": circumstances(target.name, options.commit), "operations": operations}


def rows_of(found: Mapping[str, Any]) -> list[Row]:
    """Return a row for each operation."""
    rows: list[Row] = []
    for each in found["operations"]:
        seconds = 1e-9 * np.asarray(each["ns"], np.float64)
        rows.append({
            "operation": each["operation"], "us": round(1e6 * trimmed_mean(seconds.ravel().tolist()), 3),
            **parts(seconds), **errors(seconds), "processes": len(seconds), "points": len(each["schedules"]),
            "places": seconds.shape[3], "turns": seconds.shape[2], **found["circumstances"],
        })  # fmt: skip
    return rows


def main() -> None:
    """Measure, or read what was measured, and print a line for each operation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--points", type=int, default=5, help="of each operation")
    parser.add_argument("--only", nargs="*", default=list(OPERATIONS), metavar="TEXT")
    parser.add_argument("--commit", default="", help="what rows say of the version, where there is no git")
    parser.add_argument("--table", action="store_true", help="measure nothing: rows of the runs that a file has")
    parser.add_argument("--runs", type=Path, help="a file of runs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "placements.json")
    options = parser.parse_args()
    if options.table:
        found = json.loads(gzip.decompress(options.runs.read_bytes()))
    else:
        found = measured(options)
        if options.runs:
            options.runs.write_bytes(gzip.compress(json.dumps(found).encode(), 9, mtime=0))
    rows = rows_of(found)
    print(f"{'operation':<28}{'us':>8}" + "".join(f"{name:>21}" for name in NAMES))
    for row in rows:
        print(f"{row['operation']:<28}{row['us']:>8.3f}" + "".join(f"{row[name]:>21}" for name in NAMES))
    write_rows(options.out, rows)


if __name__ == "__main__":
    sys.exit(exit_code(main))
