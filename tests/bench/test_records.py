"""Files, repeated measurements and tables of the benchmark's rows."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from cuts.bench.__main__ import COMMANDS
from cuts.bench.operators import ops
from cuts.bench.operators.cases import CLASSES, all_cases
from cuts.bench.operators.shapes import CONVOLUTIONS, convolutions
from cuts.bench.tools.goals import GOALS, figure, row_line, summary
from cuts.bench.tools.records import (
    FIELDS,
    RESULTS,
    Row,
    as_row,
    circumstances,
    exit_code,
    is_stale,
    key_of,
    mark_stale,
    merge_row,
    read_rows,
    write_rows,
)
from cuts.ir.errors import BackendError


def row(
    kind: str = "conv", name: str = "c", batch: int = 1, cuts: float | None = 1.0, peer: float = 2.0, **more: object
) -> Row:
    facts = {"suite": "ops", "class": kind, "name": name, "batch": batch, "precision": "fp32", "cuts_ms": cuts,
             "peers": {"torch": peer}, "bound_ms": 0.5, "flops": 1e9, "bytes": 1 << 20,
             "copy_bandwidth": 4e12}  # fmt: skip
    return facts | circumstances("a GPU", "abc") | more


def test_a_row_has_every_field() -> None:
    assert set(FIELDS) <= set(as_row(row()))


def test_rows_come_back_from_their_file(tmp_path: Path) -> None:
    rows = [row(), row(batch=16)]
    write_rows(tmp_path / "new" / "ops.json", rows)
    assert read_rows(tmp_path / "new" / "ops.json") == [as_row(each) for each in rows]
    assert read_rows(tmp_path / "none.json") == []


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda p: p.stem)
def test_files_have_rows_in_one_schema(path: Path) -> None:
    if path.stem in ("fuzz", "sweep", "planted", "latency", "cluster"):
        return  # no timing rows
    rows = read_rows(path)
    assert rows
    for each in rows:
        assert set(FIELDS) <= set(each)
        assert all(each[name] for name in ("suite", "class", "name"))
        assert each["cuts_ms"] is not None or each["peers"]
        assert as_row(each) == each


def test_rows_of_other_kernel_sources_are_stale() -> None:
    other, peers = row(sources="other"), row(cuts=None, sources="other")
    found = mark_stale([as_row(each) for each in (row(), other, peers)])
    assert [is_stale(each) for each in found] == [False, True, False]


def test_every_command_has_a_main_function() -> None:
    for name, (module, purpose) in COMMANDS.items():
        text = (RESULTS.parent / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        assert "\ndef main(" in text, name
        assert purpose


def test_a_new_row_replaces_the_old_one() -> None:
    rows = merge_row([row(cuts=1.0), row(batch=16)], row(cuts=0.5))
    assert [(r["batch"], r["cuts_ms"]) for r in rows] == [(16, 1.0), (1, 0.5)]


def test_the_figure_divides_best_peer_by_ours() -> None:
    assert figure(
        row(cuts=2.0, peer=3.0) | {"peers": {"torch": 3.0, "cudnn": 2.5, "compile": None}}, "speed"
    ) == pytest.approx(1.25)
    assert figure(row(cuts=None), "speed") is None
    assert figure(row(bytes=4e9, cuts=1.25), "share") == pytest.approx(0.8)


def test_the_table_says_what_reaches_its_target() -> None:
    rows = [
        row(name="fast", cuts=0.5),
        row(name="slow", cuts=1.0, peer=0.5),
        row(name="lost", cuts=None, failure="no kernel"),
    ]
    rows += [row("gemm", "square", 1, 1.0, 1.2, flops=2 * 4096**3)]
    lines = summary(rows).splitlines()
    (convolutions_line,) = [line for line in lines if line.startswith("| convolutions b1 ")]
    assert "| 1.414 too low |" in convolutions_line  # the geometric mean of 4 and 0.5 misses 2.2
    assert "slow b1 0.50" in convolutions_line
    assert "| 1.200 |" in next(line for line in lines if line.startswith("| GEMM >="))
    assert lines[-1] == "no result: lost b1: no kernel"


def test_a_goal_compares_rows_of_two_classes() -> None:
    rows = [
        row("attention forward", "full", cuts=1.5, precision="bf16"),
        row("attention fp8", "full", cuts=1.0, precision="bf16"),
    ]
    (line,) = [line for line in summary(rows).splitlines() if line.startswith("| fp8 over bf16 ")]
    assert "| 1.500 below the aim |" in line


def test_one_slow_row_misses_a_goal() -> None:
    rows = [row("order", "sort", cuts=0.5, peer=2.0), row("order", "top 8", cuts=1.0, peer=0.8)]
    (line,) = [line for line in summary(rows).splitlines() if line.startswith("| orders ")]
    assert "| 1.789 too low | 1.2 (0.9) |" in line


def test_every_class_has_a_goal() -> None:
    table = RESULTS.parent / "vocabulary" / "routines.toml"
    families = tomllib.loads(table.read_text(encoding="utf-8"))
    assert {goal.kind for goal in GOALS} == {*CLASSES, *families}
    assert row_line(row(cuts=None)).count("failed") == 1


# ---- contents of a measurement


def test_rows_that_have_results_are_not_measured_again() -> None:
    options = ops.arguments(["--class", "conv", "--batch", "1", "--only", "resnet50"])
    every = ops.select(options, [])
    assert len(every) == 23
    first, second = every[:2]
    known = [row("conv", first.name, 1), row("conv", second.name, 1, cuts=None)]
    assert [c.key for c in ops.select(options, known)] == [c.key for c in every if c is not first]


def test_cases_are_tuned_together_by_class_and_batch() -> None:
    cases = all_cases()
    found = list(ops.parts(cases, 24))
    assert sorted(c.key for part in found for c in part) == sorted(c.key for c in cases)
    assert all(len({(c.kind, c.batch) for c in part}) == 1 and len(part) <= 24 for part in found)


def test_classes_and_batch_sizes_alternate_in_joint_tuning() -> None:
    cases = ops.select(ops.arguments(["--class", "dgrad", "--class", "wgrad", "--every", "20"]), [])
    (part,) = ops.parts(cases, 48, mixed=True)
    assert sorted(c.key for c in part) == sorted(c.key for c in cases)
    assert [(c.kind, c.batch) for c in part[:4]] == [("dgrad", 16), ("wgrad", 16), ("dgrad", 64), ("wgrad", 64)]


def test_keys_identify_cases() -> None:
    cases = all_cases()
    assert len({c.key for c in cases}) == len(cases)
    assert all(c.key == key_of(row(c.kind, c.name, c.batch)) for c in cases)


@pytest.mark.parametrize(
    ("network", "distinct", "count", "billions"),
    [
        ("resnet50", 23, 53, 4.09),
        ("inception_v3", 43, 94, 5.71),
        ("densenet121", 66, 120, 2.83),
        ("mobilenet_v2", 30, 52, 0.299),
    ],
)
def test_the_lists_add_up_to_the_published_networks(network: str, distinct: int, count: int, billions: float) -> None:
    found = convolutions(network)
    assert len(found) == distinct
    assert sum(found.values()) == count
    assert sum(shape.multiplications * n for shape, n in found.items()) / 1e9 == pytest.approx(billions, rel=2e-3)
    assert set(CONVOLUTIONS) >= {network}


def test_an_error_of_a_script_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise BackendError("no GPU", hint="borrow one")

    assert exit_code(fails) == BackendError.exit_code
    assert capsys.readouterr().err == "error: no GPU; borrow one\n"
    assert exit_code(lambda: None) == 0
    assert exit_code(lambda: 1) == 1
