"""Fit the constants of the estimate that orders points to measured kernels, and say how well it orders operations it
was not fitted to.

Run it with `python bench/fit_rank.py FILE ... [--target TARGET]`. A file is a tuning database (`tuning.sqlite3`), or
JSON that holds `{name: {"group": TEXT, "points": [{"sched": TEXT, "ms": MILLISECONDS, "spill": BYTES}]}}`, texts as
`cuts.ir.text` prints them. The constants are printed as the text of `passes/model/rank_constants.py`.

Least squares of the logarithms, Gauss-Newton with damping: every operation weighs the same, a point by the square of
how close it is to its operation's best; a ridge holds each constant to what it is now.
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
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.ir.target import Target
from cuts.ir.text import parse_ir
from cuts.passes.model.banks import conflict_factor
from cuts.passes.model.bound import bound
from cuts.passes.model.counts import NUMBERS, Features
from cuts.passes.model.rank import rank
from cuts.passes.model.rank_constants import FITTED, RankConstants
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.passes.schedule.legal_points import features_of, geometry_of

Array = np.ndarray[Any, Any]
NAMES = tuple(f.name for f in attrs.fields(RankConstants))
#: Weight of the ridge; part of an operation's mean error that does not count; power of a point's weight.
RIDGE, FORGIVEN, POWER = 0.01, 0.7, 2.0
#: Fewest points of an operation that say anything about their order.
FEWEST = 8
#: What a measurement adds to a kernel, in latencies of DRAM: events before and after it, a flushed cache of
#: instructions.
OVERHEAD = 11.0


@attrs.frozen(eq=False)
class RankPoints:
    """Measured points: counts as arrays, bank conflicts, seconds, and the number of each point's operation."""

    features: Features
    conflicts: Array
    seconds: Array
    case: Array

    def where(self, mask: Array) -> RankPoints:
        """Return some of the points."""
        chosen = {f.name: getattr(self.features, f.name) for f in attrs.fields(Features)}
        chosen = {name: value[mask] if isinstance(value, np.ndarray) else value for name, value in chosen.items()}
        return RankPoints(Features(**chosen), self.conflicts[mask], self.seconds[mask], self.case[mask])


def read(paths: Sequence[Path], target: Target) -> tuple[list[str], RankPoints]:
    """Return the names of the operations and their points; kernels that spilled are left out, and operations with few
    points.
    """
    fields = list(NUMBERS)
    names: list[str] = []
    rows: list[list[float]] = []
    for name, text, points in (each for path in paths for each in measured(path)):
        group = parse_ir(text)
        assert isinstance(group, FusedGroup), "the text of a group"
        counted = [(_row(group, parse_ir(schedule), fields, target), seconds) for schedule, seconds in points]
        found = [[*row, seconds, len(names)] for row, seconds in counted if row]
        if len(found) >= FEWEST:
            rows += found
            names.append(name)
    table = np.asarray(rows)
    columns = dict(zip(fields, table.T, strict=False))
    return names, RankPoints(Features(segments=(), **columns), table[:, -3], table[:, -2], table[:, -1].astype(int))


def _row(group: FusedGroup, schedule: Schedule, fields: Sequence[str], target: Target) -> list[float]:
    """Return the counts of a point and its bank conflicts; nothing where it is not legal."""
    if check_schedule(group, schedule, target):
        return []
    counts = features_of(group, schedule, target)
    factor = float(np.max(conflict_factor(group, geometry_of(group, schedule), target)))
    return [*(float(np.max(getattr(counts, f))) for f in fields), factor]


def measured(path: Path) -> Iterator[tuple[str, str, list[tuple[str, float]]]]:
    """Yield the operations of a file: a name, the text of the group, and the schedules that ran with their seconds."""
    if path.suffix == ".json":
        for name, entry in json.loads(path.read_text()).items():
            yield (
                name,
                entry["group"],
                [(p["sched"], p["ms"] * 1e-3) for p in entry["points"] if p.get("ms") and not p.get("spill")],
            )
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


def estimate(costs: RankConstants, points: RankPoints, target: Target) -> Array:
    """Return the estimated seconds of points."""
    order = rank(points.features, bound(points.features, target), target, points.conflicts, costs)
    return np.asarray(order) + OVERHEAD * target.dram_latency


def fit(points: RankPoints, target: Target, start: RankConstants = FITTED, rounds: int = 12) -> RankConstants:
    """Return the constants that explain the points best."""
    count = int(points.case.max()) + 1
    best = np.full(count, np.inf)
    np.minimum.at(best, points.case, points.seconds)
    weight = (best[points.case] / points.seconds) ** POWER
    total = np.maximum(np.bincount(points.case, weight, count), 1e-12)
    first = np.log(np.asarray(attrs.astuple(start)))

    def errors(logs: Array) -> Array:
        wrong = np.log(estimate(RankConstants(*np.exp(logs)), points, target) / points.seconds)
        mean = np.bincount(points.case, weight * wrong, count) / total
        own = (wrong - FORGIVEN * mean[points.case]) * np.sqrt(weight / total[points.case])
        return np.concatenate([own, np.sqrt(RIDGE) * (logs - first)])

    logs, damping = first, 1e-2
    now = errors(logs)
    for _ in range(rounds):
        slopes = np.stack([(errors(logs + 1e-3 * unit) - now) / 1e-3 for unit in np.eye(len(NAMES))], axis=1)
        step = -np.linalg.solve(slopes.T @ slopes + damping * np.eye(len(NAMES)), slopes.T @ now)
        after = errors(logs + np.clip(step, -1.0, 1.0))
        if after @ after < now @ now:
            logs, now, damping = logs + np.clip(step, -1.0, 1.0), after, damping / 3
        else:
            damping *= 8
    return RankConstants(*(float(v) for v in np.exp(logs)))


def quality(estimated: Array, points: RankPoints, names: list[str]) -> list[dict[str, Any]]:
    """Return for each operation the time of the first point and of the best of the first eight, as multiples of the
    best measured, and the place of that one in the order.
    """
    found = []
    for number, name in enumerate(names):
        own = np.flatnonzero(points.case == number)
        ordered = points.seconds[own[np.argsort(estimated[own], kind="stable")]]
        row: dict[str, Any] = {"name": name, "place": int(np.argmin(ordered)) + 1, "points": len(own)}
        found.append(row | {"first": ordered[0] / ordered.min(), "eight": ordered[:8].min() / ordered.min()})
    return found


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return medians and the geometric mean, and how many operations have a point within 10 % of the best among their
    first eight; `place_median` is where the best point stands in the order.
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
    """Fit, cross-validate by leaving operations out, print the constants and the quality of the order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--target", default="cuda:h200")
    parser.add_argument("--folds", type=int, default=10, help="parts that operations are left out in; 0 for none")
    options = parser.parse_args()
    target = find_target(options.target)
    names, points = read(options.files, target)
    print(f"{len(points.seconds)} points of {len(names)} operations")
    print("as committed", json.dumps(summary(quality(estimate(FITTED, points, target), points, names))))
    costs = fit(points, target)
    print(", ".join(f"{name}={value:.4g}" for name, value in attrs.asdict(costs).items()))
    print("fitted", json.dumps(summary(quality(estimate(costs, points, target), points, names))))
    if options.folds:
        left_out = np.empty(len(points.seconds))
        for fold in range(options.folds):
            own = points.case % options.folds == fold
            left_out[own] = estimate(fit(points.where(~own), target, rounds=6), points, target)[own]
        print("left out", json.dumps(summary(quality(left_out, points, names))))


if __name__ == "__main__":
    main()
