"""Worker service of the fuzzer, optionally with a planted bug.

It checks one graph after another.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from attrs import frozen
from cuts.frontends.graph_json import graph_from_json
from cuts.ir.errors import CutsError
from cuts.ops import Registry

from .checking import WAYS, Bench, Outcome
from .planting import plant
from .sweep.running import judge_reference, judge_target, related_samples, samples_of

if TYPE_CHECKING:
    from .points import PointReport


@frozen
class Report:
    """Report on a graph: an outcome per way, or the compiler's error.

    It includes the descriptions of the devices open at that time.
    """

    outcomes: tuple[Outcome, ...] = ()
    error: str = ""
    seconds: float = 0.0
    machines: tuple[Mapping[str, object], ...] = ()

    @property
    def kind(self) -> str:
        """Kind of the finding; empty without one."""
        if self.error:
            return self.error.splitlines()[0].partition(":")[0] or "error"
        wrong = [o for o in self.outcomes if o.wrong]
        return "" if not wrong else "difference" if any(not o.ill for o in wrong) else "ill-conditioned"

    @property
    def text(self) -> str:
        """The finding in words."""
        return self.error or "; ".join(f"{o.way}: {text}" for o in self.outcomes for text in o.wrong)


class Fuzzer:
    """Checker of graphs as JSON, with the sweep and tests for bugs.

    Planted bugs are checked by batches of the sweep, and by files of tests.
    """

    def __init__(self, bug: str = "") -> None:
        os.nice(5)
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # the fork server hides GPUs from its forks
        if bug:
            plant(bug)
        self._benches: dict[str, Bench] = {}

    def check(self, target: str, text: str, seed: int, ways: tuple[str, ...] = WAYS) -> Report:
        """Compute a graph in some ways.

        An error is part of the report; the process ends after an error that no pass raised.
        """
        bench = self._benches.setdefault(target, Bench(target))
        start = time.monotonic()
        try:
            outcomes = bench.check(graph_from_json(text), seed, ways)
            return Report(outcomes, seconds=time.monotonic() - start, machines=bench.machines)
        except Exception as error:
            if not isinstance(error, (CutsError, AssertionError)) or "CUDA" in str(error):
                # A device that a kernel has broken answers nothing any more: the next graph gets a new process.
                threading.Timer(0.2, os._exit, (3,)).start()
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(where.filename)}:{where.name}"
            output, seconds = f"{type(error).__name__} in {place}: {error}", time.monotonic() - start
            return Report(error=output[:2000], seconds=seconds, machines=bench.machines)

    def sweep(self, target: str, seed: int, number: int, sets: int, words: tuple[str, ...] = ()) -> Report:
        """Judge a batch of the sweep.

        NumPy judges the reference, the reference judges kernels. With words it is the batch that they relate to.
        """
        registry, start = Registry.builtin(), time.monotonic()
        try:
            samples = related_samples(registry, seed, words) if words else samples_of(registry, seed, number)
            found = [
                *judge_reference(registry, samples, range(sets)).differences,
                *judge_target(registry, samples, range(sets), target, number).differences,
            ]
        except Exception as error:
            return Report(error=f"{type(error).__name__}: {error}"[:2000], seconds=time.monotonic() - start)
        text = "; ".join(f"{d.sample.text}: {d.text}" for d in found[:3])
        return Report(error=f"difference: {text}" if text else "", seconds=time.monotonic() - start)

    def points(self, target: str, seed: int, batch: int) -> PointReport:
        """Compute a batch of points; the process ends after a lost device.

        Tests that it imports open the GPU, which a process that is forked later could not open again.
        """
        from .points import check_points

        report = check_points(target, seed, batch)
        if "CUDA" in report.error:
            threading.Timer(0.2, os._exit, (3,)).start()
        return report

    def tests(self, path: str) -> Report:
        """Run a file of tests, below the root of the package."""
        start, output = time.monotonic(), io.StringIO()
        root = Path(__file__).parents[2]
        # Hypothesis was imported before pytest could look at it, which pytest warns of.
        options = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        with contextlib.redirect_stdout(output):
            code = pytest.main([str(root / path), f"--rootdir={root}", "-c", str(root / "pyproject.toml"), *options])
        failed = [line for line in output.getvalue().splitlines() if line.startswith(("FAILED", "ERROR"))]
        error = "" if code == 0 else f"tests: {(failed or [f'ended with {int(code)}'])[0]}"
        return Report(error=error, seconds=time.monotonic() - start)
