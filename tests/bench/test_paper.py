"""Tables of the documents: registry, files of rows, command."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import pytest
from cuts.bench.paper import DOCUMENTS, PaperTable, TableRequest, read_table, registry, row_of, tables_of
from cuts.bench.paper.claim import rank_correlation, regret_of_top
from cuts.bench.paper.registry import find_table, make_rows
from cuts.bench.tools.records import FIELDS, RESULTS, Row, is_stale, read_rows, write_rows
from cuts.ir import UsageError

ROOT = Path(__file__).parents[2]
TABLES = [(document, table) for document in DOCUMENTS for table in tables_of(document).values()]


@pytest.mark.parametrize(("document", "table"), TABLES, ids=lambda value: getattr(value, "number", value))
def test_rows_of_a_table_are_stamped(document: str, table: PaperTable) -> None:
    rows = read_table(document, table)
    assert table.make is not None or table.command
    for row in rows:
        assert set(FIELDS) <= set(row)
        assert row["commit"], row["name"]
        assert row["date"], row["name"]
    if table.make is not None:
        assert [row["name"] for row in rows if row["name"] not in table.names()] == []
        assert all(row["sources"] for row in rows)
    assert not rows or "|" in table.text(rows)


def test_parts_are_whole_or_explained() -> None:
    for line in tomllib.loads((ROOT / "bench/paper/coverage.toml").read_text(encoding="utf-8"))["line"]:
        assert line["state"] in ("whole", "explained"), line
        assert line["state"] == "whole" or line["note"], line
        if found := re.fullmatch(r"python -m cuts.bench paper (\S+) --table (\S+)", line["command"]):
            find_table(*found.groups())
        else:
            assert line["command"].startswith(("cuts ", "python -m pytest tests/")), line


def test_unknown_tables_are_named() -> None:
    with pytest.raises(UsageError, match="unknown document 'deepcut'"):
        tables_of("deepcut")
    with pytest.raises(UsageError, match="has no table '99'"):
        find_table("deepcuts", "99")


@pytest.mark.parametrize(
    ("document", "number", "own"),
    [("latency", "figure-4", "figure-1"), ("woodpecker", "figure-3a", "1"), ("bigcuts", "5.3", "5.3")],
)
def test_figures_of_the_same_rows_are_found(document: str, number: str, own: str) -> None:
    table = find_table(document, number)
    assert table.number == own
    assert table.path(document).exists()


def test_measured_steps_are_marked() -> None:
    step = {**FIELDS, "model": "ResNet-50", "task": "training", "batch": 64, "ms": 45.0}
    rows = [{**step, "system": "cuts untuned", "hundred_s": 4.51}, {**step, "system": "PyTorch"}]
    assert "| ResNet-50 | 64 | 4.51 * | 4.50 |" in find_table("deepcuts", "7.1").text(rows)


def test_a_call_makes_the_missing_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "RESULTS", tmp_path)

    def make(request: TableRequest) -> Iterator[Row]:
        yield from (row_of("1", name, "", {"value": 2}, "abc") for name in request.names)

    table = PaperTable("1", "a title", lambda rows: "|", names=lambda: ("a", "b", "c"), make=make)
    stale = row_of("1", "b", "", {"value": 1}, "abc") | {"stale": True}
    write_rows(table.path("deepcuts"), [row_of("1", "c", "", {"value": 1}, "abc"), stale])
    assert [row["name"] for row in make_rows("deepcuts", table, TableRequest())] == ["a", "b"]
    assert [(row["name"], row["value"]) for row in read_table("deepcuts", table)] == [("a", 2), ("b", 2), ("c", 1)]
    with pytest.raises(UsageError, match="has no row 'd'"):
        [*make_rows("deepcuts", table, TableRequest(names=("d",)))]


def test_the_documents_state_the_claims_means() -> None:
    rows = read_table("deepcuts", find_table("deepcuts", "claim"))
    text = " ".join((ROOT / "docs" / "schedule_space.md").read_text(encoding="utf-8").split())
    models = ("pul", "pul-printed", "bound", "cost model")
    means = [f"{geometric_mean(row['regret'][m][0] for row in rows):.2f}" for m in models]
    ranks = [f"{sum(row['spearman'][m] for row in rows) / len(rows):.2f}" for m in models]
    kept = [sum(row["whole"][m]["has_best"] for row in rows) for m in models[:2]]
    assert f"Of {len(rows)} recorded spaces" in text
    assert (
        "takes {} times as long as the best point with corrections, {} times as printed, {} times".format(*means)
        in text
    )
    assert f"and {means[3]} times by the cost model" in text
    assert "{}, {}, {} and {}".format(*ranks) in text
    assert f"by PUL in {kept[0]}, and in {kept[1]} as printed" in text


def test_the_documents_state_the_whole_spaces() -> None:
    rows = read_table("deepcuts", find_table("deepcuts", "whole"))
    text = " ".join((ROOT / "docs" / "schedule_space.md").read_text(encoding="utf-8").split())
    models = ("pul", "pul-printed", "bound", "cost model")
    means = [f"{geometric_mean(row['regret'][m][0] for row in rows):.2f}" for m in models]
    ranks = [f"{sum(row['spearman'][m] for row in rows) / len(rows):.2f}" for m in models]
    assert "{}, {}, {} and {} times, with rank correlations of {}, {}, {} and {}".format(*means, *ranks) in text


def test_fusion_states_the_gap_of_greedy_partitions() -> None:
    ratios = [ratio for row in read_table("deepcuts", find_table("deepcuts", "gap")) for ratio in row["ratios"]]
    text = " ".join((ROOT / "docs" / "fusion.md").read_text(encoding="utf-8").split())
    optimal, worst = sum(ratio <= 1.0 + 1e-4 for ratio in ratios), f"{100 * max(ratios) - 100:.1f} %"
    assert f"Of {len(ratios)} subgraphs of real models the greedy path is optimal for {optimal}" in text
    assert f"and at most {worst} slower" in text


def test_fusion_states_the_routines_of_tuned_plans() -> None:
    rows = [r for r in read_rows(RESULTS / "evaluation.json") if r["system"] == "cuts mixed" and not is_stale(r)]
    routines = [sum(row["libraries"].values()) for row in rows if row.get("libraries")]
    text = " ".join((ROOT / "docs" / "fusion.md").read_text(encoding="utf-8").split())
    counts = f"{len(routines)} of {len(rows)} tuned plans of the evaluation have routines"
    assert f"{counts}, in {sum(routines)} launches" in text


def test_the_models_order_a_recording_as_its_row() -> None:
    """The models still order a recorded space as the row says."""
    name = "memory-layer-norm-384x768"
    table = find_table("deepcuts", "claim")
    assert table.make is not None
    (made,) = table.make(TableRequest(names=(name,)))
    row = next(row for row in read_table("deepcuts", table) if row["name"] == name)
    assert made["points"] == row["points"]
    assert made["spearman"] == pytest.approx(row["spearman"], abs=0.02)  # the cost model's constants may have changed
    for model, regrets in row["regret"].items():
        assert made["regret"][model] == pytest.approx(regrets, rel=0.05), model


def test_regret_of_equal_scores_is_an_expectation() -> None:
    seconds = np.asarray([1.0, 2.0, 3.0, 4.0])
    assert regret_of_top(np.asarray([0.0, 1.0, 2.0, 3.0]), seconds, 25.0) == 1.0
    assert regret_of_top(np.zeros(4), seconds, 25.0) == pytest.approx(2.5)
    assert regret_of_top(np.asarray([0.0, 1.0, 1.0, 1.0]), seconds[::-1], 50.0) == pytest.approx((3 + 2 + 1) / 3)
    assert rank_correlation(seconds, seconds**2) == pytest.approx(1.0)
