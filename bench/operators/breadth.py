"""Operations of the vocabulary against PyTorch and torch.compile on CUDA.

The better of both counts.

    python -m cuts.bench breadth --limit 400 --out bench/results/breadth.json

A call skips the rows that the file has; `--below 0.8` repeats the rows below that speed, with `--reuse` beside the
recorded times of the peers. An operation is a function of PyTorch (`bench/operators/suite.py`), imported through
torch.export. All run in strict fp32 as CUDA graphs, with cold caches, in alternating rounds. Processes import the rows
of a part while the part before it is tuned, with `--budget` seconds a row. A failure is a row, too. The table lists
rows below 0.8, means by family, and the share of rows at 0.8 and above.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import TypeAlias

from attrs import define
from cuts.backends.devices import find_target, open_device
from cuts.bench.operators.ahead import Ready, load_settled_torch, ready, result_of
from cuts.bench.operators.contenders import Peers, PeerWay
from cuts.bench.operators.suite import EVERY, GradientOperation
from cuts.bench.operators.suite_run import SuiteRun
from cuts.bench.operators.tuning import Tuned, tune_separately
from cuts.bench.operators.vocabulary import TorchCase
from cuts.bench.tools.breadth_tables import speed, summary
from cuts.bench.tools.records import (
    Row,
    add_row_options,
    circumstances,
    is_stale,
    key_of,
    parse_share,
    read_rows,
)
from cuts.ir.compiled import processor_count

#: Rows that are made ready and then tuned at the same time: enough to keep all cores busy, few enough to stop in time.
TOGETHER = 48
Begun: TypeAlias = Future[Ready]
#: Seconds that must be left for another part to begin.
_MIN_SECONDS = 15.0


@define
class Breadth(SuiteRun):
    """A run of the suite."""

    suite = "breadth"

    def run(self, numbers: Sequence[int]) -> None:
        """Measure rows by number, in batches, within the time limit."""
        parts = [numbers[n : n + self.options.together] for n in range(0, len(numbers), self.options.together)]
        left = len(numbers)
        pool = ProcessPoolExecutor(min(self.options.workers, left) or 1, get_context("spawn"))
        try:
            begun = self._begin(parts[0], pool) if parts else []
            for part, following in zip(parts, [*parts[1:], []], strict=True):
                if self.remaining_seconds < _MIN_SECONDS:
                    break
                begun = self._measure_rows(part, begun, following, pool)
                left -= len(part)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        self.say(f"in all, {left} rows are left")

    def _begin(self, numbers: Sequence[int], pool: ProcessPoolExecutor) -> list[Begun]:
        """Begin to make rows ready, for torch.compile where its times are wanted and not known."""
        compiles = self.options.compile and self.torch is not None
        return [pool.submit(ready, n, compiles and not self.known_peers(EVERY[n].key)) for n in numbers]

    def _measure_rows(
        self,
        numbers: Sequence[int],
        begun: Sequence[Future[Ready]],
        following: Sequence[int],
        pool: ProcessPoolExecutor,
    ) -> list[Begun]:
        """Measure some rows, and make those that follow ready while these are tuned; not while they are timed."""
        found = dict(zip(numbers, map(result_of, begun), strict=True))
        self.say(f"{len(found)} rows are ready")
        later = self._begin(following, pool)
        for number, each in found.items():
            if each.graph is None:
                self.keep(self.head(EVERY[number].operation.family, EVERY[number].name) | {"failure": each.failure})
        cases = {
            number: EVERY[number].case(each.graph, each.sources)
            for number, each in found.items()
            if each.graph is not None
        }
        tuned = tune_separately(list(cases.values()), self.tune)
        wait(later, timeout=max(0.0, self.remaining_seconds))
        for (number, case), kernels in zip(cases.items(), tuned, strict=True):
            if self.remaining_seconds < 0:
                break
            self.keep(self._measure_case(number, case, found[number], kernels))
        self.say(f"{len(cases)} rows are timed")
        return later

    def _measure_case(self, number: int, case: TorchCase, made: Ready, tuned: Tuned | str) -> Row:
        def ways(peers: Peers) -> list[PeerWay]:
            return peers.ways(*(["default"] if self.options.compile and not made.compile_failure else []))

        row = self.measure(self.head(case.kind, case.name), tuned, lambda: EVERY[number].operation.call, ways)
        if self.options.compile and made.compile_failure:
            row["missing"] = {"compile": made.compile_failure, **row.get("missing", {})}
        return row


def select(options: argparse.Namespace, rows: Sequence[Row]) -> list[int]:
    """Return the numbers of requested rows without a measurement.

    Rows to be measured again are among them.
    """
    known = {key_of(row): row for row in rows if not is_stale(row)}
    found = []
    for number, row in enumerate(EVERY):
        old = known.get(row.key)
        again = old is None or options.again or (options.below and speed(old) < options.below)
        wanted = isinstance(row.operation, GradientOperation) == options.gradients
        named = not options.only or any(text in f"{row.operation.family}/{row.name}" for text in options.only)
        if wanted and again and named:
            found.append(number)
    turn, turns = options.share
    return found[turn::turns]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="TEXT", help="rows whose family or name contains this")
    parser.add_argument("--gradients", action="store_true", help="the suite of gradients (bench/operators/suite.py)")
    parser.add_argument("--budget", type=float, default=1.2, metavar="SECONDS", help="tuning time per row")
    parser.set_defaults(devices=())
    parser.add_argument("--together", type=int, default=TOGETHER, metavar="N", help="rows that are tuned together")
    parser.add_argument("--workers", type=int, default=processor_count(), metavar="N", help="processes that prepare")
    parser.add_argument(
        "--share",
        type=parse_share,
        default=(0, 1),
        metavar="K/N",
        help="every N-th of the rows, from number K on: for N GPUs",
    )
    parser.add_argument("--below", type=float, default=0.0, metavar="SPEED", help="also measure again what is slower")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="leave torch.compile out")
    parser.add_argument("--reuse", action="store_true", help="take times of peers from the file where it has them")
    parser.add_argument("--no-peers", action="store_true", help="time cuts only, which any target can")
    add_row_options(parser, "breadth.json")
    return parser.parse_args(argv)


def main() -> None:
    """Measure missing rows and print the table."""
    options = arguments()
    rows = read_rows(options.out)
    fresh = [row for row in rows if not is_stale(row)]
    if not options.table:
        target = find_target(options.target)
        device = open_device(target)
        torch = None if options.no_peers else load_settled_torch()
        suite = Breadth(options, target, device, torch, rows, circumstances(device.name, options.commit))
        suite.run(select(options, rows))
        fresh = [row for row in suite.rows if not is_stale(row)]
    print(summary(fresh))
