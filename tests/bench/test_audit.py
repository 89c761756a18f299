"""Cases, rows and summary table of the benchmark's audit."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuts.backends.devices import find_target
from cuts.bench.operators.cases import listed_cases
from cuts.bench.operators.shapes import Case
from cuts.bench.operators.tuning import task_of
from cuts.bench.tools.audit import (
    POINTS,
    arguments,
    row_of,
    select,
    table,
)
from cuts.bench.tools.records import Row, circumstances, key_of, read_rows, write_rows
from cuts.ir import BOUND_PRUNING
from cuts.passes.schedule.selection.choose import choose
from cuts.passes.schedule.space import make_space
from cuts.search.analysis.audit import Audit, TimedCandidate
from cuts.search.settings import TunedChoice
from cuts.search.tasks.sample_points import draw
from cuts.search.tasks.tuning_task import TuningTask

H200 = find_target("cuda:h200")
CASES = listed_cases("audit")


def tasks(cases: list[Case]) -> list[TuningTask]:
    return [task_of(case, H200) for case in cases]


def row(number: int = 0, lost: int = 0, missed: int = 0) -> Row:
    problem = task_of(CASES[number], H200)
    (candidate,) = choose(problem.form, H200)
    fastest = TimedCandidate("schedule", 9e-6 if lost + missed else 1e-5, 9e-6, 5e-6, "dram")
    audit = Audit(
        problem.label,
        problem.key,
        900,
        800,
        True,
        799,
        True,
        1e-5,
        0.03,
        400,
        lost,
        missed,
        lost,
        0.4,
        0.8,
        fastest,
        3,
        fastest,
    )
    return row_of(audit, CASES[number], TunedChoice(candidate, 1e-5, trials=30), circumstances("a GPU", "abc"))


def test_cases_are_single_kernels_of_every_kind() -> None:
    assert len({case.key for case in CASES}) == len(CASES) >= 24
    assert len({problem.key for problem in tasks(CASES)}) == len(CASES)
    assert {"conv", "depthwise", "gemm", "gemv", "memory"} == {case.kind for case in CASES}


def test_several_spaces_can_be_timed_whole() -> None:
    legal = [draw(problem, BOUND_PRUNING, 1, 0) for problem in tasks(CASES[:9])]
    assert sum(drawn.exact and drawn.legal <= POINTS for drawn in legal) >= 6


def test_cases_that_have_a_row_are_skipped(tmp_path: Path) -> None:
    write_rows(tmp_path / "audit.json", [row(0)])
    rows = read_rows(tmp_path / "audit.json")
    assert [key_of(r) for r in rows] == [CASES[0].key]
    assert select(arguments([]), rows) == CASES[1:]
    assert select(arguments(["--again"]), rows) == CASES
    assert {case.kind for case in select(arguments(["--only", "depthwise", "--only", "gemv"]), rows)} == {
        "depthwise",
        "gemv",
    }


@pytest.mark.parametrize("precision", ["bf16", "fp32x3", "tf32"])
def test_products_in_a_precision_are_spaces_with_atoms(precision: str) -> None:
    cases = select(arguments(["--precision", precision, "--only", "gemm", "--only", "conv "]), [row(0)])
    spaces = [make_space(problem.form, H200) for problem in tasks(cases)]
    assert len(spaces) >= 9
    assert all(any(s.segments[0].mma for s in space.templates) for space in spaces)
    assert all(case.key.endswith(f"/{precision}") for case in cases)


def test_the_table_adds_up_losses_and_misses() -> None:
    text = table([row(0), row(1, lost=2), row(2, missed=5)])
    assert "3 spaces, 3 of them timed whole, 2397 points; lost by proof: 2; faster than their bound: 2;" in text
    assert text.endswith("worst: 0.900.")
    assert table([]) == "no space was audited"
