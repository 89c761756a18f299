"""Validates the pruning against the times of a whole space.

Large spaces are sampled; the tuned choice is compared with the best point.

    python -m cuts.bench audit --out bench/results/audit.json

A call skips the rows that the file has; `--limit` ends a call, and the next call of the same version continues with the
points of the unfinished case (`audit.points.json`). With `--precision` the spaces are those of products in that
precision.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from attrs import evolve
from cuts.backends.devices import find_target, open_device
from cuts.bench.operators.shapes import Case, ConvolutionShape, Step, convolution_case, single
from cuts.bench.operators.tuning import group_of
from cuts.bench.tools.records import (
    Row,
    add_precision_option,
    add_row_options,
    circumstances,
    exit_code,
    geomean,
    is_stale,
    key_of,
    merge_row,
    read_rows,
    write_rows,
)
from cuts.ir.machine import Target
from cuts.search.analysis.audit import Audit, audits
from cuts.search.analysis.sweeps import StoredResults
from cuts.search.opening import tuning_session
from cuts.search.settings import TunedChoice
from cuts.search.tasks.tuning_task import TuningTask, machine_of
from cuts.search.trace.statistics import Statistics
from cuts.search.tuner.deeper_search import tune_each

#: Points of each space that are timed unless asked otherwise.
POINTS = 2000


def audit_cases() -> list[Case]:
    """Return fast operations of every kind, small spaces first.

    Thousands of their points can be timed.
    """
    return [*_small(), *_convolutions(), *_products(), *_images(), *_rows()]


def _small() -> Iterator[Case]:
    """Yield operations whose spaces have so few points that all of them can be timed."""
    yield single("memory", "layer norm 1x768", 1, "layer_norm", ((1, 768), (768,), (768,)), {}, 2)
    yield single("memory", "softmax 1x65536", 1, "softmax", ((1, 65536),), {})
    yield single("memory", "sum of 1000000", 1, "reduce_sum", ((1, 1000000),), {"axes": (1,)})
    yield single("gemv", "dot 4096", 1, "matmul", ((1, 4096), (4096, 1)), {})
    yield single("memory", "softmax 16x64", 1, "softmax", ((16, 64),), {})
    yield single("memory", "relu 64x512", 1, "relu", ((64, 512),), {})
    yield single("memory", "batch norm 64x28", 1, "batch_norm", ((1, 64, 28, 28), *((64,),) * 4), {}, 4)
    shape = (128, 1000)
    nodes: tuple[Step, ...] = (
        ("mul", ("a", "b"), "t0", {}),
        ("add", ("t0", "c"), "t1", {}),
        ("sigmoid", ("t1",), "t2", {}),
        ("mul", ("t1", "t2"), "y", {}),
    )
    yield Case("memory", "chain with broadcast 128x1000", 1, {"a": shape, "b": shape, "c": (1000,)}, nodes)


def _rows() -> Iterator[Case]:
    yield single("memory", "softmax 512x1024", 1, "softmax", ((512, 1024),), {})
    yield single("memory", "layer norm 384x768", 1, "layer_norm", ((384, 768), (768,), (768,)), {}, 2)
    yield single("memory", "sum of rows 1024x1024", 1, "reduce_sum", ((1024, 1024),), {"axes": (1,)})
    yield single("memory", "sum of columns 1024x1000", 1, "reduce_sum", ((1024, 1000),), {"axes": (0,)})
    yield single("memory", "transpose 1024x768", 1, "transpose", ((1024, 768),), {"perm": (1, 0)})


def _images() -> Iterator[Case]:
    window = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    yield single("memory", "max pool 64x56", 1, "max_pool", ((1, 64, 56, 56),), window)
    halving = {"kernel_shape": (2, 2), "strides": (2, 2)}
    yield single("memory", "average pool 64x56", 1, "average_pool", ((1, 64, 56, 56),), halving)
    yield single("memory", "global average pool 1024x7", 1, "global_average_pool", ((1, 1024, 7, 7),), {})


def _products() -> Iterator[Case]:
    yield single("gemm", "square 512", 1, "matmul", ((512, 512), (512, 512)), {}, 1)
    yield single("gemm", "skinny 16x1024x1024", 1, "matmul", ((16, 1024), (1024, 1024)), {}, 1)
    yield single("gemm", "odd 333x555x127", 1, "matmul", ((333, 127), (127, 555)), {}, 1)
    yield single("gemm", "batched 12x128x128x64", 1, "matmul", ((12, 128, 64), (12, 64, 128)), {})
    yield single("gemm", "winograd 36x64x64x49", 1, "matmul", ((36, 64, 64), (36, 64, 49)), {}, 0)
    yield single("gemv", "dense 2048-1000", 1, "gemm", ((1, 2048), (1000, 2048)), {"trans_b": True}, 1)


def _convolutions() -> Iterator[Case]:
    shapes = (
        ConvolutionShape(64, 28, 64, (3, 3), 1, (1, 1)),
        ConvolutionShape(64, 28, 128, (1, 1)),
        ConvolutionShape(64, 28, 128, (3, 3), 2, (1, 1)),
        ConvolutionShape(96, 28, 96, (3, 3), 1, (1, 1), depthwise=True),
        ConvolutionShape(64, 17, 96, (1, 7), 1, (0, 3)),
    )
    yield from (convolution_case(shape, 1) for shape in shapes)


def problems_of(cases: Sequence[Case], target: Target) -> list[TuningTask]:
    """Return the tuning tasks; every case is one kernel."""
    machine = machine_of(target)
    found = []
    for case in cases:
        group = group_of(case)
        assert group is not None, f"{case.key} is no single kernel"
        found.append(TuningTask(group, {}, target, machine, case.name))
    return found


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
    problems = problems_of(cases, target)
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
    place = points_file(options.out)
    kept = kept_points(place, facts)
    with tuning_session(target, budget=max(0.0, options.limit - spent)) as session:
        for audit in audits(session.tuner, problems, choices, options.points, session.settings, kept):
            row = row_of(audit, *found[audit.key], facts)
            rows = merge_row(rows, row)
            write_rows(options.out, rows)
            print(f"{time.monotonic() - begin:6.1f} s  {line(row)}", file=sys.stderr, flush=True)
        print(
            f"audited in {time.monotonic() - begin - spent:.1f} s: {counts(session.tuner.statistics)}", file=sys.stderr
        )
        if not session.tuner.complete:
            print("time is over: what has no row is left for the next call", file=sys.stderr)
    if kept or place.exists():
        place.write_text(json.dumps({**version_of(facts), "points": kept}), encoding="utf-8")
    return rows


def counts(statistics: Statistics) -> dict[str, object]:
    """Return the counts, without the text of refused kernels."""
    return {name: value for name, value in statistics.record().items() if name != "rejected"}


def points_file(rows: Path) -> Path:
    """Return where points of cases are kept that have no row yet."""
    return rows.with_suffix(".points.json")


def version_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties that comparable times share."""
    return {name: facts[name] for name in ("device", "commit", "versions")}


