"""Does a busy host lengthen what a kernel seems to take? Short kernels are timed on an idle host and on one whose cores
are all busy, with runs taken as they come and with those taken again that the device had to wait for.

    python bench/loaded_host.py --out $OUT/loaded_host.json

What lies in front of a run is what lies there in a search: the cache is emptied, and inputs that other kernels leave
are read. `late` says in how many runs the device was at the kernel before the host had launched it; `flushes` are what
held it at last. Times are in microseconds. The table comes last.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attrs import define
from cuts.backends.cuda.device import CudaDevice
from cuts.backends.cuda.hold import Hold
from cuts.backends.devices import find_target
from cuts.bench.audit import audit_cases, problems_of
from cuts.bench.records import Row, circumstances, exit_code
from cuts.ir.budget import cores
from cuts.passes.schedule import choose
from cuts.search.kernels import make_kernel
from cuts.search.measure import MeasuringDevice
from cuts.search.problem import Problem

#: What is timed: with one, three and five inputs that are read into the cache in front of it.
NAMES = ("relu 64x512", "chain with broadcast 128x1000", "batch norm 64x28")
#: Busy processes for each core.
LOADS = (0, 1, 2)
#: What keeps a core and its memory busy until it is told to end.
BUSY = "while True: bytes(1 << 20); sorted(map(str, range(5000)))"


@define
class Watched(Hold):
    """Takes runs again that the device had to wait for, and counts all."""

    taken: int = 0
    late: int = 0

    def watched(self, sample: Callable[[int], tuple[list[float], bool]]) -> Callable[[int], tuple[list[float], bool]]:
        """Return what takes a sample and counts it."""

        def counted(pieces: int) -> tuple[list[float], bool]:
            seconds, waited = sample(pieces)
            self.taken, self.late = self.taken + 1, self.late + waited
            return seconds, waited

        return counted

    def samples(self, count: int, sample: Callable[[int], tuple[list[float], bool]]) -> list[list[float]]:
        """Return samples as a search takes them."""
        return super().samples(count, self.watched(sample))


class AsTheyCome(Watched):
    """Takes runs as they come."""

    def samples(self, count: int, sample: Callable[[int], tuple[list[float], bool]]) -> list[list[float]]:
        """Return samples behind one flush each."""
        return [self.watched(sample)(1)[0] for _ in range(count)]


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep cores busy within a block."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    time.sleep(1.0 if started else 0.0)
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def loaded(device: MeasuringDevice, problem: Problem) -> str:
    """Load the kernel that the model chooses for a problem, and return its name."""
    (candidate,) = choose(problem.form, problem.target)
    kernel = make_kernel(problem, candidate.schedule)
    verdict = device.check(problem.key, kernel, None, problem)
    assert verdict.outcome == "ok", verdict.message
    return kernel.name


def measure(device: MeasuringDevice, problem: Problem, name: str, way: Watched, runs: int) -> Row:
    """Return what a kernel seems to take, three runs at a time, as a search times it."""
    hardware = device.device
    assert isinstance(hardware, CudaDevice), "only there the host launches beside the device"
    hardware.hold = way
    samples = sorted(s for _ in range(runs // 3) for s in device.sample(problem.key, name, 3) or ())
    at = {part: round(1e6 * samples[int(part * (len(samples) - 1))], 2) for part in (0.0, 0.25, 0.5, 0.75, 0.9)}
    return {"kernel": problem.label, "inputs": len(problem.form.inputs), "least": at[0.0], "median": at[0.5],
            "90 %": at[0.9], "spread": round((at[0.75] - at[0.25]) / at[0.5], 3),
            "late": round(way.late / way.taken, 3), "flushes": way.pieces}  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text."""
    head = ("kernel", "busy/core", "runs", "least", "median", "90 %", "spread", "late", "flushes")
    lines = [f"{head[0]:<32}{head[1]:>10}  {head[2]:<14}" + "".join(f"{name:>9}" for name in head[3:])]
    lines += [f"{r['kernel']:<32}{r['busy/core']:>10}  {r['runs']:<14}"
              + "".join(f"{r[name]:>9}" for name in head[3:]) for r in rows]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cuda:device")
    parser.add_argument("--runs", type=int, default=600, help="of each kernel, on each host, taken each way")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    target = find_target(options.target)
    device, rows = MeasuringDevice(target), list[Row]()
    problems = problems_of([case for case in audit_cases() if case.name in NAMES], target)
    names = [loaded(device, problem) for problem in problems]
    for each in LOADS:
        with load(each * cores()):
            for problem, name in zip(problems, names, strict=True):
                for runs, way in (("as they come", AsTheyCome()), ("held", Watched())):
                    rows.append({"busy/core": each, "runs": runs, **measure(device, problem, name, way, options.runs)})
    if options.out is not None:
        options.out.write_text(json.dumps({"rows": rows, **circumstances(target.name)}, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    sys.exit(exit_code(main))
