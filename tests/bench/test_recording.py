"""Recording of pools of points.

Complete and continued ones, and too long candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod

import pytest
from attrs import evolve
from cuts.backends.source import unrolled_statements
from cuts.bench.tools import recording
from cuts.bench.tools.recording import (
    LONG_OUTCOME,
    PoolRecorder,
    build_unless_long,
    evaluation_points,
    matching_points,
    pool,
)
from cuts.ir.compiled import KernelFunction
from cuts.search.building.factory import BuildResult
from cuts.search.building.workers import JobResult
from cuts.search.database import Database
from cuts.search.learned.rank_points import MAX_POINTS, NUM_FASTEST
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
        mine = {"pool": pool, "build": build_unless_long, "again": matching_points}
        job = min(self.queue, key=lambda j: j.priority, default=None)
        if job is None or job.method not in mine:
            return super().collect(timeout)
        self.queue.remove(job)
        self.built += job.method == "build"
        value = mine[job.method](*job.arguments)  # type: ignore[operator]
        refused = self.refuse(value.kernel) if job.method == "build" and value.kernel else None
        return [JobResult(job, refused or value)]


def recorded_with(
    builder: InlinePools,
    earlier: RecordedSpace | None = None,
    count: int = 60,
    problem: int = 32,
    version: Mapping[str, str] | None = None,
) -> list[RecordedSpace]:
    bench = FakeBench(by_threads)
    executor = SearchExecutor(Database(None), lambda: builder, lambda: bench)
    recorder = PoolRecorder(executor, Settings(), count, lambda problem: earlier, version=version or {})
    return list(recorder.run([problem_of(problem)]))


def test_earlier_records_are_kept_and_not_rebuilt() -> None:
    (whole,) = recorded_with(InlinePools())
    assert whole.whole
    half = evolve(whole, points=whole.points[:30], whole=False)
    builder = InlinePools()
    (found,) = recorded_with(builder, half)
    assert {p.schedule: p.seconds for p in found.points} == {p.schedule: p.seconds for p in whole.points}
    assert builder.built == len(whole.points) - 30 + 1, "the first is timed again, as the others are held against it"


@pytest.mark.parametrize(("size", "count"), [(32, 300), (3, 150)])
def test_pool_has_each_schedule_once_and_is_deterministic(size: int, count: int) -> None:
    scored = pool(problem_of(size), "bound", count, seed=0)
    texts = [schedule_text(s.candidate.schedule) for s in scored]
    assert len(texts) == len(set(texts)) == count
    assert texts == [schedule_text(s.candidate.schedule) for s in pool(problem_of(size), "bound", count, seed=0)]


def test_unknown_points_of_a_pool_follow_the_first() -> None:
    texts = [schedule_text(s.candidate.schedule) for s in pool(problem_of(32), "bound", 100, seed=0)]
    more = [schedule_text(s.candidate.schedule) for s in pool(problem_of(32), "bound", 100, 0, frozenset(texts), 20)]
    assert len(more) == 21
    assert more[0] == texts[0]
    assert not set(more[1:]) & set(texts)


def test_further_points_replace_failures_until_enough_ran() -> None:
    def refuse(kernel: KernelFunction) -> BuildResult | None:
        return BuildResult(None, outcome="spilled") if prod(kernel.block) > 32 else None

    (found,) = recorded_with(InlinePools(refuse))
    assert found.timed >= 60
    assert {p.outcome for p in found.points} == {"ok", "spilled"}


def test_complete_recording_continues_for_more_points() -> None:
    (small,) = recorded_with(InlinePools(), count=40)
    builder = InlinePools()
    version = {"commit": "def", "lowering": "same"}
    earlier = evolve(small, version={"commit": "abc", "lowering": "same"})
    (found,) = recorded_with(builder, earlier, version=version)
    assert (found.timed, found.whole) == (60, True)
    assert found.points[:40] == small.points, "what was timed stays as it was"
    assert builder.built == 20 + 1
    assert found.version == {"commit": "abc, def", "lowering": "same", "first again": "1.000"}


def test_exhausted_space_is_complete() -> None:
    (every,) = recorded_with(InlinePools(), count=300, problem=2)
    builder = InlinePools()
    (found,) = recorded_with(builder, every, count=300, problem=2)
    assert every.whole
    assert 0 < every.timed < 300
    assert found == every
    assert builder.built == 1


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


def test_records_of_other_tasks_or_machines_are_ignored() -> None:
    (other,) = recorded_with(InlinePools(), problem=64)
    builder = InlinePools()
    (found,) = recorded_with(builder, other)
    assert builder.built == len(found.points)
    assert not {p.schedule for p in found.points} & {p.schedule for p in other.points}


def test_partial_pool_is_available_while_it_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "OUTPUT_SECONDS", 0.0)
    *parts, last = recorded_with(InlinePools(), count=20)
    sizes = [len(part.points) for part in parts]
    assert sizes == sorted(sizes)
    assert sizes[0] < len(last.points)
    assert last.whole
    assert not any(part.whole for part in parts)


def test_given_points_are_timed_again_and_no_others() -> None:
    (there,) = recorded_with(InlinePools())
    given = evaluation_points(there, seed=0)
    bench = FakeBench(lambda kernel: 2 * by_threads(kernel))
    executor = SearchExecutor(Database(None), InlinePools, lambda: bench)
    version = {"commit": "abc", "lowering": "def"}
    recorder = PoolRecorder(executor, Settings(), 60, given=lambda problem: given, version=version)
    (here,) = recorder.run([problem_of(32)])
    times = {p.schedule: p.seconds for p in there.points if p.seconds is not None}
    assert {p.schedule: p.seconds for p in here.points} == {
        text: pytest.approx(2 * seconds, rel=1e-5) for text, seconds in times.items()
    }
    assert (here.whole, here.version) == (True, version)


def test_recording_returns_the_points_for_evaluation() -> None:
    (there,) = recorded_with(InlinePools())
    many = evolve(there, points=tuple(evolve(there.points[0], schedule=str(k), seconds=1.0 + k) for k in range(900)))
    given = evaluation_points(many, seed=0)
    assert len({p.schedule for p in given.points}) == len(given.points) == MAX_POINTS
    assert given.points[0].schedule == "0"
    assert {str(k) for k in range(NUM_FASTEST)} <= {p.schedule for p in given.points}
    assert all(p.seconds is None and not p.outcome for p in given.points)
    assert [p.schedule for p in given.points] == [p.schedule for p in evaluation_points(many, seed=0).points]


def test_records_of_another_version_are_not_continued() -> None:
    (whole,) = recorded_with(InlinePools())
    builder = InlinePools()
    (found,) = recorded_with(builder, evolve(whole, version={"lowering": "another"}))
    assert builder.built == len(found.points)


def test_too_long_candidate_is_reported_and_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    (usual,) = recorded_with(InlinePools())
    monkeypatch.setattr(recording, "OUTPUT_SECONDS", inf)
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
