"""Bench without a device.

A cost function gives the time of every kernel, and tables say which kernels fail and how.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from cuts.backends.compilers.cubins import Cubin
from cuts.backends.devices import find_target
from cuts.ir.compiled import Budget, KernelFunction
from cuts.ir.graph import Attribute, Graph, Node
from cuts.ir.segment import FusedGroup
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.passes.fusion.normalise import Illegal, normalise
from cuts.passes.fusion.programs import build_programs
from cuts.search.building.factory import BuildResult
from cuts.search.building.workers import Job, JobResult
from cuts.search.database import Database
from cuts.search.measurement.bench import ImmediateBench, Timed
from cuts.search.measurement.verdicts import Verdict
from cuts.search.strategies import ProposingFactory
from cuts.search.tasks.tuning_task import TuningTask
from cuts.search.tuner.executor import SearchExecutor
from cuts.search.tuner.tuner import Tuner

#: Earlier answers to jobs, by method and arguments: tests search the same few spaces again and again.
_ANSWERS: dict[tuple[str, bytes], Any] = {}

OPENCL = find_target("opencl")
MACHINE = {"device": "made up"}


def group_of(
    op: str,
    shapes: Sequence[tuple[int, ...]],
    attributes: Mapping[str, Attribute] | None = None,
    dtype: DType = DType.F32,
) -> FusedGroup:
    """Return the normal form of one operation."""
    registry = Registry.builtin()
    types = {f"x{k}": TensorType(dtype, shape) for k, shape in enumerate(shapes)}
    types["y"] = registry[op].instantiate(list(types.values()), dict(attributes or {})).output_types[0]
    inputs = tuple(t for t in types if t != "y")
    programs = build_programs(
        Graph("test", inputs, ("y",), types, (Node("node", op, inputs, ("y",), dict(attributes or {})),)), registry
    )
    group = normalise([s for u in programs.units for s in u.statements], programs.types, ["y"], programs.tables)
    assert not isinstance(group, Illegal), group.reason
    return group


def problem_of(size: int = 64, machine: Mapping[str, str] = MACHINE) -> TuningTask:
    """Return the problem of a small matrix product."""
    return TuningTask(group_of("matmul", ((size, size), (size, size))), {}, OPENCL, machine, f"matmul {size}")


def answer_of(job: Job) -> Any:
    """Return a worker's answer, by its arguments alone.

    Jobs that run a compiler, or that depend on this version's text of a kernel, are done anew.
    """
    if job.method == "source" or (job.method == "build" and job.arguments[0].target.dialect == "cuda"):
        return getattr(ProposingFactory(), job.method)(*job.arguments)
    key = job.method, pickle.dumps(job.arguments)
    if key not in _ANSWERS:
        _ANSWERS[key] = getattr(ProposingFactory(), job.method)(*job.arguments)
    answer = _ANSWERS[key]
    return [*answer] if isinstance(answer, list) else answer


class Inline:
    """Builder that does jobs on request, in order of priority.

    `built` counts candidates.
    """

    def __init__(self, refuse: Callable[[KernelFunction], BuildResult | None] = lambda kernel: None) -> None:
        self.queue: list[Job] = []
        self.built = 0
        self.refuse = refuse
        self.size = 1

    @property
    def load(self) -> int:
        return len(self.queue)

    def submit(self, job: Job) -> None:
        self.queue.append(job)

    def collect(self, timeout: float) -> list[JobResult]:
        if not self.queue:
            return []
        job = min(self.queue, key=lambda j: j.priority)
        self.queue.remove(job)
        value = answer_of(job)
        if job.method == "build":
            self.built += 1
            value = self.refuse(value.kernel) or value
        return [JobResult(job, value)]

    def drop(self, lasting: bool = False) -> list[Job]:
        lasts = [job for job in self.queue if job.lasting]
        self.queue = [] if lasting else lasts
        return lasts if lasting else []

    def close(self) -> None:
        self.queue.clear()


class FakeBench(ImmediateBench):
    """Bench that looks times up.

    `cost` returns the seconds of a kernel, `verdicts` the outcome of some of them by name.
    """

    def __init__(
        self, cost: Callable[[KernelFunction], float], verdicts: Callable[[KernelFunction], Verdict] | None = None
    ) -> None:
        super().__init__()
        self.cost = cost
        self.verdict = verdicts or (lambda kernel: Verdict("ok"))
        self.checked: list[str] = []
        self.samples = 0

    def check(self, problem: TuningTask, built: BuildResult) -> Verdict:
        assert built.kernel is not None
        self.checked.append(built.kernel.name)
        return self.verdict(built.kernel)

    def sample(self, problem: TuningTask, built: BuildResult, repeats: int) -> Timed:
        assert built.kernel is not None
        self.samples += 1
        seconds = self.cost(built.kernel)
        return Timed(verdict=Verdict("timeout", "no answer")) if seconds == inf else Timed((seconds,) * repeats)


def fake_compile(kernel: KernelFunction, arch: str, timeout: float) -> Cubin:
    """Replace the CUDA compiler where nothing is run: nothing spills."""
    return Cubin(kernel.source.encode())


class Clock(SearchExecutor):
    """SearchExecutor whose time advances by a second with every timed kernel only."""

    def __init__(
        self, database: Database, builder: Callable[[], Inline], bench: FakeBench, budget: float | None
    ) -> None:
        super().__init__(database, builder, lambda: bench, Budget.of(budget, lambda: float(bench.samples)))


def by_threads(kernel: KernelFunction) -> float:
    """Cost with one optimum.

    16 threads a block, and a grid that is not small.
    """
    return 1e-3 * (1 + abs(kernel.block[0] - 16) + 4.0 / kernel.grid[0])


def tuner_of(
    bench: FakeBench,
    builder: Inline | None = None,
    database: Database | None = None,
    budget: float | None = None,
    frozen: bool = False,
) -> Tuner:
    """Return a tuner over fakes."""
    made = builder or Inline()
    return Tuner(SearchExecutor(database or Database(None), lambda: made, lambda: bench, budget), frozen)
