"""Calibrates the cost model on measured kernels.

It cross-validates the order of candidate schedules.

    python -m cuts.bench fit-rank FILE ... [--target TARGET]

A file is a tuning database (`tuning.sqlite3`), or recorded spaces (`bench/results/spaces/*.json.gz`). The printed
constants are the table `[costs]` of the target's file.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from cuts.backends.devices import find_target
from cuts.ir.machine import Target
from cuts.ir.segment import FusedGroup
from cuts.ir.text import parse_ir
from cuts.search.learned.rank_fit import estimate, fit_constants
from cuts.search.learned.rank_points import MIN_POINTS, RankPoints, features_and_conflicts, rank_points
from cuts.search.learned.recorded_spaces import read_spaces

Array = np.ndarray[Any, Any]


def read(paths: Sequence[Path], target: Target) -> tuple[list[str], RankPoints]:
    """Return operations and their points, without spills and small spaces."""
    names: list[str] = []
    rows: list[list[float]] = []
    for name, text, points in (each for path in paths for each in measured_operations(path)):
        group = parse_ir(text)
        assert isinstance(group, FusedGroup), "the text of a group"
        rows_of_points = [
            (features_and_conflicts(group, parse_ir(schedule), target), seconds) for schedule, seconds in points
        ]
        found = [[*row, seconds, len(names)] for row, seconds in rows_of_points if row]
        if len(found) >= MIN_POINTS:
            rows += found
            names.append(name)
    return names, rank_points(rows)


def measured_operations(path: Path) -> Iterator[tuple[str, str, list[tuple[str, float]]]]:
    """Yield a file's operations: name, group's text, and timed schedules."""
    if path.suffix == ".gz":
        for space in read_spaces(path):
            text, mark, _ = space.work.partition("\n}\n")
            yield space.label, text + mark, [(p.schedule, p.seconds) for p in space.points if p.seconds is not None]
        return
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    trials: dict[str, list[tuple[str, float]]] = {}
    for key, schedule, seconds in connection.execute(
        "select problem, schedule, seconds from trials where outcome = 'ok' order by 1, 2"
    ):
        if seconds is not None:
            trials.setdefault(key, []).append((schedule, seconds))
    for key, description, label in connection.execute("select key, description, label from problems order by key"):
        work: Mapping[str, str] = json.loads(description)
        text, mark, _ = work["work"].partition("\n}\n")
        yield label, text + mark, trials.get(key, [])
    connection.close()


def quality(estimated: Array, points: RankPoints, names: list[str]) -> list[dict[str, Any]]:
    """Return the quality of each operation's order.

    It has the times of the first point and of the best of the first eight, as multiples of the best measured, and the
    place of that one in the order.
    """
    found = []
    for number, name in enumerate(names):
        own = np.flatnonzero(points.case == number)
        ordered = points.seconds[own[np.argsort(estimated[own], kind="stable")]]
        row: dict[str, Any] = {"name": name, "place": int(np.argmin(ordered)) + 1, "points": len(own)}
        found.append(row | {"first": ordered[0] / ordered.min(), "eight": ordered[:8].min() / ordered.min()})
    return found


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return medians, geometric mean, and the number of good orders.

    In a good order one of the first eight points is within 10 % of the best; `place_median` is the median place of the
    best point.
    """
    return {
        "operations": len(rows),
        "first_median": round(float(np.median([r["first"] for r in rows])), 3),
        "first_mean": round(float(np.exp(np.mean(np.log([r["first"] for r in rows])))), 3),
        "place_median": float(np.median([r["place"] for r in rows])),
        "eight_median": round(float(np.median([r["eight"] for r in rows])), 3),
        "eight_within_tenth": sum(bool(r["eight"] <= 1.1) for r in rows),
    }


def main() -> None:
    """Fit and cross-validate; print the constants and the order's quality.

    Cross-validation leaves operations out.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--target", default="cuda:h200")
    parser.add_argument("--folds", type=int, default=10, help="parts that operations are left out in; 0 for none")
    options = parser.parse_args()
    target = find_target(options.target)
    names, points = read(options.files, target)
    print(f"{len(points.seconds)} points of {len(names)} operations")
    print("as committed", json.dumps(summary(quality(estimate(points, target), points, names))))
    costs = fit_constants([(points, target)])
    print("[costs]", *(f"{name} = {value:.4g}" for name, value in attrs.asdict(costs).items()), sep="\n")
    fitted = attrs.evolve(target, costs=costs)
    print("fitted", json.dumps(summary(quality(estimate(points, fitted), points, names))))
    if options.folds:
        left_out = np.empty(len(points.seconds))
        for fold in range(options.folds):
            own = points.case % options.folds == fold
            costs = fit_constants([(points.where(~own), target)], rounds=6)
            left_out[own] = estimate(points, attrs.evolve(target, costs=costs))[own]
        print("left out", json.dumps(summary(quality(left_out, points, names))))
