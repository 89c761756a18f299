"""Single operations beside the vendor libraries: convolutions, matrix products, memory-bound operations, gradients.

    python -m cuts.bench ops --class conv --batch 1 --budget 4 --out bench/results/ops.json

A call skips the rows that the file has; `--limit` ends a call between two rows. Contenders are `cuts`, tuned for
`--budget` seconds per operation (0: the choice of the cost model), PyTorch, the fastest plan of cuBLASLt or cuDNN in
either layout, and with `--compile` torch.compile. Caches are cold, numbers are random, times are medians over
alternating rounds. All contenders use the same `--precision`: half types are storage types, `tf32` and `fp32x3` are
math modes of f32 (peers of `fp32x3` are strict). Memory-bound rows have the time of a device copy, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from attrs import define, evolve
from cuts.backends.devices import find_target, open_device
from cuts.bench.operators.cases import CLASSES, KINDS, all_cases, sample_cases
from cuts.bench.operators.contenders import Peers, PeerWay, copy_bandwidth, copying, function_of, load_torch
from cuts.bench.operators.shapes import CHANNELS_LAST, Case
from cuts.bench.operators.suite_run import SuiteRun
from cuts.bench.operators.timing import Contender
from cuts.bench.operators.tuning import Tuned, least_work, parts, tune_separately
from cuts.bench.tools.goals import summary
from cuts.bench.tools.records import (
    Row,
    add_precision_option,
    add_row_options,
    circumstances,
    is_stale,
    key_of,
    read_rows,
)
from cuts.ir.machine import PRECISIONS
from cuts.search.strategies import STRATEGIES

#: Cases that are tuned together: enough to keep all workers busy, few enough to stop in time.
TOGETHER = 24


@define
class Suite(SuiteRun):
    """A run of the benchmark, with the device's speed of copies."""

    suite = "ops"
    copy_bandwidth: float = 0.0

    def run(self, cases: Sequence[Case]) -> None:
        """Measure cases by class and batch size within the time limit."""
        if not cases:
            return
        self.copy_bandwidth = copy_bandwidth(self.device)
        self.say(f"{self.device.name}: copies {self.copy_bandwidth / 1e12:.2f} TB/s, {len(cases)} rows to measure")
        for part in parts(cases, self.options.together, self.options.mixed):
            if self.remaining_seconds < min(len(part) * (self.options.budget + 1.0), 60.0):
                self.say(f"time is over: {part[0].key} and later rows are left for the next call")
                return
            begin, found = time.monotonic(), tune_separately(part, self.tune)
            taken = round((time.monotonic() - begin) / len(part), 2)
            for case, tuned in zip(part, found, strict=True):
                if self.remaining_seconds < 0:
                    return
                self.keep({**self._measure_case(case, tuned), "search_s": taken})

    def _measure_case(self, case: Case, tuned: Tuned | str) -> Row:
        work, moved = least_work(case)
        row = self.head(case.kind, case.name, case.batch, case.precision)
        row |= {"flops": work, "bytes": moved, "copy_bandwidth": self.copy_bandwidth, "uses": dict(case.uses)}
        row |= {"layout": CHANNELS_LAST} if case.channels_last else {}

        def ways(peers: Peers) -> list[PeerWay]:
            modes = ("max-autotune-no-cudagraphs",) if self.options.compile else ()
            return [*peers.ways(*modes), *peers.libraries(case)]

        def copy_contender() -> list[Contender]:
            copied = case.kind in ("memory", "gemv")
            return [copying(self.device, int(moved), self.target.l2_bytes)] if copied else []

        return self.measure(row, tuned, lambda: function_of(case, self.torch), ways, copy_contender)


def select(options: argparse.Namespace, rows: Sequence[Row] = ()) -> list[Case]:
    """Return the cases that were asked for and have no row yet."""
    known = {
        key_of(row) for row in rows if row["suite"] == "ops" and row.get("cuts_ms") is not None and not is_stale(row)
    }
    wanted = []
    for given in all_cases():
        turned = options.channels_last and given.kind in ("conv", "depthwise", *KINDS)
        case = evolve(given, precision=options.precision, channels_last=turned)
        kinds = options.kind or (("conv", "gemm") if PRECISIONS[options.precision].math else CLASSES)
        right = case.kind in kinds and (not options.batch or case.batch in options.batch)
        named = not options.only or any(text in case.name or text in case.uses for text in options.only)
        if right and named:
            wanted.append(case)
    return [case for case in sample_cases(wanted, options.every) if case.key not in known]


def add_case_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose cases."""
    add = parser.add_argument
    add("--class", dest="kind", action="append", choices=CLASSES, help="a class of operations; may be repeated")
    add("--batch", type=int, action="append", help="a batch size; may be repeated")
    add("--only", action="append", metavar="TEXT", help="rows with this in their name, or of a network of this name")
    add("--every", type=int, default=1, metavar="N", help="only the first of every N rows of a class and batch size")
    add("--together", type=int, default=TOGETHER, metavar="N", help="operations that are tuned at the same time")
    add("--channels-last", action="store_true", help="channels innermost; cuDNN uses the faster layout")
    add("--no-peers", action="store_true", help="without PyTorch and the libraries")
    add_precision_option(parser)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_case_options(parser)
    add = parser.add_argument
    add("--budget", type=float, default=4.0, metavar="SECONDS", help="search time per operation; 0: cost model only")
    add("--devices", type=lambda text: text.split(","), default=(), metavar="0,1", help="GPUs to search on")
    add("--strategy", choices=STRATEGIES, help="search of 40 kernels without the cost model (default: that of users)")
    add("--mixed", action="store_true", help="tune all classes and batch sizes together, in turn")
    add("--reuse", action="store_true", help="take times of peers from the file where it has them")
    add("--compile", action="store_true", help="time torch.compile as well (slow)")
    add_row_options(parser, "ops.json")
    return parser.parse_args(argv)


def main() -> None:
    """Measure missing rows and print the table."""
    options = arguments()
    rows: Any = read_rows(options.out)
    if not options.table:
        target = find_target(options.target)
        device = open_device(target)
        torch = None if options.no_peers else load_torch(options.precision)
        suite = Suite(options, target, device, torch, rows, circumstances(device.name, options.commit))
        suite.run(select(options, () if options.again else rows))
        rows = suite.rows
    own = [row for row in rows if row["suite"] == "ops" and row["precision"] == options.precision]
    print(summary([row for row in own if not is_stale(row)]))
