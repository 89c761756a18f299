"""Single operations beside the vendor libraries: convolutions, matrix products, memory-bound operations, gradients.

    python -m cuts.bench ops --class conv --batch 1 --budget 4 --out bench/results/ops.json

A call skips the rows that the file has; `--limit` ends a call between two rows. Contenders are `cuts`, tuned for
`--budget` seconds per operation (0: the choice of the cost model), PyTorch, the fastest plan of cuBLASLt or cuDNN in
either layout, and with `--compile` torch.compile. Caches are cold, numbers are random, times are medians over
alternating rounds. All contenders use the same `--precision`: half types are storage types, `tf32` and `fp32x3` are
math modes of f32 (peers of `fp32x3` are strict). The last table gives memory-bound rows as shares of a device copy.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from attrs import define, evolve
from cuts.backends.device import Timing
from cuts.backends.devices import find_target, open_device
from cuts.backends.source.emit import emit
from cuts.bench.operators.cases import CLASSES, all_cases, sample_cases
from cuts.bench.operators.contenders import Peers, copy_bandwidth, copying, function_of, load_torch
from cuts.bench.operators.shapes import CHANNELS_LAST, Case
from cuts.bench.operators.timing import Contender, SuiteRun, in_order, in_turns
from cuts.bench.operators.tuning import Tuned, bind, cold_sets, floor, parts, tune, tune_separately, with_times
from cuts.bench.tools.records import (
    Row,
    add_every_option,
    add_precision_option,
    add_row_options,
    circumstances,
    exit_code,
    is_stale,
    key_of,
    read_rows,
    summary,
)
from cuts.ir.machine import PRECISIONS
from cuts.search.opening import tuning_session
from cuts.search.session import TuningSession

#: Cases that are tuned together: enough to keep all workers busy, few enough to stop in time.
TOGETHER = 24


@define
class Suite(SuiteRun):
    """A run of the benchmark, with the device's speed of copies."""

    copy_bandwidth: float = 0.0

    def run(self, cases: Sequence[Case]) -> None:
        """Measure cases by class and batch size within the time limit."""
        if not cases:
            return
        self.copy_bandwidth = copy_bandwidth(self.device)
        print(
            f"{self.device.name}: copies {self.copy_bandwidth / 1e12:.2f} TB/s, {len(cases)} rows to measure",
            file=sys.stderr,
        )
        for part in parts(cases, self.options.together, self.options.mixed):
            needed = len(part) * (self.options.budget + 1.0)
            if self.remaining_seconds < min(needed, 60.0):
                print(f"time is over: {part[0].key} and later rows are left for the next call", file=sys.stderr)
                return
            self._measure_cases(part)

    def _measure_cases(self, part: Sequence[Case]) -> None:
        for case, each in zip(part, tune_separately(part, self._tune), strict=True):
            if self.remaining_seconds < 0:
                return
            self.keep(self._measure(case, each))

    def _tune(self, part: Sequence[Case]) -> Sequence[Tuned]:
        start = time.monotonic()
        with self._session(
            min(self.options.budget * len(part), max(5.0, self.remaining_seconds - 2.0 * len(part)))
        ) as session:
            tuned = tune(part, self.target, emit, session)
            if session is not None:
                record, seconds = session.tuner.statistics.record(), time.monotonic() - start
                print(f"tuned {len(part)} operations in {seconds:.1f} s: {record}", file=sys.stderr)
        return tuned

    def _session(self, budget: float) -> AbstractContextManager[TuningSession | None]:
        if not self.options.budget:
            return nullcontext(None)
        return tuning_session(self.target, budget=budget, devices=self.options.devices)

    def _expected_seconds(self, case: Case) -> dict[str, float]:
        """Return the times of peers that the file has of a case on this device."""
        found = (r["peers"] for r in self.rows if key_of(r) == case.key and r["device"] == self.device.name)
        return dict(next(found, {}))

    # ---- one row

    def _measure(self, case: Case, tuned: Tuned | str) -> Row:
        work, moved, roofline = floor(case, self.target)
        row: Row = {"suite": "ops", "class": case.kind, "name": case.name, "batch": case.batch,
                    "precision": case.precision, "cuts_ms": None, "peers": {}, "bound_ms": None,
                    "roofline_ms": roofline * 1e3, "flops": work, "bytes": moved,
                    "copy_bandwidth": self.copy_bandwidth, "uses": dict(case.uses), **self.facts}  # fmt: skip
        row |= {"layout": CHANNELS_LAST} if case.channels_last else {}
        if isinstance(tuned, str):
            return row | {"failure": tuned}
        row |= {"bound_ms": tuned.bound * 1e3}
        kernels = {"kernels": [describe(record) for record in tuned.records]}
        return with_times(row, self.torch, lambda: self._times(case, tuned, moved) | kernels)

    def _times(self, case: Case, tuned: Tuned, moved: float) -> Row:
        sets = cold_sets(tuned, self.device, self.target.l2_bytes)
        launches = bind(tuned, self.device, sets)
        contenders = [Contender("cuts", self.device.capture(in_order(launches)), len(sets))]
        if case.kind in ("memory", "gemv"):
            contenders.append(copying(self.device, int(moved), self.target.l2_bytes))
        kept = self._expected_seconds(case) if self.options.reuse else {}
        wrong = ""
        if not kept and not self.options.no_peers:
            peers = Peers(tuned, self.device, self.torch, sets, function_of(case, self.torch))
            launches[0]()
            wrong = peers.difference()
            contenders += [peers.eager(), *peers.libraries(case)]
            contenders += [peers.compile_case("max-autotune-no-cudagraphs")] if self.options.compile else []
        timings = in_turns(self.device, contenders)
        times = {name: timing.median * 1e3 for name, timing in timings.items() if name not in ("cuts", "copy")}
        ours: Timing = timings["cuts"]
        found: Row = {
            "cuts_ms": ours.median * 1e3,
            "spread": ours.spread,
            "peers": times or dict(kept),
            "reused": bool(kept),
            "sets": len(sets),
        }
        copied = {"copy_ms": timings["copy"].median * 1e3} if "copy" in timings else {}
        return found | copied | ({"wrong": wrong} if wrong else {})


