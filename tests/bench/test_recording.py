"""Recording of pools of points, and of too long candidates."""

from __future__ import annotations

from math import prod

import pytest
from cuts.backends.source import unrolled_statements
from cuts.bench.tools import recording
from cuts.bench.tools.recording import (
    LONG_OUTCOME,
    PoolRecorder,
    build_unless_long,
    paper_points,
    pool,
)
from cuts.ir import BOUND_PRUNING
from cuts.ir.compiled import KernelFunction
from cuts.passes.schedule import candidate_of, make_space
from cuts.search.building.factory import BuildResult
from cuts.search.building.workers import JobResult
from cuts.search.database import Database
from cuts.search.learned.recorded_spaces import RecordedSpace
from cuts.search.settings import Settings
from cuts.search.tasks.tuning_task import schedule_text
from cuts.search.tuner.executor import SearchExecutor

from ..search.fakes import FakeBench, Inline, by_threads, problem_of


class InlinePools(Inline):
    """Builder that makes pools in this process.

    It does not compile long text.
    """

    def collect(self, timeout: float) -> list[JobResult]:
        mine = {"pool": pool, "build": build_unless_long}
        job = min(self.queue, key=lambda j: j.priority, default=None)
        if job is None or job.method not in mine:
            return super().collect(timeout)
        self.queue.remove(job)
        self.built += job.method == "build"
        value = mine[job.method](*job.arguments)  # type: ignore[operator]
        refused = self.refuse(value.kernel) if job.method == "build" and value.kernel else None
        return [JobResult(job, refused or value)]


def recorded_with(builder: InlinePools, count: int = 60, problem: int = 32) -> list[RecordedSpace]:
    bench = FakeBench(by_threads)
    executor = SearchExecutor(Database(None), lambda: builder, lambda: bench)
    return list(PoolRecorder(executor, Settings(), count).run([problem_of(problem)]))


@pytest.mark.parametrize(("size", "count"), [(32, 300), (3, 150)])
def test_pool_has_each_schedule_once_and_is_deterministic(size: int, count: int) -> None:
    scored = pool(problem_of(size), BOUND_PRUNING, count, seed=0)
    texts = [schedule_text(s.candidate.schedule) for s in scored]
    assert len(texts) == len(set(texts)) == count
    assert texts == [schedule_text(s.candidate.schedule) for s in pool(problem_of(size), BOUND_PRUNING, count, seed=0)]


def test_whole_space_has_the_papers_parameters() -> None:
    """Tiles are powers of two; operands are staged in one stage."""
    problem = problem_of(8)
    space = make_space(problem.form, problem.target)
    points = list(paper_points(space))
    assert len({(p.structure, p.places) for p in points}) == len(points) > 100
    for point in points[::29]:
        ((segment,), raster) = (schedule := candidate_of(space, point).schedule).segments, schedule.raster
        (reduction,) = segment.reductions
        assert raster == reduction.stages == segment.reduction_threads == 1
        assert {s.operand for s in reduction.staging} == {0, 1}
        assert all(s.order == () and s.pad == 0 for s in reduction.staging)
        assert all(dim.thread & (dim.thread - 1) == 0 for dim in segment.dims)


def test_failures_are_points_of_their_space() -> None:
    def refuse(kernel: KernelFunction) -> BuildResult | None:
        return BuildResult(None, outcome="spilled") if prod(kernel.block) > 32 else None

    (found,) = recorded_with(InlinePools(refuse))
    assert 0 < found.timed < len(found.points) == 60
    assert {p.outcome for p in found.points} == {"ok", "spilled"}


def test_exhausted_space_is_complete() -> None:
    (every,) = recorded_with(InlinePools(), count=300, problem=2)
    assert every.whole
    assert 0 < every.timed < 300


def test_space_without_points_ends_no_other() -> None:
    class Hanging(InlinePools):
        def collect(self, timeout: float) -> list[JobResult]:
            hung = [job for job in self.queue if job.method == "pool" and "16" in job.arguments[0].label]
            self.queue = [job for job in self.queue if job not in hung]
            return [JobResult(job, None, error="no answer", hung=True) for job in hung] or super().collect(timeout)

    bench = FakeBench(by_threads)
    recorder = PoolRecorder(SearchExecutor(Database(None), Hanging, lambda: bench), Settings(), 20)
    found = list(recorder.run([problem_of(16), problem_of(32)]))
    assert [(space.label, space.whole) for space in found] == [("matmul 32", True)]
    assert recorder.lost == {"matmul 16": "no answer"}


def test_too_long_candidate_is_reported_and_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    (usual,) = recorded_with(InlinePools())
    monkeypatch.setattr(recording, "MAX_STATEMENTS", 16)
    (found,) = recorded_with(InlinePools())
    outcomes = {p.schedule: p.outcome for p in found.points}
    assert outcomes.keys() >= {p.schedule for p in usual.points}
    assert set(outcomes.values()) == {"ok", LONG_OUTCOME}
    assert all(p.seconds is None for p in found.points if p.outcome == LONG_OUTCOME)


def test_statements_count_once_for_each_unrolled_iteration() -> None:
    text = """
    float a[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = 0;
      #pragma unroll 2
      for (int j = 0; j < 8; j += 2) {
        a[i] += j; a[i] *= 2;
      }
    }
    for (int k = 0; k < 100; ++k) {
      a[0] += k;
    }
    """
    assert unrolled_statements(text) == 1 + 4 * (1 + 2 * 2) + 1
