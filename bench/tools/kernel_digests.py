"""Digests of the compiler's output for fixed inputs.

They prove that a change leaves the output unchanged.

    python -m cuts.bench digests --out before.json
    python -m cuts.bench digests --against before.json
    python -m cuts.bench digests --show model voice cuda:sm_90 mixed fp32

Cases are one graph of all operations, with and without gradients, and the models of the test suite, for each target;
operations for each fusion mode and precision, models for one, three models for all of them; 2,000 random graphs of one
seed; the winners of the shipped packs, lowered; the decision records of these packs, replayed; cost and order of the
points of the recorded spaces, bit by bit. A digest of a compiled graph covers source, grid, block and arguments of its
kernels, the order of launches and the size of the arena; names of kernels, which are digests of IR text, are left out.
Each finished case is written at once: a run that was broken off continues with the same command. The limit of a whole
run is 30 minutes of two idle processors, 3,600 CPU seconds. The exit code is 1 where a case differs from `--against`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from cuts.bench.tools.digest_cases import Case, all_cases, case_text
from cuts.ir.compiled import processor_count


def case_digest(case: Case) -> tuple[Case, str, float]:
    """Return a case, its text's SHA-256 prefix, and the CPU seconds.

    The prefix has 16 digits.
    """
    begin = time.process_time()
    text = case_text(case)
    return case, hashlib.sha256(text.encode()).hexdigest()[:16], time.process_time() - begin


def digests(cases: Sequence[Case], jobs: int) -> Iterator[tuple[Case, str, float]]:
    """Yield the digest of each case as processes finish it."""
    if jobs == 1:
        yield from map(case_digest, cases)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for done in as_completed([pool.submit(case_digest, case) for case in cases]):
            yield done.result()


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the names of common cases with different digests."""
    return [name for name in after if name in before and before[name] != after[name]]


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the digests as JSON")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with digests written before")
    parser.add_argument("--quick", action="store_true", help="a subset of some seconds")
    parser.add_argument("--kind", action="append", metavar="KIND", help="only cases of this kind; may be repeated")
    parser.add_argument("--jobs", type=int, default=processor_count(), help="processes; all processors by default")
    parser.add_argument("--show", nargs="+", metavar="WORD", help="print the text of one case")
    return parser.parse_args(argv)


def run(options: argparse.Namespace) -> int:
    """Compute, write and compare the requested digests; return the exit code."""
    known = json.loads(options.out.read_text("utf-8")) if options.out and options.out.exists() else {}
    cases = [c for c in all_cases(options.quick) if not options.kind or c[0] in options.kind]
    wanted = [c for c in cases if " ".join(c) not in known]
    begin, total = time.monotonic(), 0.0
    for number, (case, found, seconds) in enumerate(digests(wanted, options.jobs), 1):
        known[" ".join(case)] = found
        total += seconds
        print(f"{number} of {len(wanted)}: {' '.join(case)}: {seconds:.1f} s", file=sys.stderr, flush=True)
        if options.out:
            options.out.write_text(json.dumps(known, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    before = json.loads(options.against.read_text(encoding="utf-8")) if options.against else {}
    changed = changes(before, known)
    for name in changed:
        print(f"changed: {name}")
    compared = f"; {len(changed)} of {len(before.keys() & known.keys())} compared cases differ" if before else ""
    print(f"{len(known)} cases in {time.monotonic() - begin:.0f} s, {total:.0f} CPU seconds{compared}")
    return 1 if changed else 0


def main() -> int:
    """Run the command with an empty cache, without this machine's searches."""
    options = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"CUTS_CACHE_DIR": folder, "CUTS_VERIFY": "0"}
        if options.show:
            print(case_text(tuple(options.show)))
            return 0
        return run(options)