def kept_points(place: Path, facts: Mapping[str, Any]) -> StoredResults:
    """Return the points that an earlier call of this version kept."""
    found = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    if any(found.get(name) != value for name, value in version_of(facts).items()):
        return {}
    return {key: {text: (outcome, samples) for text, (outcome, samples) in points.items()}
            for key, points in found["points"].items()}  # fmt: skip


# ---- the table

HEAD = (
    f"{'operation':<40}{'points':>9}{'legal':>9}{'timed':>6} {'all':<4}{'chosen us':>10}{'best us':>9}{'ratio':>7}"
    f"{'proven':>8}{'lost':>5}{'missed':>7}{'unsound':>8}{'bound':>7}{'winner':>7}"
)


def line(row: Row) -> str:
    """Return a row as a line of the table."""
    points, legal = (f"{row[name]:.3g}" if row[name] >= 1e6 else f"{row[name]}" for name in ("points", "legal"))
    return (
        f"{row['class'] + ' ' + row['name']:<40}{points:>9}{legal:>9}"
        f"{row['timed']:>6} {'all' if row['exhaustive'] else '':<4}"
        f"{row['chosen_us']:>10.2f}{row['best_us']:>9.2f}{row['best / chosen']:>7.3f}"
        f"{row['proven slower']:>8}{row['lost by proof']:>5}{row['missed']:>7}{row['faster than their bound']:>8}"
        f"{row['median bound / time']:>7.2f}{row['bound / time of the choice']:>7.2f}"
    )


def table(rows: Sequence[Row]) -> str:
    """Return all rows and totals as text."""
    if not rows:
        return "no space was audited"
    totals = {
        name: sum(row[name] for row in rows)
        for name in ("timed", "proven slower", "lost by proof", "faster than their bound")
    }
    beaten = [row for row in rows if row["missed"]]
    ratios = [row["best / chosen"] for row in rows]
    return "\n".join(
        [
            HEAD,
            *(line(row) for row in rows),
            f"{len(rows)} spaces, {sum(row['exhaustive'] for row in rows)} of them timed whole;"
            f" {totals['timed']} points timed besides the choices, {totals['proven slower']} of them proven slower",
            f"lost by proof: {totals['lost by proof']}; faster than their bound: {totals['faster than their bound']};"
            f" spaces with a faster point that was not proposed: {len(beaten)}",
            f"best / chosen: geometric mean {geomean(ratios):.3f}, worst {min(ratios):.3f};"
            f" bound / time: median of points {median(row['median bound / time'] for row in rows):.2f},"
            f" of choices {median(row['bound / time of the choice'] for row in rows):.2f};"
            f" tie band: median {median(row['band'] for row in rows):.3f},"
            f" widest {max(row['band'] for row in rows):.3f}",
        ]
    )


# ---- the command line


def select(options: argparse.Namespace, rows: Sequence[Row]) -> list[Case]:
    """Return the requested cases without a row."""
    known = set() if options.again else {key_of(row) for row in rows if not is_stale(row)}
    every = (evolve(case, precision=options.precision) for case in audit_cases())
    named = [c for c in every if not options.only or any(text in f"{c.kind} {c.name}" for text in options.only)]
    return [case for case in named if case.key not in known]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="cases whose class and name contain this; may be repeated"
    )
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


if __name__ == "__main__":
    sys.exit(exit_code(main))
