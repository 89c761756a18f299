"""Points that several processes time, each with data of its own."""

from __future__ import annotations

from cuts.bench.audit import audit_cases, problems_of
from cuts.bench.placements import built, points_of, timed
from cuts.search.problem import schedule_text
from cuts.search.proof import simple_schedule
from cuts.tests.needs import needs_opencl

from ..search.fakes import OPENCL


@needs_opencl
def test_known_points_come_first_and_each_that_is_right_is_timed() -> None:
    cases = [case for case in audit_cases() if case.name == "softmax 16x64"]
    problems = problems_of(cases, OPENCL)
    known = simple_schedule(problems[0].form, OPENCL)
    assert known is not None
    schedules = points_of(problems[0], [schedule_text(known)], 2)
    assert schedules[0] == known
    assert len(set(map(schedule_text, schedules))) == 2
    points = built({(0, place): (problems[0], schedule) for place, schedule in enumerate(schedules)})
    samples = timed(problems, points)
    assert samples.keys() == points.keys() == {(0, 0), (0, 1)}
    assert all(len(each) > 1 and min(each) > 0.0 for each in samples.values())
