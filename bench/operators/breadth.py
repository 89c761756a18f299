"""Operations of users against PyTorch, torch.compile and vendors on CUDA.

The best of these counts.

    python -m cuts.bench breadth --limit 400 --out bench/results/breadth.json
    python -m cuts.bench breadth --rows routines --budget 0 --out bench/results/routines.json

A call skips the rows that the file has; `--below 0.8` repeats the rows below that speed, with `--reuse` beside the
recorded times of the peers. An operation is a function of PyTorch (`bench/vocabulary`), imported through
torch.export. Peers run as CUDA graphs in the precision of the row (strict fp32 unless it says otherwise), with cold
caches, in alternating rounds. `--workers` processes share the rows: each imports and compiles its rows, for
torch.compile too, and waits for the others; they are tuned, with `--budget` seconds a row, and timed in turns. A
failure is a row, too. The table lists rows below 0.8, means by family, the share of rows at 0.8 and above, and targets.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attrs import define
from cuts.backends.devices import find_target, open_device
from cuts.bench.operators.contenders import Peers, PeerWay, copy_bandwidth
from cuts.bench.operators.suite_run import SuiteRun
from cuts.bench.operators.timing import Turns
from cuts.bench.operators.tuning import Tuned, options_of, tune_separately
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
from cuts.bench.vocabulary.operation import SizedOperation, TorchCase
from cuts.bench.vocabulary.reading import Ready, load_settled_torch, ready
from cuts.bench.vocabulary.tables import LISTS
from cuts.ir.compiled import processor_count

#: Rows that are tuned at the same time: enough to keep all cores busy, few enough to stop in time.
TOGETHER = 48
#: Largest share of the limit in which rows are prepared.
PREPARING = 0.6


@define
class Breadth(SuiteRun):
    """A run of the suite."""

    suite = "breadth"
    copy_bandwidth: float = 0.0

    def run(self, wanted: Sequence[SizedOperation]) -> None:
        """Prepare rows, then tune and time them in turns within the limit."""
        found = self._prepare(wanted)
        tuned = {} if self.options.budget else self._tune(found)
        self.say(f"{len(found)} rows are ready")
        self.turns.come(self.options.share[0])
        self.turns.wait(self.preparing_seconds)
        with self.turns.turn():
            self.copy_bandwidth = copy_bandwidth(self.device)
        rows = list(found)
        for part in (rows[n : n + self.options.together] for n in range(0, len(rows), self.options.together)):
            if self.options.budget:
                with self.turns.turn():
                    tuned = self._tune({row: found[row] for row in part})
            for row in part:
                if self.remaining_seconds > 0:
                    self.keep(self._measure_row(row, *tuned[row], found[row]))

    @property
    def preparing_seconds(self) -> float:
        """Seconds that are left to prepare rows."""
        return self.remaining_seconds - (1 - PREPARING) * float(self.options.limit)

    def _prepare(self, wanted: Sequence[SizedOperation]) -> dict[SizedOperation, Ready]:
        """Return rows that can be measured; those that cannot be imported are kept as failures."""
        found, peers = dict[SizedOperation, Ready](), self.torch is not None
        for row in wanted:
            if self.preparing_seconds < 0:
                break
            known = bool(self.known_peers(row.key))
            each = ready(row, peers and self.options.compile and not known, peers and not known)
            if each.graph is None:
                self.keep(self._head(row) | {"failure": each.failure})
            else:
                found[row] = each
        return found

    def _tune(self, found: Mapping[SizedOperation, Ready]) -> dict[SizedOperation, tuple[TorchCase, Tuned | str]]:
        """Return cases with kernels, those with the same options tuned together."""
        cases = {row: row.case(each.graph, each.sources) for row, each in found.items() if each.graph is not None}
        tuned = dict[SizedOperation, tuple[TorchCase, Tuned | str]]()
        for options in dict.fromkeys(map(options_of, cases.values())):
            own = [row for row, case in cases.items() if options_of(case) == options]
            kernels = tune_separately([cases[row] for row in own], self.tune)
            tuned |= {row: (cases[row], each) for row, each in zip(own, kernels, strict=True)}
        return tuned

    def _head(self, row: SizedOperation) -> Row:
        return self.head(row.operation.family, row.name, precision=row.operation.precision)

    def _measure_row(self, row: SizedOperation, case: TorchCase, tuned: Tuned | str, made: Ready) -> Row:
        def ways(peers: Peers) -> list[PeerWay]:
            own = peers.ways() if "torch" in row.operation.plain else []
            return [*own, *((name, partial(peers.record, name, call)) for name, call in made.peers.items())]

        def call() -> Callable[..., Any]:
            own = row.operation.call
            return own if "torch" in row.operation.plain else next(iter(made.peers.values()), own)

        graph = case.traced
        moved = sum(graph.types[t].nbytes for t in {*graph.inputs, *graph.outputs})
        head = self._head(row) | {"bytes": moved, "copy_bandwidth": self.copy_bandwidth}
        found = self.measure(head, tuned, call, ways)
        return found | ({"missing": {**made.missing, **found.get("missing", {})}} if made.missing else {})


def select(options: argparse.Namespace, rows: Sequence[Row]) -> list[SizedOperation]:
    """Return the requested rows without a measurement.

    Rows to be measured again are among them.
    """
    known = {key_of(row): row for row in rows if not is_stale(row)}
    found = []
    for row in LISTS[options.rows]:
        old = known.get(row.key)
        again = old is None or options.again or (options.below and speed(old) < options.below)
        named = not options.only or any(text in f"{row.operation.family}/{row.name}" for text in options.only)
        if again and named:
            found.append(row)
    turn, turns = options.share
    return found[turn::turns]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="TEXT", help="rows whose family or name contains this")
    parser.add_argument("--rows", choices=LISTS, default="operations", help="a list of rows")
    parser.add_argument("--budget", type=float, default=1.2, metavar="SECONDS", help="tuning time per row")
    parser.set_defaults(devices=())
    parser.add_argument("--together", type=int, default=TOGETHER, metavar="N", help="rows that are tuned together")
    parser.add_argument("--workers", type=int, default=processor_count(), metavar="N", help="processes")
    parser.add_argument("--turns", type=Path, metavar="FOLDER", help="where processes with a share each take turns")
    parser.add_argument("--share", type=parse_share, default=(0, 1), metavar="K/N", help="every N-th row, from K on")
    parser.add_argument("--below", type=float, default=0.0, metavar="SPEED", help="also measure again what is slower")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="leave torch.compile out")
    parser.add_argument("--reuse", action="store_true", help="take times of peers from the file where it has them")
    parser.add_argument("--no-peers", action="store_true", help="time cuts only, which any target can")
    add_row_options(parser, "breadth.json")
    return parser.parse_args(argv)


def share_rows(options: argparse.Namespace, count: int) -> None:
    """Measure rows by processes that take turns on the device."""
    turn, turns = options.share
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "cuts.bench", "breadth", *sys.argv[1:], "--workers", f"{count}"]
        shares = [(n, f"{turn + turns * n}/{turns * count}") for n in range(count)]
        running = {n: subprocess.Popen([*command, "--turns", folder, "--share", share]) for n, share in shares}
        while running:
            for n in [n for n, each in running.items() if each.poll() is not None]:
                Turns(Path(folder)).come(turn + turns * n)  # the others wait for none that failed
                del running[n]
            time.sleep(0.2)


def use_own_processors(turn: int, turns: int) -> None:
    """Run on a share of the processors."""
    known = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, known[turn % len(known) :: turns])


def main() -> None:
    """Measure missing rows and print the table."""
    options = arguments()
    rows = read_rows(options.out)
    wanted = [] if options.table else select(options, rows)
    count = min(options.workers, len(wanted))
    if count > 1 and not options.turns:
        share_rows(options, count)
    elif wanted:
        if options.turns:
            use_own_processors(*options.share)
        target = find_target(options.target)
        device = open_device(target)
        turns = Turns(options.turns, options.workers)
        torch = None if options.no_peers else load_settled_torch(turns)
        facts = circumstances(device.name, options.commit)
        Breadth(options, target, device, torch, rows, facts, turns=turns).run(wanted)
    if options.turns is None:
        print(summary([row for row in read_rows(options.out) if not is_stale(row)]))
