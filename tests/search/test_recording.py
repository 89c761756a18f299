"""Recording pools of points: what is whole, what is gone on with, and what is too long to be compiled."""

from __future__ import annotations

import pytest
from attrs import evolve
from cuts.backends.source import unrolled_statements
from cuts.search.build import Done
from cuts.search.database import Database
from cuts.search.learned import recording
from cuts.search.learned.rank_points import FASTEST, MOST
from cuts.search.learned.recorded import RecordedSpace
from cuts.search.learned.recording import LONG, PoolRecorder, again, built_short, evaluated, pool
from cuts.search.resources import Resources
from cuts.search.settings import Settings

from .fakes import FakeBench, Inline, by_threads, problem_of


class InlinePools(Inline):
    """A builder that makes pools itself, and does not compile what is too long."""

    def collect(self, timeout: float) -> list[Done]:
        mine = {"pool": pool, "build": built_short, "again": again}
        job = min(self.queue, key=lambda j: j.priority, default=None)
        if job is None or job.method not in mine:
            return super().collect(timeout)
        self.queue.remove(job)
        self.built += job.method == "build"
        return [Done(job, mine[job.method](*job.arguments))]  # type: ignore[operator]


def recorded_with(
    builder: InlinePools, earlier: RecordedSpace | None = None, count: int = 60, problem: int = 32
) -> list[RecordedSpace]:
    bench = FakeBench(by_threads)
    resources = Resources(Database(None), lambda: builder, lambda: bench)
    return list(PoolRecorder(resources, Settings(), count, lambda problem: earlier).run([problem_of(problem)]))


def test_what_was_recorded_earlier_is_kept_and_not_built_again() -> None:
    (whole,) = recorded_with(InlinePools())
    assert whole.whole
    half = evolve(whole, points=whole.points[:30], whole=False)
    builder = InlinePools()
    (found,) = recorded_with(builder, half)
    assert {p.schedule: p.seconds for p in found.points} == {p.schedule: p.seconds for p in whole.points}
    assert builder.built == len(whole.points) - 30 + 1, "the first is timed again, as the others are held against it"


def test_what_was_recorded_of_another_problem_or_machine_is_not_taken() -> None:
    (other,) = recorded_with(InlinePools(), problem=64)
    builder = InlinePools()
    (found,) = recorded_with(builder, other)
    assert builder.built == len(found.points)
    assert not {p.schedule for p in found.points} & {p.schedule for p in other.points}


def test_what_there_is_of_a_pool_is_handed_out_while_it_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "EACH", 0.0)
    *parts, last = recorded_with(InlinePools(), count=20)
    sizes = [len(part.points) for part in parts]
    assert sizes == sorted(sizes)
    assert sizes[0] < len(last.points)
    assert last.whole
    assert not any(part.whole for part in parts)


def test_given_points_are_timed_again_and_no_others() -> None:
    (there,) = recorded_with(InlinePools())
    given = evaluated(there, seed=0)
    bench = FakeBench(lambda kernel: 2 * by_threads(kernel))
    resources = Resources(Database(None), InlinePools, lambda: bench)
    version = {"commit": "abc", "lowering": "def"}
    recorder = PoolRecorder(resources, Settings(), 60, given=lambda problem: given, version=version)
    (here,) = recorder.run([problem_of(32)])
    times = {p.schedule: p.seconds for p in there.points if p.seconds is not None}
    assert {p.schedule: p.seconds for p in here.points} == {text: 2 * seconds for text, seconds in times.items()}
    assert (here.whole, here.version) == (True, version)


def test_of_a_recording_the_points_are_given_that_an_order_is_judged_by() -> None:
    (there,) = recorded_with(InlinePools())
    many = evolve(there, points=tuple(evolve(there.points[0], schedule=str(k), seconds=1.0 + k) for k in range(900)))
    given = evaluated(many, seed=0)
    assert len({p.schedule for p in given.points}) == len(given.points) == MOST
    assert given.points[0].schedule == "0"
    assert {str(k) for k in range(FASTEST)} <= {p.schedule for p in given.points}
    assert all(p.seconds is None and not p.outcome for p in given.points)
    assert [p.schedule for p in given.points] == [p.schedule for p in evaluated(many, seed=0).points]


def test_what_another_version_recorded_is_not_gone_on_with() -> None:
    (whole,) = recorded_with(InlinePools())
    builder = InlinePools()
    (found,) = recorded_with(builder, evolve(whole, version={"lowering": "another"}))
    assert builder.built == len(found.points)


def test_what_is_too_long_is_not_compiled_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    (usual,) = recorded_with(InlinePools())
    monkeypatch.setattr(recording, "MOST", 16)
    (found,) = recorded_with(InlinePools())
    outcomes = {p.schedule: p.outcome for p in found.points}
    assert outcomes.keys() == {p.schedule for p in usual.points}
    assert set(outcomes.values()) == {"ok", LONG}
    assert all(p.seconds is None for p in found.points if p.outcome == LONG)


def test_statements_are_counted_as_often_as_their_unrolled_loops_repeat_them() -> None:
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
