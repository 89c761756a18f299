"""Accuracy of the whole models, from the file of `tests/latency/report.py`.

Fitting them is too slow for every commit.
"""

from __future__ import annotations

import json

import pytest
from cuts.latency.dataset import GAP_NETWORKS

from .report import RESULTS

VALUES = json.loads(RESULTS.read_text(encoding="utf-8"))
BASELINES = (
    "linear in operations",
    "FastDeepIoT: tree of linear models",
    "gradient-boosted trees",
    "linear regression per kernel",
)


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_held_out_layers_are_predicted_beyond_baselines(precision: str) -> None:
    rows = VALUES[precision]["layers"]
    assert rows["all"]["within"] >= 0.91
    assert rows["all"]["inside"] >= 0.9
    assert all(rows[name]["within"] <= rows["all"]["within"] - 0.3 for name in BASELINES)
    assert rows["without waves"]["within"] < rows["all"]["within"]


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize("batch", [1, 16])
def test_eight_of_ten_networks_are_within_a_tenth(precision: str, batch: int) -> None:
    rows = {n: row for n, row in VALUES[precision][f"networks, batch {batch}"].items() if n not in GAP_NETWORKS}
    assert len(rows) == 10
    assert sum(abs(row["off"]) <= 0.1 for row in rows.values()) >= 8
