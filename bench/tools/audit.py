"""Validates the pruning against the times of a whole space.

Large spaces are sampled; the tuned choice is compared with the best point.

    python -m cuts.bench audit --out bench/results/audit.json

A call skips the rows that the file has; `--limit` ends a call. With `--precision` the spaces are those of products in
that precision.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from statistics import geometric_mean
from typing import Any

from attrs import evolve
from cuts.backends.devices import find_target, open_device
from cuts.bench.operators.cases import listed_cases
from cuts.bench.operators.shapes import Case
from cuts.bench.operators.tuning import task_of
from cuts.bench.tools.markdown import markdown_table
from cuts.bench.tools.records import (
    Row,
    add_precision_option,
    add_row_options,
    circumstances,
    fresh_keys,
    is_stale,
    keep_row,
    read_rows,
)
from cuts.ir.machine import Target
from cuts.search.analysis.audit import Audit, audits
from cuts.search.opening import tuning_session
from cuts.search.settings import TunedChoice
from cuts.search.trace.statistics import Statistics
from cuts.search.tuner.deeper_search import tune_each

#: Points of each space that are timed unless asked otherwise.
POINTS = 2000


def row_of(audit: Audit, case: Case, choice: TunedChoice, facts: dict[str, Any]) -> Row:
    """Return the row of a case."""
    head = {"suite": "audit", "class": case.kind, "name": case.name, "batch": case.batch,
            "precision": case.precision}  # fmt: skip
    values = {"chosen_us": audit.chosen * 1e6, "best_us": audit.best * 1e6, "trials": choice.trials}
    return head | audit.record() | values | facts


def measure(
    cases: Sequence[Case], target: Target, options: argparse.Namespace, rows: list[Row], facts: dict[str, Any]
) -> list[Row]:
    """Tune cases and audit their choices within the time limit.

    The file is written with every row.
    """
    begin = time.monotonic()
    problems = [task_of(case, target) for case in cases]
    with tuning_session(target, budget=min(options.budget * len(cases), 0.5 * options.limit)) as tuning:
        choices = tune_each(problems, tuning.tuner, tuning.settings)
    spent = time.monotonic() - begin
    print(f"tuned {len(cases)} operations in {spent:.1f} s: {counts(tuning.tuner.statistics)}", file=sys.stderr)
    for case in (c for c, choice in zip(cases, choices, strict=True) if choice.seconds is None):
        print(
            f"{case.key}: nothing was measured in its share of the tuning time, so there is nothing to audit",
            file=sys.stderr,
        )
    found = {p.key: (case, choice) for p, case, choice in zip(problems, cases, choices, strict=True)}
    with tuning_session(target, budget=max(0.0, options.limit - spent)) as session:
        for audit in audits(session.tuner, problems, choices, options.points, session.settings):
            row = row_of(audit, *found[audit.key], facts)
            rows = keep_row(options.out, row)
            print(
                f"{time.monotonic() - begin:.1f} s: {row['name']}: {row['timed']} points", file=sys.stderr, flush=True
            )
        print(
            f"audited in {time.monotonic() - begin - spent:.1f} s: {counts(session.tuner.statistics)}", file=sys.stderr
        )
        if not session.tuner.complete:
            print("time is over: what has no row is left for the next call", file=sys.stderr)
    return rows


def counts(statistics: Statistics) -> dict[str, object]:
    """Return the counts, without the text of refused kernels."""
    return {name: value for name, value in statistics.record().items() if name != "rejected"}


def line(row: Row, note: object = None) -> list[object]:
    """Return a row of the table, with a note."""
    return [
        *(f"{row['class']} {row['name']}", f"{row['points']:.2g}", row["timed"]),
        *(f"{row['chosen_us']:.2f}", f"{row['best / chosen']:.3f}", row["proven slower"]),
        *(row["lost by proof"], row["missed"], f"{row['median bound / time']:.2f}", note),
    ]


def table(rows: Sequence[Row], note: Callable[[Row], object] = lambda _: None) -> str:
    """Return all rows and totals as text, each with a note."""
    if not rows:
        return "no space was audited"
    heads = ["kernel", "points", "timed", "chosen, us", "best / chosen", "discarded", "lost by proof", "missed"]
    found = markdown_table([*heads, "bound / time", "no."], (line(row, note(row)) for row in rows))
    timed, lost, below = (sum(row[n] for row in rows) for n in ("timed", "lost by proof", "faster than their bound"))
    ratios = [row["best / chosen"] for row in rows]
    counts = f"{len(rows)} spaces, {sum(row['exhaustive'] for row in rows)} of them timed whole, {timed} points"
    means = f"best / chosen, geometric mean: {geometric_mean(ratios):.3f}, worst: {min(ratios):.3f}"
    return f"{found}\n\n{counts}; lost by proof: {lost}; faster than their bound: {below}; {means}."


# ---- the command line


def select(options: argparse.Namespace, rows: Sequence[Row]) -> list[Case]:
    """Return the requested cases without a row."""
    known = set() if options.again else fresh_keys(rows)
    every = (evolve(case, precision=options.precision) for case in listed_cases("audit"))
    named = [c for c in every if not options.only or any(text in f"{c.kind} {c.name}" for text in options.only)]
    return [case for case in named if case.key not in known]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="TEXT", help="cases whose class and name contain this")
    add_precision_option(parser)
    parser.add_argument("--points", type=int, default=POINTS, metavar="N", help="points of each space that are timed")
    parser.add_argument("--budget", type=float, default=4.0, metavar="SECONDS", help="tuning time per case")
    add_row_options(parser, "audit.json")
    return parser.parse_args(argv)


def main() -> None:
    """Audit missing rows and print the table."""
    options = arguments()
    rows = read_rows(options.out)
    cases = [] if options.table else select(options, rows)
    if cases:
        target = find_target(options.target)
        rows = measure(cases, target, options, rows, circumstances(open_device(target).name, options.commit))
    fresh = [row for row in rows if not is_stale(row)]
    print(table(fresh))
