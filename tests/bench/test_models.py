"""Results of whole models: what is documented is what was measured, and nothing that was measured is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnx")

from cuts.bench.models import WRONG, inference, markdown, measure, row_line  # onnx is optional
from cuts.bench.records import RESULTS, Row, read_rows
from cuts.tests.models import REAL

ROWS = read_rows(RESULTS / "models.json")


def test_every_model_was_measured_and_is_right() -> None:
    measured = {row["name"] for row in ROWS if (row["suite"], row["class"]) == ("models", "opencl")}
    assert measured == set(REAL)
    assert all(row["error"] <= WRONG for row in ROWS)


def test_the_documented_tables_are_those_of_the_results() -> None:
    assert markdown(ROWS) in Path(__file__).parents[2].joinpath("docs/models.md").read_text(encoding="utf-8")


def test_a_row_says_what_was_measured_or_why_nothing_was() -> None:
    row: Row = {"suite": "models", "class": "reference", "name": "gru"}
    measured = measure(row, lambda: inference(REAL["gru"], "reference"))
    assert measured["error"] <= WRONG
    assert "ok" in row_line(measured)
    assert row_line(row | {"failure": "no device"}) == "gru             failed: no device"
    assert markdown([row | {"failure": "no device"}]) == ""
