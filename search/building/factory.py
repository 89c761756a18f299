"""Build workers: processes that rank, lower, print and compile candidates.

Each job has a time limit. Builds run ahead of the device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any

from attrs import frozen

from ...backends.compilers import compile_kernel
from ...backends.source import unrolled_statements
from ...ir import CutsError, KernelFunction, Pruning, Schedule
from ...passes import (
    CandidateSubgraph,
    CostRequest,
    CostResult,
    MemberRow,
    PointsRequest,
    ScheduleRequest,
    SubgraphKernels,
    evaluate_costs,
    partition_subgraph,
    schedule_row,
    search_points,
)
from ...passes.schedule import Candidate, Point, best_points, candidate_of, choose, choose_soon, make_space
from ...store import digest
from ..learned import LearnedOrder, recalled_points, rescore
from ..processes import reduce_garbage_collection
from ..tasks import (
    BundleMember,
    KernelSpec,
    PruningCertificate,
    Reference,
    SampledCandidates,
    TuningTask,
    draw,
    make_bundle,
    make_kernel,
    make_reference,
    prove,
    simple_schedule,
)

#: Seconds of lowering and compiling one candidate, at most.
COMPILE_LIMIT = 30.0
#: Largest number of unrolled statements of a kernel, for short and for long predicted times, and the seconds that
#: separate these (of 400 winners on an H200 below it, 6 had more; of 228 above, 56, but none 3300).
MAX_STATEMENTS_SHORT, MAX_STATEMENTS, SHORT_KERNEL_SECONDS = 2500, 3300, 20e-6
#: Seconds of sampling some thousand candidates of a space, at most.
DRAW_LIMIT = 300.0
#: Factor on the number of candidates that a learned order chooses from.
LEARNED_ORDER_FACTOR = 8


@frozen
class ScoredCandidate:
    """Candidate, and its point in the group's full space if known."""

    point: Point | None
    candidate: Candidate


@frozen
class BuildResult:
    """Built candidate for the device, or the reason for its rejection.

    The outcome is "ok", "failed", "spilled", "timeout" or "long".
    """

    kernel: KernelFunction | None
    binary: bytes | None = None
    registers: int = 0
    spill_bytes: int = 0
    outcome: str = "ok"
    message: str = ""

    @property
    def source(self) -> str:
        """Digest of the source without its label: ties results to code."""
        return digest(self.kernel.with_label().source) if self.kernel else ""