def describe(record: Any) -> dict[str, object]:
    """Return a row's record of a kernel: parameters and limits."""
    return {key: record[key] for key in ("ops", "algorithms", "parameters", "limit", "bound", "why") if key in record}


def select(options: argparse.Namespace, rows: Sequence[Row]) -> list[Case]:
    """Return the cases that were asked for and have no row yet."""
    known = {
        key_of(row) for row in rows if row["suite"] == "ops" and row.get("cuts_ms") is not None and not is_stale(row)
    }
    wanted = []
    for given in all_cases():
        turned = options.channels_last and given.kind in ("conv", "depthwise")
        case = evolve(given, precision=options.precision, channels_last=turned)
        kinds = options.kind or (("conv", "gemm") if PRECISIONS[options.precision].math else CLASSES)
        right = case.kind in kinds and (not options.batch or case.batch in options.batch)
        named = not options.only or any(text in case.name or text in case.uses for text in options.only)
        if right and named:
            wanted.append(case)
    return [case for case in sample_cases(wanted, options.every) if options.again or case.key not in known]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--class", dest="kind", action="append", choices=CLASSES, help="a class of operations; may be repeated")
    add("--batch", type=int, action="append", help="a batch size; may be repeated")
    add(
        "--only",
        action="append",
        metavar="TEXT",
        help="rows with this in their name, or used by a network of this name",
    )
    add_every_option(parser)
    add("--budget", type=float, default=4.0, metavar="SECONDS", help="search time per operation; 0: cost model only")
    add(
        "--devices", type=lambda text: text.split(","), default=(), metavar="0,1", help="GPUs of this host to search on"
    )
    add("--together", type=int, default=TOGETHER, metavar="N", help="operations that are tuned at the same time")
    add("--mixed", action="store_true", help="tune all classes and batch sizes together, in turn")
    add("--reuse", action="store_true", help="take times of peers from the file where it has them")
    add_precision_option(parser)
    add(
        "--channels-last", action="store_true", help="channels innermost, as in a network; cuDNN uses the faster layout"
    )
    add("--compile", action="store_true", help="time torch.compile as well (slow)")
    add("--no-peers", action="store_true", help="time cuts only")
    add_row_options(parser, "ops.json")
    return parser.parse_args(argv)


def main() -> None:
    """Measure missing rows and print the table."""
    options = arguments()
    rows = read_rows(options.out)
    if not options.table:
        target = find_target(options.target)
        device = open_device(target)
        torch = None if options.no_peers else load_torch(options.precision)
        facts = circumstances(device.name, options.commit)
        suite = Suite(options, target, device, torch, rows, facts)
        suite.run(select(options, rows))
        rows = suite.rows
    found = [
        row for row in rows if row["suite"] == "ops" and row["precision"] == options.precision and not is_stale(row)
    ]
    print(summary(found))


if __name__ == "__main__":
    sys.exit(exit_code(main))
