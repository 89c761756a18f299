"""Points that several processes time, each with data of its own."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from cuts.bench.audit import audit_cases, problems_of
from cuts.bench.placements import PARTS, TURNS, built, main, parts, points_of, timed
from cuts.bench.records import read_rows
from cuts.ir import Schedule
from cuts.ir.text import parse_ir
from cuts.passes.schedule import check_schedule
from cuts.search.measure import PLACES
from cuts.search.problem import schedule_text
from cuts.search.proof import simple_schedule
from cuts.tests.needs import needs_opencl

from ..search.fakes import OPENCL

#: A point of an H200.
ELSEWHERE = """var i0 < 512, i1 < 512, r0 < 512

schedule {
  spread warp (8, 4) zigzag {
    tile (i0) block 32 thread 4 vector 4
    tile (i1) block 64 thread 4 vector 4
    chunks {
      chunk (r0) by 64
      stage 0 pad 4
      stage 1 pad 4
    }
  }
}
"""


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
    assert all(each.shape == (TURNS, PLACES) and each.min() > 0.0 for each in samples.values())


@needs_opencl
def test_a_point_of_another_machine_is_timed_only_where_this_one_can_run_it() -> None:
    """One whose warps have 32 lanes overwrote memory where they have eight."""
    cases = [case for case in audit_cases() if case.name == "square 512"]
    (problem,) = problems_of(cases, OPENCL)
    schedule = parse_ir(ELSEWHERE)
    assert isinstance(schedule, Schedule) and check_schedule(problem.form, schedule, OPENCL)
    found = points_of(problem, [ELSEWHERE], 2)
    assert len(found) == 2
    assert all(not check_schedule(problem.form, schedule, OPENCL) for schedule in found)


def test_what_a_time_depends_on_is_told_apart() -> None:
    drawn = np.random.default_rng(5)
    process, place, own = (
        drawn.normal(0.0, deviation, shape)
        for deviation, shape in ((0.03, (40, 1, 1)), (0.02, (40, 1, 12)), (0.01, (40, 6, 12)))
    )
    scatter = drawn.normal(0.0, 0.004, (40, 6, 10, 12))
    found = parts(4e-6 * np.exp((process + place + own)[:, :, None] + scatter))
    wanted = (0.03, 0.02, 0.01, 0.01 / 12**0.5, 1.05 * 0.004 / 10**0.5)
    assert list(found) == list(PARTS)
    for deviation, expected in zip(found.values(), wanted, strict=True):
        assert expected / 1.3 < deviation < 1.3 * expected


def test_rows_are_made_of_kept_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that take a multiple of 160 ns, which a median cannot average."""
    drawn = np.random.default_rng(2)
    ns = 160 * np.floor(np.linspace(3400, 3800, 12).reshape(3, 4, 1, 1) / 160 + drawn.random((3, 4, 50, 6))).astype(int)
    runs, out = tmp_path / "runs.json.gz", tmp_path / "rows.json"
    found = {"circumstances": {"gpu": "made up"}, "operations": [
        {"operation": "relu", "schedules": ["a", "b", "c", "d"], "ns": ns.tolist()}]}  # fmt: skip
    runs.write_bytes(gzip.compress(json.dumps(found).encode()))
    monkeypatch.setattr("sys.argv", ["placements", "--table", "--runs", str(runs), "--out", str(out)])
    main()
    (row,) = read_rows(out)
    assert (row["gpu"], row["processes"], row["points"], row["turns"], row["places"]) == ("made up", 3, 4, 50, 6)
    assert row["trimmed mean of 18"] < 0.7 * row["median of 18"]
    assert row["trimmed mean of 18"] < row["trimmed mean of 6"]