class Factory:
    """Object in a worker process: turns points into kernels."""

    def rank(
        self,
        problem: TuningTask,
        pruning: Pruning,
        count: int,
        correction: LearnedOrder | None = None,
        known: Sequence[Point] = (),
    ) -> list[ScoredCandidate]:
        """Return a task's best candidates by the cost model, best first.

        A learned `correction` chooses from more candidates and from the fast ones of another machine. Candidates that
        are `known` need not be found again.
        """
        space = make_space(problem.form, problem.target)
        wide = count if correction is None else LEARNED_ORDER_FACTOR * count
        points: Iterable[Point] = known or best_points(problem.form, problem.target, pruning, wide)
        if correction is not None:
            every = {(p.structure, p.places): p for p in (*recalled_points(space, correction, pruning), *points)}
            points = sorted(rescore(space, list(every.values()), correction))[:count]
        return [ScoredCandidate(p, candidate_of(space, p)) for p in points]

    def rank_each(self, wishes: Sequence[tuple[Any, ...]]) -> list[list[ScoredCandidate]]:
        """Return the best candidates of each task, for the arguments of `rank`.

        The list is empty where no point is legal.
        """
        return [self._rank_or_empty(wish) for wish in wishes]

    def _rank_or_empty(self, wish: tuple[Any, ...]) -> list[ScoredCandidate]:
        try:
            return self.rank(*wish)
        except CutsError:
            return []

    def soon(self, problem: TuningTask) -> list[ScoredCandidate]:
        """Return the best of a few candidates by the cost model.

        Raises `PassError` where no point is legal.
        """
        return [ScoredCandidate(None, choose_soon(problem.form, problem.target))]

    def plan(self, fragment: CandidateSubgraph) -> SubgraphKernels:
        """Return the kernels that a small graph is partitioned into."""
        return partition_subgraph(fragment)

    def choose(self, request: ScheduleRequest) -> Candidate:
        """Return the best candidate of a group by the cost model."""
        return choose(request.form, request.target, request.pruning)[0]

    def points(self, request: PointsRequest) -> tuple[Point, ...]:
        """Return the best points of a group that leads others."""
        return search_points(request.form, request.target)

    def bundle_row(self, row: MemberRow) -> list[Candidate]:
        """Return the kernels of groups that share a launch."""
        return schedule_row(row)

    def price(self, pricing: CostRequest) -> CostResult:
        """Return the modelled cost of groups over one iteration space."""
        return evaluate_costs(pricing)

    def refer(self, problem: TuningTask) -> Reference | None:
        """Return the expected outputs, evaluated in float64."""
        return make_reference(problem)

    def simple(self, problem: TuningTask) -> Schedule | None:
        """Return a schedule that is simple enough to be trusted.

        It stages nothing, unrolls little and has a few warps a block.
        """
        return simple_schedule(problem.form, problem.target)

    def prove(self, problem: TuningTask, best: float) -> PruningCertificate:
        """Return the pruning certificate of a space for a time."""
        return prove(problem, best)

    def draw(self, problem: TuningTask, pruning: Pruning, count: int, seed: int) -> SampledCandidates:
        """Return random legal candidates of a task, at most all."""
        return draw(problem, pruning, count, seed)

    def build(self, problem: TuningTask, schedule: Schedule, max_statements: float = inf) -> BuildResult:
        """Lower, print and compile one candidate.

        A kernel that spills registers is rejected; one with more than `longest` unrolled statements is not compiled.
        """
        return compile_candidate(problem, lambda: make_kernel(problem, schedule), max_statements)

    def bundle(self, problem: TuningTask, members: Sequence[BundleMember]) -> BuildResult:
        """Lower, print and compile groups that share a launch."""
        return compile_candidate(problem, lambda: make_bundle(problem, members))

    def source(self, written: KernelSpec) -> str:
        """Return the digest of the printed text, empty without one."""
        return BuildResult(written.kernel()).source


class Worker(Factory):
    """Factory in a low-priority process, to leave cores to the timing process."""

    def __init__(self) -> None:
        os.nice(5)
        reduce_garbage_collection()


def compile_candidate(
    problem: TuningTask, make: Callable[[], KernelFunction], max_statements: float = inf
) -> BuildResult:
    """Make and compile a kernel.

    A kernel that spills registers, or whose products wait for each other, is rejected, and one that is too long is not
    compiled.
    """
    try:
        kernel = make()
        if problem.target.dialect != "cuda":
            return BuildResult(kernel)
        if (statements := unrolled_statements(kernel.source) if max_statements < inf else 0) > max_statements:
            return BuildResult(None, outcome="long", message=f"{statements} statements once its loops are unrolled")
        cubin = compile_kernel(kernel, problem.target.arch, COMPILE_LIMIT)
    except CutsError as error:
        return BuildResult(None, outcome="failed", message=error.message.splitlines()[0])
    if cubin.serialised:
        return BuildResult(None, outcome="failed", message=cubin.serialised)
    if cubin.spill_bytes:
        message = f"{cubin.spill_bytes} bytes of registers spilled to memory"
        return BuildResult(kernel, None, cubin.registers, cubin.spill_bytes, "spilled", message)
    return BuildResult(kernel, cubin.code, cubin.registers)


def max_statements_of(candidate: Candidate) -> float:
    """Return the largest number of statements of a candidate's text."""
    return MAX_STATEMENTS_SHORT if candidate.score < SHORT_KERNEL_SECONDS else MAX_STATEMENTS


def build_arguments(candidate: Candidate, hasty: bool, longest: float) -> tuple[Schedule, *tuple[float, ...]]:
    """Return the arguments of a candidate's build job.

    A deeper search, which has the time, also builds long kernels.
    """
    return (candidate.schedule, *([longest] if longest < inf and hasty else []))
