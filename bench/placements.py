"""What the time of a small kernel depends on beside the kernel: points of the smallest audited operations are timed by
several processes, one after another, each at all places that `MeasuringDevice` gives its data.

    python bench/placements.py --processes 8 --out bench/results/placements.json

Points are the fastest of the audit (`bench/results/audit.json`) and the model's first ones. In each process all points
of an operation are timed in turns, so many runs at each place. A row has standard deviations, as parts of the time: of
what all points of an operation have in common in one process and at one place in it, which no choice between them
depends on, and of what a point has of its own at one place, or in one process in the mean of its places: so much is a
comparison of points wrong by that was made there. The latter has some of the scatter of runs, which is given alone too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from cuts.backends import Array
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
NAMES = ("process", "place", "point at one place", "point at all places", "scatter")


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


def parts(seconds: Array) -> dict[str, float]:
    """Return the standard deviations of what times of one operation, by process, point, turn and place, depend on."""
    logs = np.log(np.median(seconds, axis=2))
    common = logs.mean(axis=1)
    own = logs - common[:, None]
    own -= own.mean(axis=(0, 2), keepdims=True)
    halves = np.log(np.median(seconds[:, :, ::2], axis=2)) - np.log(np.median(seconds[:, :, 1::2], axis=2))
    found = {
        "process": common.mean(axis=1).std(),
        "place": (common - common.mean(axis=1, keepdims=True)).std(),
        "point at one place": own.std(),
        "point at all places": own.mean(axis=2).std(),
        "scatter": halves.std() / 2,
    }
    return {name: round(float(deviation), 4) for name, deviation in found.items()}


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
    print(f"{'operation':<28}{'us':>8}" + "".join(f"{name:>21}" for name in NAMES))
    for number, case in enumerate(cases):
        mine = [place for place in sorted(points) if place[0] == number and all(place in run for run in runs)]
        if not mine:
            print(f"{case.name:<28} no point ran")
            continue
        seconds = np.asarray([[run[place] for place in mine] for run in runs])
        medians = [[round(1e6 * float(np.median(each)), 3) for each in run] for run in seconds]
        rows.append({
            "operation": case.name, **parts(seconds), "schedules": [schedule_text(wanted[place][1]) for place in mine],
            "medians us": medians, **circumstances(target.name, options.commit),
        })  # fmt: skip
        print(f"{case.name:<28}{1e6 * float(np.median(seconds)):>8.3f}" + "".join(f"{rows[-1][n]:>21}" for n in NAMES))
    write_rows(options.out, rows)


if __name__ == "__main__":
    sys.exit(exit_code(main))
