"""Sweep of every operation in every element type against the reference.

Values are ordinary and extreme; NumPy checks the reference.

    python -m cuts.tests.fuzz.sweep --target opencl --jobs 2 --out sweep_out
    python -m cuts.tests.fuzz.sweep --target cuda --jobs 16 --out sweep_out
    python -m cuts.tests.fuzz.sweep --target reference --out sweep_out
    python -m cuts.tests.fuzz.sweep --target opencl --replay sweep_out/differences.json

A batch is compiled as one graph and runs on many sets of numbers; batch n of a seed is the same everywhere. Its outcome
is a line of `batches-<target>.jsonl` in the folder; recorded batches are not run again, so a run can be interrupted and
continued with the same command. A batch that crashes or hangs is run again sample by sample. Nothing ends at a
difference: differences are collected, reduced to the numbers that show them, and listed last.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import define, field
from cuts.bench.tools.records import exit_code
from cuts.ops import Registry
from cuts.search.building.workers import Job, JobResult, Workers
from cuts.tests.fuzz.sweep.running import batches_of_round, judge_reference, judge_target
from cuts.tests.fuzz.sweep.samples import Sample

SERVICE = "cuts.tests.fuzz.sweep.service:Sweeper"
#: Seconds that a batch may take.
LIMIT = 600.0
#: Differences that are printed.
MAX_SHOWN = 40
Row = dict[str, Any]


@define
class SweepCounts:
    """Outcome of all batches of a file."""

    rows: list[Row] = field(factory=list)

    @property
    def differences(self) -> list[Row]:
        """Every difference."""
        return [found for row in self.rows for found in row["differences"]]

    def total(self, name: str) -> int:
        """Return the sum of a count."""
        return int(sum(row.get(name, 0) for row in self.rows))

    def count_of(self, name: str) -> Counter[str]:
        """Return the sum of counts by key."""
        counts: Counter[str] = Counter()
        for row in self.rows:
            counts.update(row.get(name, {}))
        return counts

    @property
    def record(self) -> Row:
        """The run as JSON values."""
        names = ("samples", "cases", "elements", "kernels", "opinions")
        return {
            **{name: self.total(name) for name in names}, "batches": len(self.rows),
            "seconds of work": round(sum(row["seconds"] for row in self.rows), 1),
            "cases by type": dict(self.count_of("types").most_common()), "operations": len(self.count_of("operations")),
            "differences": len(self.differences),
        }  # fmt: skip

    @property
    def table(self) -> str:
        """The run in a few lines."""
        lines = [
            f"{found['against']}: {Sample.of(found).text}: {found['text']}"[:400]
            for found in self.differences[:MAX_SHOWN]
        ]
        return "\n".join([*lines, *(f"{name:<18}{value}" for name, value in self.record.items())])


def rows(options: argparse.Namespace, known: set[int]) -> Iterator[Row]:
    """Judge the requested unknown batches, and yield their outcomes."""
    workers = Workers(options.jobs, SERVICE)
    wanted = iter(n for n in range(options.first, options.first + options.batches) if n not in known)
    end = time.monotonic() + options.limit
    parts: dict[int, list[Row]] = {}
    exhausted = False
    try:
        while workers.load or not exhausted:
            while not exhausted and workers.load < 2 * workers.size:
                number = next(wanted, None)
                exhausted = number is None or time.monotonic() > end
                if number is not None and not exhausted:
                    workers.submit(_job(options, number))
            for done in workers.collect(5.0):
                yield from _answers(options, workers, done, parts)
    finally:
        workers.close()


def _job(options: argparse.Namespace, number: int, alone: int = -1) -> Job:
    arguments = (options.target, options.seed, number, options.sets, alone)
    return Job((number, alone), "batch", arguments, (number,), LIMIT)


def _answers(
    options: argparse.Namespace, workers: Workers, done: JobResult, parts: dict[int, list[Row]]
) -> Iterator[Row]:
    """Yield the row of a finished batch; a lost one is divided."""
    number, alone = done.job.owner
    if done.error and alone < 0:
        print(f"batch {number}: {done.error}; sample by sample", flush=True)
        from cuts.tests.fuzz.sweep.running import samples_of

        count = len(samples_of(Registry.builtin(), options.seed, number))
        parts[number] = [{}] * count
        for place in range(count):
            workers.submit(_job(options, number, place))
        return
    row = _lost_row(options, number, alone, done) if done.error else done.value
    if alone < 0:
        yield row
        return
    parts[number][alone] = row
    if all(parts[number]):
        yield _sum_rows(number, parts.pop(number))


def _lost_row(options: argparse.Namespace, number: int, alone: int, done: JobResult) -> Row:
    """Return the row of a sample that ended its process."""
    from cuts.tests.fuzz.sweep.running import samples_of

    sample = samples_of(Registry.builtin(), options.seed, number)[alone]
    text = f"{'hang' if done.hung else 'crash'}: {done.error}"
    found = {**sample.record, "against": options.target, "data": -1, "text": text, "operands": {}}
    return {"samples": 1, "cases": 0, "batch": number, "seconds": 0.0, "differences": [found]}


def _sum_rows(number: int, several: list[Row]) -> Row:
    """Return the rows of samples as one."""
    sums = SweepCounts(several)
    counts = {name: sums.total(name) for name in ("samples", "cases", "elements", "kernels", "opinions")}
    seconds = sum(row["seconds"] for row in several)
    return {**counts, "types": dict(sums.count_of("types")), "operations": dict(sums.count_of("operations")),
            "batch": number, "seconds": seconds, "differences": sums.differences}  # fmt: skip


def sweep(options: argparse.Namespace) -> int:
    """Run the sweep; return 1 where something differs."""
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"batches-{options.target.replace(':', '-')}.jsonl"
    asked = {"seed": options.seed, "sets": options.sets}
    old = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    sums = SweepCounts([row for row in old if {name: row[name] for name in asked} == asked])
    begin = time.monotonic()
    with path.open("a", encoding="utf-8") as out:
        for row in rows(options, {row["batch"] for row in sums.rows}):
            sums.rows.append({**row, **asked})
            out.write(json.dumps(sums.rows[-1]) + "\n")
            out.flush()
            for found in row["differences"]:
                print(f"batch {row['batch']}: {Sample.of(found).text}: {found['text']}"[:400], flush=True)
            if len(sums.rows) % 20 == 0:
                print(f"{len(sums.rows)} batches, {sums.total('cases')} cases, {time.monotonic() - begin:.0f} s",
                      flush=True)  # fmt: skip
    record = {"target": options.target, **asked, **sums.record, "seconds": round(time.monotonic() - begin, 1)}
    _write(options.out / f"summary-{options.target.replace(':', '-')}.json", record)
    _write(options.out / "differences.json", sums.differences)
    print(sums.table)
    return int(bool(sums.differences))


def replay(options: argparse.Namespace) -> int:
    """Judge a file's samples, each alone; return 1 at a remaining difference."""
    registry, count = Registry.builtin(), 0
    for record in json.loads(options.replay.read_text(encoding="utf-8")):
        sample, sets = Sample.of(record), range(max(options.sets, record["data"] + 1))
        opinion = record["against"] == "numpy"
        report = judge_reference(registry, [sample], sets) if opinion else judge_target(
            registry, [sample], sets, options.target)  # fmt: skip
        count += len(report.differences)
        print(f"{sample.text}: {'; '.join(d.text for d in report.differences) or 'no difference'}", flush=True)
    print(f"{count} differences")
    return int(count > 0)


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--target", default="opencl", help="opencl, cuda, or reference: that against NumPy")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first batch")
    parser.add_argument("--batches", type=int, default=4 * batches_of_round(Registry.builtin()),
                        help="how many; by default every operation comes in every type four times")  # fmt: skip
    parser.add_argument("--sets", type=int, default=28, help="sets of numbers that each sample runs on")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no batch is begun")
    parser.add_argument("--out", type=Path, default=Path("sweep_out"), help="the folder of results")
    parser.add_argument("--replay", type=Path, help="a file of differences to judge again")
    options = parser.parse_args(arguments)
    return replay(options) if options.replay else sweep(options)


if __name__ == "__main__":
    sys.exit(exit_code(main))
