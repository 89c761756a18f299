"""Choice of the spaces to record, and their division among devices."""

from __future__ import annotations

from argparse import Namespace

from attrs import evolve
from cuts.bench.tools.record_spaces import BEGINNING, left_of, part_of, wants
from cuts.search.learned.recorded_spaces import RecordedPoint, RecordedSpace

from ..search.fakes import problem_of

PROBLEM = problem_of(16)
OPTIONS = Namespace(points=20, points_of=None, version={"commit": "b", "lowering": "same"})


def space_of(timed: int, whole: bool = True) -> RecordedSpace:
    """Return a recorded space with `points` successes and one failure."""
    points = [RecordedPoint(str(k), 0, (k,), "ok", 1e-6) for k in range(timed)] + [RecordedPoint("-", 0, (99,), "long")]
    version = {"commit": "a", "lowering": "same"}
    return RecordedSpace(PROBLEM.label, PROBLEM.key, PROBLEM.work, {}, {}, tuple(points), whole, version)


def test_recording_continues_until_there_are_enough_points() -> None:
    assert not wants(space_of(20), PROBLEM, OPTIONS)
    assert wants(space_of(19), PROBLEM, OPTIONS)
    assert wants(space_of(20, whole=False), PROBLEM, OPTIONS)
    assert wants(None, PROBLEM, OPTIONS)


def test_what_other_kernels_or_another_machine_recorded() -> None:
    assert wants(evolve(space_of(20), version={"lowering": "other"}), PROBLEM, OPTIONS)
    assert not wants(evolve(space_of(5), key="of another machine"), PROBLEM, OPTIONS)
    assert wants(evolve(space_of(5, whole=False), key="of another machine"), PROBLEM, OPTIONS)


def test_given_points_are_never_more() -> None:
    options = Namespace(**{**vars(OPTIONS), "points_of": "there"})
    assert not wants(space_of(5), PROBLEM, options)
    assert wants(space_of(5, whole=False), PROBLEM, options)


def test_remaining_work_counts_the_beginning_of_a_space() -> None:
    assert left_of(space_of(20), OPTIONS) == 0
    assert left_of(space_of(15), OPTIONS) == BEGINNING + 5
    assert left_of(evolve(space_of(15), version={}), OPTIONS) == BEGINNING + 20


def test_devices_share_out_what_is_left() -> None:
    problems = [evolve(PROBLEM, label=str(k)) for k in range(8)]
    left = {"0": 0, "1": 10, "2": 10, "3": 10, "4": 10}  # of the others all
    parts = [part_of(problems, f"{k}/3", left, 100) for k in range(3)]
    assert sorted(p.label for part in parts for p in part) == [p.label for p in problems]
    work = [sum(left.get(p.label, 100) for p in part) for part in parts]
    assert max(work) - min(work) <= 10
    assert [part[0].label for part in parts] == ["5", "6", "7"], "what takes longest comes first"
    assert part_of(problems, "0/1", {}, 100) == problems
