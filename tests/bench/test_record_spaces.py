"""Choice of the spaces to record."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from cuts.bench.tools.record_spaces import file_of, missing
from cuts.search.learned.recorded_spaces import RecordedPoint, RecordedSpace, write_spaces

from ..search.fakes import OPENCL, problem_of

PROBLEM = problem_of(16)


def space_of(label: str, whole: bool) -> RecordedSpace:
    """Return a recorded space with one point."""
    points = (RecordedPoint("-", 0, (0,), "ok", 1e-6),)
    return RecordedSpace(label, PROBLEM.key, PROBLEM.work, {}, {}, points, whole)


def test_call_leaves_out_the_spaces_that_are_whole(tmp_path: Path) -> None:
    options = Namespace(out=tmp_path, only=["softmax", "square"], whole=False)
    every = [problem.label for problem in missing(OPENCL, options)]
    assert sorted(every) == ["gemm square 512", "memory softmax 512x1024"]
    for label, whole in zip(every, (True, False), strict=True):
        write_spaces(file_of(tmp_path, label), [space_of(label, whole)])
    assert [problem.label for problem in missing(OPENCL, options)] == every[1:]
